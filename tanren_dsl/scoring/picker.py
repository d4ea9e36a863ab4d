"""Which classic wins where, and windows that differ in it.

Windows chosen by number may all be won by one rule, and then say little about any other. So a
few windows are spread over the trace, every classic is scored on each (all loads, first repeat),
and a spread is picked: windows that different classics win, then those with the most different
winning scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.arms import Arm
from tanren_dsl.scoring.formula import score, total
from tanren_dsl.scoring.runs import Runs
from tanren_dsl.scoring.windows import candidate_starts, part
from tanren_dsl.trace.statistics import Statistics, statistics
from tanren_dsl.trace.table import RequestTable


@dataclass(frozen=True)
class Surveyed:
    """A window that every classic ran on.

    Attributes:
        start: first request in the trace.
        saturation: requests per second at most, see `windows.py`.
        scores: total over the loads, by classic; the first of equals wins.
        statistics: of its requests, at the trace's own times.
    """

    start: int
    saturation: float
    scores: Mapping[str, float]
    statistics: Statistics

    @property
    def winner(self) -> str:
        """The classic with the best total."""
        return max(self.scores, key=lambda name: self.scores[name])

    @property
    def score(self) -> float:
        """The winner's total."""
        return self.scores[self.winner]

    @property
    def margin(self) -> float:
        """How far the winner is ahead of the next; 0 where there is no other."""
        others = sorted(self.scores.values(), reverse=True)
        return others[0] - others[1] if len(others) > 1 else 0.0

    def as_json(self) -> dict[str, Any]:
        """Every value by its name."""
        return {
            "start": self.start,
            "winner": self.winner,
            "score": self.score,
            "margin": self.margin,
            "saturation_requests_per_s": self.saturation,
            "scores": dict(self.scores),
            "statistics": dict(self.statistics),
        }


def survey(runs: Runs, classics: Sequence[Arm]) -> tuple[Surveyed, ...]:
    """Every classic on every candidate window, in order of the trace.

    Raises:
        TanrenError: the windows do not fit, or in too many of them all requests arrive at once.
    """
    settings, found = runs.settings, []
    starts = candidate_starts(runs.trace, settings)
    runs.say(f"{len(classics)} classics on {len(starts)} windows, to see which wins where")
    for start in starts:
        if _at_once(part(runs.trace, start, repeat, settings)[1] for repeat in range(settings.repeats)):
            runs.say(f"  the window from request {start:,} is left out: its requests arrive all at once")
            continue
        scores: dict[str, list[float]] = {arm.label: [] for arm in classics}
        rate = 0.0
        for load in settings.loads:
            at = runs.configuration(0, start, load, 0)
            rate = at.saturation
            fcfs = runs.measure(runs.base, at)
            for arm in classics:
                own = runs.measure(arm, at)
                points = score(own.mean_s, own.p99_s, fcfs.mean_s, fcfs.p99_s, s=settings.s, k=settings.k)
                scores[arm.label].append(points)
        totals = {name: total(points) for name, points in scores.items()}
        _, table = part(runs.trace, start, 0, settings)
        found.append(Surveyed(start, rate, totals, window_statistics(table)))
    if len(found) < settings.windows:
        raise TanrenError(
            f"{runs.trace.name}: {len(found)} of {len(starts)} windows have requests that do not arrive all "
            f"at once, {settings.windows} are needed",
            hint="give more --requests to a window, or a trace with arrival times",
        )
    return tuple(found)


def _at_once(tables: Iterable[RequestTable]) -> bool:
    return any(int(table.arrival_us[-1]) == 0 for table in tables)


def pick(surveyed: Sequence[Surveyed], count: int) -> tuple[int, ...]:
    """Starts of `count` windows that differ, in order of the trace; all of them if there are no more.

    First one window for each winner, the one that it wins by most, the clearest winners first. Then,
    again and again, the window whose winning score is furthest from those of the picked. The earlier
    of equals.

    >>> def window(start, **scores):
    ...     return Surveyed(start, 1.0, scores, {})
    >>> found = [window(0, a=1.0, b=0.5), window(10, a=1.1, b=0.2), window(20, a=0.1, b=0.3),
    ...          window(30, a=2.0, b=1.9), window(40, a=0.2, b=0.1)]
    >>> pick(found, 2), pick(found, 3), pick(found, 9)
    ((10, 20), (10, 20, 30), (0, 10, 20, 30, 40))
    """
    clearest: dict[str, Surveyed] = {}
    for one in surveyed:
        held = clearest.get(one.winner)
        if held is None or one.margin > held.margin:
            clearest[one.winner] = one
    picked = sorted(clearest.values(), key=lambda one: (-one.margin, one.start))[:count]
    while len(picked) < min(count, len(surveyed)):
        rest = [one for one in surveyed if one not in picked]
        picked.append(max(rest, key=lambda one: min(abs(one.score - other.score) for other in picked)))
    return tuple(sorted(one.start for one in picked))


def window_statistics(table: RequestTable) -> Statistics:
    """The statistics of a window's requests, and `gap_cv`, the variation of its gaps (Poisson: 1)."""
    gaps = np.diff(table.arrival_us)
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return {**statistics(table), "gap_cv": float(gaps.std()) / mean if mean else 0.0}
