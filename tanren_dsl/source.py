"""Source text and places in it.

A `Source` is one policy file as it was read; a `Span` is a half-open range of it.
Rendering an error with carets lives in `errors.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Source:
    """One text with a name: a path, or a label such as `<stdin>`."""

    name: str
    text: str
    _starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        starts = [0]
        starts.extend(i + 1 for i, char in enumerate(self.text) if char == "\n")
        object.__setattr__(self, "_starts", tuple(starts))

    def line_col(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line_text(self, line: int) -> str:
        """The text of a line (counted from 1) without its newline."""
        start = self._starts[line - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        return self.text[start:end].rstrip("\r")


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range `[start, end)` of a source, in characters."""

    source: Source
    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The range from the start of this span to the end of another."""
        return Span(self.source, self.start, max(self.end, other.end))

    @property
    def place(self) -> str:
        """`file:line:column`, the form editors and terminals can open."""
        line, col = self.source.line_col(self.start)
        return f"{self.source.name}:{line}:{col}"

    @property
    def text(self) -> str:
        """The characters of the span."""
        return self.source.text[self.start : self.end]
