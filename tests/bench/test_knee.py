"""The search for the knee, on curves whose knee is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from tanren_dsl.bench.knee import Knee, Sample, Tolerance, find_knee
from tanren_dsl.errors import TanrenError

FLAT = Sample(ttft_p50_ms=20.0, ttft_p99_ms=100.0, hit_rate=0.6, errors=0)


def flat(_: int) -> Sample:
    return FLAT


def cliff(blocks: int) -> Sample:
    return FLAT if blocks >= 500 else Sample(60.0, 900.0, 0.2, 0)


def gradual(blocks: int) -> Sample:
    """Doubles its p99 and loses 0.3 hit rate for each halving below 1,000 blocks."""
    halvings = max(0.0, math.log2(1000 / blocks))
    return Sample(20.0, 100.0 * 2**halvings, 0.6 - 0.3 * halvings, 0)


def counted(measure: Callable[[int], Sample]) -> tuple[Callable[[int], Sample], list[int]]:
    calls: list[int] = []

    def measured(blocks: int) -> Sample:
        calls.append(blocks)
        return measure(blocks)

    return measured, calls


def assert_bracketed(knee: Knee, resolution: float = 0.05) -> None:
    assert knee.blocks is not None
    plateau = knee.samples[max(knee.samples)]
    assert Tolerance().departures(knee.samples[knee.blocks], plateau) == knee.left_by != ()
    assert not Tolerance().departures(knee.samples[knee.above], plateau)
    assert knee.blocks < knee.above <= max(knee.blocks + 1, knee.blocks * (1 + resolution))


def test_a_flat_curve_has_no_knee_and_is_followed_to_its_end() -> None:
    knee = find_knee(flat, 4000, 100)
    assert (knee.blocks, knee.above, knee.left_by) == (None, 100, ())
    assert {4000, 100} < knee.samples.keys()


def test_a_cliff_is_found_within_the_resolution() -> None:
    measure, calls = counted(cliff)
    knee = find_knee(measure, 4000, 100)
    assert_bracketed(knee)
    assert knee.blocks is not None
    assert 476 <= knee.blocks < 500 <= knee.above
    assert knee.left_by == ("ttft_p99_ms", "hit_rate")
    assert len(calls) == len(set(calls)) < 14


def test_a_fine_resolution_ends_at_neighbouring_blocks() -> None:
    knee = find_knee(cliff, 4000, 100, resolution=1e-9)
    assert (knee.blocks, knee.above) == (499, 500)


def test_a_gradual_rise_has_its_knee_where_the_first_quantity_leaves() -> None:
    knee = find_knee(gradual, 4000, 100)
    assert_bracketed(knee)
    leaves = 1000 * 2 ** (-0.05 / 0.3)  # the hit rate's 0.05 come before the p99's 25 %
    assert knee.blocks is not None
    assert knee.blocks < leaves <= knee.above
    assert "hit_rate" in knee.left_by


def test_wider_tolerances_move_the_knee_down() -> None:
    narrow, wide = (
        find_knee(gradual, 4000, 100, tolerance=Tolerance(rise, drop))
        for rise, drop in ((0.1, 0.9), (1.0, 0.9))
    )
    assert narrow.blocks is not None
    assert wide.blocks is not None
    assert narrow.blocks > wide.blocks
    assert wide.left_by == ("ttft_p99_ms",)


@pytest.mark.parametrize("seed", range(20))
def test_noise_within_the_tolerance_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)

    def noisy(blocks: int) -> Sample:
        true = cliff(blocks)
        share = rng.uniform(0.9, 1.1)
        return Sample(true.ttft_p50_ms, true.ttft_p99_ms * share, true.hit_rate + rng.uniform(-0.02, 0.02), 0)

    knee = find_knee(noisy, 4000, 100)
    assert knee.blocks is not None
    assert knee.blocks < 500 <= knee.above


def test_one_outlier_on_the_way_down_is_no_knee() -> None:
    outlier = round(4000 * 0.7)
    knee = find_knee(
        lambda blocks: Sample(20.0, 999.0, 0.6, 0) if blocks == outlier else cliff(blocks), 4000, 100
    )
    assert outlier in knee.samples
    assert knee.blocks is not None
    assert knee.blocks < 500 <= knee.above


def test_the_smallest_capacity_may_be_the_knee_alone() -> None:
    knee = find_knee(lambda blocks: cliff(blocks + 399), 4000, 100, resolution=1e-9)
    assert (knee.blocks, knee.above) == (100, 101)


def test_more_errors_are_a_knee_even_without_times() -> None:
    knee = find_knee(lambda blocks: FLAT if blocks >= 200 else Sample(math.nan, math.nan, 0.6, 3), 1000, 50)
    assert knee.left_by == ("errors",)
    assert_bracketed(knee)


def test_a_search_is_resumed_from_what_is_known() -> None:
    whole = find_knee(gradual, 4000, 100)
    known = dict(list(whole.samples.items())[:5])
    measure, calls = counted(gradual)
    assert find_knee(measure, 4000, 100, known) == whole
    assert not set(calls) & known.keys()
    measure, calls = counted(gradual)
    assert find_knee(measure, 4000, 100, whole.samples) == whole
    assert calls == []


def test_an_impossible_search_is_refused() -> None:
    with pytest.raises(TanrenError, match="found 100 and 100"):
        find_knee(flat, 100, 100)
    with pytest.raises(TanrenError, match=r"found 1\.5 and 0\.05"):
        find_knee(flat, 100, 10, factor=1.5)
