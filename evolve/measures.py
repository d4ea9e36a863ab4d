"""What is measured of a policy: figures in each configuration, and what they are worth.

Nothing here knows a simulator: an `Arena` gives figures of a policy and of the base (the engine's
own order), and says what one is worth against the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, Protocol, TypeAlias

from tanren_dsl.evolve.windows import Role
from tanren_dsl.ir import Policy
from tanren_dsl.signals import Kind

Stage: TypeAlias = Literal["short", "full"]
"""Short: a part of each training window in its hardest configuration, to stop the poor early."""


@dataclass(frozen=True, slots=True)
class Place:
    """A configuration: a window of a role under one setting, such as a cache size or a load."""

    role: Role
    window: str
    label: str


@dataclass(frozen=True, slots=True)
class Measure:
    """What one policy did in one configuration.

    Attributes:
        figures: in the order of the arena's `heads`.
        faults: decisions whose key was not finite.
        mark: a hash of everything that the policy decided; equal marks are equal behaviour.
    """

    place: Place
    figures: tuple[float, ...]
    faults: int
    mark: str


@dataclass(frozen=True, slots=True)
class Worth:
    """A measure against the base in the same configuration.

    Attributes:
        gain: what was won, in the arena's unit; above 0 is better.
        tail: how bad the tail is against the base, where the penalty begins at the slack.
        score: the gain less the penalty of the tail.
        violated: the tail is beyond its limit.
    """

    gain: float
    tail: float
    score: float
    violated: bool


class Arena(Protocol):
    """Configurations of some roles, and how a policy is measured in them; sent to every worker once."""

    @property
    def kind(self) -> Kind:
        """Of the policies that run here."""

    @property
    def mode(self) -> str:
        """The signals that there are: `replay` or `engine`."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the figures, with their units."""

    @property
    def base_name(self) -> str:
        """The engine's own order, for people."""

    @property
    def unit(self) -> str:
        """Of gains and scores, for people."""

    def places(self, role: Role, stage: Stage) -> tuple[Place, ...]:
        """The configurations of a role."""

    def measure(self, policy: Policy, role: Role, stage: Stage) -> tuple[Measure, ...]:
        """A policy in every configuration of a role; ends at the first with a fault."""

    def base(self, role: Role, stage: Stage) -> tuple[Measure, ...]:
        """The engine's own order there."""

    def bounds(self, role: Role) -> Mapping[str, tuple[Measure, ...]]:
        """By name, what knowledge of the future would do."""

    def worth(self, measure: Measure, base: Measure) -> Worth:
        """What a measure is worth against that of the base in the same configuration."""

    def shown(self, measure: Measure) -> str:
        """A measure for people, in a few characters."""


class Judge:
    """Measures of the base, and the scores of others against them."""

    def __init__(self, arena: Arena, roles: Sequence[tuple[Role, Stage]]) -> None:
        self.arena = arena
        self._base = {(stage, one.place): one for role, stage in roles for one in arena.base(role, stage)}

    def base(self, place: Place, stage: Stage = "full") -> Measure:
        """What the base did in a configuration."""
        return self._base[stage, place]

    def worth(self, measures: Iterable[Measure], stage: Stage = "full") -> list[Worth]:
        """What each measure is worth."""
        return [self.arena.worth(one, self._base[stage, one.place]) for one in measures]

    def score(self, measures: Iterable[Measure], stage: Stage = "full") -> float:
        """Mean score over the configurations; the total is this times their number."""
        return fmean(one.score for one in self.worth(measures, stage))

    def gain(self, measures: Iterable[Measure]) -> float:
        """Mean gain over the configurations, without the penalty of the tail."""
        return fmean(one.gain for one in self.worth(measures))

    def violations(self, measures: Iterable[Measure]) -> int:
        """Configurations in which the tail is beyond its limit."""
        return sum(one.violated for one in self.worth(measures))


def has_faults(measures: Iterable[Measure]) -> bool:
    """Whether a key was ever not finite."""
    return any(one.faults for one in measures)


def behaviour(measures: Iterable[Measure]) -> tuple[str, ...]:
    """Marks in every configuration: equal for policies that decided the same everywhere."""
    return tuple(one.mark for one in measures)


def by_window(measures: Sequence[Measure], worth: Sequence[Worth]) -> dict[str, float]:
    """Mean score in each window."""
    found: dict[str, list[float]] = {}
    for one, points in zip(measures, worth, strict=True):
        found.setdefault(one.place.window, []).append(points.score)
    return {window: fmean(scores) for window, scores in found.items()}
