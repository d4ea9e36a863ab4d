"""The load protocol: windows of a trace, each at several loads, each repeated with a shift.

Pure functions from table to table. A load is a factor by which time is compressed: gaps and
bursts keep their shape, only the rate changes. A simulator gives the same answer to the same
input, so a repeat is no second run but the window moved on by a part of its length. Repeats of
one window share most of their requests: a test of significance counts windows, not repeats.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import RequestTable, relabel

_CLOCK_END_US = 2**53


def cut(table: RequestTable, count: int, requests: int) -> tuple[tuple[int, RequestTable], ...]:
    """Windows that share no request: the number of the first request of each, and its table.

    The trace is divided into `count` equal parts, and a window begins where its part does: what
    a part is longer than its window lies behind the window, as room for repeats.

    Raises:
        TanrenError: a number is below 1, or the windows do not fit.
    """
    if count < 1 or requests < 1:
        raise TanrenError(f"expected at least 1 window of 1 request, found {count!r} of {requests!r}")
    if count * requests > len(table):
        raise TanrenError(
            f"{count:,} windows of {requests:,} requests do not fit: {table.name} has {len(table):,}",
            hint=f"windows of {len(table) // count:,} requests fit" if count <= len(table) else None,
        )
    starts = [part * len(table) // count for part in range(count)]
    return tuple((start, table.slice(start, start + requests)) for start in starts)


def shifted(table: RequestTable, start: int, requests: int, repeat: int, repeats: int) -> RequestTable:
    """Repeat `repeat` of the window of `requests` requests from `start`: the same window, begun later.

    It begins `repeat * (requests // (2 * repeats))` requests later: repeat 0 is the window itself,
    and the last one is moved by less than half a window. Windows that lie 1.5 times their length
    apart therefore never meet, whatever their repeats.

    Raises:
        TanrenError: a number is out of range, the window is too short for its repeats to differ,
            or the repeat would run past the end of the trace.
    """
    if not 0 <= repeat < repeats:
        raise TanrenError(f"expected a repeat from 0 to {repeats - 1}, found {repeat!r}")
    if start < 0 or requests < 1:
        raise TanrenError(
            f"expected a window of at least 1 request from 0 on, found {requests!r} from {start!r}"
        )
    begin = start + shift(requests, repeat, repeats)
    if begin + requests > len(table):
        raise TanrenError(
            f"repeat {repeat} of the window from request {start:,} would end with request "
            f"{begin + requests - 1:,}, but {table.name} has {len(table):,}",
            hint="use shorter windows, or fewer",
        )
    return table.slice(begin, begin + requests)


def shift(requests: int, repeat: int, repeats: int) -> int:
    """How many requests later a repeat begins than its window.

    Raises:
        TanrenError: there is no repeat, or the repeats would all be the same.
    """
    if repeats < 1:
        raise TanrenError(f"expected at least 1 repeat, found {repeats!r}")
    step = requests // (2 * repeats)
    if repeats > 1 and step < 1:
        raise TanrenError(
            f"{repeats:,} repeats of a window of {requests!r} requests would all be the same",
            hint=f"use windows of at least {2 * repeats:,} requests",
        )
    return repeat * step


def compress(table: RequestTable, factor: float) -> RequestTable:
    """The same requests with times divided by a factor, rounded to whole microseconds.

    Raises:
        TanrenError: the factor is not finite and above 0, or so small that the clock would end.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise TanrenError(f"expected a factor of compression above 0, found {factor!r}")
    if len(table) and int(table.arrival_us[-1]) >= _CLOCK_END_US * factor:
        raise TanrenError(f"compressed by {factor:g} the trace would outlast the clock (285 years)")
    arrival_us = np.rint(table.arrival_us / factor).astype(np.int64)
    return replace(table, arrival_us=arrival_us, notes=(*table.notes, f"times divided by {float(factor)!r}"))


def factor_for_rate(table: RequestTable, requests_per_s: float) -> float:
    """The factor by which to compress the table so that its mean rate is this one.

    The mean rate is the number of requests over the time from the first to the last, as in
    `statistics`.

    >>> from tanren_dsl.trace.generate import generate_chat
    >>> table = generate_chat(0, 100)
    >>> faster = compress(table, factor_for_rate(table, 25.0))
    >>> round(len(faster) / int(faster.arrival_us[-1]) * 1e6, 3)
    25.0

    Raises:
        TanrenError: the rate is not finite and above 0, or all requests arrive at once.
    """
    if not (math.isfinite(requests_per_s) and requests_per_s > 0):
        raise TanrenError(f"expected a rate above 0 requests per second, found {requests_per_s!r}")
    span_s = int(table.arrival_us[-1]) / 1e6 if len(table) else 0.0
    if not span_s:
        raise TanrenError(
            f"{table.name}: its {len(table):,} requests arrive all at once, so no factor gives them a rate",
            hint="take another window, or more requests",
        )
    return requests_per_s * span_s / len(table)


def unique_heads(table: RequestTable) -> RequestTable:
    """The same times and lengths, but no request shares a block: nothing but the order of service counts."""
    ids = np.arange(table.lookups, dtype=np.int32)
    return replace(table, ids=ids, notes=(*table.notes, "blocks made unique: no request shares any"))


def without_empty(table: RequestTable) -> RequestTable:
    """The requests with an output; an engine refuses to generate nothing.

    Raises:
        TanrenError: none has.
    """
    return _leave_out(table, table.output_tokens < 1, "have no output token")


def fitting(table: RequestTable, usable_blocks: int, block_size: int, max_model_len: int) -> RequestTable:
    """The requests that an engine can serve at all.

    Left out, and counted in the notes, are those longer than the model takes, then those that need
    more blocks than there are even when alone. The last token generated is never computed, so it
    needs no place.

    Args:
        table: the trace.
        usable_blocks: engine blocks that requests may hold.
        block_size: tokens of an engine block.
        max_model_len: most tokens of prompt and output together.

    Raises:
        TanrenError: a number is below 1, or no request fits.
    """
    if min(usable_blocks, block_size, max_model_len) < 1:
        raise TanrenError(
            f"expected at least 1 usable block, 1 token a block and a length of 1 token, "
            f"found {usable_blocks!r}, {block_size!r} and {max_model_len!r}"
        )
    tokens = table.prompt_tokens + table.output_tokens
    table = _leave_out(table, tokens > max_model_len, f"are longer than {max_model_len:,} tokens")
    computed = table.prompt_tokens + np.maximum(table.output_tokens, 1) - 1
    blocks = -(-computed // block_size)
    what = f"need more than {usable_blocks:,} blocks of {block_size:,} tokens"
    return _leave_out(table, blocks > usable_blocks, what)


def _leave_out(table: RequestTable, left_out: NDArray[np.bool_], what: str) -> RequestTable:
    """The other requests as a trace of their own, with a note; the table itself where all stay."""
    count = int(left_out.sum())
    if not count:
        return table
    if count == len(table):
        raise TanrenError(f"{table.name}: no request would be left: all {count:,} {what}")
    kept = ~left_out
    lengths = np.diff(table.offsets)
    arrival = table.arrival_us[kept]
    return replace(
        table,
        arrival_us=arrival - arrival[0],
        prompt_tokens=table.prompt_tokens[kept],
        output_tokens=table.output_tokens[kept],
        session=table.session[kept],
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[kept]))),
        ids=relabel(table.ids[np.repeat(kept, lengths)]),
        notes=(*table.notes, f"left out {count:,} of {len(table):,} requests: they {what}"),
    )
