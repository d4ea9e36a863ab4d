"""Replay mode: golden counts, the future as a bound, and the kernel against a plain oracle."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.passes.order import analyze
from tanren_dsl.sim.replay import Replay, simulate, simulate_belady, simulate_stock
from tanren_dsl.sim.rule import belady, stock, victims_of
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.statistics import infinite_hits
from tanren_dsl.trace.table import RequestTable
from tests.public import MOONCAKE, public_trace
from tests.sim.naive import Naive, head, obey, random_trace
from tests.strategies import policies


@cache
def mooncake() -> RequestTable:
    return public_trace(MOONCAKE)


@pytest.mark.parametrize("engine", ["vllm-0.19", "vllm-0.32"])
@pytest.mark.parametrize(
    ("capacity", "hits"), [(1000, 12847), (10000, 61046), (30000, 93978), (50000, 102290), (100000, 104924)]
)
def test_lru_matches_the_published_counts(engine: str, capacity: int, hits: int) -> None:
    result = simulate_stock(mooncake(), capacity, engine=engine)
    assert (result.hits, result.lookups) == (hits, 288_500)


@pytest.mark.parametrize(("capacity", "hits"), [(1000, 51705), (10000, 105710), (30000, 105710)])
def test_belady_with_pins_matches_the_reference(capacity: int, hits: int) -> None:
    assert simulate_belady(mooncake(), capacity).hits == hits


@pytest.mark.parametrize(
    ("capacity", "window", "points"), [(10000, 64, 1.8), (10000, 1024, 8.7), (30000, 64, 0.8)]
)
def test_belady_in_the_considered_set_gains_what_the_reference_says(
    capacity: int, window: int, points: float
) -> None:
    gain = (
        simulate_belady(mooncake(), capacity, window=window).hits - simulate_stock(mooncake(), capacity).hits
    )
    assert round(100 * gain / 288_500, 1) == points


def test_lfu_with_every_block_considered_matches_the_reference() -> None:
    lfu = loads("policy lfu : evict order by uses, last_use candidates all")
    assert simulate(mooncake(), lfu, compile_ordering, 50_000).hits == pytest.approx(99_205, abs=60)


def test_belady_beats_lru() -> None:
    trace = read_trace("chat:1:600")
    capacity = trace.longest() * 3
    assert simulate_belady(trace, capacity).hits > simulate_stock(trace, capacity).hits


def test_an_infinite_cache_hits_whatever_was_seen_before() -> None:
    trace = read_trace("chat:2:300")
    assert simulate_stock(trace, trace.distinct_blocks).hits == infinite_hits(trace)


def brute_force(trace: RequestTable, capacity: int) -> int:
    """Most hits that any choice of victims can reach."""
    chains = [tuple(trace.ids[trace.offsets[r] : trace.offsets[r + 1]].tolist()) for r in range(len(trace))]

    @cache
    def best(r: int, resident: frozenset[int]) -> int:
        if r == len(chains):
            return 0
        chain = chains[r]
        hits = next((n for n, i in enumerate(chain) if i not in resident), len(chain))
        pinned = frozenset(chain)
        others = sorted(resident - pinned)
        drop = max(0, len(pinned) + len(others) - capacity)
        return hits + max(
            best(r + 1, pinned | (frozenset(others) - frozenset(gone))) for gone in combinations(others, drop)
        )

    return best(0, frozenset())


@given(st.integers(0, 10**6), st.integers(6, 9))
@settings(max_examples=40)
def test_belady_equals_brute_force_on_tiny_traces(seed: int, capacity: int) -> None:
    trace = random_trace(seed, 9)
    assert simulate_belady(trace, capacity).hits == brute_force(trace, capacity)


@given(policies("evict", provided_by="replay"), st.integers(0, 10**6), st.integers(7, 24))
@settings(max_examples=120)
def test_belady_is_never_beaten(example, seed: int, capacity: int) -> None:
    trace = random_trace(seed, 120)
    bound = simulate_belady(trace, capacity).hits
    assert simulate(trace, example.policy, compile_ordering, capacity).hits <= bound
    assert simulate_stock(trace, capacity).hits <= bound
    assert simulate_belady(trace, capacity, window=3).hits <= bound


@given(policies("evict", provided_by="replay"), st.integers(0, 10**6), st.integers(7, 30))
@settings(max_examples=150)
def test_the_kernel_decides_as_the_plain_oracle_with_the_interpreter(
    example, seed: int, capacity: int
) -> None:
    trace = random_trace(seed, 60)
    oracle = Naive(trace, capacity, obey(example.policy))
    oracle.run()
    for use_shortcuts in (True, False):
        result = simulate(trace, example.policy, compile_ordering, capacity, use_shortcuts=use_shortcuts)
        assert (result.hits, result.evictions) == (oracle.hits, len(oracle.evicted))
        if not use_shortcuts or analyze(example.policy).shape != "identity":
            assert result.faults == oracle.faults


@pytest.mark.parametrize("seed", range(5))
def test_stock_is_lru_tail_first(seed: int) -> None:
    trace = random_trace(seed, 150)
    oracle = Naive(trace, 12, head)
    oracle.run()
    assert simulate_stock(trace, 12).hits == oracle.hits


@given(policies("evict", provided_by="replay"), st.integers(0, 10**6), st.booleans())
@settings(max_examples=40)
def test_state_is_consistent_after_every_request(example, seed: int, use_shortcuts: bool) -> None:
    trace = random_trace(seed, 60)
    victims = victims_of(example.policy, compile_ordering, 11, "replay", use_shortcuts=use_shortcuts)
    run = Replay(trace, 11, victims)
    for upto in range(1, len(trace) + 1):
        run.run(upto)
        run.check_integrity()


@pytest.mark.parametrize("victims", [stock(), belady(11), belady(11, 2)], ids=lambda v: v.label)
def test_state_of_the_bounds_is_consistent_after_every_request(victims) -> None:
    trace = random_trace(7, 200)
    run = Replay(trace, 11, victims)
    for upto in range(1, len(trace) + 1):
        run.run(upto)
        run.check_integrity()


@given(st.sampled_from(["uses, last_use", "created", "depth, -uses", "-uses, depth"]), st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_heap_takes_the_victims_of_the_scan(keys: str, seed: int) -> None:
    policy = loads(f"policy p : evict order by {keys} candidates all")
    trace = random_trace(seed, 300)
    heap = simulate(trace, policy, compile_ordering, 13)
    scan = simulate(trace, policy, compile_ordering, 13, use_shortcuts=False)
    assert np.array_equal(heap.hits_each, scan.hits_each)
    assert heap.evictions == scan.evictions


def test_hot_blocks_survive_a_scan_under_slru_and_not_under_lru() -> None:
    hot = [list(range(64))] * 100
    cold = [[64 + 16 * k + j for j in range(16)] for k in range(124)]
    rows = [*hot, *cold, list(range(64))]
    lengths = np.array([len(row) for row in rows])
    trace = RequestTable(
        name="scan", block_tokens=16, arrival_us=np.arange(len(rows), dtype=np.int64) * 1000,
        prompt_tokens=lengths * 16, output_tokens=np.ones(len(rows), np.int64),
        session=np.full(len(rows), -1, np.int64),
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
        ids=np.array([i for row in rows for i in row], np.int32), notes=(),
    )  # fmt: skip
    slru = loads("policy slru : evict order by 1 if uses >= 2 else 0, last_use candidates all")
    assert simulate(trace, slru, compile_ordering, 256).hits_each[-1] == 64
    assert simulate_stock(trace, 256).hits_each[-1] == 0


def test_a_cache_of_three_evicts_the_tail_first() -> None:
    rows = [[0, 1, 2], [3], [0, 1, 2]]
    lengths = np.array([3, 1, 3])
    trace = RequestTable(
        name="tail", block_tokens=1, arrival_us=np.array([0, 1, 2], np.int64), prompt_tokens=lengths,
        output_tokens=np.ones(3, np.int64), session=np.full(3, -1, np.int64),
        offsets=np.array([0, 3, 4, 7]), ids=np.array([i for row in rows for i in row], np.int32), notes=(),
    )  # fmt: skip
    assert simulate_stock(trace, 3).hits_each.tolist() == [0, 0, 2]


def test_a_capacity_smaller_than_one_request_is_refused() -> None:
    trace = random_trace(3, 20)
    with pytest.raises(TanrenError, match="smaller than request"):
        simulate_stock(trace, trace.longest() - 1)
    with pytest.raises(TanrenError, match="at least 1 block"):
        simulate_stock(trace, 0)


def test_a_signal_that_replay_mode_lacks_is_refused_by_name() -> None:
    policy = loads("policy p : evict order by waiting / max_running * uses, last_use")
    with pytest.raises(UnsupportedError, match="`waiting`"):
        simulate(random_trace(0, 5), policy, compile_ordering, 9)


def test_an_overflowing_key_falls_back_on_the_engine_and_is_counted() -> None:
    policy = loads("policy p : evict order by (uses + 1e200) ** 2")
    trace = random_trace(4, 80)
    result = simulate(trace, policy, compile_ordering, 10)
    assert result.faults == result.decisions > 0
    assert result.hits == simulate_stock(trace, 10).hits
