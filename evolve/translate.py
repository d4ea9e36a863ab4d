"""Between trees and policy text: every tree has a text, and many texts have a tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tanren_dsl.evolve.generator import Tree
from tanren_dsl.evolve.primitives import NO_PREEMPT, Beside, Constant, Node, Primitives, Slot, considered_name
from tanren_dsl.ops import CALLS, INFIX, Op
from tanren_dsl.printer import print_expr
from tanren_dsl.syntax import (
    Call,
    Candidates,
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
from tanren_dsl.units import parse_unit

_MIRRORED = {
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "eq": "eq",
    "ne": "ne",
    "min": "min",
    "max": "max",
}
_DEFAULT_PERCENT = 10.0


def to_syntax(tree: Tree, primitives: Primitives, name: str, doc: str | None = None) -> PolicyText:
    """The policy of a tree; the knobs that it reads are declared unchanged."""
    used = {node.name for node in tree}
    knobs = tuple(knob for knob in primitives.knobs.values() if knob.name in used)
    return PolicyText(name, primitives.kind, doc, (*knobs, *_written(tree, primitives)))


def from_policy(policy: PolicyText, primitives: Primitives) -> Tree | None:
    """The tree of a policy, or None where the set cannot express it.

    Values named by `let` are put in place, params and plain knobs by their number; a knob of
    the problem with the same name and unit stands for the policy's own, at the problem's
    setting. An order of arguments may be mirrored, which changes no decision.
    """
    if policy.kind != primitives.kind:
        return None
    try:
        return _Reader(policy, primitives).tree()
    except _InexpressibleError:
        return None


class _InexpressibleError(Exception):
    """A part of the text has no counterpart in the set."""


def _written(tree: Tree, primitives: Primitives) -> Any:
    """Syntax of a tree, bottom up: nodes in prefix order, read from the back."""
    done: list[Any] = []
    for node in reversed(tree):
        if isinstance(node, Constant):
            done.append(Num(float(node.value)))
            continue
        meaning = primitives.pset.context[node.name]
        done.append(meaning(*[done.pop() for _ in range(node.arity)]) if node.arity else meaning)
    return done.pop()


@dataclass(frozen=True, slots=True)
class _Part:
    """Nodes in prefix order and the type of the whole."""

    nodes: list[Node]
    type: Slot

    @property
    def is_zero(self) -> bool:
        return len(self.nodes) == 1 and isinstance(self.nodes[0], Constant) and not self.nodes[0].value


class _Reader:
    def __init__(self, policy: PolicyText, primitives: Primitives) -> None:
        self._made = primitives
        self._policy = policy
        self._lets: Mapping[str, Expr] = {d.name: d.value for d in policy.decls if isinstance(d, Let)}
        self._settings = {d.name: d for d in policy.decls if isinstance(d, Param | Knob)}

    def tree(self) -> Tree:
        """The whole policy."""
        keys: tuple[Expr, ...] = ()
        pushed: tuple[Expr, ...] = ()
        percent: float | None = _DEFAULT_PERCENT
        for decl in self._policy.decls:
            match decl:
                case OrderBy():
                    keys = decl.keys
                case PreemptBy():
                    pushed = decl.keys
                case Candidates():
                    percent = decl.percent
                case _:
                    pass
        beside = self._beside(pushed, percent)
        return Tree(self._joined("order", [beside, *(self._part(key) for key in keys)]).nodes)

    def _beside(self, pushed: tuple[Expr, ...], percent: float | None) -> _Part:
        """The considered set of an evict policy, or what pushes out the running in a schedule policy."""
        if pushed:
            return self._joined("preempt", [self._part(key) for key in pushed])
        evicts = self._policy.kind == "evict"
        node = self._made.terminal(considered_name(percent) if evicts else NO_PREEMPT)
        if node is None or node.ret is not Beside:
            raise _InexpressibleError
        return _Part([node], Beside)

    def _part(self, expr: Expr) -> _Part:
        match expr:
            case Num(value):
                return _Part([self._made.constant(value)], self._made.plain)
            case Name(name):
                return self._named(name)
            case Prefix(op, operand):
                return self._joined("not" if op == "not" else "neg", [self._part(operand)])
            case IfElse(then, test, orelse):
                return self._choice(self._part(test), self._part(then), self._part(orelse))
            case Infix("**", left, Num(power)):
                return self._joined(f"pow{power:.0f}", [self._part(left)])
            case Infix(op, left, right):
                return self._pair(INFIX[op].name, self._part(left), self._part(right))
            case Call(func, args):
                return self._call(CALLS[func], args)
            case _:
                raise _InexpressibleError

    def _named(self, name: str) -> _Part:
        if name in self._lets:
            return self._part(self._lets[name])
        setting = self._settings.get(name)
        if isinstance(setting, Knob):
            unit, own = parse_unit(setting.unit), self._made.knobs.get(name)
            if own is None or parse_unit(own.unit) != unit:
                if unit is None or not unit.is_plain:
                    raise _InexpressibleError
                return self._signed(setting.value)
        elif setting is not None:
            return self._signed(setting.value)
        return self._leaf(name)

    def _leaf(self, text: str) -> _Part:
        node = self._made.terminal(text)
        if node is None:
            raise _InexpressibleError
        return _Part([node], node.ret)

    def _signed(self, value: float) -> _Part:
        part = _Part([self._made.constant(abs(value))], self._made.plain)
        return self._joined("neg", [part]) if value < 0 else part

    def _call(self, op: Op, args: tuple[Expr, ...]) -> _Part:
        if op.form == "aggregate":
            value = args[0]
            while isinstance(value, Name) and value.id in self._lets:
                value = self._lets[value.id]
            return self._leaf(print_expr(Call(op.text, (value,))))
        parts = [self._part(arg) for arg in args]
        if op.max_args is not None:
            return self._joined(op.name, parts)
        whole = parts[0]
        for part in parts[1:]:
            whole = self._pair(op.name, whole, part)
        return whole

    def _pair(self, op: str, left: _Part, right: _Part) -> _Part:
        if left.is_zero and right.type is not self._made.plain:
            if op == "sub":
                return self._joined("neg", [right])
            if op in _MIRRORED:
                return self._joined(_MIRRORED[op], [right, left])
        return self._joined(op, [left, right])

    def _choice(self, test: _Part, then: _Part, orelse: _Part) -> _Part:
        if then.is_zero and orelse.type is not self._made.plain:
            return self._joined("choose", [self._joined("not", [test]), orelse, then])
        return self._joined("choose", [test, then, orelse])

    def _joined(self, op: str, parts: list[_Part]) -> _Part:
        """The operator over these parts; a literal 0 beside a unit is given that unit."""
        node = self._made.writer(op, [part.type for part in parts])
        if node is None and any(part.is_zero for part in parts):
            parts = self._with_zeros(parts)
            node = self._made.writer(op, [part.type for part in parts])
        if node is None:
            raise _InexpressibleError
        return _Part([node, *(inner for part in parts for inner in part.nodes)], node.ret)

    def _with_zeros(self, parts: list[_Part]) -> list[_Part]:
        for unit, slot in self._made.number.items():
            if unit in self._made.or_zero and any(part.type is slot for part in parts):
                zero = self._leaf(f"zero#{unit}")
                return [zero if part.is_zero else part for part in parts]
        return parts
