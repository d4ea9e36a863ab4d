"""From text to the untyped tree: reading a file, tokens, limits, the tree with spans.

The grammar is `grammar/tanren.lark`; Lark supplies the token rules and the LALR tables.
Limits are checked on tokens, before any tree exists, so a hostile text costs no more
than reading it once. Names and units are the checker's concern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from tanren_dsl.errors import TanrenError
from tanren_dsl.grammar import grammar_text
from tanren_dsl.mistakes import END, UNKNOWN, Piece, explain
from tanren_dsl.signals import Kind
from tanren_dsl.source import Source, Span
from tanren_dsl.syntax import (
    Call,
    Candidates,
    Comment,
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

MAX_BYTES = 64 * 1024
"""Largest source, in bytes of UTF-8."""
MAX_DEPTH = 64
"""Deepest nesting of an expression; a chain such as `a + b + c + d` counts as one level."""
MAX_NODES = 2000
"""Most names, numbers and operators in a policy."""

_MINIMAL = "the smallest policy is `policy lru : evict order by last_use`"


def read_source(path: str | Path) -> Source:
    """The text of a policy file.

    Accepts a byte order mark and any line ends. Raises TanrenError when the file cannot
    be read, is empty, too large, not UTF-8, or holds NUL bytes.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 4)
    except FileNotFoundError:
        raise TanrenError(f"cannot read {path}: there is no such file") from None
    except IsADirectoryError:
        raise TanrenError(f"cannot read {path}: it is a directory, expected a .tpl file") from None
    except PermissionError:
        raise TanrenError(f"cannot read {path}: permission denied") from None
    except (OSError, ValueError) as error:
        raise TanrenError(f"cannot read {path}: {error}") from None
    return source_of(data, str(path))


def source_of(data: bytes, name: str) -> Source:
    """The text in these bytes, under a name for messages; raises TanrenError as `read_source` does."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise TanrenError(f"{name} is empty", hint=_MINIMAL)
    if len(data) > MAX_BYTES:
        raise TanrenError(f"{name} is larger than {MAX_BYTES // 1024} KiB, the most a policy may have")
    if (nul := data.find(b"\0")) >= 0:
        line = data.count(b"\n", 0, nul) + 1
        raise TanrenError(f"{name}:{line}: not a text: NUL byte at offset {nul}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TanrenError(
            f"{name}:{line}: not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}"
        ) from None
    return Source(name, text)


def parse(source: Source) -> PolicyText:
    """The untyped tree of a policy text.

    Raises TanrenError with the place, what was expected and found, and a hint.

    >>> parse(Source("<doc>", "policy lru : evict order by last_use")).name
    'lru'
    """
    _check_size(source)
    tokens = _tokens(source)
    _check_limits(source, tokens)
    tree = _tree(source, tokens)
    return _Builder(source, _comments(source, tokens)).policy(tree)


@cache
def _lark() -> Lark:
    return Lark(grammar_text(), parser="lalr", lexer="basic", keep_all_tokens=True, maybe_placeholders=False)


def _check_size(source: Source) -> None:
    if len(source.text) > MAX_BYTES or len(source.text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise TanrenError(
            f"{source.name} is larger than {MAX_BYTES // 1024} KiB, the most a policy may have",
            Span(source, 0, 0),
        )
    if not source.text.strip():
        raise TanrenError(f"{source.name} is empty", Span(source, 0, 0), _MINIMAL)


def _tokens(source: Source) -> list[Token]:
    """All tokens; a character that begins none ends the list as an UNKNOWN token."""
    tokens: list[Token] = []
    try:
        for token in _lark().lex(source.text):
            tokens.append(token)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        end = at + (2 if source.text[at : at + 2] in ("&&", "||") else 1)
        tokens.append(Token(UNKNOWN, source.text[at:end], start_pos=at, end_pos=end))
    return tokens


def _check_limits(source: Source, tokens: Sequence[Token]) -> None:
    depth = nodes = 0
    for token in tokens:
        if token.type in _OPENING:
            depth += 1
        elif token.type in _CLOSING:
            depth -= 1
        elif token.type in _COUNTED:
            nodes += 1
        if depth > MAX_DEPTH:
            raise _too_deep(_span(source, token))
        if nodes > MAX_NODES:
            raise TanrenError(
                f"a policy may have at most {MAX_NODES} names, numbers and operators", _span(source, token)
            )


_OPENING = frozenset({"LPAR", "LBRACKET"})
_CLOSING = frozenset({"RPAR", "RBRACKET"})
_COUNTED = frozenset(
    "NAME NUM TWO THREE PLUS MINUS STAR SLASH POWER COMPARE AND OR NOT IF".split()  # noqa: SIM905
)


def _too_deep(span: Span) -> TanrenError:
    return TanrenError(
        f"expressions may nest at most {MAX_DEPTH} levels deep", span, "name a part of it with `let`"
    )


def _tree(source: Source, tokens: Sequence[Token]) -> Tree[Token]:
    parser = _lark().parse_interactive()
    end = len(source.text.rstrip())
    at = 0
    try:
        for at, token in enumerate(tokens):  # noqa: B007
            parser.feed_token(token)
        at = len(tokens)
        tree: Tree[Token] = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken:
        pieces = [Piece(t.type, str(t), t.start_pos or 0, t.end_pos or 0) for t in tokens]
        pieces.append(Piece(END, "", end, end))
        raise explain(source, pieces, at, _accepts(tokens[:at])) from None
    return tree


def _accepts(tokens: Sequence[Token]) -> frozenset[str]:
    """Token types that may follow; asked afresh, since a failed step has already reduced."""
    parser = _lark().parse_interactive()
    for token in tokens:
        parser.feed_token(token)
    return frozenset(END if kind == "$END" else kind for kind in parser.accepts())  # type: ignore[no-untyped-call]


_COMMENT = re.compile(r"#[^\r\n]*")


def _comments(source: Source, tokens: Sequence[Token]) -> tuple[Comment, ...]:
    """Comments stand in the gaps between tokens."""
    text, comments = source.text, []
    edges = [0, *(edge for token in tokens for edge in (token.start_pos or 0, token.end_pos or 0)), len(text)]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        for match in _COMMENT.finditer(text, start, end):
            before = text[max(text.rfind("\n", 0, match.start()), text.rfind("\r", 0, match.start())) + 1 :]
            own_line = not before[: match.start() - (len(text) - len(before))].strip()
            comments.append(Comment(match.group().rstrip(), own_line, Span(source, *match.span())))
    return tuple(comments)


def _span(source: Source, token: Token) -> Span:
    return Span(source, token.start_pos or 0, token.end_pos or 0)


_Built: TypeAlias = tuple[Expr, Span, int]
"""An expression, its range with parentheses, its depth (left operands add no level)."""


class _Builder:
    """Turns Lark's tree into ours, from the leaves up, without recursion."""

    def __init__(self, source: Source, comments: tuple[Comment, ...]) -> None:
        self._source = source
        self._comments = comments
        self._exprs: dict[int, _Built] = {}

    def policy(self, tree: Tree[Token]) -> PolicyText:
        """The policy of the tree of the rule `start`."""
        decls: list[Decl] = []
        for part in tree.iter_subtrees():
            if part.data in _EXPRESSIONS:
                self._exprs[id(part)] = self._expression(part)
        header, *rest = tree.children
        assert isinstance(header, Tree)
        decls.extend(self._declaration(part) for part in rest if isinstance(part, Tree))
        words = list(header.scan_values(lambda _: True))
        name = words[1]
        kind: Kind = "evict" if words[3].type == "EVICT" else "schedule"
        doc = str(words[4])[1:-1] if len(words) > 4 else None
        span = self._span(words[0]).to(self._span(words[-1]))
        return PolicyText(
            str(name), kind, doc, tuple(decls), self._comments, span, self._span(name), self._span(words[3])
        )

    def _declaration(self, tree: Tree[Token]) -> Decl:
        children = tree.children
        words = [child for child in children if isinstance(child, Token)]
        span = self._reach(tree)
        match str(tree.data):
            case "let":
                return Let(str(words[1]), self._built(children[3])[0], span, self._span(words[1]))
            case "param":
                value, low, high = (self._signed(child) for child in children if isinstance(child, Tree))
                log = words[-1].type == "LOG"
                return Param(str(words[1]), value, low, high, log, span, self._span(words[1]))
            case "knob":
                unit, signed = (child for child in children if isinstance(child, Tree))
                text = "".join(str(token) for token in unit.scan_values(lambda _: True))
                return Knob(
                    str(words[1]), text, self._signed(signed), span, self._span(words[1]), self._reach(unit)
                )
            case "order_by":
                return OrderBy(self._keys(children[-1]), span)
            case "preempt_by":
                return PreemptBy(self._keys(children[-1]), span)
            case _:
                percent = None if len(children) == 2 else self._built(children[1])[0]
                return Candidates(percent.value if isinstance(percent, Num) else None, span)

    def _keys(self, tree: Token | Tree[Token]) -> tuple[Expr, ...]:
        assert isinstance(tree, Tree)
        return tuple(self._built(child)[0] for child in tree.children if isinstance(child, Tree))

    def _signed(self, tree: Tree[Token]) -> float:
        number = self._built(tree.children[-1])[0]
        assert isinstance(number, Num)
        return -number.value if len(tree.children) == 2 else number.value

    def _expression(self, tree: Tree[Token]) -> _Built:
        children = tree.children
        match str(tree.data):
            case "number":
                span = self._span(children[0])
                return Num(self._value(children[0]), span), span, 1
            case "name":
                span = self._span(children[0])
                return Name(str(children[0]), span), span, 1
            case "paren":
                expr, _, depth = self._built(children[1])
                return expr, self._span(children[0]).to(self._span(children[2])), depth
            case "prefix":
                operand, inner, depth = self._built(children[1])
                span = self._span(children[0]).to(inner)
                return self._checked(Prefix(str(children[0]), operand, span), span, depth + 1)
            case "infix":
                left, first, depth = self._built(children[0])
                right, last, right_depth = self._built(children[2])
                span = first.to(last)
                depth = max(depth, right_depth + 1)
                return self._checked(Infix(str(children[1]), left, right, span), span, depth)
            case "power":
                left, first, depth = self._built(children[0])
                span = first.to(self._span(children[2]))
                right = Num(self._value(children[2]), self._span(children[2]))
                return self._checked(Infix("**", left, right, span), span, max(depth, 2))
            case "if_else":
                then, first, depth1 = self._built(children[0])
                test, _, depth2 = self._built(children[2])
                orelse, last, depth3 = self._built(children[4])
                span = first.to(last)
                return self._checked(IfElse(then, test, orelse, span), span, max(depth1, depth2, depth3) + 1)
            case _:
                args = [self._built(child) for child in children[2:] if isinstance(child, Tree)]
                span = self._span(children[0]).to(self._span(children[-1]))
                call = Call(str(children[0]), tuple(arg[0] for arg in args), span, self._span(children[0]))
                return self._checked(call, span, max(arg[2] for arg in args) + 1)

    def _checked(self, expr: Expr, span: Span, depth: int) -> _Built:
        if depth > MAX_DEPTH:
            raise _too_deep(span)
        return expr, span, depth

    def _built(self, tree: Token | Tree[Token]) -> _Built:
        return self._exprs[id(tree)]

    def _value(self, token: Token | Tree[Token]) -> float:
        value = float(str(token))
        if not math.isfinite(value):
            raise TanrenError(
                f"expected a finite number, found `{token}`",
                self._span(token),
                "the largest is about 1.79e308",
            )
        return value

    def _reach(self, tree: Tree[Token]) -> Span:
        first: Token | Tree[Token] = tree
        last: Token | Tree[Token] = tree
        while isinstance(first, Tree):
            first = first.children[0]
        while isinstance(last, Tree):
            last = last.children[-1]
        return self._span(first).to(self._span(last))

    def _span(self, token: Token | Tree[Token]) -> Span:
        assert isinstance(token, Token)
        return _span(self._source, token)


_EXPRESSIONS = frozenset({"number", "name", "paren", "prefix", "infix", "power", "if_else", "call"})
