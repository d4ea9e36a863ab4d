"""In which order arms and loads are measured, so that a slow drift of the machine favours none.

Rounds go through the arms in turn and in reversed turn: A B B A for two arms. A turn is the time of
one arm in one round; it holds every load, in reversed order in every other round. Turns of the same
arm that follow each other may share its server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tanren_dsl.errors import TanrenError


@dataclass(frozen=True, slots=True)
class Turn:
    """One arm in one round, both counted from 0, and the loads by number in the order they are sent."""

    round: int
    arm: int
    loads: tuple[int, ...]


def turns(arms: int, loads: int, rounds: int) -> Iterator[Turn]:
    """Every turn in the order of measurement.

    >>> "".join("AB"[turn.arm] for turn in turns(arms=2, loads=1, rounds=4))
    'ABBAABBA'
    >>> [turn.loads for turn in turns(arms=1, loads=3, rounds=2)]
    [(0, 1, 2), (2, 1, 0)]

    Raises:
        TanrenError: there is nothing to measure.
    """
    if min(arms, loads, rounds) < 1:
        raise TanrenError(
            f"expected at least one arm, load and round, found {arms}, {loads} and {rounds} of them"
        )
    for number in range(rounds):
        step = -1 if number % 2 else 1
        for arm in range(arms)[::step]:
            yield Turn(number, arm, tuple(range(loads)[::step]))
