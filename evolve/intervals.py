"""How sure a gain is: paired bootstrap intervals over the requests of a role, a setting at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tanren_dsl.evolve.replay_arena import ReplayArena
from tanren_dsl.evolve.serving_arena import ServingArena
from tanren_dsl.ir import Policy
from tanren_dsl.stats import bootstrap_share, paired_bootstrap

NEIGHBOURS = 50
"""Requests that follow each other and are drawn together: they share blocks and wait for one another."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure of the champion against the base, above 0 is better, with its 95 % interval.

    Attributes:
        setting: the cache size or load, over all windows; the first repeat of each.
        figure: what is compared, with its unit.
        main: the objective's mean, as against a tail that stands beside it.
    """

    setting: str
    figure: str
    value: float
    low: float
    high: float
    main: bool


def intervals(arena: ReplayArena | ServingArena, policy: Policy, seed: int) -> tuple[Interval, ...]:
    """The intervals of a policy on the hold-out.

    Args:
        arena: of the hold-out.
        policy: the champion.
        seed: of the resampling.
    """
    if isinstance(arena, ReplayArena):
        return tuple(_of_hits(arena, policy, seed))
    return tuple(_of_times(arena, policy, seed))


def _of_hits(arena: ReplayArena, policy: Policy, seed: int) -> Iterator[Interval]:
    rows = [one for one in arena.configurations["holdout", "full"] if _is_first(one.place.label)]
    for setting in dict.fromkeys(_setting(one.place.label) for one in rows):
        here = [one for one in rows if _setting(one.place.label) == setting]
        parts = [arena.hits_each(policy, one) - arena.hits_each(None, one) for one in here]
        wholes = [np.diff(one.table.offsets)[one.warm :] for one in here]
        found = bootstrap_share(
            np.concatenate(parts).astype(np.float64), np.concatenate(wholes).astype(np.float64),
            seed=seed, neighbours=NEIGHBOURS,
        )  # fmt: skip
        yield Interval(setting, "points of hit rate", found.percent, found.low, found.high, True)


def _of_times(arena: ServingArena, policy: Policy, seed: int) -> Iterator[Interval]:
    rows = [one for one in arena.configurations["holdout", "full"] if _is_first(one.place.label)]
    for setting in dict.fromkeys(_setting(one.place.label) for one in rows):
        here = [one for one in rows if _setting(one.place.label) == setting]
        own = [arena.times_s(arena.served(policy, one)) for one in here]
        base = [arena.times_s(arena.served(None, one)) for one in here]
        found = paired_bootstrap(
            np.concatenate(base).reshape(1, -1), np.concatenate(own).reshape(1, -1),
            seed=seed, neighbours=NEIGHBOURS,
        )  # fmt: skip
        for name in ("mean", "p99"):
            one = found[name]  # percent longer: turned round, so that above 0 is better
            figure = f"{name} {arena.metric}, % shorter"
            yield Interval(setting, figure, -one.percent, -one.high, -one.low, name == "mean")


def _setting(label: str) -> str:
    return label.partition(", repeat ")[0]


def _is_first(label: str) -> bool:
    return label.partition(", repeat ")[2] in ("", "0")
