"""The score: FCFS is 0, a shorter mean is good, a longer tail soon is not."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.formula import LIMIT, PENALTY, SLACK, ratio, score, total, violates

TIMES = st.floats(0.0, 1e6)


@given(TIMES, TIMES, st.floats(1.0, 10.0), st.floats(0.0, 1e6))
def test_fcfs_scores_exactly_zero(mean: float, p99: float, s: float, k: float) -> None:
    assert score(mean, p99, mean, p99, s=s, k=k) == 0.0
    assert not violates(p99, p99)


@given(TIMES, TIMES, TIMES, TIMES)
def test_every_score_is_finite_and_at_most_one(mean: float, p99: float, base: float, tail: float) -> None:
    found = score(mean, p99, base, tail)
    assert math.isfinite(found)
    assert found <= 1.0


def test_the_numbers_of_the_rule() -> None:
    assert (SLACK, PENALTY, LIMIT) == (1.04, 1600.0, 1.05)
    assert score(1.0, 10.0, 2.0, 10.0) == 0.5
    assert score(1.0, 10.4, 2.0, 10.0) == pytest.approx(0.5)
    assert score(1.0, 10.5, 2.0, 10.0) == pytest.approx(0.5 - 1600 * 0.01**2)
    assert score(2.0, 20.0, 2.0, 10.0) == pytest.approx(-1600 * 0.96**2)
    assert score(2.0, 20.0, 2.0, 10.0, s=2.0) == 0.0
    assert score(2.0, 20.0, 2.0, 10.0, k=1.0) == pytest.approx(-(0.96**2))


def test_the_penalty_begins_before_the_limit_and_never_jumps() -> None:
    tails = [10 + step / 1000 for step in range(1001)]
    found = [score(1.0, tail, 1.0, 10.0) for tail in tails]
    assert found == sorted(found, reverse=True)
    assert found[401] < 0.0 == found[399]
    assert max(one - other for one, other in pairwise(found)) < 0.02


def test_a_violation_is_beyond_the_limit() -> None:
    assert not violates(1.05, 1.0)
    assert violates(1.0500001, 1.0)
    assert not violates(0.0, 0.0)
    assert violates(1.0, 0.0)


def test_a_time_of_zero_divides_like_a_microsecond() -> None:
    assert ratio(0.0, 0.0) == 1.0
    assert ratio(5e-6, 0.0) == pytest.approx(5.0)
    assert score(0.0, 0.0, 1.0, 1.0) == 1.0


@pytest.mark.parametrize("time", [-1.0, math.nan, math.inf])
def test_what_is_no_time_is_refused(time: float) -> None:
    for place in range(4):
        times = [1.0, 1.0, 1.0, 1.0]
        times[place] = time
        with pytest.raises(TanrenError, match="expected times of 0 s or more"):
            score(*times)


@pytest.mark.parametrize(
    ("s", "k"), [(0.99, 1.0), (math.nan, 1.0), (math.inf, 1.0), (1.0, -1.0), (1.0, math.nan)]
)
def test_constants_out_of_range_are_refused(s: float, k: float) -> None:
    with pytest.raises(TanrenError, match="expected s of at least 1 and k of at least 0"):
        score(1.0, 1.0, 1.0, 1.0, s=s, k=k)


@given(st.lists(st.floats(-1e6, 1e6), max_size=20))
def test_a_total_does_not_depend_on_the_order(scores: list[float]) -> None:
    assert total(scores) == total(reversed(scores))
