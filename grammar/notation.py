"""Reading `tanren.lark` as data: its rules as small trees, its tokens as patterns.

Lark's own grammar of its notation does the reading; only what our file uses is understood.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lark import Lark, Token, Tree


@dataclass(frozen=True, slots=True)
class Ref:
    """A rule or a token by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Seq:
    """Parts one after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of these."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Many:
    """A part that may be absent; `least` is 0, `most` is 1 or None for any number."""

    item: Node
    least: int
    most: int | None


Node: TypeAlias = Ref | Seq | Alt | Many


@dataclass(frozen=True, slots=True)
class Notation:
    """A grammar: rules by name, and tokens by name with their pattern in Python's notation."""

    rules: Mapping[str, Node]
    tokens: Mapping[str, str]


def read_notation(text: str) -> Notation:
    """The rules and tokens of a grammar in the dialect that model servers take.

    Raises:
        ValueError: the text uses a form that is not understood here.
    """
    reader = Lark.open_from_package(
        "lark", "lark.lark", ["grammars"], parser="lalr", maybe_placeholders=False
    )
    rules: dict[str, Node] = {}
    tokens: dict[str, str] = {}
    for part in reader.parse(text + "\n").children:
        if not isinstance(part, Tree) or part.data == "ignore":
            continue
        if any(
            isinstance(child, Tree) and child.data.endswith("_params") and child.children
            for child in part.children
        ):
            raise ValueError("a template is no part of the dialect")
        name, body = str(part.children[0]).lstrip("?!"), part.children[-1]
        if part.data == "rule":
            rules[name] = _node(body)
        elif part.data == "token":
            tokens[name] = _pattern(body)
        else:
            raise ValueError(f"`{part.data}` is no part of the dialect")
    return Notation(rules, tokens)


def _node(tree: Token | Tree[Token]) -> Node:
    if isinstance(tree, Token):
        return Ref(str(tree))
    parts = [child for child in tree.children if child is not None]
    match str(tree.data):
        case "name":
            return Ref(str(parts[0]))
        case "alias":
            return _node(parts[0])
        case "expansion":
            return _flat(Seq(tuple(_node(part) for part in parts)))
        case "expansions":
            return _flat(Alt(tuple(_node(part) for part in parts)))
        case "expr":
            bounds = {"?": (0, 1), "*": (0, None)}.get(str(parts[1]))
            if bounds is None:
                raise ValueError(f"a repetition `{parts[1]}` is no part of the dialect")
            return Many(_node(parts[0]), *bounds)
        case other:
            raise ValueError(f"`{other}` is no part of the dialect")


def _flat(node: Seq | Alt) -> Node:
    return node.items[0] if len(node.items) == 1 else node


def _pattern(tree: Token | Tree[Token]) -> str:
    """A token as one pattern: texts and patterns, or alternatives of them."""
    if isinstance(tree, Token):
        raise ValueError(f"a token that names another: {tree}")
    if tree.data in ("expansions", "expansion"):
        patterns = [_pattern(child) for child in tree.children]
        return ("|" if tree.data == "expansions" else "").join(patterns)
    text = str(tree.children[0])
    return text[1:-1].replace(r"\/", "/") if text.startswith("/") else re.escape(text[1:-1])
