"""The real engine, the simulator and the emitted file over random workloads and random policies.

One engine process a version serves all examples. The file runs as plain Python here: its
machine code would be compiled anew for each policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.backends.vllm import emit
from tanren_dsl.conform.conform import check_policy_ran
from tanren_dsl.conform.harness import StuckError, compare
from tanren_dsl.conform.worker import Worker
from tanren_dsl.errors import TanrenError
from tanren_dsl.ir import Policy
from tanren_dsl.sim.profiles import PROFILES
from tests.conform import oracle
from tests.conform.cases import ENGINES, GUARDS, Ask, Case, cases
from tests.strategies import Example, policies

PLAIN = {"TANREN_NO_NUMBA": "1", "TANREN_BUDGET_MS": "60000"}


@pytest.fixture(scope="module", params=ENGINES)
def engine(
    request: pytest.FixtureRequest, workers: Callable[[str], Worker], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Worker, Path]:
    """The profile's name, a worker of that version, and a place for the policy's file."""
    return request.param, workers(request.param), tmp_path_factory.mktemp("random") / "policy.py"


def differ(
    engine: tuple[str, Worker, Path], case: Case, policy: Policy | None = None,
    schedule: Policy | None = None, *, guard: float | None = 1.0,
) -> str | None:  # fmt: skip
    """The first difference between the real engine and the simulator, or None."""
    name, worker, file = engine
    spec = case.spec
    if policy is not None or schedule is not None:
        spec = spec.with_policy(file)
        file.write_text(emit(policy, schedule, guard=guard is not None))
    variables = PLAIN if guard is None else {**PLAIN, "TANREN_GUARD_SEED_S": repr(guard)}
    stuck, faults, orders = False, None, None
    try:
        run = worker.run(spec, case.table, 60.0, variables, must_fit=False)
        events, status = run.events, run.summary["policy"] or {}
        if case.caching:
            check_policy_ran(policy, status)
            faults = status.get("faults", 0)
        if schedule is not None:
            check_policy_ran(schedule, status["schedule"])
            orders = [status["schedule"][key] for key in ("orderings", "faults", "rescued", "errors")]
    except StuckError as error:
        events, stuck = error.events, True
    ours, ours_stuck = case.simulate(name, policy, schedule, guard=guard)
    found = compare(events, ours.events).first
    if found is None and stuck != ours_stuck:
        found = f"engine stuck: {stuck}, simulator stuck: {ours_stuck}"
    if found is None and faults not in (None, ours.faults):
        found = f"faults: engine {faults}, simulator {ours.faults}"
    if found is None and orders not in (None, [ours.orderings, ours.order_faults, ours.rescued, 0]):
        found = f"engine {orders}, simulator {[ours.orderings, ours.order_faults, ours.rescued]}"
    return found


@settings(max_examples=60)
@given(case=cases(), example=policies(provided_by="vllm"))
def test_random_policies_decide_alike(engine: tuple[str, Worker, Path], case: Case, example: Example) -> None:
    assert differ(engine, case, example.policy) is None, example.text


@settings(max_examples=60)
@given(case=cases(), example=policies("schedule", provided_by="vllm"), guard=st.sampled_from(GUARDS))
def test_random_schedule_policies_decide_alike(
    engine: tuple[str, Worker, Path], case: Case, example: Example, guard: float | None
) -> None:
    assert differ(engine, case, None, example.policy, guard=guard) is None, example.text


@settings(max_examples=20)
@given(case=cases(), evict=policies(provided_by="vllm"), schedule=policies("schedule", provided_by="vllm"))
def test_an_evict_and_a_schedule_policy_share_a_file(
    engine: tuple[str, Worker, Path], case: Case, evict: Example, schedule: Example
) -> None:
    assert differ(engine, case, evict.policy, schedule.policy) is None, evict.text + schedule.text


@settings(max_examples=60)
@given(case=cases(schedulings=("fcfs", "priority")) | cases(fits=False))
def test_the_engine_and_its_copy_do_the_same_with_any_workload(
    engine: tuple[str, Worker, Path], case: Case
) -> None:
    assert differ(engine, case, None) is None


LARGE = [Ask(0.0, 0, 0, 12, 0, 4, None), Ask(0.0, 1, 0, 1, 0, 4, None)]
GROWS = [Ask(0.0, 0, 0, 6, 0, 40, None), Ask(60.0, 1, 0, 1, 0, 4, None)]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("asks", "preemptions"), [(LARGE, 0), (GROWS, 1)], ids=["larger than memory", "outgrows memory alone"]
)
def test_who_never_fits_waits_for_ever_and_all_behind_it(
    engine: tuple[str, Worker, Path], asks: list[Ask], preemptions: int, asynchronous: bool
) -> None:
    name, worker, _ = engine
    case = Case(tuple(asks), 16, -2, 4, 128, asynchronous)
    with pytest.raises(StuckError, match=r"no progress .* requests left, the first is r000000") as stuck:
        worker.run(case.spec, case.table, 60.0, must_fit=False)
    ours, ours_stuck = case.simulate(name)
    assert ours_stuck
    assert ours.events == stuck.value.events
    assert ours.preemptions == preemptions
    assert oracle.simulate(case.spec, case.table, PROFILES[name].version).events == ours.events
    with pytest.raises(TanrenError, match=r"request 0 .* never fits"):
        worker.run(case.spec, case.table)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_client_that_gives_up_frees_the_queue_behind_it(
    engine: tuple[str, Worker, Path], asynchronous: bool
) -> None:
    gives_up = [replace(LARGE[0], abort=30.0), LARGE[1]]
    assert differ(engine, Case(tuple(gives_up), 16, -2, 4, 128, asynchronous), None) is None
