"""Regretted evictions: by hand, by the interpreter, and by what must add up."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl import interp
from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.diagnosis.compare import NEVER, Compared, _own_misses, compare
from tanren_dsl.diagnosis.diagnosis import as_text
from tanren_dsl.diagnosis.evictions import diagnose_evict
from tanren_dsl.diagnosis.recorder import Recorder
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.ir import Policy
from tanren_dsl.sim.replay import MODE, simulate, simulate_belady, simulate_stock
from tanren_dsl.sim.rule import considered_extra, stock, victims_of
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable
from tests.diagnosis.traces import SECOND, table_of
from tests.public import MOONCAKE, public_trace
from tests.sim.naive import random_trace
from tests.strategies import Example, policies

MRU = loads("policy mru : evict order by age candidates all")
LRU = loads("policy lru : evict order by last_use")

A, B, C = (0, 1), (2, 3), (4,)
BY_HAND = table_of([A, B, C, B, A, C, B])
"""With 4 blocks, evicting the youngest: 3 for C, then C for 3, then 1 for C."""


def compared(table: RequestTable, policy: Policy, capacity: int, engine: str = "vllm-0.19") -> Compared:
    victims = victims_of(policy, compile_ordering, capacity, MODE)
    return compare(table, capacity, victims, considered_extra(policy.percent, capacity), stock(), engine)


def test_every_eviction_of_the_trace_by_hand() -> None:
    both = compared(BY_HAND, MRU, 4)
    assert both.hits.tolist() == [0, 0, 0, 1, 2, 0, 2]
    assert both.base_hits.tolist() == [0, 0, 0, 2, 1, 0, 1]
    found = both.evictions
    assert found.request.tolist() == [2, 3, 5]
    assert found.block.tolist() == [3, 4, 1]
    assert found.wanted.tolist() == [3, 5, NEVER]
    assert found.lost.tolist() == found.missed.tolist() == [1, 0, 0]
    assert (found.held.tolist(), found.held_wanted.tolist()) == ([1, 0, 0], [1, 0, 0])
    assert found.considered.tolist() == [4, 3, 4]
    assert found.idle.tolist() == [0, 0, 1]  # of those kept at request 5 only block 0 is not wanted again


def test_signals_are_those_of_the_decision() -> None:
    found = compared(BY_HAND, MRU, 4).evictions
    values = {name: column.tolist() for name, column in found.values.items()}
    assert values["age"] == [SECOND] * 3
    assert values["lifetime"] == [SECOND, SECOND, 5 * SECOND]
    assert values["gap"] == [0, 0, 4 * SECOND]
    assert (values["depth"], values["chain"]) == ([4, 0, 4], [8, 4, 8])
    assert (values["uses"], values["children"]) == ([0, 0, 1], [0, 0, 0])
    assert values["now"] == [2 * SECOND, 3 * SECOND, 5 * SECOND]
    assert values["hit_rate"] == pytest.approx([0, 0, 0.3])
    assert values["mean_gap"] == pytest.approx([0, 0, 10 * SECOND / 3])
    assert (values["capacity"], values["block_size"], values["kv_free"]) == ([16] * 3, [4] * 3, [1] * 3)
    assert found.means["age"].tolist() == [1.5 * SECOND, 7 / 3 * SECOND, 1.5 * SECOND]
    assert found.means["children"].tolist() == pytest.approx([0.5, 1 / 3, 0.5])


def test_totals_and_the_worst_case_of_the_trace_by_hand() -> None:
    found = diagnose_evict(BY_HAND, MRU, compile_ordering, 4)
    totals = found.totals
    assert (totals["hits"], totals["base_hits"]) == (5, 4)
    assert (totals["hits_gained"], totals["requests_gaining"]) == (2, 2)
    assert (totals["hits_lost"], totals["requests_losing"]) == (1, 1)
    assert (totals["evictions"], totals["evictions_never_wanted"]) == (3, 1)
    assert totals["belady_hits"] == simulate_belady(BY_HAND, 4).hits
    (case,) = found.worst
    wanted = {
        "request": 2,
        "block": 3,
        "hits_lost": 1,
        "requests_later": 1,
        "seconds_later": 1.0,
        "at_s": 2.0,
    }
    assert wanted.items() <= case.facts.items()
    assert case.facts["signals"]["age"] == 1.0
    assert case.facts["relative"]["age / mean(age)"] == pytest.approx(2 / 3)
    assert "request 2 at 2.0 s evicted block 3" in as_text(found)
    assert found.verdict.startswith("1 regretted decisions against 1 right ones. No pattern")


def test_a_lost_hit_is_counted_once_where_each_block_of_a_stretch_was_evicted() -> None:
    places, misses = _own_misses(np.array([7, NEVER, NEVER, 9, 8, NEVER]))
    assert (places.tolist(), misses.tolist()) == ([7, 9, 8], [3, 1, 2])


@settings(max_examples=60, deadline=None)
@given(
    policies("evict", provided_by="replay"),
    st.integers(0, 30),
    st.integers(6, 24),
    st.sampled_from(["vllm-0.19", "vllm-0.32"]),
)
def test_victims_are_the_lowest_by_the_interpreter(
    example: Example, seed: int, capacity: int, engine: str
) -> None:
    """Keys computed anew from what was recorded name the blocks that were evicted, in their order."""
    trace, policy = random_trace(seed, 60), example.policy
    victims = victims_of(policy, compile_ordering, capacity, MODE)
    recorder = Recorder(trace, capacity, victims, considered_extra(policy.percent, capacity), engine)
    for _ in range(len(trace)):
        moment = recorder.step()
        if moment is None:
            continue
        keys = interp.evaluate(policy, policy.order, moment.decision, moment.columns(), len(moment.blocks))
        order, _ = interp.order(keys)
        assert moment.victims.tolist() == order[: len(moment.victims)]
    result = recorder.replay.result()
    plain = simulate(trace, policy, compile_ordering, capacity, engine=engine)
    assert (result.hits, result.evictions, result.faults) == (plain.hits, plain.evictions, plain.faults)


@settings(max_examples=60, deadline=None)
@given(policies("evict", provided_by="replay"), st.integers(0, 30), st.integers(6, 24))
def test_hits_gained_less_hits_lost_is_the_difference(example: Example, seed: int, capacity: int) -> None:
    trace = random_trace(seed, 60)
    both = compared(trace, example.policy, capacity)
    gained = np.maximum(both.hits - both.base_hits, 0).sum()
    lost = np.maximum(both.base_hits - both.hits, 0).sum()
    found = both.evictions
    assert both.hits.sum() - both.base_hits.sum() == gained - lost
    assert found.lost.sum() == found.missed.sum() == lost
    assert (found.missed[found.wanted == NEVER] == 0).all()
    assert (found.wanted[found.missed > 0] > found.request[found.missed > 0]).all()
    assert both.hits.sum() == simulate(trace, example.policy, compile_ordering, capacity).hits
    assert both.base_hits.sum() == simulate_stock(trace, capacity).hits
    assert len(found) == simulate(trace, example.policy, compile_ordering, capacity).evictions


@pytest.mark.parametrize("against", [None, LRU])
def test_against_itself_there_is_no_regret(against: Policy | None) -> None:
    trace = read_trace("chat:1:200")
    found = diagnose_evict(trace, LRU, compile_ordering, trace.longest() * 2, against=against)
    assert found.totals["evictions"] > 0
    assert (found.regretted, found.worst, found.patterns) == (0, (), ())
    assert found.verdict == "No regret: nothing was decided worse than lru did."
    assert as_text(found).endswith(found.verdict)


@pytest.mark.parametrize("requests", [0, 50])
def test_a_cache_that_holds_everything_evicts_nothing(requests: int) -> None:
    trace = read_trace("chat:1:50").head(requests)
    found = diagnose_evict(trace, MRU, compile_ordering, max(1, trace.distinct_blocks))
    assert found.totals["evictions"] == found.regretted == found.right == 0
    assert "Nothing was evicted" in as_text(found)
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["worst"] == []


def test_the_same_trace_gives_the_same_diagnosis_with_patterns() -> None:
    trace = read_trace("chat:1:400")
    capacity = trace.longest() * 3
    first, second = (diagnose_evict(trace, MRU, compile_ordering, capacity) for _ in range(2))
    assert first.as_json() == second.as_json()
    assert first.regretted > 0
    json.dumps(first.as_json(), allow_nan=False)
    assert sum(case.regret for case in first.worst) <= first.totals["hits_lost"]


@pytest.mark.parametrize("base", ["belady", MRU])
def test_another_base_is_possible(base: Literal["belady"] | Policy) -> None:
    trace = random_trace(3, 80)
    found = diagnose_evict(trace, LRU, compile_ordering, 8, against=base)
    expected = (
        simulate_belady(trace, 8) if isinstance(base, str) else simulate(trace, base, compile_ordering, 8)
    )
    assert found.totals["base_hits"] == expected.hits
    assert found.against == (base if isinstance(base, str) else "mru")
    if base == "belady":
        assert found.totals["hits_lost_by_belady_too"] == 0


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="is a schedule policy"):
        diagnose_evict(BY_HAND, loads("policy s : schedule order by wait"), compile_ordering, 4)
    with pytest.raises(TanrenError, match="capacity of 1 blocks is smaller than request 1"):
        diagnose_evict(BY_HAND, MRU, compile_ordering, 1)


def test_tail_lru_loses_its_budget_on_the_public_trace() -> None:
    """What the policy frees first by its own rule is what it regrets."""
    text = """policy t : evict knob budget : tokens = 2048 let safe = depth >= max(0, chain - budget)
              order by 0 if safe else 1, last_use"""
    found = diagnose_evict(public_trace(MOONCAKE), loads(text), compile_ordering, 10_000)
    assert (found.totals["hits"], found.totals["base_hits"]) == (60_815, 61_046)
    tail = next(one for one in found.separations if one.feature.text == "chain - depth")
    assert tail.regretted == (1024.0, 1536.0, 2048.0)  # blocks of 512 tokens within the budget
    assert tail.right[0] > 2048
    (pattern,) = found.patterns
    assert (pattern.share, pattern.regretted) == (1.0, 538)
    assert "chain - depth" in pattern.text
    assert len(as_text(found)) <= 2000
