"""From a trace to configurations: a window of requests, at a load, in a repeat.

A load is a share of what the server can do with the window's own requests: its *saturation*, the
requests per second of virtual time in which first come, first served ends them when all of them
arrive at once. That is less than what it can sustain: the batch thins out while the longest outputs
end, the more so the shorter the window, and turns of a conversation that come together hit less. So
a load a little above 1 need not overload. The window's times are compressed so that its mean rate is
the share; gaps and bursts keep their shape. A repeat begins later (`trace/load.py`), so it has
requests, a saturation and a factor of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.sim.latency import Latency
from tanren_dsl.sim.serving import Server, serve
from tanren_dsl.trace.load import (
    compress,
    cut,
    factor_for_rate,
    fitting,
    shift,
    shifted,
    unique_heads,
    without_empty,
)
from tanren_dsl.trace.table import RequestTable

MOST_REQUESTS = 1500
"""Requests of a window, unless settings say otherwise or the trace is too short."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """One window at one load in one repeat.

    Attributes:
        window: its number in the scoreboard, from 0.
        start: first request of the window in the trace.
        begin: first request of this repeat of it.
        load: share of the saturation.
        repeat: from 0.
        saturation: of this repeat's requests, in requests per second.
        table: the requests at this load.
    """

    window: int
    start: int
    begin: int
    load: float
    repeat: int
    saturation: float
    table: RequestTable

    @property
    def label(self) -> str:
        """The configuration for people."""
        return f"window {self.window}, load {self.load:g}, repeat {self.repeat}"


def servable(trace: RequestTable, settings: Settings) -> RequestTable:
    """The requests that the server can serve; what is left out is counted in the notes.

    Isolated, no two of them share a block.

    Raises:
        TanrenError: none can be served.
    """
    table = fitting(without_empty(trace), settings.capacity, settings.block_size, settings.max_model_len)
    return unique_heads(table) if settings.isolate else table


def window_length(trace: RequestTable, settings: Settings) -> int:
    """Requests of a window: as the settings say, or as many as fit, at most 1,500.

    Raises:
        TanrenError: the trace is too short for windows with repeats.
    """
    if settings.requests is not None:
        return settings.requests
    room = len(trace) // settings.windows
    least = 2 * settings.repeats if settings.repeats > 1 else 1
    lengths = range(min(room, MOST_REQUESTS), least - 1, -1)
    found = next((length for length in lengths if reach_of(length, settings.repeats) <= room), None)
    if found is None:
        raise TanrenError(
            f"{trace.name}: {len(trace):,} requests are too few for {settings.windows:,} windows with "
            f"{settings.repeats:,} repeats",
            hint="use a longer trace, or fewer windows or repeats in a --config file",
        )
    return found


def reach_of(requests: int, repeats: int) -> int:
    """Requests that a window takes up with its repeats, as `trace.load.shifted` moves them.

    >>> reach_of(1000, 2), reach_of(1000, 1)
    (1250, 1000)
    """
    return requests + shift(requests, repeats - 1, repeats)


def candidate_starts(trace: RequestTable, settings: Settings) -> tuple[int, ...]:
    """First requests of windows spread evenly over the trace, with room for repeats; none overlap.

    Raises:
        TanrenError: not even the windows that are asked for fit.
    """
    length = window_length(trace, settings)
    reach = reach_of(length, settings.repeats)
    count = max(settings.windows, min(settings.candidates, len(trace) // reach))
    if count * reach > len(trace):
        raise TanrenError(
            f"{count:,} windows of {length:,} requests, {reach:,} with their repeats, do not fit: "
            f"{trace.name} has {len(trace):,}",
            hint="give fewer --requests, or none",
        )
    return tuple(start for start, _ in cut(trace, count, reach))


def check_starts(trace: RequestTable, starts: Sequence[int], settings: Settings) -> None:
    """Refuse windows that share requests, or that the trace does not hold.

    Raises:
        TanrenError: names the first such window.
    """
    reach = reach_of(window_length(trace, settings), settings.repeats)
    ordered = sorted(starts)
    if ordered[-1] + reach > len(trace):
        raise TanrenError(
            f"windows.starts: a window from request {ordered[-1]:,} ends with request "
            f"{ordered[-1] + reach - 1:,}, repeats included, but {trace.name} has {len(trace):,}"
        )
    for one, other in pairwise(ordered):
        if other < one + reach:
            raise TanrenError(
                f"windows.starts: windows of {reach:,} requests, repeats included, from {one:,} and from "
                f"{other:,} share some",
                hint="a test that counts windows takes them for independent",
            )


def saturation(table: RequestTable, server: Server, latency: Latency) -> float:
    """Requests per second of virtual time when all arrive at once, first come first served."""
    at_once = replace(table, arrival_us=np.zeros(len(table), np.int64))
    return len(table) / (int(serve(at_once, server, latency).end_us.max()) / 1e6)


def at_load(table: RequestTable, load: float, saturated: float) -> RequestTable:
    """The requests at a mean rate of `load` times `saturated` requests per second.

    Raises:
        TanrenError: all of them arrive at the same moment.
    """
    return compress(table, factor_for_rate(table, load * saturated))


def part(trace: RequestTable, start: int, repeat: int, settings: Settings) -> tuple[int, RequestTable]:
    """A repeat of the window from `start`: its first request, and its requests as the trace has them."""
    requests = window_length(trace, settings)
    begin = start + shift(requests, repeat, settings.repeats)
    return begin, shifted(trace, start, requests, repeat, settings.repeats)
