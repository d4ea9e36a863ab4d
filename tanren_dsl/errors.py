"""Errors that say where, what was expected, what was found, and one hint.

Every error a user can cause is a `TanrenError`; anything else that reaches the
command line is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tanren_dsl.source import Span


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding in a text: a place, a message and at most one hint."""

    span: Span | None
    message: str
    hint: str | None = None

    def render(self) -> str:
        """The finding as text: `file:line:col: error: ...`, the line, carets, the hint."""
        return "\n".join(_lines(self, "error"))

    def render_as(self, severity: str) -> str:
        """The same with another word than `error`, such as `warning`."""
        return "\n".join(_lines(self, severity))


class TanrenError(Exception):
    """The policy, the data or a setting is wrong.

    Carries one or more diagnostics; `str()` renders them all.
    """

    def __init__(self, message: str, span: Span | None = None, hint: str | None = None) -> None:
        self.diagnostics: tuple[Diagnostic, ...] = (Diagnostic(span, message, hint),)
        super().__init__(message)

    @classmethod
    def from_diagnostics(cls, diagnostics: Sequence[Diagnostic]) -> TanrenError:
        """One error that carries several findings (at least one)."""
        first = diagnostics[0]
        error = cls(first.message, first.span, first.hint)
        error.diagnostics = tuple(diagnostics)
        return error

    def __str__(self) -> str:
        return "\n".join(diagnostic.render() for diagnostic in self.diagnostics)


class UnsupportedError(TanrenError):
    """A target or mode cannot provide what a policy uses; names the node and the target."""


def _lines(diagnostic: Diagnostic, severity: str) -> list[str]:
    span = diagnostic.span
    if span is None:
        lines = [f"{severity}: {diagnostic.message}"]
    else:
        lines = [f"{span.place}: {severity}: {diagnostic.message}"]
        lines.extend(_excerpt(span))
    if diagnostic.hint is not None:
        lines.append(f"  hint: {diagnostic.hint}")
    return lines


_WIDTH = 100


def _excerpt(span: Span) -> list[str]:
    line, col = span.source.line_col(span.start)
    text = span.source.line_text(line).expandtabs(1)
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    width = max(1, min(span.end - span.start, len(text) - col + 1))
    if len(text) > _WIDTH:
        cut = max(0, col - _WIDTH // 2)
        text, col = text[cut : cut + _WIDTH], col - cut
        width = max(1, min(width, _WIDTH - col + 1))
    gutter = f"{line:>5} | "
    return [f"{gutter}{text}", " " * (len(gutter) + col - 1) + "^" * width]
