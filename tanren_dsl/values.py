"""What the checker knows about an expression, and how its messages speak of it.

The hints give a scale-free form of what was written, built as a tree and printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tanren_dsl.ir import Stage
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_expr
from tanren_dsl.signals import Kind, signals_of
from tanren_dsl.source import Source
from tanren_dsl.syntax import Call, Expr, IfElse, Infix, Name, Num, OrderBy, Prefix
from tanren_dsl.units import REQUESTS, TIME, TOKENS, Instant, Number, Type, Unit

LONGEST = 60
"""Longest expression quoted in full in a message."""


@dataclass(frozen=True, slots=True)
class Value:
    """A well-typed expression.

    Attributes:
        expr: as written.
        index: its node in the builder.
        folds: whether an aggregate is in it, through names too.
        is_zero: whether it is the literal 0, which takes its sibling's unit.
    """

    expr: Expr
    index: int
    type: Type
    stage: Stage
    folds: bool = False
    is_zero: bool = False

    def renamed(self, name: Name) -> Value:
        """The same value under a name; a named 0 is no literal."""
        return replace(self, expr=name, is_zero=False)


def quoted(expr: Expr) -> str:
    """The expression in backquotes, cut when long."""
    text = print_expr(expr)
    return f"`{text}`" if len(text) <= LONGEST else f"`{text[: LONGEST - 3]}...`"


def is_plain(type_: Type) -> bool:
    """Whether the type is a number without a unit."""
    return isinstance(type_, Number) and type_.unit.is_plain


def relative(value: Value, kind: Kind) -> Expr | None:
    """A dimensionless form of a value with a unit, or None when there is no obvious one."""
    expr = value.expr
    if not isinstance(value.type, Number) or value.type.unit.is_plain:
        return expr
    rows = signals_of(kind)
    if isinstance(expr, Name) and expr.id in rows and rows[expr.id].relative:
        return _parsed(rows[expr.id].relative)
    if value.stage == Stage.OBJECT and not value.folds:
        return Infix("/", expr, Call("mean", (expr,)))
    for name in names_in(expr):
        row = rows.get(name.id)
        if row is not None and row.scope == "object" and row.type == value.type:
            mean = Call("mean", (Name(name.id),))
            if mean != expr:
                return Infix("/", expr, mean)
    yardstick = {TIME: "mean_gap", TOKENS: "capacity", REQUESTS: "max_running"}.get(value.type)
    return None if yardstick is None else Infix("/", expr, Name(yardstick))


def relative_hint(whole: Expr, parts: Sequence[Value], kind: Kind) -> str:
    """How to write an expression whose parts have unequal units without any unit."""
    numbers = [part for part in parts if isinstance(part.type, Number)]
    units = [part for part in numbers if not is_plain(part.type)]
    if isinstance(whole, Infix) and whole.op in _COMPARISONS and len(units) == 1:
        scaled = _scaled_comparison(whole, units[0], parts)
        if scaled is not None:
            return f"write it relative: {print_expr(scaled)}"
    forms = {id(part.expr): relative(part, kind) for part in units}
    if any(form is None for form in forms.values()):
        return _knob_hint(next(part for part in units if forms[id(part.expr)] is None))
    text = print_expr(_substituted(whole, forms))
    if len(text) > 2 * LONGEST:
        return "divide each part that has a unit by its mean"
    if len(units) > 1:
        return f"divide each by its mean: {text}"
    return f"write it relative: {text}"


def elapsed_hint(expr: Expr, kind: Kind) -> str:
    """How to turn an instant into a time."""
    if isinstance(expr, Name) and expr.id == "now":
        expr = Name("last_use" if kind == "evict" else "arrival")
    return f"write a time: {print_expr(Infix('-', Name('now'), expr))}"


def instant_in(values: Sequence[Value]) -> Value:
    """The first value that is an instant."""
    return next(value for value in values if isinstance(value.type, Instant))


def names_in(expr: Expr) -> Iterator[Name]:
    """Every name read in an expression, from left to right, without recursion."""
    stack: list[Expr] = [expr]
    while stack:
        node = stack.pop()
        match node:
            case Name():
                yield node
            case Num():
                pass
            case Prefix(_, operand):
                stack.append(operand)
            case Infix(_, left, right):
                stack += [right, left]
            case IfElse(then, test, orelse):
                stack += [orelse, test, then]
            case Call(_, args):
                stack += reversed(args)


_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})


def _scaled_comparison(whole: Infix, unit: Value, parts: Sequence[Value]) -> Expr | None:
    """`wait > 5` as `wait > 5 * mean(wait)`."""
    if unit.stage < Stage.OBJECT or unit.folds:
        return None
    plain = next(part for part in parts if part is not unit)
    if not isinstance(plain.type, Number):
        return None
    scaled = Infix("*", plain.expr, Call("mean", (unit.expr,)))
    if unit is parts[0]:
        return Infix(whole.op, unit.expr, scaled)
    return Infix(whole.op, scaled, unit.expr)


def _substituted(whole: Expr, forms: dict[int, Expr | None]) -> Expr:
    def form(expr: Expr) -> Expr:
        return forms.get(id(expr)) or expr

    match whole:
        case Infix(op, left, right):
            return Infix(op, form(left), form(right))
        case IfElse(then, test, orelse):
            return IfElse(form(then), test, form(orelse))
        case Call(func, args):
            return Call(func, tuple(form(arg) for arg in args))
        case Prefix(op, operand):
            return Prefix(op, form(operand))
        case _:
            return form(whole)


def _knob_hint(value: Value) -> str:
    unit = value.type.unit if isinstance(value.type, Number) else Unit()
    return f"divide {quoted(value.expr)} by another value in {unit}, or compare it with a `knob` in {unit}"


@cache
def _parsed(text: str) -> Expr:
    decl = parse(Source("<table>", f"policy p : evict order by {text}")).decls[0]
    assert isinstance(decl, OrderBy)
    return decl.keys[0]
