"""Engine mode against the plain-Python engine over random workloads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.check import loads
from tanren_dsl.sim.profiles import PROFILES
from tests.conform import oracle
from tests.conform.cases import ENGINES, GUARDS, Case, cases
from tests.conform.oracle_line import Line
from tests.strategies import Example, policies


@settings(max_examples=150)
@given(cases() | cases(fits=False), st.sampled_from(ENGINES))
def test_lru_is_the_plain_engine_over_random_workloads(case: Case, engine: str) -> None:
    expected = oracle.simulate(case.spec, case.table, PROFILES[engine].version)
    result, stuck = case.simulate(engine)
    assert result.events == expected.events
    assert stuck == bool(expected.summary.get("stuck"))


@settings(max_examples=120)
@given(cases(), st.sampled_from(ENGINES), policies(provided_by="engine"))
def test_every_signal_is_the_plain_one_over_random_workloads(
    case: Case, engine: str, example: Example
) -> None:
    policy = example.policy if case.caching else None
    expected = oracle.simulate(case.spec, case.table, PROFILES[engine].version, policy)
    result, _ = case.simulate(engine, policy)
    assert result.events == expected.events, example.text


@settings(max_examples=200)
@given(
    cases(),
    st.sampled_from(ENGINES),
    policies("schedule", provided_by="engine"),
    st.none() | policies(provided_by="engine"),
    st.sampled_from(GUARDS),
)
def test_requests_are_served_in_the_order_of_the_interpreter(
    case: Case, engine: str, example: Example, evict: Example | None, guard: float | None
) -> None:
    judged = evict.policy if evict is not None and case.caching else None
    line = Line(example.policy, case.spec, guard=guard)
    expected = oracle.simulate(case.spec, case.table, PROFILES[engine].version, judged, line)
    result, _ = case.simulate(engine, judged, example.policy, guard=guard)
    assert result.events == expected.events, example.text
    found = (result.orderings, result.order_faults, result.rescued)
    assert found == (line.orderings, line.faults, line.rescued)


@pytest.mark.parametrize("text", ["waiting_refs, last_use", "-waiting_refs * children, uses, last_use"])
@settings(max_examples=60)
@given(case=cases(may_cache=(True,)), engine=st.sampled_from(ENGINES))
def test_waiting_references_are_counted_as_by_hand(text: str, case: Case, engine: str) -> None:
    policy = loads(f"policy p : evict order by {text} candidates all")
    expected = oracle.simulate(case.spec, case.table, PROFILES[engine].version, policy)
    result, _ = case.simulate(engine, policy)
    assert result.events == expected.events
