"""A trace file as text: gzip or plain, UTF-8, with one clear error for everything else.

Readers go through it line by line and collect what is wrong as `BadLine`s: the first one is
the error, or all are left out and counted in a note.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole
from tanren_dsl.source import Source, Span

MOST_TOKENS = 2**31 - 1
"""Most tokens that a prompt or an output may have."""

_GZIP_MAGIC = b"\x1f\x8b"
_LISTED = 20
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class BadLine:
    """What is wrong with one line: its number from 1, the place in it, a message and at most one hint."""

    line: int
    start: int
    end: int | None
    message: str
    hint: str | None = None


def load_text(path: str | Path) -> str:
    """The whole file as text, without a byte order mark.

    Gzip is recognised by content. Line ends are kept:
    split at line feeds, a line may end in a carriage return.

    Raises:
        TanrenError: the file is missing, unreadable, a directory, empty, binary,
            damaged or not UTF-8.
    """
    try:
        data = Path(path).read_bytes()
    except IsADirectoryError:
        raise TanrenError(f"{path}: expected a trace file, found a directory") from None
    except OSError as error:
        raise TanrenError(f"{path}: the trace cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a null character in the name
        raise TanrenError(f"{str(path)!r}: the trace cannot be read: {error}") from None
    if data.startswith(_GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise TanrenError(f"{path}: the gzip data is damaged: {error}") from None
    if b"\0" in data:
        raise TanrenError(f"{path}: expected text, found binary data{_kind(data)}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = data[error.start]
        raise TanrenError(f"{path}:{line}: expected UTF-8 text, found byte 0x{found:02x}") from None
    if not text.strip():
        raise TanrenError(f"{path}: expected requests, found an empty file")
    return text


def line_span(name: str, line: int, text: str, start: int = 0, end: int | None = None) -> Span:
    """A place in one line of a big file, without indexing the file.

    Args:
        name: the file.
        line: counted from 1.
        text: that line alone.
        start: first character of the place within the line.
        end: one past its last character; the line's end by default.
    """
    before = line - 1
    return Span(
        Source(name, "\n" * before + text), before + start, before + (len(text) if end is None else end)
    )


def late_arrivals(rows: Iterable[tuple[int, float, str]]) -> Iterator[tuple[int, BadLine]]:
    """Rows that arrive before one in front of them: the index of each, and what is wrong.

    Args:
        rows: line number, time in any unit, and that time as it should be shown.

    >>> late = late_arrivals([(1, 0, "0"), (2, 9, "9"), (3, 5, "5"), (4, 9, "9")])
    >>> [(index, bad.message) for index, bad in late]
    [(2, 'expected a timestamp of at least 9, found 5')]
    """
    latest, latest_shown = -math.inf, ""
    for index, (line, time, shown) in enumerate(rows):
        if time < latest:
            message = f"expected a timestamp of at least {latest_shown}, found {shown}"
            yield index, BadLine(line, 0, None, message, "requests must stand in order of arrival")
        else:
            latest, latest_shown = time, shown


def without_bad(rows: list[_Row], bad: list[BadLine], problems: Iterable[tuple[int, BadLine]]) -> list[_Row]:
    """Rows without a problem, given by index; the problems are added to `bad`."""
    found = dict(problems)
    bad.extend(found.values())
    return [row for index, row in enumerate(rows) if index not in found] if found else rows


def refusal(path: str, lines: Sequence[str], bad: Sequence[BadLine], readable: int) -> TanrenError:
    """The error that names the first bad line and counts the others.

    Args:
        path: the file.
        lines: its lines, a carriage return kept.
        bad: at least one, in order of lines.
        readable: good rows; where there are some, the hint says how to go on with them.
    """
    first = bad[0]
    more = f" ({len(bad) - 1} more bad lines)" if len(bad) > 1 else ""
    span = line_span(path, first.line, lines[first.line - 1].rstrip("\r"), first.start, first.end)
    hint = first.hint or ("bad lines can be left out and counted (--skip-bad)" if readable else None)
    return TanrenError(first.message + more, span, hint)


def skipped_note(bad: Sequence[BadLine]) -> str:
    """The note that counts the bad lines left out, and lists the first of them."""
    listed = "; ".join(f"line {one.line}: {one.message}" for one in bad[:_LISTED])
    rest = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
    return f"skipped {len(bad)} bad lines: {listed}{rest}"


def save_text(path: str | Path, text: str) -> None:
    """Write a file at once or not at all; gzip for names in `.gz`.

    Raises:
        TanrenError: the file cannot be written; an older one is left as it was.
    """
    data = text.encode()
    write_whole(path, gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def _kind(data: bytes) -> str:
    known = {b"PAR1": " (a Parquet file)", b"PK\x03\x04": " (a zip archive)", b"SQLite": " (an SQLite file)"}
    return next((name for magic, name in known.items() if data.startswith(magic)), "")
