"""The helpers that an emitted function calls, as text, and expressions for people's eyes."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from types import ModuleType

from tanren_dsl.ir import Apply, Const, Fold, Node, Ordering
from tanren_dsl.kernels import meaning, select
from tanren_dsl.ops import OP_BY_NAME

_HELPERS: dict[str, tuple[str, ...]] = {
    "div": ("div",),
    "sqrt": ("root",),
    "log1p": ("log1p",),
    "exp": ("exp",),
    "floor": ("floor",),
    "min": ("minimum",),
    "max": ("maximum",),
    "clip": ("minimum", "maximum", "clip"),
    "lowest": ("minimum",),
    "highest": ("maximum",),
    "median": ("select_rank",),
    "p90": ("select_rank",),
}
"""Helpers by operator, those they call themselves included."""

_WIDEST = 96


def helper_names(*orderings: Ordering) -> tuple[str, ...]:
    """Helpers that the functions of these orderings call, callees first."""
    wanted = {name for ordering in orderings for node in ordering.nodes for name in _helpers(ordering, node)}
    return tuple(name for name in _functions() if name in wanted)


def helpers_source(*orderings: Ordering, decorator: str = "") -> str:
    """Text of the helpers used and their constants; needs `import math`; empty if there are none.

    Args:
        orderings: the orderings whose functions are emitted beside it.
        decorator: a line such as `@njit` to put before each.
    """
    functions = _functions()
    names = helper_names(*orderings)
    used = {word for name in names for word in functions[name][1]}
    constants = [line for name, line in _constants().items() if name in used]
    mark = f"{decorator}\n" if decorator else ""
    parts = ["\n".join(constants)] if constants else []
    parts.extend(mark + functions[name][0] for name in names)
    return "\n\n\n".join(parts)


def describe(ordering: Ordering, index: int) -> str:
    """A node as an expression of the language; parts that would make it long are `...`."""
    texts: list[str] = []
    for node in ordering.nodes[: index + 1]:
        text = _expression(node, texts)
        texts.append(text if len(text) <= _WIDEST else "...")
    return bare(texts[index] if texts[index] != "..." else _expression(ordering.nodes[index], texts))


def _expression(node: Node, texts: list[str]) -> str:
    match node:
        case Const(value=value):
            return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
        case Fold(op, arg):
            return f"{op}({bare(texts[arg])})"
        case Apply(op, args):
            return _applied(op, [texts[arg] for arg in args])
        case _:
            return node.name


def _applied(op: str, args: list[str]) -> str:
    row = OP_BY_NAME[op]
    match row.form:
        case "infix":
            return f"({args[0]} {row.text} {args[1]})"
        case "prefix":
            return f"({row.text}{' ' if row.text.isalpha() else ''}{args[0]})"
        case "power":
            return f"({args[0]} {row.text})"
        case "choice":
            return f"({args[1]} if {args[0]} else {args[2]})"
        case _:
            return f"{row.text}({', '.join(bare(arg) for arg in args)})"


def bare(text: str) -> str:
    """The text without parentheses around the whole of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[1:-1] if place == len(text) - 1 else text
    return text


def _helpers(ordering: Ordering, node: Node) -> tuple[str, ...]:
    match node:
        case Apply("div", (_, divisor)):
            by = ordering.nodes[divisor]
            return () if isinstance(by, Const) and is_plain_divisor(by.value) else ("div",)
        case Apply(op=op) | Fold(op=op):
            return _HELPERS.get(op, ())
        case _:
            return ()


def is_plain_divisor(value: float) -> bool:
    """Whether dividing by this literal needs no check."""
    return value != 0.0 and value - value == 0.0


@cache
def _functions() -> dict[str, tuple[str, frozenset[str]]]:
    """Text without annotations, and the names it mentions, by function."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for module in (meaning, select):
        lines, tree = _parsed(module)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                arguments = ", ".join(arg.arg for arg in node.args.args)
                body = "\n".join(lines[node.body[0].lineno - 1 : node.end_lineno])
                words = frozenset(word.id for word in ast.walk(node) if isinstance(word, ast.Name))
                found[node.name] = (f"def {node.name}({arguments}):\n{body}", words)
    return found


@cache
def _constants() -> dict[str, str]:
    lines, tree = _parsed(meaning)
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    return found


def _parsed(module: ModuleType) -> tuple[list[str], ast.Module]:
    source = inspect.getsource(module)
    return source.splitlines(), ast.parse(source)
