"""A trace file as text: gzip or plain, UTF-8, with one clear error for everything else."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole
from tanren_dsl.source import Source, Span

_GZIP_MAGIC = b"\x1f\x8b"


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
