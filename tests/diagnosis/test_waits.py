"""Requests that waited too long: by hand, by the interpreter, and by what must add up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl import interp
from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.diagnosis.diagnosis import as_text
from tanren_dsl.diagnosis.overtakes import NOBODY, compare
from tanren_dsl.diagnosis.queue import views
from tanren_dsl.diagnosis.waits import diagnose_schedule
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.sim.latency import Latency, constant
from tanren_dsl.sim.service import service_of
from tanren_dsl.sim.serving import STARTS, Server, serve
from tanren_dsl.trace.read import read_trace
from tests.diagnosis.traces import SECOND, table_of
from tests.strategies import Example, policies

SJF = loads("policy sjf : schedule order by prompt_tokens")
FIRST = loads("policy first : schedule order by arrival")
BY_HAND = table_of([[0], [1], [2], [3]], [0.0, 0.1, 0.2, 1.5], [50, 40, 10, 5], block_tokens=64)
"""One at a time, a second each: request 1 sees requests 2 and 3 go before it."""
ONE = Server(100, max_num_seqs=1, asynchronous=False, caching=False)
STEP = constant(SECOND)
SMALL = Latency("test", "made up for tests", "estimate", 20_000.0, 80.0, 10_000.0, 400.0, 300.0, 200.0)


def test_who_waited_behind_whom_by_hand() -> None:
    service = service_of(SJF, compile_ordering)
    own = serve(BY_HAND, ONE, STEP, service=service, keep_steps=True)
    waits = compare(BY_HAND, own, serve(BY_HAND, ONE, STEP))
    assert own.ttft_s.tolist() == [1.0, 3.9, 1.8, 1.5]
    assert waits.regret_s.tolist() == pytest.approx([0.0, 2.0, -1.0, -1.0])
    assert waits.overtakers.tolist() == [0, 2, 0, 0]
    assert waits.overtaking_tokens.tolist() == [0, 15, 0, 0]
    assert (waits.first.tolist(), waits.last.tolist()) == (
        [NOBODY, 2, NOBODY, NOBODY],
        [NOBODY, 3, NOBODY, NOBODY],
    )


def test_the_case_by_hand_with_its_signals() -> None:
    found = diagnose_schedule(BY_HAND, SJF, compile_ordering, ONE, STEP)
    assert (found.regretted, found.right) == (1, 3)
    (case,) = found.worst
    facts = dict(case.facts)
    assert (facts["request"], facts["overtakers"], facts["preemptions"]) == (1, 2, 0)
    assert facts["regret_s"] == pytest.approx(2.0)
    assert (facts["wait_s"], facts["base_wait_s"]) == (2.9, 0.9)
    first, last = facts["first_overtaker"], facts["last_overtaker"]
    assert (first["request"], first["at_s"], first["prompt_tokens"]) == (2, 1.0, 10)
    assert (first["wait_s"], first["own_wait_s"]) == (0.8, 0.9)
    assert (first["waiting"], first["running"], first["kv_free"]) == (2, 0, 1.0)
    assert (last["request"], last["at_s"], last["wait_s"], last["own_wait_s"]) == (3, 2.0, 0.5, 1.9)
    # what was known when it was first ranked, at 1 s
    signals = facts["signals"]
    assert (signals["wait"], signals["waiting"], signals["oldest_wait"]) == (0.9, 2, 0.9)
    assert (signals["prompt_tokens"], signals["uncached_tokens"]) == (40, 40)
    assert facts["relative"]["prompt_tokens / mean(prompt_tokens)"] == pytest.approx(40 / 25)
    totals = found.totals
    assert (totals["seconds_lost"], totals["seconds_gained"]) == pytest.approx((2.0, 2.0))
    assert "2 later ones (15 prompt tokens) went before it; first 2 (10 tokens" in as_text(found)


def test_contrasts_hold_the_passed_against_the_passing() -> None:
    found = diagnose_schedule(BY_HAND, SJF, compile_ordering, ONE, STEP)
    contrast = next(one for one in found.contrasts if one.feature.text == "prompt_tokens")
    assert (contrast.regretted, contrast.preferred, contrast.lower) == (40, 10, 0.0)
    assert "wait" not in {one.feature.text for one in found.contrasts}


@settings(max_examples=40, deadline=None)
@given(policies("schedule", provided_by="engine"), st.integers(1, 20), st.booleans(), st.integers(2, 12))
def test_who_is_admitted_goes_first_by_the_interpreter(
    example: Example, seed: int, caching: bool, seqs: int
) -> None:
    """Keys computed anew from what was seen put those admitted at each step before all others."""
    table, policy = read_trace(f"chat:{seed}:40").with_rate(40.0), example.policy
    server = Server(30_000, max_num_seqs=seqs, asynchronous=False, caching=caching)
    service = service_of(policy, compile_ordering, guard=False)
    own = serve(table, server, SMALL, service=service, keep_steps=True)
    if own.totals.preemptions:
        return
    begins = own.steps[:, STARTS]
    admitted_at = np.searchsorted(begins, own.first_scheduled_us)
    seen = views(
        table, server, SMALL, service, {int(at): int(begins[at]) for at in set(admitted_at.tolist())}
    )
    for step, view in seen.items():
        assert view.decision["waiting"] == len(view.requests)
        keys = interp.evaluate(policy, policy.order, view.decision, view.columns(), len(view.requests))
        order, _ = interp.order(keys)
        taken = set(np.flatnonzero(admitted_at == step).tolist())
        assert {int(view.requests[place]) for place in order[: len(taken)]} == taken


@pytest.mark.parametrize("caching", [True, False])
def test_against_itself_there_is_no_regret(caching: bool) -> None:
    table = read_trace("chat:1:60").with_rate(20.0)
    server = Server(30_000, max_num_seqs=8, caching=caching)
    found = diagnose_schedule(table, FIRST, compile_ordering, server, SMALL)
    assert (found.regretted, found.right, found.worst) == (0, 60, ())
    assert found.verdict == "No regret: nothing was decided worse than fcfs did."
    json.dumps(found.as_json(), allow_nan=False)


def test_seconds_gained_less_seconds_lost_is_the_difference_and_runs_repeat() -> None:
    table = read_trace("chat:2:150").with_rate(30.0)
    server = Server(30_000, max_num_seqs=8)
    first, second = (diagnose_schedule(table, SJF, compile_ordering, server, SMALL) for _ in range(2))
    assert first.as_json() == second.as_json()
    totals = first.totals
    difference = (totals["base_mean_s"] - totals["mean_s"]) * totals["requests"]
    assert totals["seconds_gained"] - totals["seconds_lost"] == pytest.approx(difference)
    assert first.regretted > 0
    assert [case.regret for case in first.worst] == sorted((c.regret for c in first.worst), reverse=True)


def test_memory_that_runs_out_shows_in_the_preemptions() -> None:
    table = read_trace("chat:1:60").with_rate(50.0)
    found = diagnose_schedule(
        table, SJF, compile_ordering, Server(750, max_num_seqs=64, block_size=16), SMALL
    )
    assert found.totals["preemptions"] == sum(found.sample.series["preemptions"]) > 0


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="here a schedule policy is needed"):
        diagnose_schedule(BY_HAND, loads("policy e : evict order by age"), compile_ordering, ONE, STEP)
    with pytest.raises(TanrenError, match="no requests to serve"):
        diagnose_schedule(BY_HAND.head(0), SJF, compile_ordering, ONE, STEP)


@settings(max_examples=30, deadline=None)
@given(
    policies("schedule", provided_by="engine"), st.integers(1, 9), st.integers(600, 1000), st.integers(2, 40)
)
def test_any_policy_can_be_diagnosed_where_memory_runs_out(
    example: Example, seed: int, blocks: int, seqs: int
) -> None:
    table = read_trace(f"chat:{seed}:50").with_rate(50.0)
    server = Server(max(blocks, table.longest() + 200), max_num_seqs=seqs)
    found = diagnose_schedule(table, example.policy, compile_ordering, server, SMALL)
    assert found.regretted + found.right == len(table)
    for case in found.worst:
        passed = case.facts["first_overtaker"]
        assert (passed is None) == (case.facts["overtakers"] == 0)
        if passed is not None:
            assert passed["own_wait_s"] >= passed["wait_s"] >= 0
