"""Racing: who of the new candidates is worth measuring in full, after a short stage.

By rank within the generation, so that the choice depends on nothing but what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tanren_dsl.evolve.candidate import Candidate
from tanren_dsl.evolve.population import Population
from tanren_dsl.evolve.sections import Racing


@dataclass(frozen=True, slots=True)
class Heat:
    """How a short stage ended: who goes on, and why the others do not."""

    going: tuple[Candidate, ...]
    stopped: dict[str, str]


def run_off(racing: Racing, new: Sequence[Candidate], population: Population) -> Heat:
    """Who goes on.

    Candidates that behave in the short stage as one that was measured in full, and are not simpler
    than it, stop; of new ones that behave alike the simplest is looked at. Of the rest the better
    part goes on. Classics always do: they are what the others are compared with.

    Args:
        racing: how many go on.
        new: candidates whose short stage was measured.
        population: holds the measurements.
    """
    good = [one for one in new if population.is_good(one, "train", "short")]
    full = {
        population.behaviour(one, "train", "short"): one
        for one in reversed(population.ranked("train"))
        if population.is_good(one, "train", "short")
    }
    stopped: dict[str, str] = {}
    seen: dict[tuple[str, ...], Candidate] = {}
    racers: list[Candidate] = []
    for one in sorted(good, key=lambda one: (one.classic is None, one.cost, one.key)):
        marks = population.behaviour(one, "train", "short")
        twin = seen.get(marks)
        known = full.get(marks)
        if twin is None and known is not None and known.cost <= one.cost:
            twin = known
        seen.setdefault(marks, one)
        if twin is not None and one.classic is None:
            stopped[one.key] = f"behaves as {twin.key[:8]} in the short stage"
        elif one.classic is None:
            racers.append(one)
    racers.sort(key=lambda one: (-population.score(one, "train", "short"), one.cost, one.key))
    room = math.ceil(racing.keep * len(racers))
    for place, one in enumerate(racers[room:], room + 1):
        stopped[one.key] = f"place {place} of {len(racers)} in the short stage"
    going = [one for one in good if one.key not in stopped]
    return Heat(tuple(going), stopped)
