"""The canonical form of a policy as text, and typed orderings as readable expressions.

Printing and parsing again gives an equal tree; printing twice gives the same text.
Comments are kept: on their own line above the declaration they precede, at the end of
the line they follow, and those inside an expression above its declaration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from tanren_dsl.ir import Apply, Const, Fold, KnobRef, Node, Ordering, ParamRef, SignalRef
from tanren_dsl.ops import OP_BY_NAME
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
from tanren_dsl.units import BOOL

WIDTH = 100
"""Lines of keys longer than this are broken, one key a line."""
MAX_TERMS = 400
"""Nodes after which `print_ordering` writes `...` (shared nodes count each time)."""
MAX_LEVELS = 100
"""Depth after which `print_ordering` writes `...`."""


def print_policy(policy: PolicyText) -> str:
    """The canonical text of a policy, comments included, with a final newline.

    >>> from tanren_dsl.parser import parse
    >>> from tanren_dsl.source import Source
    >>> print(print_policy(parse(Source("<doc>", "policy p:evict order by(age)*1.0"))), end="")
    policy p : evict
    <BLANKLINE>
    order by age * 1
    """
    above, behind = _placed_comments(policy)
    lines = list(above[0])
    lines.extend(_with_comment(_header(policy), behind.get(0)))
    group = ""
    for number, decl in enumerate(policy.decls, 1):
        if _group(decl) != group:
            lines.append("")
            group = _group(decl)
        lines.extend(above[number])
        lines.extend(_with_comment(_declaration(decl), behind.get(number)))
    lines.extend(above[-1])
    return "\n".join(lines) + "\n"


def print_expr(expr: Expr) -> str:
    """An expression with the fewest parentheses that keep its tree.

    >>> print_expr(Infix("*", Infix("+", Name("a"), Num(1.0)), Prefix("-", Name("b"))))
    '(a + 1) * -b'
    """
    return _text(expr)[0]


def print_number(value: float) -> str:
    """The shortest text that reads back as the same double; whole numbers without a point.

    >>> print_number(2048.0), print_number(0.1), print_number(1e300)
    ('2048', '0.1', '1e+300')
    """
    if value.is_integer() and abs(value) < 1e15:
        return f"{value:.0f}"
    return repr(value)


def print_ordering(ordering: Ordering) -> list[str]:
    """Each key as the text of an expression; large ones are cut with `...`."""
    exprs: list[tuple[Expr, int, int]] = []
    for node in ordering.nodes:
        exprs.append(_expression(node, exprs))
    return [print_expr(exprs[key][0]) for key in ordering.keys]


def _placed_comments(policy: PolicyText) -> tuple[list[list[str]], dict[int, str]]:
    """Comments above header (0), declarations (1...) and the end (-1); and those behind."""
    parts = [policy.span, *(decl.span for decl in policy.decls)]
    above: list[list[str]] = [[] for _ in range(len(parts) + 1)]
    behind: dict[int, str] = {}
    for comment in policy.comments:
        at = comment.span.start
        number = next((i for i, span in enumerate(parts) if at < span.end), len(parts))
        is_between = number == len(parts) or at < parts[number].start
        if is_between and not comment.own_line and number > 0:
            behind[number - 1] = comment.text
        else:
            above[number].append(comment.text)
    return above, behind


def _with_comment(text: str, comment: str | None) -> list[str]:
    return text.split("\n") if comment is None else f"{text}  {comment}".split("\n")


def _header(policy: PolicyText) -> str:
    header = f"policy {policy.name} : {policy.kind}"
    return header if policy.doc is None else f'{header}\n"{policy.doc}"'


def _group(decl: Decl) -> str:
    match decl:
        case Knob() | Param():
            return "settings"
        case Let():
            return "values"
        case OrderBy() | PreemptBy() | Candidates():
            return "rules"
        case _:
            assert_never(decl)


def _declaration(decl: Decl) -> str:
    match decl:
        case Let(name, value):
            return f"let {name} = {print_expr(value)}"
        case Param(name, number, low, high, log):
            text = f"param {name} = {print_number(number)} in [{print_number(low)}, {print_number(high)}]"
            return f"{text} log" if log else text
        case Knob(name, unit, number):
            return f"knob {name} : {unit} = {print_number(number)}"
        case OrderBy(keys):
            return _keys("order by", keys)
        case PreemptBy(keys):
            return _keys("preempt by", keys)
        case Candidates(percent):
            return "candidates all" if percent is None else f"candidates {print_number(percent)}%"
        case _:
            assert_never(decl)


def _keys(words: str, keys: Sequence[Expr]) -> str:
    texts = [print_expr(key) for key in keys]
    line = f"{words} {', '.join(texts)}"
    if len(line) <= WIDTH or len(texts) == 1:
        return line
    return f"{words}\n    " + ",\n    ".join(texts)


_CHOICE, _NOT, _COMPARE, _SUM, _NEG, _ATOM = 0, 3, 4, 5, 7, 9
_LEVELS = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6, "**": 8}


def _text(expr: Expr) -> tuple[str, int]:
    """Text and how tightly it binds; left operands in a loop, since chains may be long."""
    match expr:
        case Num(value):
            return print_number(value), _ATOM
        case Name(name):
            return name, _ATOM
        case Prefix("not", operand):
            return f"not {_at_least(operand, _NOT)}", _NOT
        case Prefix(op, operand):
            return f"{op}{_at_least(operand, _NEG)}", _NEG
        case IfElse(then, test, orelse):
            text = f"{_at_least(then, 1)} if {_at_least(test, 1)} else {_at_least(orelse, _CHOICE)}"
            return text, _CHOICE
        case Call(func, args):
            return f"{func}({', '.join(_text(arg)[0] for arg in args)})", _ATOM
        case Infix():
            return _infix(expr)
        case _:
            assert_never(expr)


def _infix(expr: Infix) -> tuple[str, int]:
    spine: list[Infix] = []
    left: Expr = expr
    while isinstance(left, Infix):
        spine.append(left)
        left = left.left
    text, level = _text(left)
    for node in reversed(spine):
        here = _LEVELS.get(node.op, _COMPARE)
        needs_left = {_COMPARE: _SUM, _LEVELS["**"]: _ATOM}.get(here, here)
        if level < needs_left:
            text = f"({text})"
        text, level = f"{text} {node.op} {_at_least(node.right, here + 1)}", here
    return text, level


def _at_least(expr: Expr, level: int) -> str:
    text, own = _text(expr)
    return text if own >= level else f"({text})"


def _expression(node: Node, done: Sequence[tuple[Expr, int, int]]) -> tuple[Expr, int, int]:
    """A node as an expression, with its size and depth; past the limits a name `...`."""
    match node:
        case Const(value, type_):
            return _constant(value, type_ == BOOL), 1, 1
        case ParamRef(name) | KnobRef(name) | SignalRef(name):
            return Name(name), 1, 1
        case Fold(op, arg):
            parts = [done[arg]]
        case Apply(op, args):
            parts = [done[arg] for arg in args]
        case _:
            assert_never(node)
    size = 1 + sum(part[1] for part in parts)
    depth = 1 + max(part[2] for part in parts)
    if size > MAX_TERMS or depth > MAX_LEVELS:
        return Name("..."), 1, 1
    return _operation(op, [part[0] for part in parts]), size, depth


def _constant(value: float, is_truth: bool) -> Expr:
    if is_truth:
        return Infix("<", Num(0.0), Num(1.0)) if value else Infix("<", Num(1.0), Num(0.0))
    if value < 0 or str(value) == "-0.0":
        return Prefix("-", Num(-value))
    return Num(value)


def _operation(op: str, args: Sequence[Expr]) -> Expr:
    row = OP_BY_NAME[op]
    match row.form:
        case "infix":
            return Infix(row.text, args[0], args[1])
        case "prefix":
            return Prefix(row.text, args[0])
        case "power":
            return Infix("**", args[0], Num(2.0 if op == "pow2" else 3.0))
        case "choice":
            return IfElse(args[1], args[0], args[2])
        case "call" | "aggregate":
            first = args[0]
            if row.max_args is None and isinstance(first, Call) and first.func == row.text:
                return Call(row.text, (*first.args, *args[1:]))
            return Call(row.text, tuple(args))
        case _:
            assert_never(row.form)
