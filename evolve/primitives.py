"""The typed primitive set, generated from the signal and operator tables.

A type is a class: one for each unit, one for instants, truth values, what stands beside the
order (the considered set, or who is pushed out) and the whole order. A slot takes its own type or
a subclass, which gives two things for free: a key may be any number or an instant, and a slot that
may hold a literal `0` (whose unit is its sibling's) is a superclass of the unit. The meaning of a
primitive is the piece of syntax that it writes, so every tree of the set is a policy that type-checks.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

from deap import gp

from tanren_dsl.ops import OPS, Op
from tanren_dsl.printer import print_number
from tanren_dsl.signals import REPLAY, Kind, signals_of
from tanren_dsl.syntax import (
    Call,
    Candidates,
    Decl,
    Expr,
    IfElse,
    Infix,
    Knob,
    Name,
    Num,
    OrderBy,
    PreemptBy,
    Prefix,
)
from tanren_dsl.units import PLAIN, TIME, TOKENS, Instant, Number, Type, Unit, parse_unit

Slot: TypeAlias = type[Any]
Node: TypeAlias = Any  # gp.Primitive or gp.Terminal


_UNITS = (PLAIN.unit, TIME.unit, TOKENS.unit, TIME.unit * TOKENS.unit)
"""Units of the set, beside those of knobs; no operator leaves them."""


_LIKING = {"object": 1.0, "decision": 0.25}
"""How likely a signal is taken: one of a decision alone tells no object from another."""
_FOLD = 0.3
_STILL = 0.05
"""Likings of an aggregate, and the factor of a signal that hardly varies."""


class Key:
    """Slot of a key: any number, or a bare instant."""


class Point(Key):
    """An instant."""


class Truth:
    """A truth value."""


class Beside:
    """What stands beside the order: the considered set, or by what the running are pushed out."""


class Order:
    """A whole policy: the root of every tree."""


NO_PREEMPT = "own_preemption"
"""Name of the terminal that leaves to the engine who is pushed out."""


class Constant(gp.Terminal):  # type: ignore[misc]
    """A plain literal, never negative."""

    __slots__ = ()


@dataclass(frozen=True, eq=False)
class Primitives:
    """The set, with what DEAP's own class has no room for.

    Attributes:
        kind, mode: of the policies; signals that the mode lacks are not in the set.
        pset: DEAP's typed set; its context maps a name to syntax or to a writer of syntax.
        number: the slot of each unit.
        or_zero: for each unit but plain, the slot that also takes a literal 0.
        writes: by operator name, its primitives, one a typing.
        weight: by name, how likely the generator takes it among its rivals.
        knobs: the problem's knobs, by name.
    """

    kind: Kind
    mode: str
    pset: Any
    number: dict[Unit, Slot]
    or_zero: dict[Unit, Slot]
    knobs: dict[str, Knob]
    writes: dict[str, list[Node]] = field(default_factory=dict)
    weight: dict[str, float] = field(default_factory=dict)

    @property
    def plain(self) -> Slot:
        """The slot of a plain number."""
        return self.number[Unit()]

    def constant(self, value: float) -> Constant:
        """A literal of the plain type."""
        return Constant(value, False, self.plain)

    def terminal(self, name: str) -> Node | None:
        """The signal, knob or aggregate with this text, if the set has it."""
        found = self.pset.mapping.get(name)
        return found if isinstance(found, gp.Terminal) else None

    def writer(self, op: str, types: Sequence[Slot]) -> Node | None:
        """The primitive of an operator that takes arguments of these types."""
        for node in self.writes.get(op, ()):
            if len(node.args) == len(types) and all(map(issubclass, types, node.args)):
                return node
        return None


def build_primitives(
    knobs: Iterable[Knob] = (), candidates: Sequence[float | None] = (10.0, None), *,
    kind: Kind = "evict", mode: str = REPLAY, still: Container[str] = (),
) -> Primitives:  # fmt: skip
    """The set for policies of a kind in a mode.

    Args:
        knobs: operator settings that become terminals; their units join the set's.
        candidates: considered sets to choose from, in percent (None: all); for evict policies.
        kind: `evict` or `schedule`.
        mode: who must provide the signals, `replay` or `engine`.
        still: signals of an object that hardly vary in what is searched on; seldom chosen.

    >>> primitives = build_primitives()
    >>> sorted(node.name for node in primitives.pset.terminals[Point])
    ['created', 'last_use', 'now']
    """
    declared = {knob.name: knob for knob in knobs}
    units = dict.fromkeys(_UNITS)
    if kind == "schedule" or mode != REPLAY:
        rows = [row for row in signals_of(kind).values() if mode in row.provided_by]
        units.update({row.type.unit: None for row in rows if isinstance(row.type, Number)})
        units[TIME.unit / TOKENS.unit] = None  # how long for how much: ratios of response
    units.update({unit: None for knob in declared.values() if (unit := parse_unit(knob.unit)) is not None})
    number: dict[Unit, Slot] = {}
    or_zero: dict[Unit, Slot] = {}
    for unit in units:
        bases: tuple[Slot, ...] = (Key,)
        if not unit.is_plain:
            or_zero[unit] = type(f"OrZero_{unit}", (), {})
            bases = (Key, or_zero[unit])
        number[unit] = type(f"Number_{unit}", bases, {})
    pset = gp.PrimitiveSetTyped("policy", [], Order)
    pset.context.clear()  # of what DEAP needs to evaluate texts, which is never done: names are all free
    made = Primitives(kind, mode, pset, number, or_zero, declared)
    _add_terminals(made, still)
    _add_beside(made, candidates)
    _add_orders(made)
    for op in OPS:
        for number_of, (args, ret) in enumerate(_typings(op, made)):
            _add(made, f"{op.name}#{number_of}", _writer(op), args, ret, op.name, _liking(op, ret))
    return made


def _add_terminals(made: Primitives, still: Container[str]) -> None:
    rows = [row for row in signals_of(made.kind).values() if made.mode in row.provided_by]
    for row in rows:
        slot = _slot_of(made, row.type)
        if slot is not None:
            liking = _LIKING[row.scope] * (_STILL if row.name in still else 1.0)
            _add_terminal(made, row.name, Name(row.name), slot, liking)
    folds = [op for op in OPS if op.form == "aggregate"]
    numbers = [row for row in rows if row.scope == "object" and isinstance(row.type, Number)]
    for row, op in product(numbers, folds):
        slot = _slot_of(made, row.type)
        if slot is not None:
            text = f"{op.text}({row.name})"
            liking = _FOLD / op.cost * (_STILL if row.name in still else 1.0)
            _add_terminal(made, text, Call(op.text, (Name(row.name),)), slot, liking)
    for knob in made.knobs.values():
        slot = made.number[parse_unit(knob.unit) or Unit()]
        _add_terminal(made, knob.name, Name(knob.name), slot, 1.0)
    for unit, slot in made.or_zero.items():
        _add_terminal(made, f"zero#{unit}", Num(0.0), slot, 1.0)


def _add_beside(made: Primitives, candidates: Sequence[float | None]) -> None:
    if made.kind == "evict":
        for percent in dict.fromkeys(candidates):
            _add_terminal(made, considered_name(percent), (Candidates(percent),), Beside, 1.0)
    else:
        _add_terminal(made, NO_PREEMPT, (), Beside, 1.0)
        _add(made, "preempt#1", _preempt, (Key,), Beside, "preempt", 1.0)


def _add_orders(made: Primitives) -> None:
    for count in (1, 2, 3):
        _add(made, f"order#{count}", _order, (Beside, *[Key] * count), Order, "order", 1.0 / count)


def considered_name(percent: float | None) -> str:
    """Name of the terminal of a considered set.

    >>> considered_name(10.0), considered_name(None)
    ('10%', 'all')
    """
    return "all" if percent is None else f"{print_number(percent)}%"


def _preempt(key: Expr) -> tuple[Decl, ...]:
    return (PreemptBy((key,)),)


def _order(beside: tuple[Decl, ...], *keys: Expr) -> tuple[Decl, ...]:
    return (OrderBy(keys), *beside)


def _typings(op: Op, made: Primitives) -> Iterator[tuple[tuple[Slot, ...], Slot]]:
    """Argument slots and result of every typing whose units the set has."""
    for unit, slot in made.number.items():
        joined = made.or_zero.get(unit, slot)
        match op.rule:
            case "same" if op.name == "clip":
                yield (slot, joined, slot), slot
            case "same" | "subtract":
                yield (slot, slot), slot
            case "instant-same":
                yield (slot, joined), slot
            case "compare":
                yield (slot, joined), Truth
            case "choose":
                yield (Truth, slot, joined), slot
            case "keep":
                yield (slot,), slot
            case "plain" if unit.is_plain:
                yield (slot,), slot
            case "root":
                half = unit.halved()
                if half in made.number:
                    yield (slot,), made.number[half]
            case "power":
                result = unit ** int(op.name[-1])
                if result in made.number:
                    yield (slot,), made.number[result]
            case "multiply" | "divide":
                for other, right in made.number.items():
                    result = unit * other if op.rule == "multiply" else unit / other
                    if result in made.number:
                        yield (slot, right), made.number[result]
            case _:
                pass
    match op.rule:
        case "subtract":
            yield (Point, Point), made.number[TIME.unit]
        case "instant-same":
            yield (Point, Point), Point
        case "compare":
            yield (Point, Point), Truth
        case "choose":
            yield (Truth, Point, Point), Point
        case "logic":
            yield (Truth,) * op.arity, Truth
        case _:
            pass


def _writer(op: Op) -> Callable[..., Expr]:
    """How an operator is written over the texts of its arguments."""

    def write(*args: Expr) -> Expr:
        match op.form:
            case "infix":
                return Infix(op.text, args[0], args[1])
            case "prefix":
                return Prefix(op.text, args[0])
            case "power":
                return Infix("**", args[0], Num(float(op.name[-1])))
            case "choice":
                return IfElse(args[1], args[0], args[2])
            case _:
                first = args[0]
                if op.max_args is None and isinstance(first, Call) and first.func == op.text:
                    return Call(op.text, (*first.args, *args[1:]))
                return Call(op.text, args)

    return write


def _liking(op: Op, ret: Slot) -> float:
    if op.name in ("eq", "ne") or (ret is Point and op.form != "choice"):
        return 0.1
    if op.rule in ("multiply", "divide"):
        return 2.0
    return 1.0 / max(1.0, op.cost)


def _slot_of(made: Primitives, type_: Type) -> Slot | None:
    match type_:
        case Number(unit):
            return made.number.get(unit)
        case Instant():
            return Point
        case _:
            return Truth


def _add(
    made: Primitives, name: str, write: Callable[..., Any], args: Sequence[Slot], ret: Slot, op: str,
    weight: float,
) -> None:  # fmt: skip
    made.pset.addPrimitive(write, list(args), ret, name=name)
    made.writes.setdefault(op, []).append(made.pset.mapping[name])
    made.weight[name] = weight


def _add_terminal(
    made: Primitives, name: str, syntax: Expr | tuple[Decl, ...], slot: Slot, weight: float
) -> None:
    made.pset.addTerminal(syntax, slot, name=name)
    made.weight[name] = weight
