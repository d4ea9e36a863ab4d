"""The order of measurement is balanced."""

from __future__ import annotations

import pytest

from tanren_dsl.bench.schedule import turns
from tanren_dsl.errors import TanrenError


def order(arms: int, rounds: int) -> str:
    return "".join("ABC"[turn.arm] for turn in turns(arms, 1, rounds))


def test_arms_are_interleaved_forth_and_back() -> None:
    assert order(2, 2) == "ABBA"
    assert order(2, 3) == "ABBAAB"
    assert order(3, 2) == "ABCCBA"
    assert order(1, 3) == "AAA"


@pytest.mark.parametrize("arms", [2, 3, 5])
def test_every_arm_stands_as_early_as_any_other_over_two_rounds(arms: int) -> None:
    places = [[i for i, turn in enumerate(turns(arms, 1, 2)) if turn.arm == arm] for arm in range(arms)]
    assert len({sum(place) for place in places}) == 1


def test_every_turn_holds_every_load_and_their_order_alternates() -> None:
    found = list(turns(arms=2, loads=3, rounds=2))
    assert [turn.loads for turn in found] == [(0, 1, 2), (0, 1, 2), (2, 1, 0), (2, 1, 0)]
    assert [turn.round for turn in found] == [0, 0, 1, 1]


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_nothing_to_measure_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(TanrenError, match="at least one arm, load and round"):
        list(turns(*wrong))
