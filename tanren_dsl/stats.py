"""What a difference between two measured arms is worth: paired bootstrap intervals and a sign test.

Pure functions of arrays; nothing here knows what was measured. A matrix holds a row for each round
and a column for each request; the cell of one arm and the same cell of the other are a pair.

Percentiles interpolate linearly between the closest ranks (Hyndman and Fan's definition 7, NumPy's
default): the p-th of n sorted values lies at position `p / 100 * (n - 1)`, counted from 0.

The interval is the percentile interval of a pigeonhole bootstrap (Owen, "The pigeonhole bootstrap",
2007): rounds and requests are drawn with replacement, each pair stays together. Of R rounds R - 1 are
drawn, which makes up for their small number (Rao and Wu, "Resampling inference with complex survey
data", 1988). Still, what makes whole rounds fast or slow is not seen with one round and too little
with two to four (three of four intervals hold the truth, not 19 of 20): compare with `round_noise`
and an A/A run. Requests close in time wait for one another, so `neighbours` requests that follow
each other are drawn together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tanren_dsl.errors import TanrenError

Doubles: TypeAlias = NDArray[np.float64]
_CELLS = 1 << 22  # drawn at a time, so that memory stays bounded

STATISTICS: Mapping[str, float | None] = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
"""Name of each statistic, and its percentile; None is the mean."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A statistic of the arm against that of the base, in percent, with its interval: 0 is no change."""

    percent: float
    low: float
    high: float

    @property
    def contains_zero(self) -> bool:
        """Whether no change at all is within the interval."""
        return self.low <= 0.0 <= self.high

    @property
    def reach(self) -> float:
        """The bound of the interval that is further from 0, in percent."""
        return max(abs(self.low), abs(self.high))


def summary(values: Doubles) -> dict[str, float | None]:
    """Every statistic of the values, in their unit; None where there are none.

    >>> summary(np.array([1.0, 2.0, 3.0, 10.0]))["p50"]
    2.5
    """
    if values.size == 0:
        return dict.fromkeys(STATISTICS)
    found = _of_rows(values.reshape(1, -1), STATISTICS)
    return {name: float(row[0]) for name, row in found.items()}


def complete(base: Doubles, arm: Doubles) -> tuple[Doubles, Doubles]:
    """The columns that have a value in every round of both arms; nan is no value."""
    kept = ~(np.isnan(base).any(axis=0) | np.isnan(arm).any(axis=0))
    return base[:, kept], arm[:, kept]


def paired_bootstrap(
    base: Doubles, arm: Doubles, *, seed: int, resamples: int = 2000, level: float = 0.95, neighbours: int = 1
) -> dict[str, Difference]:
    """How much each statistic of the arm differs from the base's, over all rounds and requests pooled.

    Equal arms differ by exactly 0, and their interval is [0, 0].

    Args:
        base: [rounds, requests] above 0, such as milliseconds, without nan.
        arm: the same shape; its cells pair with those of `base`.
        seed: of the resampling; the same seed gives the same interval.
        resamples: how often is drawn.
        level: share of the resamples that the interval holds.
        neighbours: requests that follow each other and are drawn together (a circle of them).

    Raises:
        TanrenError: shapes differ, nothing is there, or a number is out of range.
    """
    _check(base, arm, resamples, level, neighbours)
    rounds, requests = base.shape
    neighbours = min(neighbours, requests)
    rng = np.random.default_rng(seed)
    drawn: dict[str, list[Doubles]] = {name: [] for name in STATISTICS}
    left = resamples
    while left:
        count = min(left, max(1, _CELLS // base.size))
        left -= count
        rows = rng.integers(0, rounds, (count, max(1, rounds - 1), 1))
        starts = rng.integers(0, requests, (count, -(-requests // neighbours), 1))
        columns = ((starts + np.arange(neighbours)) % requests).reshape(count, -1)[:, None, :requests]
        of_base = _of_rows(base[rows, columns].reshape(count, -1), STATISTICS)
        of_arm = _of_rows(arm[rows, columns].reshape(count, -1), STATISTICS)
        for name in STATISTICS:
            drawn[name].append(_percent(of_base[name], of_arm[name]))
    whole_base = _of_rows(base.reshape(1, -1), STATISTICS)
    whole_arm = _of_rows(arm.reshape(1, -1), STATISTICS)
    tail = 100 * (1 - level) / 2
    found = {}
    for name in STATISTICS:
        low, high = np.percentile(np.concatenate(drawn[name]), (tail, 100 - tail))
        found[name] = Difference(
            float(_percent(whole_base[name], whole_arm[name])[0]), float(low), float(high)
        )
    return found


def round_noise(base: Doubles, arm: Doubles, level: float = 0.95) -> dict[str, float] | None:
    """How far apart, in percent, two arms may be by what rounds of the same arm differ; None with one round.

    Student's interval of a difference of logarithms: the variance of each statistic between the
    rounds of an arm, both arms pooled. With few rounds it is wide, as it must be.

    Args:
        base: [rounds, requests] above 0, without nan.
        arm: the same shape, above 0.
        level: of the interval.

    >>> steady = np.array([[2.0, 3.0], [2.0, 3.0]])
    >>> round_noise(steady, 2 * steady)["mean"]
    0.0
    """
    rounds = len(base)
    if rounds < 2:
        return None
    quantile = float(stdtrit(2 * (rounds - 1), (1 + level) / 2))
    of_base, of_arm = _of_rows(base, STATISTICS), _of_rows(arm, STATISTICS)
    found = {}
    for name in STATISTICS:
        variance = np.mean([np.var(np.log(rows[name]), ddof=1) for rows in (of_base, of_arm)])
        found[name] = 100.0 * math.expm1(quantile * math.sqrt(2.0 * float(variance) / rounds))
    return found


def _check(base: Doubles, arm: Doubles, resamples: int, level: float, neighbours: int) -> None:
    if base.ndim != 2 or base.shape != arm.shape or base.size == 0:
        raise TanrenError(f"expected two matrices of one shape, found {base.shape} and {arm.shape}")
    if not ((base > 0).all() and np.isfinite(base).all() and np.isfinite(arm).all()):
        raise TanrenError("expected finite values, and those of the base above 0")
    if resamples < 1 or neighbours < 1 or not 0 < level < 1:
        raise TanrenError(
            f"expected at least 1 resample, 1 neighbour and a level between 0 and 1, "
            f"found {resamples}, {neighbours} and {level}"
        )


def _of_rows(rows: Doubles, statistics: Mapping[str, float | None]) -> dict[str, Doubles]:
    """[n] each statistic of every row."""
    percentiles = {name: p for name, p in statistics.items() if p is not None}
    found = dict(zip(percentiles, np.percentile(rows, list(percentiles.values()), axis=1), strict=True))
    return {name: rows.mean(axis=1) if p is None else found[name] for name, p in statistics.items()}


def _percent(base: Doubles, arm: Doubles) -> Doubles:
    return np.asarray((arm / base - 1.0) * 100.0, np.float64)
