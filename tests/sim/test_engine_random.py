"""Engine mode against the plain-Python engine over random workloads."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.sim.profiles import PROFILES
from tests.conform import oracle
from tests.conform.cases import ENGINES, Case, cases


@settings(max_examples=150)
@given(cases() | cases(fits=False), st.sampled_from(ENGINES))
def test_lru_is_the_plain_engine_over_random_workloads(case: Case, engine: str) -> None:
    expected = oracle.simulate(case.spec, case.table, PROFILES[engine].version)
    result, stuck = case.simulate(engine)
    assert result.events == expected.events
    assert stuck == bool(expected.summary.get("stuck"))
