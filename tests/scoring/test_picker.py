"""Which classic wins where, and the spread that is picked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.arms import classic_arms
from tanren_dsl.scoring.picker import Surveyed, pick, survey
from tanren_dsl.scoring.runs import Runs
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.scoring.windows import candidate_starts, check_starts, reach_of, window_length
from tanren_dsl.trace.read import read_trace
from tests.scoring.conftest import LATENCY, SMALL

POINTS = st.dictionaries(st.sampled_from("abcd"), st.floats(-5.0, 1.0), min_size=1)


def window(start: int, **scores: float) -> Surveyed:
    return Surveyed(start, 1.0, scores, {})


def test_windows_of_different_winners_come_first() -> None:
    found = [
        window(0, a=0.9, b=0.1),
        window(1, a=0.8, b=0.3),
        window(2, a=0.0, b=0.1),
        window(3, a=0.7, b=0.0),
    ]
    assert pick(found, 1) == (0,)
    assert pick(found, 2) == (0, 2)
    assert pick(found, 3) == (0, 2, 3)


def test_the_clearest_window_stands_for_its_winner() -> None:
    found = [window(0, a=0.5, b=0.4), window(1, a=0.5, b=0.1), window(2, a=0.1, b=0.2)]
    assert pick(found, 2) == (1, 2)


def test_the_earlier_of_equals_is_picked() -> None:
    same = [window(start, a=0.5, b=0.1) for start in (0, 10, 20)]
    assert pick(same, 1) == (0,)
    assert pick(same, 2) == (0, 10)


@given(st.lists(POINTS, min_size=1, max_size=12), st.integers(1, 6))
def test_a_pick_is_a_choice_that_shows_every_winner_if_it_can(
    rows: list[dict[str, float]], count: int
) -> None:
    found = [window(7 * number, **scores) for number, scores in enumerate(rows)]
    picked = pick(found, count)
    assert len(picked) == len(set(picked)) == min(count, len(rows))
    assert list(picked) == sorted(picked)
    assert set(picked) <= {one.start for one in found}
    winners = {one.winner for one in found}
    shown = {one.winner for one in found if one.start in picked}
    assert len(shown) == min(len(winners), len(picked))
    assert pick(found, count) == picked


def test_a_survey_scores_every_classic_on_every_window() -> None:
    settings = SMALL.changed(guard=False)
    classics = classic_arms(compile_ordering, settings)
    runs = Runs(read_trace("chat:1:1000"), settings, latency=LATENCY)
    found = survey(runs, classics)
    assert [one.start for one in found] == [0, 166, 333, 500, 666, 833]
    for one in found:
        assert list(one.scores) == [arm.label for arm in classics]
        assert next(iter(one.scores)) == "fcfs"
        assert one.scores["fcfs"] == 0.0 <= one.score
        assert one.statistics["requests"] == 120
        assert one.saturation > 0
    again = survey(Runs(read_trace("chat:1:1000"), settings, latency=LATENCY), classics)
    assert [one.as_json() for one in again] == [one.as_json() for one in found]


def test_windows_are_as_long_as_asked_or_as_fits() -> None:
    trace = read_trace("chat:1:1000")
    assert window_length(trace, Settings(requests=50)) == 50
    assert window_length(trace, Settings()) == 200
    assert window_length(trace, Settings(windows=1, repeats=1)) == 1000
    assert reach_of(window_length(trace, Settings()), 2) * 4 <= 1000
    assert window_length(read_trace("chat"), Settings(windows=2)) == 1500
    with pytest.raises(TanrenError, match="15 requests are too few for 4 windows with 2 repeats"):
        window_length(trace.head(15), Settings())
    assert len(candidate_starts(trace, Settings())) == 4
    assert len(candidate_starts(trace, Settings(requests=40))) == 12
    with pytest.raises(TanrenError, match="do not fit"):
        candidate_starts(trace, Settings(requests=400))


def test_windows_by_hand_must_lie_apart_and_inside() -> None:
    trace = read_trace("chat:1:1000")
    settings = SMALL
    check_starts(trace, (500, 0, 150), settings)
    with pytest.raises(TanrenError, match=r"repeats included, from 0 and from 149 share some"):
        check_starts(trace, (149, 0), settings)
    with pytest.raises(TanrenError, match=r"ends with request 1,000, repeats included, but .* has 1,000"):
        check_starts(trace, (851,), settings)


def test_a_window_that_arrives_at_once_has_no_load() -> None:
    trace = read_trace("chat:1:1000")
    trace = replace(trace, arrival_us=np.zeros(1000, np.int64))
    runs = Runs(trace, SMALL, latency=LATENCY)
    with pytest.raises(TanrenError, match="arrive all at once"):
        survey(runs, classic_arms(compile_ordering, SMALL))
