"""Azure LLM CSV: one request a line with `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.

Published at https://github.com/Azure/AzurePublicDataset. Times of 2023 (Splitwise, ISCA 2024) look
like `2023-11-16 18:15:46.6805900`, lines end in CRLF, the last one in nothing; times of 2024 like
`2024-05-10 00:00:00.009930+00:00`, without the fraction where it is zero. The format has no block
ids: every request gets blocks of its own, for reuse that nobody recorded must not be invented.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.files import (
    MOST_TOKENS,
    BadLine,
    late_arrivals,
    line_span,
    load_text,
    refusal,
    skipped_note,
    without_bad,
)
from tanren_dsl.trace.table import RequestTable

FIELDS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
AZURE_BLOCK = 512
"""Tokens of a trace block where none is told: that of the Mooncake traces."""

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d) ([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?"
    r"(?:([+-])([01]\d|2[0-3]):([0-5]\d))?",
    re.ASCII,
)
_COUNT = re.compile(r"[0-9]{1,10}")
_DAY_US = 86_400_000_000
_MOST_BLOCKS = 2**31 - 1
_SHOWN = 40


class _Row(NamedTuple):
    line: int
    us: int
    prompt: int
    output: int


def read_azure(
    path: str | Path, *, text: str | None = None, block_tokens: int | None = None, skip_bad: bool = False
) -> RequestTable:
    """Read and verify an Azure LLM trace of 2023 or 2024.

    Times are cut to whole microseconds; one without an offset counts as UTC.

    Args:
        path: the file, plain or gzip.
        text: its text, where the caller has it.
        block_tokens: tokens of a trace block, 512 by default.
        skip_bad: leave bad lines (an empty prompt is one) out, counted and listed in the
            notes, instead of refusing.

    Raises:
        TanrenError: the first bad line (or none is good), what was expected and found.
    """
    block = AZURE_BLOCK if block_tokens is None else block_tokens
    if block < 1:
        raise TanrenError(f"expected a block size of at least 1 token, found {block!r}")
    lines = (load_text(path) if text is None else text).split("\n")
    rows, bad = _parse(str(path), lines)
    arrivals = ((row.line, row.us, _fields(lines[row.line - 1])[0]) for row in rows)
    rows = without_bad(rows, bad, late_arrivals(arrivals))
    bad.sort(key=lambda one: one.line)
    if bad and not (skip_bad and rows):
        raise refusal(str(path), lines, bad, readable=len(rows))
    if not rows:
        raise TanrenError(f"{path}: expected requests, found the header alone")
    notes = [
        "format: Azure LLM CSV",
        "time unit: dates, cut to microseconds",
        f"block size: {block} tokens ({'assumed' if block_tokens is None else 'as told'})",
        "hash scope: none (the format has no block ids: no request shares a block, no reuse is invented)",
    ]
    if bad:
        notes.append(skipped_note(bad))
    return _table(path, rows, block, tuple(notes))


def _parse(path: str, lines: list[str]) -> tuple[list[_Row], list[BadLine]]:
    rows: list[_Row] = []
    bad: list[BadLine] = []
    filled = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    number, line = next(filled, (1, ""))
    if _fields(line) != list(FIELDS):
        span = line_span(path, number, line.rstrip("\r"))
        raise TanrenError(f"expected the header {','.join(FIELDS)}, found {_short(line.strip())}", span)
    for number, line in filled:
        row = _row(number, line, last=number == len(lines))
        if isinstance(row, BadLine):
            bad.append(row)
        else:
            rows.append(row)
    return rows, bad


def _fields(line: str) -> list[str]:
    return [field.strip() for field in line.split(",")]


def _row(number: int, line: str, last: bool) -> _Row | BadLine:
    fields = _fields(line)
    if len(fields) != len(FIELDS):
        hint = None
        if last and len(fields) < len(FIELDS):
            hint = "the last line is cut off: the file may be incomplete"
        message = f"expected {len(FIELDS)} fields, {','.join(FIELDS)}, found {len(fields)}"
        return BadLine(number, 0, None, message, hint)
    us = _microseconds(fields[0])
    if us is None:
        found = _short(fields[0])
        message = f"TIMESTAMP: expected a date such as 2023-11-16 18:15:46.6805900, found {found}"
        return _bad_field(number, line, 0, message)
    counts = []
    for place, least in ((1, 1), (2, 0)):
        count = int(fields[place]) if _COUNT.fullmatch(fields[place]) else -1
        if not least <= count <= MOST_TOKENS:
            found = _short(fields[place])
            message = f"{FIELDS[place]}: expected a count of at least {least}, found {found}"
            return _bad_field(number, line, place, message)
        counts.append(count)
    return _Row(number, us, *counts)


def _bad_field(number: int, line: str, place: int, message: str) -> BadLine:
    """What is wrong with the field at this place of the line."""
    fields = line.rstrip("\r").split(",")
    start = sum(len(field) + 1 for field in fields[:place])
    return BadLine(number, start, start + len(fields[place]), message)


def _microseconds(stamp: str) -> int | None:
    """Whole microseconds since year 1, UTC, the rest cut off; None for what is no date.

    >>> _microseconds("0001-01-01 00:00:01.0000019"), _microseconds("0001-01-01 01:00:01+01:00")
    (1000001, 1000000)
    >>> _microseconds("2023-02-29 00:00:00")
    """
    match = _STAMP.fullmatch(stamp)
    day = _day(match[1]) if match else None
    if match is None or day is None:
        return None
    hours, minutes, seconds, fraction, sign, zone_hours, zone_minutes = match.groups()[1:]
    total_s = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    if sign:
        zone_s = int(zone_hours) * 3600 + int(zone_minutes) * 60
        total_s += zone_s if sign == "-" else -zone_s
    return day * _DAY_US + total_s * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))


@lru_cache(maxsize=64)
def _day(text: str) -> int | None:
    """Days since the first of year 1; a trace has few, so each is worked out once."""
    try:
        return date.fromisoformat(text).toordinal() - 1
    except ValueError:
        return None


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")


def _table(path: str | Path, rows: list[_Row], block: int, notes: tuple[str, ...]) -> RequestTable:
    arrival = np.array([row.us for row in rows], np.int64)
    prompt = np.array([row.prompt for row in rows], np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(-(-prompt // block))))
    if offsets[-1] > _MOST_BLOCKS:
        raise TanrenError(
            f"{path}: {offsets[-1]:,} blocks of {block} tokens are too many", hint="use a larger block size"
        )
    return RequestTable(
        name=Path(path).name,
        block_tokens=block,
        arrival_us=arrival - arrival[0],
        prompt_tokens=prompt,
        output_tokens=np.array([row.output for row in rows], np.int64),
        session=np.full(len(rows), -1, np.int64),
        offsets=offsets,
        ids=np.arange(offsets[-1], dtype=np.int32),
        notes=notes,
    )
