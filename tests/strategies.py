"""Random well-typed policies, as text and checked; shared by the tests of every layer.

`policies()` draws from all operators, lets, params, knobs, one to three keys and the
considered set. What it draws always checks: a failure to check is a bug.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tanren_dsl.check import loads
from tanren_dsl.ir import Policy
from tanren_dsl.printer import print_policy
from tanren_dsl.signals import Kind, Signal, signals_of
from tanren_dsl.syntax import (
    Call,
    Candidates,
    Decl,
    Expr,
    IfElse,
    Infix,
    Knob,
    Let,
    Name,
    Num,
    OrderBy,
    Param,
    PolicyText,
    PreemptBy,
    Prefix,
)
from tanren_dsl.units import BOOL, INSTANT, PLAIN, REQUESTS, TIME, TOKENS, Number, Type

AGGREGATES = ("mean", "median", "p90", "lowest", "highest")
UNITS = (PLAIN, TIME, TOKENS, REQUESTS)
UNIT_TEXTS = {PLAIN: "1", TIME: "time", TOKENS: "tokens", REQUESTS: "requests"}

Draw = Callable[[st.SearchStrategy], object]


@dataclass(frozen=True)
class Example:
    """A policy as text and as checked."""

    text: str
    policy: Policy


@dataclass
class _Names:
    """What may be named so far: per type, names without and with an aggregate in them."""

    kind: Kind
    rows: list[Signal]
    plain: dict[Type, list[str]] = field(default_factory=dict)
    folding: dict[Type, list[str]] = field(default_factory=dict)

    def of(self, type_: Type, may_fold: bool) -> list[Expr]:
        names = [row.name for row in self.rows if row.type == type_] + self.plain.get(type_, [])
        if may_fold:
            names += self.folding.get(type_, [])
        return [Name(name) for name in names]

    def units(self, may_fold: bool) -> list[Number]:
        return [unit for unit in UNITS if unit == PLAIN or self.of(unit, may_fold)]

    def objects(self, type_: Type) -> list[Expr]:
        return [Name(row.name) for row in self.rows if row.type == type_ and row.scope == "object"]


@st.composite
def policies(draw: Draw, kind: Kind = "evict", provided_by: str | None = None, depth: int = 4) -> Example:
    """Random policies of a kind that check; `provided_by` keeps to the signals of a target or mode."""
    text = print_policy(draw(policy_texts(kind, provided_by, depth)))
    return Example(text, loads(text))


@st.composite
def policy_texts(
    draw: Draw, kind: Kind = "evict", provided_by: str | None = None, depth: int = 4
) -> PolicyText:
    """The same as untyped trees."""
    rows = [row for row in signals_of(kind).values() if provided_by is None or provided_by in row.provided_by]
    names = _Names(kind, rows)
    decls: list[Decl] = []
    for number in range(draw(st.integers(0, 2))):
        decls.append(_param(draw, f"p{number}"))
        names.plain.setdefault(PLAIN, []).append(f"p{number}")
    for number in range(draw(st.integers(0, 2))):
        type_ = draw(st.sampled_from(UNITS))
        value = draw(st.sampled_from([0.0, 1.0, 2048.0, 0.25, -3.0]))
        decls.append(Knob(f"k{number}", UNIT_TEXTS[type_], value))
        names.plain.setdefault(type_, []).append(f"k{number}")
    for number in range(draw(st.integers(0, 3))):
        may_fold = draw(st.booleans())
        type_ = draw(st.sampled_from([*names.units(may_fold), BOOL, INSTANT]))
        decls.append(Let(f"v{number}", _expr(draw, names, type_, depth - 1, may_fold)))
        (names.folding if may_fold else names.plain).setdefault(type_, []).append(f"v{number}")
    decls.append(OrderBy(_keys(draw, names, depth)))
    if kind == "schedule" and draw(st.booleans()):
        decls.append(PreemptBy(_keys(draw, names, depth)))
    if kind == "evict" and draw(st.booleans()):
        decls.append(Candidates(draw(st.sampled_from([None, 1.0, 10.0, 12.5, 100.0]))))
    doc = draw(st.sampled_from([None, "", "Drawn at random: # no comment."]))
    return PolicyText("drawn", kind, doc, tuple(decls))


def literals() -> st.SearchStrategy[float]:
    """Numbers that a text can hold: finite, not negative."""
    usual = st.sampled_from([0.0, 1.0, 2.0, 3.0, 0.5, 10.0, 0.1, 1e-3, 1e6])
    return usual | st.floats(0.0, allow_infinity=False, allow_nan=False)


def _param(draw: Draw, name: str) -> Param:
    low, value, high = sorted(draw(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3, unique=True)))
    return Param(name, value, low, high, draw(st.booleans()) and low > 0)


def _keys(draw: Draw, names: _Names, depth: int) -> tuple[Expr, ...]:
    types = [draw(st.sampled_from([*names.units(True), INSTANT])) for _ in range(draw(st.integers(1, 3)))]
    return tuple(_expr(draw, names, type_, depth, True) for type_ in types)


def _expr(draw: Draw, names: _Names, type_: Type, depth: int, may_fold: bool) -> Expr:
    if type_ == BOOL:
        return _truth(draw, names, depth, may_fold)
    if type_ == INSTANT:
        return _instant(draw, names, depth, may_fold)
    return _number(draw, names, type_, depth, may_fold)


def _leaf(draw: Draw, names: _Names, type_: Type, may_fold: bool) -> Expr:
    choices = names.of(type_, may_fold)
    if type_ == PLAIN and (not choices or draw(st.booleans())):
        return Num(draw(literals()))
    if choices:
        return draw(st.sampled_from(choices))
    raise AssertionError(f"nothing has the unit {type_}")


def _number(draw: Draw, names: _Names, type_: Type, depth: int, may_fold: bool) -> Expr:
    if depth <= 0:
        return _leaf(draw, names, type_, may_fold)

    def same() -> Expr:
        return _number(draw, names, type_, depth - 1, may_fold)

    def plain() -> Expr:
        return _number(draw, names, PLAIN, depth - 1, may_fold)

    def truth() -> Expr:
        return _truth(draw, names, depth - 1, may_fold)

    def sibling() -> Expr:
        return Num(0.0) if draw(st.integers(0, 4)) == 0 else same()

    def any_unit() -> Type:
        return draw(st.sampled_from(names.units(may_fold)))

    forms = ["leaf", "leaf", "sum", "scaled", "divided", "minmax", "clip", "choice", "sign", "abs", "root"]
    if may_fold and names.objects(type_):
        forms += ["fold", "fold"]
    if type_ == TIME:
        forms += ["elapsed", "elapsed"]
    if type_ == PLAIN:
        forms += ["ratio", "ratio", "log1p", "exp", "floor", "power"]
    match draw(st.sampled_from(forms)):
        case "sum":
            left, right = same(), sibling()
            if draw(st.booleans()):
                left, right = right, left
            if left == Num(0.0) and right == Num(0.0) and type_ != PLAIN:
                right = _leaf(draw, names, type_, may_fold)
            return Infix(draw(st.sampled_from("+-")), left, right)
        case "scaled":
            pair = (plain(), same()) if draw(st.booleans()) else (same(), plain())
            return Infix("*", *pair)
        case "divided":
            return Infix("/", same(), plain())
        case "minmax":
            args = [same(), sibling(), *([sibling()] if draw(st.booleans()) else [])]
            return Call(draw(st.sampled_from(["min", "max"])), tuple(args))
        case "clip":
            return Call("clip", (same(), sibling(), sibling()))
        case "choice":
            return IfElse(same(), truth(), sibling())
        case "sign":
            return Prefix("-", same())
        case "abs":
            return Call("abs", (same(),))
        case "root":
            return Call("sqrt", (Infix("**", same(), Num(2.0)),))
        case "fold":
            return _fold(draw, names, type_, depth)
        case "elapsed":
            return Infix("-", _instant(draw, names, depth - 1, may_fold), _instant(draw, names, 0, may_fold))
        case "ratio":
            unit = any_unit()
            over = _number(draw, names, unit, depth - 1, may_fold)
            return Infix("/", over, _number(draw, names, unit, depth - 1, may_fold))
        case "log1p" | "exp" | "floor" as func:
            return Call(func, (plain(),))
        case "power":
            return Infix("**", plain(), Num(draw(st.sampled_from([2.0, 3.0]))))
        case _:
            return _leaf(draw, names, type_, may_fold)


def _fold(draw: Draw, names: _Names, type_: Type, depth: int) -> Expr:
    arg: Expr = draw(st.sampled_from(names.objects(type_)))
    if draw(st.booleans()):
        arg = Infix(draw(st.sampled_from("+-")), arg, _number(draw, names, type_, depth - 2, False))
    return Call(draw(st.sampled_from(AGGREGATES)), (arg,))


def _truth(draw: Draw, names: _Names, depth: int, may_fold: bool) -> Expr:
    leaves = names.of(BOOL, may_fold)
    form = draw(st.sampled_from(["compare", "compare", "instants", "and", "or", "not", "leaf"]))
    if form == "leaf" and leaves:
        return draw(st.sampled_from(leaves))
    op = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
    if form == "instants":
        return Infix(op, _instant(draw, names, 0, may_fold), _instant(draw, names, depth - 1, may_fold))
    if depth > 0 and form in ("and", "or"):
        parts = [_truth(draw, names, depth - 1, may_fold) for _ in range(2)]
        return Infix(form, *parts)
    if depth > 0 and form == "not":
        return Prefix("not", _truth(draw, names, depth - 1, may_fold))
    type_ = draw(st.sampled_from(names.units(may_fold)))
    left = _number(draw, names, type_, depth - 1, may_fold)
    right = Num(0.0) if draw(st.booleans()) else _number(draw, names, type_, depth - 1, may_fold)
    return Infix(op, left, right)


def _instant(draw: Draw, names: _Names, depth: int, may_fold: bool) -> Expr:
    leaf = draw(st.sampled_from(names.of(INSTANT, may_fold)))
    form = draw(st.sampled_from(["leaf", "leaf", "minmax", "choice"])) if depth > 0 else "leaf"
    if form == "minmax":
        other = _instant(draw, names, depth - 1, may_fold)
        return Call(draw(st.sampled_from(["min", "max"])), (leaf, other))
    if form == "choice":
        test = _truth(draw, names, depth - 1, may_fold)
        return IfElse(leaf, test, _instant(draw, names, depth - 1, may_fold))
    return leaf
