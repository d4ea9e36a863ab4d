"""Windows of a trace for three roles that share no request, and the cache sizes tried on each.

Candidates are compared in the *training* windows, the best of them are judged in the *validation*
windows, and the *hold-out* is sealed: the search never measures anything there. A window is a run
of consecutive requests, served from an empty cache; repeats of it begin a little later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.picker import Surveyed, pick
from tanren_dsl.scoring.windows import reach_of
from tanren_dsl.trace.load import shift
from tanren_dsl.trace.table import RequestTable

Role: TypeAlias = Literal["train", "validation", "holdout"]
ROLES: tuple[Role, ...] = ("train", "validation", "holdout")
SEARCHED: tuple[Role, ...] = ("train", "validation")
"""Roles that a search may look at."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A range of requests: by number if both ends are whole numbers, else by share of the trace."""

    start: int | float
    stop: int | float

    def requests(self, count: int) -> tuple[int, int]:
        """Number of the first request and one past that of the last, in a trace of `count`.

        >>> Cut(0.25, 1.0).requests(1000), Cut(10, 20).requests(1000)
        ((250, 1000), (10, 20))
        """
        if isinstance(self.start, int) and isinstance(self.stop, int):
            return self.start, self.stop
        return round(self.start * count), round(self.stop * count)


@dataclass(frozen=True, slots=True)
class Spread:
    """Windows of equal length, evenly spread over a range of the trace.

    Attributes:
        requests: of a window, its repeats included.
        pick: of `count` windows those that differ most in which classic wins them; None: all.
    """

    within: Cut
    count: int
    requests: int
    pick: int | None = None


Windows: TypeAlias = tuple[Cut, ...] | Spread


@dataclass(frozen=True, slots=True)
class Capacities:
    """Cache sizes: blocks, or shares of a window's distinct blocks."""

    blocks: tuple[int, ...] = ()
    fractions: tuple[float, ...] = ()

    def of(self, table: RequestTable) -> tuple[tuple[str, int], ...]:
        """Label and size in blocks of each, for one window."""
        absolute = [(f"{blocks:,} blocks", blocks) for blocks in self.blocks]
        distinct = table.distinct_blocks
        shares = [(f"{100 * share:g} %", math.ceil(share * distinct)) for share in self.fractions]
        return (*absolute, *shares)


Ranges: TypeAlias = dict[Role, tuple[tuple[int, int], ...]]
Survey: TypeAlias = Callable[[int, int], Mapping[str, float]]
"""Scores of the classics in the window of two request numbers."""


def settle(wanted: Mapping[Role, Windows], count: int, name: str, survey: Survey, warm: int = 0) -> Ranges:
    """Request numbers of every window, first and one past the last.

    Args:
        wanted: what the problem says of each role.
        count: requests of the trace.
        name: of the trace, for messages.
        survey: asked about windows to pick from; never about the hold-out.
        warm: requests before each window that fill the cache: none of them may be of the hold-out.

    Raises:
        TanrenError: a window is empty, too long or there twice, or two roles share a request.
    """
    found: Ranges = {}
    for role, windows in wanted.items():
        if isinstance(windows, Spread):
            spread = _spread(windows, count, f"windows.{role}")
            found[role] = spread if windows.pick is None else _picked(spread, windows.pick, survey)
        else:
            found[role] = tuple(
                _range(cut, count, name, f"windows.{role}[{number}]") for number, cut in enumerate(windows)
            )
        named = [f"{role} {start:,} to {stop:,}" for start, stop in found[role]]
        refuse_twice("windows", named)
    _refuse_overlap(found)
    for role in SEARCHED:
        for here, (start, _) in enumerate(found.get(role, ())):
            for there, (low, high) in enumerate(found.get("holdout", ())):
                if max(0, start - warm) < high and low < start:
                    raise TanrenError(
                        f"windows.{role}[{here}] would be warmed by requests of windows.holdout[{there}]",
                        hint="let the hold-out come last",
                    )
    return found


def repeats_of(start: int, stop: int, repeats: int) -> list[tuple[int, int]]:
    """The repeats of a window, all of them within it: each begins a little later than the one before.

    >>> repeats_of(0, 1250, 2), repeats_of(5, 9, 1)
    ([(0, 1000), (250, 1250)], [(5, 9)])

    Raises:
        TanrenError: the window is too short for its repeats to differ.
    """
    room = stop - start
    least = 2 * repeats if repeats > 1 else 1
    lengths = range(room, least - 1, -1)
    length = next((one for one in lengths if reach_of(one, repeats) <= room), None)
    if length is None:
        raise TanrenError(
            f"windows: {repeats} repeats do not fit requests {start:,} to {stop - 1:,}",
            hint="use longer windows, or windows.repeats = 1",
        )
    begins = [start + shift(length, repeat, repeats) for repeat in range(repeats)]
    return [(begin, begin + length) for begin in begins]


def label_of(start: int, stop: int) -> str:
    """A window for people.

    >>> label_of(0, 2000)
    'requests 0 to 1,999'
    """
    return f"requests {start:,} to {stop - 1:,}"


def refuse_twice(path: str, labels: Sequence[str]) -> None:
    """A configuration is known by its labels; one that stands twice would count twice."""
    for place, label in enumerate(labels):
        if label in labels[:place]:
            raise TanrenError(f"{path}: {label} stands there twice", hint="leave one out")


def _spread(windows: Spread, count: int, path: str) -> tuple[tuple[int, int], ...]:
    low, high = windows.within.requests(count)
    high = min(high, count)
    if windows.count * windows.requests > high - low:
        raise TanrenError(
            f"{path}: {windows.count:,} windows of {windows.requests:,} requests do not fit requests {low:,} "
            f"to {high - 1:,}",
            hint="use fewer or shorter windows",
        )
    starts = [low + number * (high - low) // windows.count for number in range(windows.count)]
    return tuple((start, start + windows.requests) for start in starts)


def _picked(spread: tuple[tuple[int, int], ...], count: int, survey: Survey) -> tuple[tuple[int, int], ...]:
    surveyed = [Surveyed(start, 0.0, survey(start, stop), {}) for start, stop in spread]
    starts = set(pick(surveyed, count))
    return tuple(window for window in spread if window[0] in starts)


def _range(cut: Cut, count: int, name: str, path: str) -> tuple[int, int]:
    start, stop = cut.requests(count)
    if not 0 <= start < stop <= count:
        raise TanrenError(
            f"{path}: requests {start:,} to {stop:,} are no window of {name}, which has {count:,}"
        )
    return start, stop


def _refuse_overlap(found: Ranges) -> None:
    for number, role in enumerate(ROLES):
        for other in ROLES[number + 1 :]:
            for here, (start, stop) in enumerate(found.get(role, ())):
                for there, (low, high) in enumerate(found.get(other, ())):
                    if max(start, low) < min(stop, high):
                        raise TanrenError(
                            f"windows.{role}[{here}] and windows.{other}[{there}] share requests "
                            f"{max(start, low):,} to {min(stop, high) - 1:,}",
                            hint="a score on what was searched on says nothing",
                        )
