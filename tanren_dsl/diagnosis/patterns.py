"""Patterns: short conjunctions of thresholds that hold where a policy regrets, and not where it was right.

A greedy decision list. Each round looks at every threshold and at every pair of thresholds on a sample
of the decisions that no pattern covers yet, and takes the one with the largest share of the regret
less the share of right decisions that it covers. The same input gives the same patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.diagnosis.features import Doubles, Feature, Features
from tanren_dsl.diagnosis.separation import Mask

MOST = 5
"""Patterns, at most."""
CUTS = 16
"""Thresholds of a feature: so many parts of it among regretted and among right decisions, and the ends."""
SAMPLE = 3000
"""Decisions of each group that the search looks at; what is reported is counted over all."""
LEAST_GAIN = 0.15
"""Share of the regret less share of right decisions below which nothing is called a pattern."""
LEAST_NEW = 0.03
"""Share of the whole regret that a pattern must add."""
PAIR_GAIN = 0.05
"""By how much two thresholds must beat one."""
LEAST_LIFT = 1.25
"""Times the share of regretted decisions among all judged ones that a pattern's precision must reach."""
FEW = 8
"""Below so many regretted or right decisions nothing is generalised."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A threshold on a feature; `twin` is the other form of it that covers as many regretted decisions."""

    feature: Feature
    above: bool
    threshold: float
    twin: str = ""

    @property
    def text(self) -> str:
        """The condition with its unit."""
        return f"{self.feature.text} {'>=' if self.above else '<='} {self.feature.show(self.threshold)}"

    def holds(self, column: Doubles) -> Mask:
        """[n] where it holds."""
        return column >= self.threshold if self.above else column <= self.threshold


@dataclass(frozen=True, slots=True)
class Pattern:
    """A conjunction, and what it covers among all judged decisions.

    Attributes:
        share: of the whole regret.
        added: of the whole regret, what no pattern before it covers.
        precision: regretted decisions among the regretted and right ones that it covers.
        lift: precision, in times that of all judged decisions.
        regretted, right: how many of each it covers.
        example: index of the worst decision that it covers and none before it does.
    """

    conditions: tuple[Condition, ...]
    share: float
    added: float
    precision: float
    lift: float
    regretted: int
    right: int
    example: int

    @property
    def text(self) -> str:
        """The conjunction with units."""
        return " and ".join(condition.text for condition in self.conditions)

    @property
    def twin(self) -> str:
        """The other form of those conditions that have one."""
        return " and ".join(condition.twin for condition in self.conditions if condition.twin)


def find_patterns(
    features: Features, regret: Doubles, right: Mask, *, rank: Doubles | None = None, most: int = MOST
) -> tuple[Pattern, ...]:
    """The patterns of n decisions, the first one the strongest; none where nothing separates.

    Args:
        features: of all decisions.
        regret: [n] in hits or seconds; above 0 is regretted.
        right: [n] decisions that were right; those that are neither are not judged.
        rank: [n] by what examples are chosen, the highest; None: by regret.
        most: patterns, at most.
    """
    rank = regret if rank is None else rank
    regretted = regret > 0
    if regretted.sum() < FEW or right.sum() < FEW or not features.rows:
        return ()
    total, base = float(regret[regretted].sum()), regretted.sum() / (regretted.sum() + right.sum())
    left = regretted | right
    found: list[Pattern] = []
    for _ in range(most):
        conditions = _best(features, regret, left & regretted, left & right, total)
        if conditions is None:
            break
        covered = _covered(features, conditions)
        bad, good = covered & regretted, covered & right
        fresh = bad & left
        precision = bad.sum() / (bad.sum() + good.sum())
        added = float(regret[fresh].sum()) / total
        if added < LEAST_NEW or precision < LEAST_LIFT * base:
            break
        found.append(
            Pattern(
                tuple(_with_twin(features, one, regretted) for one in conditions),
                float(regret[bad].sum()) / total,
                added,
                float(precision),
                float(precision / base),
                int(bad.sum()),
                int(good.sum()),
                int(np.argmax(np.where(fresh, rank, -1.0))),
            )
        )
        left &= ~covered
    return tuple(found)


def _best(
    features: Features, regret: Doubles, regretted: Mask, right: Mask, total: float
) -> list[Condition] | None:
    """The best one or two conditions over what is left, or None."""
    if not regretted.any() or not right.any():
        return None
    bad, good = _spread(regretted), _spread(right)
    stumps = _stumps(features, bad, good)
    if not stumps:
        return None
    places = [features.rows.index(stump.feature) for stump in stumps]
    on_bad, on_good = (
        np.array(
            [stump.holds(features.values[rows, k]) for stump, k in zip(stumps, places, strict=True)], float
        )
        for rows in (bad, good)
    )
    weights = regret[bad] * (regret[regretted].sum() / regret[bad].sum() / total)
    shares = _rounded((on_bad * weights) @ on_bad.T)
    costs = _rounded(on_good @ on_good.T / len(good))
    gains = shares - costs
    single = int(np.argmax(np.diag(gains)))
    _forbid(gains, stumps)
    one, two = (int(place) for place in np.unravel_index(np.argmax(gains), gains.shape))
    alone = float(shares[single, single] - costs[single, single])
    if gains[one, two] < max(LEAST_GAIN, alone + PAIR_GAIN):
        # one threshold must be worth it by the share of what is left, two by the same
        return [stumps[single]] if alone >= LEAST_GAIN else None
    return [stumps[one], stumps[two]]


def _stumps(features: Features, bad: NDArray[np.int64], good: NDArray[np.int64]) -> list[Condition]:
    found: dict[tuple[int, bool, float], Condition] = {}
    shares = np.arange(CUTS + 1) / CUTS
    for k, feature in enumerate(features.rows):
        column = features.values[:, k]
        cuts = [np.quantile(column[rows], shares, method="lower") for rows in (bad, good)]
        for cut in dict.fromkeys(_three_digits(float(value)) for value in np.unique(np.concatenate(cuts))):
            for above in (True, False):
                stump = Condition(feature, above, cut)
                holds = stump.holds(column[bad])
                if holds.any() and not (holds.all() and stump.holds(column[good]).all()):
                    found.setdefault((k, above, cut), stump)
    return list(found.values())


def _forbid(gains: Doubles, stumps: Sequence[Condition]) -> None:
    """No pair of one family but the two sides of one feature: an interval."""
    families = np.array([stump.feature.family for stump in stumps])
    texts = np.array([stump.feature.text for stump in stumps])
    sides = np.array([stump.above for stump in stumps])
    interval = (texts[:, None] == texts) & (sides[:, None] != sides)
    gains[(families[:, None] == families) & ~interval] = -np.inf


def _with_twin(features: Features, condition: Condition, regretted: Mask) -> Condition:
    """The condition with the other form of it beside: the one that covers as many regretted decisions."""
    twin = next((row for row in features.rows if row.text == condition.feature.twin), None)
    own, other = features.column(condition.feature.text), features.column(condition.feature.twin)
    if twin is None or own is None or other is None:
        return condition
    count = int(condition.holds(own[regretted]).sum())
    ordered = np.sort(other[regretted])  # both forms rise together
    value = ordered[len(ordered) - count] if condition.above else ordered[count - 1]
    text = Condition(twin, condition.above, _three_digits(float(value))).text
    return Condition(condition.feature, condition.above, condition.threshold, text)


def _covered(features: Features, conditions: Sequence[Condition]) -> Mask:
    covered = np.ones(len(features.values), bool)
    for condition in conditions:
        column = features.column(condition.feature.text)
        assert column is not None
        covered &= condition.holds(column)
    return covered


def _spread(mask: Mask) -> NDArray[np.int64]:
    """Indices of the mask, at most `SAMPLE` of them, evenly spread."""
    places = np.flatnonzero(mask)
    if len(places) > SAMPLE:
        places = places[np.arange(SAMPLE) * len(places) // SAMPLE]
    return places


def _rounded(values: Doubles) -> Doubles:
    """A sum's last digits depend on how a library adds: they must not decide."""
    return np.asarray(np.round(values, 9))


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")
