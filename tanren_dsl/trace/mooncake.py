"""Mooncake JSONL: one request a line with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.

`session_id` is read where present, other fields are ignored. Ids hold across the
whole file (scope global). Published with Mooncake (FAST 2025), block 512.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.files import (
    MOST_TOKENS,
    BadLine,
    late_arrivals,
    load_text,
    refusal,
    save_text,
    skipped_note,
    without_bad,
)
from tanren_dsl.trace.table import RequestTable, first_lookups, parent_lookups

FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
_COMMON_BLOCKS = (512, 16, 32, 64, 128, 256, 1024)
_MOST_MS = 2**53 / 1000
_SUSPECT_RATE = 500.0


class _Row(NamedTuple):
    line: int
    timestamp: float
    prompt: int
    output: int
    ids: list[int]
    session: str | int | None


class _FieldError(Exception):
    """A field of one row is wrong: field, message, hint."""


def read_mooncake(
    path: str | Path, *, text: str | None = None, block_tokens: int | None = None, skip_bad: bool = False
) -> RequestTable:
    """Read and verify a Mooncake trace.

    Args:
        path: the file, plain or gzip.
        text: its text, where the caller has it.
        block_tokens: tokens of a block; detected from lengths and ids by default.
        skip_bad: leave bad lines out, counted and listed in the notes, instead of refusing.

    Raises:
        TanrenError: the first bad line (or none is good), what was expected and found.
    """
    lines = (load_text(path) if text is None else text).split("\n")
    rows, bad = _parse(lines)
    block, note = _block_size(rows, block_tokens, str(path)) if rows else (block_tokens or 0, "")
    rows = without_bad(rows, bad, _count_problems(rows, block))
    arrivals = ((row.line, row.timestamp, repr(row.timestamp)) for row in rows)
    rows = without_bad(rows, bad, late_arrivals(arrivals))
    bad.sort(key=lambda one: one.line)
    if bad and not (skip_bad and rows):
        raise refusal(str(path), lines, bad, readable=len(rows))
    notes = [
        "format: Mooncake JSONL",
        "time unit: milliseconds",
        note,
        "hash scope: global (equal ids are equal content across the file)",
    ]
    if bad:
        notes.append(skipped_note(bad))
    table = _table(Path(path).name, rows, block)
    notes.extend(_warnings(table, rows))
    return RequestTable(**{**vars(table), "notes": tuple(notes)})


def write_mooncake(table: RequestTable, path: str | Path) -> None:
    """Write a table as Mooncake JSONL, at once or not at all.

    Times are milliseconds, with a fraction where microseconds need one, so reading
    gives them back exactly. The format has no place for the block size: the reader
    detects it, or takes it as `block_tokens`.
    """
    out = []
    for request in range(len(table)):
        us = int(table.arrival_us[request])
        row: dict[str, object] = {
            "timestamp": us // 1000 if us % 1000 == 0 else us / 1000,
            "input_length": int(table.prompt_tokens[request]),
            "output_length": int(table.output_tokens[request]),
            "hash_ids": table.ids[table.offsets[request] : table.offsets[request + 1]].tolist(),
        }
        if table.session[request] >= 0:
            row["session_id"] = int(table.session[request])
        out.append(json.dumps(row) + "\n")
    save_text(path, "".join(out))


def _parse(lines: list[str]) -> tuple[list[_Row], list[BadLine]]:
    rows: list[_Row] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(_row(number, json.loads(line)))
        except _FieldError as error:
            field, message, hint = error.args
            start = line.find(f'"{field}"') if field else -1
            end = start + len(field) + 2 if start >= 0 else None
            bad.append(BadLine(number, max(0, start), end, message, hint))
        except json.JSONDecodeError as error:
            last = number == len(lines)
            hint = "the last line is cut off: the file may be incomplete" if last else None
            at = min(error.pos, max(0, len(line) - 1))
            bad.append(BadLine(number, at, at + 1, f"expected one JSON object a line: {error.msg}", hint))
        except (ValueError, RecursionError):
            bad.append(
                BadLine(number, 0, None, "expected one JSON object a line, found numbers or nesting too big")
            )
    return rows, bad


def _row(number: int, row: object) -> _Row:
    if not isinstance(row, dict):
        raise _FieldError(
            "", f"expected one JSON object a line, found {_what(row)}", "JSONL is not a JSON array"
        )
    for field in FIELDS:
        if field not in row:
            hint = f"a Mooncake line has {', '.join(FIELDS)}"
            if "delay" in row:
                hint = "rows with a delay instead of a timestamp are not readable: their time is unknown"
            raise _FieldError("", f"missing field {field!r}", hint)
    timestamp, prompt, output, ids = (row[field] for field in FIELDS)
    if type(timestamp) not in (int, float) or not abs(timestamp) < _MOST_MS:
        raise _FieldError("timestamp", f"timestamp: expected milliseconds, found {_what(timestamp)}", None)
    if type(prompt) is not int or not 1 <= prompt <= MOST_TOKENS:
        raise _FieldError(
            "input_length", f"input_length: expected a count of at least 1, found {_what(prompt)}", None
        )
    if type(output) is not int or not 0 <= output <= MOST_TOKENS:
        raise _FieldError(
            "output_length", f"output_length: expected a count of at least 0, found {_what(output)}", None
        )
    if type(ids) is not list or not ids or set(map(type, ids)) != {int}:
        raise _FieldError("hash_ids", f"hash_ids: expected a list of whole numbers, found {_what(ids)}", None)
    if len(set(ids)) != len(ids):
        twice = next(one for place, one in enumerate(ids) if one in ids[:place])
        raise _FieldError(
            "hash_ids",
            f"hash_ids: expected each block once, found {twice} twice",
            "an id stands for a block and everything before it, so one prompt cannot repeat it",
        )
    session = row.get("session_id")
    if session is not None and type(session) not in (int, str):
        raise _FieldError(
            "session_id", f"session_id: expected a name or a number, found {_what(session)}", None
        )
    return _Row(number, timestamp, prompt, output, ids, None if session == "" else session)


def _block_size(rows: list[_Row], given: int | None, path: str) -> tuple[int, str]:
    if given is not None:
        if given < 1:
            raise TanrenError(f"expected a block size of at least 1 token, found {given!r}")
        return given, f"block size: {given} tokens (as told)"
    prompt = np.array([row.prompt for row in rows], np.int64)
    count = np.array([len(row.ids) for row in rows], np.int64)
    fits = {size: int((-(-prompt // size) == count).sum()) for size in _COMMON_BLOCKS}
    # every size in [low, high) gives each row its number of ids
    low = int((-(-prompt // count)).max())
    several = count > 1
    high = int((-(-prompt[several] // (count[several] - 1))).min(initial=MOST_TOKENS))
    if high - low == 1:
        fits[low] = len(rows)
    size = max(fits, key=lambda one: fits[one])
    if fits[size] * 2 <= len(rows):
        first = rows[0]
        raise TanrenError(
            f"{path}: no block size fits: expected ceil(input_length / block) == len(hash_ids), found "
            f"input_length {first.prompt} with {len(first.ids)} ids on line {first.line}",
            hint="give the block size if you know it (block_tokens)",
        )
    also = [other for other in fits if other != size and fits[other] == fits[size]]
    doubt = f"; {', '.join(map(str, also))} would fit as well" if also else ""
    return size, f"block size: {size} tokens (detected: fits {fits[size]} of {len(rows)} requests{doubt})"


def _count_problems(rows: list[_Row], block: int) -> Iterator[tuple[int, BadLine]]:
    for index, row in enumerate(rows):
        expected = -(-row.prompt // block)
        if expected != len(row.ids):
            yield (
                index,
                BadLine(
                    row.line,
                    0,
                    None,
                    f"expected {expected} hash_ids for input_length {row.prompt} at block {block}, "
                    f"found {len(row.ids)}",
                    "one id per block, the partial last one included; is the block size right?",
                ),
            )


def _table(name: str, rows: list[_Row], block: int) -> RequestTable:
    dense: dict[int, int] = {}
    sessions: dict[str | int, int] = {}
    ids = np.array([dense.setdefault(one, len(dense)) for row in rows for one in row.ids], np.int32)
    arrival = np.array([round(row.timestamp * 1000) for row in rows], np.int64)
    return RequestTable(
        name=name,
        block_tokens=block,
        arrival_us=arrival - arrival[0],
        prompt_tokens=np.array([row.prompt for row in rows], np.int64),
        output_tokens=np.array([row.output for row in rows], np.int64),
        session=np.array(
            [-1 if row.session is None else sessions.setdefault(row.session, len(sessions)) for row in rows],
            np.int64,
        ),
        offsets=np.concatenate(([0], np.cumsum([len(row.ids) for row in rows]))).astype(np.int64),
        ids=ids,
    )


def _warnings(table: RequestTable, rows: list[_Row]) -> Iterator[str]:
    span_s = int(table.arrival_us[-1]) / 1e6
    if len(table) >= 100 and len(table) > _SUSPECT_RATE * span_s > 0:
        yield f"{len(table) / span_s:.0f} requests/s: are the timestamps seconds rather than milliseconds?"
    first = first_lookups(table)
    parents = parent_lookups(table)
    differs = parents != parents[first[table.ids]]
    if differs.any():
        place = int(np.argmax(differs))
        request, earlier = np.searchsorted(table.offsets, [place, first[table.ids[place]]], side="right") - 1
        original = rows[request].ids[place - int(table.offsets[request])]
        yield (
            f"not prefix-consistent: {int(differs.sum())} lookups; the first is id {original} on line "
            f"{rows[request].line}, behind another block than on line {rows[earlier].line} "
            "(replay works, Belady is no longer proven optimal)"
        )


def _what(value: object) -> str:
    text = repr(value) if not isinstance(value, list | dict) else json.dumps(value)
    short = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{type(value).__name__} {short}"
