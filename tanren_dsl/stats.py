"""What a difference between two measured arms is worth: paired bootstrap intervals and sign tests.

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

The sign tests count configurations, never requests: those of one run wait for one another, and a
test that takes them for independent finds a difference between a server and itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tanren_dsl.errors import TanrenError

Doubles: TypeAlias = NDArray[np.float64]
_CELLS = 1 << 22  # drawn at a time, so that memory stays bounded
_MOST_EXACT = 16  # clusters of which every flip is looked at
_FLIPS = 1 << 16  # drawn where there are more

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


def bootstrap_share(
    parts: Doubles, wholes: Doubles, *, seed: int, resamples: int = 2000, level: float = 0.95,
    neighbours: int = 1,
) -> Difference:  # fmt: skip
    """The sum of the parts as a share of the sum of the wholes, in percent, with its interval.

    Such as hits gained of blocks looked up: 1.5 is one and a half percentage points of hit rate. The
    moving-block bootstrap: `neighbours` requests that follow each other are drawn together (a circle).

    Args:
        parts: [requests] finite, such as hits of one arm less those of the other.
        wholes: [requests] at least 0, with a sum above 0.
        seed: of the resampling; the same seed gives the same interval.
        resamples: how often is drawn.
        level: share of the resamples that the interval holds.
        neighbours: requests that are drawn together.

    Raises:
        TanrenError: shapes differ, nothing is there, or a number is out of range.

    >>> bootstrap_share(np.array([1.0, 1.0]), np.array([10.0, 10.0]), seed=0)
    Difference(percent=10.0, low=10.0, high=10.0)
    """
    _check(wholes.reshape(1, -1) + 1.0, parts.reshape(1, -1) + 1.0, resamples, level, neighbours)
    if (wholes < 0).any() or not wholes.sum() > 0:
        raise TanrenError("expected wholes of at least 0 and a sum above 0")
    count = len(parts)
    neighbours = min(neighbours, count)
    rng = np.random.default_rng(seed)
    drawn: list[Doubles] = []
    left = resamples
    while left:
        many = min(left, max(1, _CELLS // count))
        left -= many
        starts = rng.integers(0, count, (many, -(-count // neighbours), 1))
        columns = ((starts + np.arange(neighbours)) % count).reshape(many, -1)[:, :count]
        below = wholes[columns].sum(axis=1)
        above = parts[columns].sum(axis=1)
        drawn.append(100.0 * np.divide(above, below, out=np.zeros(many), where=below > 0))
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(np.concatenate(drawn), (tail, 100 - tail))
    return Difference(float(100.0 * parts.sum() / wholes.sum()), float(low), float(high))


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


def sign_test(wins: int, losses: int) -> float:
    """How probable at least this many wins are where winning and losing are equally likely.

    The exact one-sided binomial test; ties are to be dropped before. Configurations count as
    independent: where several share requests, `clustered_sign_flip` stands beside it.

    Args:
        wins: configurations in which the arm is better.
        losses: those in which it is worse.

    Raises:
        TanrenError: a number is below 0.

    >>> round(sign_test(15, 1), 5), round(sign_test(13, 3), 3), round(sign_test(6, 8), 2)
    (0.00026, 0.011, 0.79)
    >>> sign_test(0, 0)
    1.0
    """
    if wins < 0 or losses < 0:
        raise TanrenError(f"expected 0 wins and losses or more, found {wins!r} and {losses!r}")
    count = int(wins) + int(losses)
    term = tail = 1
    for k in range(int(losses)):
        term = term * (count - k) // (k + 1)
        tail += term
    return tail / (1 << count)


def clustered_sign_flip(
    differences: Sequence[float] | Doubles, clusters: Sequence[int] | NDArray[np.integer], *, seed: int = 0
) -> float:
    """How probable a mean of cluster means at least this high is where every cluster's sign is chance.

    The exact one-sided sign-flip test. A cluster, such as a window with its loads and repeats, is
    one observation however many differences it holds. All `2 ** C` flips of C clusters are looked
    at up to C = 16, so the smallest value there can be is `1 / 2 ** C`: 1/16 with four windows,
    and below 0.05 only with five or more. Above 16, 65,536 seeded draws stand for them, the signs
    as they are being one more, and the smallest value is 1/65,537.

    Args:
        differences: [n] finite, above 0 where the arm is better.
        clusters: [n] the cluster of each.
        seed: of the draws.

    Raises:
        TanrenError: lengths differ, or a difference is not finite.

    >>> clustered_sign_flip([3.0, 1.0, 2.0, 2.0, 5.0, 1.0], [0, 0, 1, 1, 2, 2])
    0.125
    >>> clustered_sign_flip([3.0, 2.0, -1.0], [0, 1, 2])
    0.25
    """
    values, labels = np.asarray(differences, np.float64), np.asarray(clusters)
    if values.ndim != 1 or values.shape != labels.shape or not np.isfinite(values).all():
        raise TanrenError(
            f"expected finite differences and a cluster for each, found {values.shape} and {labels.shape}"
        )
    if not values.size:
        return 1.0
    _, place = np.unique(labels, return_inverse=True)
    means = np.bincount(place, weights=values) / np.bincount(place)
    # sums that are equal on paper may differ in their last bits; a tie counts against the arm
    least = means.sum() - 1e-12 * np.abs(means).sum()
    if len(means) <= _MOST_EXACT:
        flips = np.arange(1 << len(means))[:, None] >> np.arange(len(means)) & 1
        return float(np.mean((1.0 - 2.0 * flips) @ means >= least))
    rng, reached, left = np.random.default_rng(seed), 1, _FLIPS
    while left:
        count = min(left, max(1, _CELLS // len(means)))
        left -= count
        signs = 1.0 - 2.0 * rng.integers(0, 2, (count, len(means)))
        reached += int((signs @ means >= least).sum())
    return reached / (_FLIPS + 1)


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
