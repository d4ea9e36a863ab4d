"""Intervals that cover what they should, pairs that stay pairs, and exact small cases."""

from __future__ import annotations

import numpy as np
import pytest

from tanren_dsl import stats
from tanren_dsl.errors import TanrenError
from tanren_dsl.stats import complete, paired_bootstrap, round_noise, summary

RNG = np.random.default_rng


def lognormal(seed: int, rounds: int, requests: int) -> stats.Doubles:
    return np.exp(RNG(seed).normal(3.0, 0.8, (rounds, requests)))


def test_the_summary_interpolates_between_the_closest_ranks() -> None:
    found = summary(np.arange(1.0, 102.0))
    assert found == {"mean": 51.0, "p50": 51.0, "p90": 91.0, "p99": 100.0}
    assert summary(np.array([1.0, 2.0]))["p90"] == pytest.approx(1.9)
    assert summary(np.array([])) == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_equal_arms_differ_by_exactly_nothing() -> None:
    values = lognormal(0, 3, 40)
    for difference in paired_bootstrap(values, values.copy(), seed=1).values():
        assert (difference.percent, difference.low, difference.high) == (0.0, 0.0, 0.0)
        assert difference.contains_zero
        assert difference.reach == 0.0


def test_a_constant_factor_is_known_exactly_because_pairs_stay_together() -> None:
    values = lognormal(0, 2, 50)
    for difference in paired_bootstrap(values, values * 1.25, seed=1).values():
        assert (difference.percent, difference.low, difference.high) == pytest.approx((25, 25, 25))
        assert not difference.contains_zero


def test_one_request_and_one_round_are_enough() -> None:
    found = paired_bootstrap(np.array([[2.0]]), np.array([[3.0]]), seed=0)
    assert (found["p99"].percent, found["p99"].low, found["p99"].high) == (50.0, 50.0, 50.0)


def test_the_interval_depends_on_the_seed_alone_and_not_on_how_much_is_drawn_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, arm = lognormal(0, 2, 30), lognormal(1, 2, 30)
    first = paired_bootstrap(base, arm, seed=7, resamples=300)
    assert paired_bootstrap(base, arm, seed=7, resamples=300) == first
    assert paired_bootstrap(base, arm, seed=8, resamples=300) != first
    monkeypatch.setattr(stats, "_CELLS", 6000)
    other = paired_bootstrap(base, arm, seed=7, resamples=300)
    assert other["mean"].percent == first["mean"].percent
    assert other["mean"].low == pytest.approx(first["mean"].low, abs=5)


def coverage(draw: object, truth: float, statistic: str, trials: int, neighbours: int = 1) -> float:
    """Share of the intervals that hold the truth, in percent of change."""
    hits = 0
    for trial in range(trials):
        base, arm = draw(RNG(trial))  # type: ignore[operator]
        found = paired_bootstrap(base, arm, seed=trial, resamples=200, neighbours=neighbours)[statistic]
        hits += found.low <= truth <= found.high
    return hits / trials


@pytest.mark.parametrize(("statistic", "least"), [("mean", 0.90), ("p50", 0.90), ("p90", 0.90)])
def test_intervals_cover_the_truth_about_as_often_as_they_say(statistic: str, least: float) -> None:
    def draw(rng: np.random.Generator) -> tuple[stats.Doubles, stats.Doubles]:
        size = np.exp(rng.normal(3.0, 0.6, (1, 150)))  # a request is as long in both arms and all rounds
        noise = np.exp(rng.normal(0.0, 0.1, (2, 3, 150)))
        return size * noise[0], 1.1 * size * noise[1]

    assert coverage(draw, 10.0, statistic, 150) >= least


def test_an_aa_comparison_of_many_rounds_rarely_sees_a_difference() -> None:
    def draw(rng: np.random.Generator) -> tuple[stats.Doubles, stats.Doubles]:
        size = np.exp(rng.normal(3.0, 0.6, (1, 60)))
        drift = np.exp(rng.normal(0.0, 0.05, (2, 10, 1)))  # a round as a whole is fast or slow
        return size * drift[0], size * drift[1]

    assert coverage(draw, 0.0, "mean", 100) >= 0.85


def test_neighbours_drawn_together_cover_better_where_requests_wait_for_one_another() -> None:
    def draw(rng: np.random.Generator) -> tuple[stats.Doubles, stats.Doubles]:
        bursts = np.repeat(np.exp(rng.normal(0.0, 0.5, (2, 2, 20))), 10, axis=2)
        return 20.0 * bursts[0], 20.0 * bursts[1]

    alone, together = coverage(draw, 0.0, "mean", 100), coverage(draw, 0.0, "mean", 100, neighbours=10)
    assert together > alone
    assert together >= 0.85


def test_round_noise_covers_what_differs_between_rounds_even_with_two() -> None:
    inside = 0
    for trial in range(400):
        rng = RNG(trial)
        size = np.exp(rng.normal(3.0, 0.6, (1, 60)))
        base, arm = size * np.exp(rng.normal(0.0, 0.2, (2, 2, 1)))
        noise = round_noise(base, arm)
        assert noise is not None
        inside += abs(paired_bootstrap(base, arm, seed=0, resamples=1)["p90"].percent) <= noise["p90"]
    assert inside / 400 >= 0.92


def test_round_noise_needs_two_rounds_and_shrinks_with_more() -> None:
    assert round_noise(np.ones((1, 5)), np.ones((1, 5))) is None
    few, many = (round_noise(lognormal(1, n, 50), lognormal(2, n, 50)) for n in (2, 8))
    assert few is not None
    assert many is not None
    assert many["mean"] < few["mean"]


def test_requests_without_a_value_somewhere_are_left_out_of_both_arms() -> None:
    nan = np.nan
    base, arm = complete(np.array([[1.0, 2.0, 3.0], [4.0, nan, 6.0]]), np.array([[nan, 2.0, 5.0], [1, 1, 7]]))
    assert base.tolist() == [[3.0], [6.0]]
    assert arm.tolist() == [[5.0], [7.0]]


@pytest.mark.parametrize(
    ("base", "arm", "words"),
    [
        (np.ones((1, 2)), np.ones((2, 1)), "one shape"),
        (np.ones((1, 0)), np.ones((1, 0)), "one shape"),
        (np.zeros((1, 1)), np.ones((1, 1)), "above 0"),
        (np.ones((1, 1)), np.full((1, 1), np.nan), "finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(base: stats.Doubles, arm: stats.Doubles, words: str) -> None:
    with pytest.raises(TanrenError, match=words):
        paired_bootstrap(base, arm, seed=0)
    with pytest.raises(TanrenError, match="at least 1 resample"):
        paired_bootstrap(np.ones((1, 1)), np.ones((1, 1)), seed=0, resamples=0)
