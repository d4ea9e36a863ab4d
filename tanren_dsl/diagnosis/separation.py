"""How well one feature tells two groups of decisions apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.diagnosis.features import Doubles, Feature, Features
from tanren_dsl.signals import Kind, signals_of
from tanren_dsl.units import Instant

Mask: TypeAlias = NDArray[np.bool_]
Quartiles: TypeAlias = tuple[float, float, float]

CHANCE = 0.5


@dataclass(frozen=True, slots=True)
class Separation:
    """A feature in both groups.

    Attributes:
        auc: how probable it is that the feature is higher in a regretted decision than in a right one,
            each drawn at random, ties counting half; 0.5 tells nothing.
        regretted, right: quartiles in each group, in the feature's own scale.
    """

    feature: Feature
    auc: float
    regretted: Quartiles
    right: Quartiles

    @property
    def strength(self) -> float:
        """Distance from chance, 0 to 0.5."""
        return abs(self.auc - CHANCE)


@dataclass(frozen=True, slots=True)
class Contrast:
    """A signal of regretted decisions beside what the policy preferred at the same decision.

    Attributes:
        regretted, preferred: medians of what lost and of the mean of what was preferred to it.
        lower: share of these decisions in which the loser's value is the lower one; ties count half.
    """

    feature: Feature
    regretted: float
    preferred: float
    lower: float

    @property
    def strength(self) -> float:
        """Distance from chance, 0 to 0.5."""
        return abs(self.lower - CHANCE)


def contrasts(
    kind: Kind, lost: Mapping[str, Doubles], preferred: Mapping[str, Doubles], chosen: Mask
) -> tuple[Contrast, ...]:
    """Every per-object signal at the chosen ones of n decisions, the clearest first.

    `lost` and `preferred` hold [n] values by name; nan where nothing was preferred, which drops out.
    """
    found = []
    for name, other in preferred.items():
        type_ = signals_of(kind)[name].type
        both = chosen & ~np.isnan(other)
        if isinstance(type_, Instant) or not both.any():
            continue
        own, other = lost[name][both], other[both]
        lower = (int((own < other).sum()) + int((own <= other).sum())) / (2 * len(own))
        feature = Feature(name, name, type_)
        found.append(Contrast(feature, float(np.median(own)), float(np.median(other)), lower))
    return tuple(sorted(found, key=lambda one: -one.strength))


def auc(higher: Doubles, lower: Doubles) -> float:
    """Share of pairs in which a value of the first group is the higher one; ties count half.

    Exact: counted in whole numbers of half pairs. 0.5 if a group is empty.

    >>> auc(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    0.875
    """
    if len(higher) == 0 or len(lower) == 0:
        return CHANCE
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, "left").astype(np.int64)
    upto = np.searchsorted(ordered, higher, "right").astype(np.int64)
    return int(below.sum() + upto.sum()) / (2 * len(higher) * len(lower))


def separations(features: Features, regretted: Mask, right: Mask) -> tuple[Separation, ...]:
    """Every feature, the best first, ties in the features' order; none where a group is empty."""
    if not regretted.any() or not right.any():
        return ()
    found = []
    for feature, column in zip(features.rows, features.values.T, strict=True):
        bad, good = column[regretted], column[right]
        found.append(Separation(feature, auc(bad, good), _quartiles(bad), _quartiles(good)))
    return tuple(sorted(found, key=lambda one: -one.strength))


def _quartiles(values: Doubles) -> Quartiles:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(low), float(middle), float(high)
