"""Intervals that cover what they should, pairs that stay pairs, and exact small cases."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl import stats
from tanren_dsl.errors import TanrenError
from tanren_dsl.stats import (
    bootstrap_share,
    clustered_sign_flip,
    complete,
    paired_bootstrap,
    round_noise,
    sign_test,
    summary,
)

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


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(15, 1, 2.594e-4), (13, 3, 0.010636), (6, 8, 0.78802), (16, 0, 2**-16), (0, 5, 1.0), (0, 0, 1.0)],
)
def test_the_sign_test_gives_known_values(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p, rel=1e-3)


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_is_the_tail_of_the_binomial(wins: int, losses: int) -> None:
    count = wins + losses
    p = sign_test(wins, losses)
    assert p == sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count
    assert sign_test(wins + 1, losses) <= p
    if wins:  # there are either so many wins or more losses
        assert p + sign_test(losses + 1, wins - 1) == pytest.approx(1.0)


def test_the_sign_test_takes_many_and_refuses_less_than_none() -> None:
    assert 0.0 < sign_test(3000, 2000) < 1e-40
    assert sign_test(5000, 0) == 0.0
    for wins, losses in ((-1, 2), (2, -1)):
        with pytest.raises(TanrenError, match="expected 0 wins and losses or more"):
            sign_test(wins, losses)


CLUSTERED = st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 6)), min_size=1, max_size=30)


@given(CLUSTERED)
def test_the_sign_flip_counts_every_flip_of_the_cluster_means(pairs: list[tuple[int, int]]) -> None:
    differences, clusters = [float(pair[0]) for pair in pairs], [pair[1] for pair in pairs]
    kept = sorted(set(clusters))
    means = [np.mean([d for d, c in zip(differences, clusters, strict=True) if c == one]) for one in kept]
    flips = [np.dot(signs, means) for signs in product((1, -1), repeat=len(kept))]
    p = clustered_sign_flip(differences, clusters)
    assert p == sum(flip >= flips[0] - 1e-9 for flip in flips) / len(flips)
    assert p >= 0.5 ** len(kept)
    # neither the unit nor the order nor the names of the clusters matter
    assert p == clustered_sign_flip([d / 3 for d in differences[::-1]], [9 - c for c in clusters[::-1]])


@given(st.integers(0, 8), st.integers(0, 8))
def test_equal_sizes_one_a_cluster_are_a_sign_test(wins: int, losses: int) -> None:
    differences = [0.1] * wins + [-0.1] * losses
    assert clustered_sign_flip(differences, range(wins + losses)) == sign_test(wins, losses)


def test_more_of_the_same_cluster_are_no_more_evidence() -> None:
    assert clustered_sign_flip([1.0, 2.0, 3.0, 4.0] * 50, [0, 1, 2, 3] * 50) == 1 / 16
    assert clustered_sign_flip([0.0, 0.0], [0, 1]) == 1.0


def test_many_clusters_are_drawn_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    values = RNG(3).normal(0.3, 1.0, 16)
    exact = clustered_sign_flip(values, np.arange(16))
    monkeypatch.setattr(stats, "_MOST_EXACT", 15)
    drawn = clustered_sign_flip(values, np.arange(16))
    assert drawn == clustered_sign_flip(values, np.arange(16))
    assert drawn != clustered_sign_flip(values, np.arange(16), seed=1)
    assert drawn == pytest.approx(exact, abs=0.01)
    assert clustered_sign_flip(np.ones(400), np.arange(400)) == 1 / 65_537


def test_without_a_difference_there_is_no_evidence() -> None:
    assert clustered_sign_flip([], []) == 1.0


@pytest.mark.parametrize(
    ("differences", "clusters"), [([1.0], [0, 1]), ([math.nan], [0]), ([math.inf], [0]), ([[1.0]], [[0]])]
)
def test_what_cannot_be_flipped_is_refused(differences: list[float], clusters: list[int]) -> None:
    with pytest.raises(TanrenError, match="expected finite differences and a cluster for each"):
        clustered_sign_flip(differences, clusters)


def test_a_share_and_its_interval() -> None:
    rng = np.random.default_rng(3)
    wholes = rng.integers(1, 50, 400).astype(float)
    parts = wholes * 0.02 + rng.standard_normal(400)
    found = bootstrap_share(parts, wholes, seed=1, neighbours=10)
    assert found.percent == pytest.approx(100 * parts.sum() / wholes.sum())
    assert found.low < found.percent < found.high
    assert found == bootstrap_share(parts, wholes, seed=1, neighbours=10)
    assert bootstrap_share(0 * parts, wholes, seed=1).percent == 0.0
    assert bootstrap_share(0 * parts, wholes, seed=1).contains_zero


def test_the_interval_of_a_share_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for number in range(200):
        wholes = rng.integers(1, 30, 300).astype(float)
        parts = rng.normal(0.5, 2.0, 300)
        truth = 100 * 0.5 / 15.0
        found = bootstrap_share(parts, wholes, seed=number, resamples=300)
        held += found.low <= truth <= found.high
    assert 180 <= held <= 198


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    parts = np.repeat(rng.standard_normal(40), 25)
    wholes = np.full(1000, 10.0)
    alone = bootstrap_share(parts, wholes, seed=0)
    together = bootstrap_share(parts, wholes, seed=0, neighbours=50)
    assert together.high - together.low > 3 * (alone.high - alone.low)


@pytest.mark.parametrize(
    ("parts", "wholes"), [([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0]), ([math.nan], [1.0]), ([1.0], [-1.0])]
)
def test_shares_of_nothing_are_refused(parts: list[float], wholes: list[float]) -> None:
    with pytest.raises(TanrenError, match="expected"):
        bootstrap_share(np.array(parts), np.array(wholes), seed=0)
