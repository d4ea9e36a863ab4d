"""The request table: one trace as flat NumPy arrays.

Every reader and the generator make this table; simulators read nothing else. It
knows times, lengths and block identities, never content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError

Ints: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RequestTable:
    """R requests in order of arrival, L block lookups, D distinct blocks.

    A request's blocks are `ids[offsets[r] : offsets[r + 1]]`: one id per trace block
    of its prompt, the partial last one included. Equal ids mean equal content after
    an equal prefix (readers verify it and note a violation).
    """

    name: str
    block_tokens: int
    """Tokens of a full trace block."""
    arrival_us: Ints
    """[R] whole microseconds since the first request, non-decreasing, first is 0."""
    prompt_tokens: Ints
    """[R] at least 1."""
    output_tokens: Ints
    """[R] at least 0."""
    session: Ints
    """[R] conversation number, -1 where unknown."""
    offsets: Ints
    """[R + 1] where each request's blocks begin in `ids`."""
    ids: Ids
    """[L] dense block ids 0 .. D - 1, numbered in order of first appearance."""
    notes: tuple[str, ...] = ()
    """What the reader detected, assumed and skipped, one sentence each."""

    def __len__(self) -> int:
        return len(self.arrival_us)

    @property
    def lookups(self) -> int:
        """Number of block lookups L."""
        return len(self.ids)

    @property
    def distinct_blocks(self) -> int:
        """Number of distinct blocks D."""
        return int(self.ids.max()) + 1 if len(self.ids) else 0

    def longest(self) -> int:
        """Trace blocks of the longest request: the least capacity that can serve every one."""
        return int(np.diff(self.offsets).max(initial=0))

    def slice(self, start: int, stop: int) -> RequestTable:
        """Requests `start .. stop - 1` as a trace of their own: time starts at 0, ids are renumbered.

        Bounds work like those of a Python slice.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        stop = max(start, stop)
        low, high = int(self.offsets[start]), int(self.offsets[stop])
        arrival = self.arrival_us[start:stop]
        return replace(
            self,
            name=f"{self.name}[{start}:{stop}]",
            arrival_us=arrival - arrival[0] if len(arrival) else arrival.copy(),
            prompt_tokens=self.prompt_tokens[start:stop].copy(),
            output_tokens=self.output_tokens[start:stop].copy(),
            session=self.session[start:stop].copy(),
            offsets=self.offsets[start : stop + 1] - low,
            ids=relabel(self.ids[low:high]),
        )

    def head(self, n: int) -> RequestTable:
        """The first n requests."""
        return self.slice(0, max(0, n))

    def with_rate(self, requests_per_s: float, seed: int | None = None) -> RequestTable:
        """The same requests in the same order at another rate.

        Evenly spaced by default; with a seed, a Poisson process of that mean rate.
        """
        if not (np.isfinite(requests_per_s) and requests_per_s > 0):
            raise TanrenError(f"expected a rate above 0 requests per second, found {requests_per_s!r}")
        if seed is None:
            arrival_s = np.arange(len(self)) / requests_per_s
            note = f"arrivals replaced: evenly spaced, {requests_per_s:g} requests/s"
        else:
            gaps = np.random.default_rng(seed).exponential(1 / requests_per_s, len(self))
            arrival_s = np.cumsum(gaps) - gaps[:1]
            note = f"arrivals replaced: Poisson, {requests_per_s:g} requests/s, seed {seed}"
        if len(self) and arrival_s[-1] >= 2**53 / 1e6:
            raise TanrenError(
                f"at {requests_per_s:g} requests/s the trace would outlast the clock (285 years)"
            )
        arrival_us = np.rint(arrival_s * 1e6).astype(np.int64)
        return replace(self, arrival_us=arrival_us, notes=(*self.notes, note))

    def with_outputs(self, n: int) -> RequestTable:
        """The same requests with outputs of at most n tokens."""
        if n < 0:
            raise TanrenError(f"expected a cap of 0 tokens or more, found {n!r}")
        capped = np.minimum(self.output_tokens, n)
        return replace(self, output_tokens=capped, notes=(*self.notes, f"outputs capped at {n} tokens"))

    def check(self) -> None:
        """Verify every promise made above.

        Raises:
            TanrenError: names the first broken promise and the request.
        """
        for problem in _problems(self):
            raise TanrenError(f"request table {self.name!r}: {problem}")


def relabel(ids: NDArray[np.integer]) -> Ids:
    """Dense numbers 0 .. D - 1 in order of first appearance, same shape.

    >>> relabel(np.array([7, 3, 7, 9])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first), dtype=np.int32)
    return np.asarray(rank[inverse], dtype=np.int32)


def first_lookups(table: RequestTable) -> Ints:
    """[D] the lookup at which each block appears for the first time."""
    first = np.empty(table.distinct_blocks, np.int64)
    # NumPy keeps the last of repeated assignments: walk backwards to keep the first lookup
    first[table.ids[::-1]] = np.arange(table.lookups - 1, -1, -1)
    return first


def parent_lookups(table: RequestTable) -> Ids:
    """[L] the id before each lookup in its own request, -1 at the front."""
    parents = np.empty(table.lookups, np.int32)
    parents[1:] = table.ids[:-1]
    parents[table.offsets[:-1]] = -1
    return parents


def _problems(table: RequestTable) -> Iterator[str]:
    rows = len(table)
    columns = {
        "arrival_us": (table.arrival_us, rows),
        "prompt_tokens": (table.prompt_tokens, rows),
        "output_tokens": (table.output_tokens, rows),
        "session": (table.session, rows),
        "offsets": (table.offsets, rows + 1),
    }
    for name, (column, length) in columns.items():
        if column.dtype != np.int64 or column.shape != (length,):
            yield f"{name} must be int64 of shape ({length},), found {column.dtype} {column.shape}"
            return
    if table.ids.dtype != np.int32 or table.ids.ndim != 1:
        yield f"ids must be a flat int32 array, found {table.ids.dtype} {table.ids.shape}"
        return
    if table.block_tokens < 1:
        yield f"block_tokens must be at least 1, found {table.block_tokens}"
        return
    lengths = np.diff(table.offsets)
    if table.offsets[0] != 0 or table.offsets[-1] != table.lookups or (lengths < 0).any():
        yield f"offsets must rise from 0 to {table.lookups}"
        return
    faults = {
        "has no prompt": table.prompt_tokens < 1,
        "has a negative output": table.output_tokens < 0,
        "has a session below -1": table.session < -1,
        f"has not ceil(prompt / {table.block_tokens}) blocks": lengths
        != -(-table.prompt_tokens // table.block_tokens),
        "arrives before the one in front of it": np.diff(table.arrival_us, prepend=0) < 0,
    }
    for message, fault in faults.items():
        if fault.any():
            yield f"request {int(np.argmax(fault))} {message}"
    if rows and table.arrival_us[0] != 0:
        yield f"the first request must arrive at 0, found {table.arrival_us[0]}"
    if not np.array_equal(table.ids, relabel(table.ids)):
        yield "ids must be numbered in order of first appearance"
        return
    request = np.repeat(np.arange(rows), lengths)
    pair = request * table.distinct_blocks + table.ids
    values, counts = np.unique(pair, return_counts=True)
    if (counts > 1).any():
        yield f"request {int(values[np.argmax(counts > 1)] // table.distinct_blocks)} repeats a block"
