"""What to say about a text that does not parse: what was expected, what was found, one hint.

The table of typical mistakes is `grammar/mistakes.toml`; this module fits its rows to the
place of an error. It does not parse.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from tanren_dsl.errors import TanrenError
from tanren_dsl.grammar import Mistake, mistakes
from tanren_dsl.source import Source, Span

END = "END"
"""The token type that stands for the end of the text."""
UNKNOWN = "UNKNOWN"
"""The token type of a character that begins no token."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token as the table sees it: its type in the grammar, its text, its place."""

    type: str
    text: str
    start: int
    end: int


def explain(source: Source, pieces: Sequence[Piece], at: int, accepts: Set[str]) -> TanrenError:
    """The error for `pieces[at]` where the grammar would have accepted the types `accepts`."""
    found = pieces[at]
    message = f"expected {expected(accepts)}, found {_found(found)}"
    span = Span(source, found.start, found.end)
    return TanrenError(message, span, hint_for(source, pieces, at, accepts))


def hint_for(source: Source, pieces: Sequence[Piece], at: int, accepts: Set[str]) -> str | None:
    """The hint of the first row that fits, or None."""
    for row in mistakes():
        if _fits(row, source, pieces, at, accepts):
            return row.hint.replace("{open}", _innermost_open(source, pieces, at))
    return None


def expected(accepts: Set[str]) -> str:
    """The accepted token types in words, such as `an operator or ")"`."""
    parts: list[str] = []
    rest = set(accepts)
    for needs, words in _GROUPS:
        if needs <= rest:
            parts.append(words)
            rest -= _SILENT.get(words, needs)
    parts.extend(_WORDS.get(kind, f"`{kind.lower()}`") for kind in sorted(rest))
    parts = list(dict.fromkeys(parts))
    if len(parts) > 4:
        parts = parts[:4]
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


_DECLS = frozenset({"LET", "PARAM", "KNOB", "PREEMPT", "CANDIDATES"})
_OPERATORS = frozenset(
    {"PLUS", "MINUS", "STAR", "SLASH", "POWER", "COMPARE", "AND", "OR", "IF", "LPAR", "COMMA"}
)
_VALUES = frozenset({"NAME", "LPAR", "MINUS", "NOT", "NUM", "TWO", "THREE"})

_GROUPS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"NAME", "LPAR", "MINUS"}), "an expression"),
    (frozenset({"PLUS", "MINUS", "ELSE"}), "an operator"),
    (frozenset({"PLUS", "MINUS"}), "an operator"),
    (frozenset({"STAR", "SLASH", "NAME"}), "a unit"),
    (frozenset({"NUM", "MINUS"}), "a number"),
    (frozenset({"NUM", "NAME"}), "a unit"),
    (frozenset({"NUM"}), "a number"),
    (frozenset({"TWO", "THREE"}), "`2` or `3`"),
    (_DECLS | {"ORDER"}, "a declaration"),
    (_DECLS, "a declaration"),
)

_SILENT: dict[str, frozenset[str]] = {
    "an expression": _VALUES,
    "an operator": _OPERATORS,
    "a unit": frozenset({"STAR", "SLASH", "NAME", "NUM", "TWO", "THREE", "POWER"}),
    "a number": frozenset({"NUM", "TWO", "THREE", "MINUS"}),
    "a declaration": _DECLS | {"ORDER", "STRING", "LOG"},
}

_WORDS: dict[str, str] = {
    END: "the end of the text",
    "$END": "the end of the text",
    "NAME": "a name",
    "STRING": "a description in double quotes",
    "RPAR": "`)`",
    "LPAR": "`(`",
    "LBRACKET": "`[`",
    "RBRACKET": "`]`",
    "COMMA": "`,`",
    "COLON": "`:`",
    "EQUAL": "`=`",
    "PERCENT": "`%`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "STAR": "`*`",
    "SLASH": "`/`",
    "POWER": "`**`",
    "COMPARE": "a comparison",
    "EVICT": "`evict`",
    "SCHEDULE": "`schedule`",
}


def _found(piece: Piece) -> str:
    if piece.type == END:
        return "the end of the text"
    text = piece.text if len(piece.text) <= 40 else piece.text[:37] + "..."
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return f"`{text}`"


def _fits(row: Mistake, source: Source, pieces: Sequence[Piece], at: int, accepts: Set[str]) -> bool:
    piece = pieces[at]
    return (
        (not row.found or _is_one_of(piece, row.found))
        and (not row.starts or source.text.startswith(row.starts, piece.start))
        and (not row.after or (at > 0 and _is_one_of(pieces[at - 1], row.after)))
        and (not row.follows or (at + 1 < len(pieces) and _is_one_of(pieces[at + 1], row.follows)))
        and (not row.want or not accepts.isdisjoint(row.want))
    )


def _is_one_of(piece: Piece, kinds: Sequence[str]) -> bool:
    return piece.type in kinds or piece.text in kinds


def _innermost_open(source: Source, pieces: Sequence[Piece], at: int) -> str:
    stack: list[Piece] = []
    for piece in pieces[:at]:
        if piece.type == "LPAR":
            stack.append(piece)
        elif piece.type == "RPAR" and stack:
            stack.pop()
    if not stack:
        return "the start"
    line, col = source.line_col(stack[-1].start)
    return f"line {line}, column {col}"
