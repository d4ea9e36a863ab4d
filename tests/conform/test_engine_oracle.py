"""The plain-Python oracle decides as real vLLM does, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tanren_dsl.conform.harness import EngineSpec, compare, run_engine
from tanren_dsl.conform.worker import Worker
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.profiles import PROFILES
from tests.conform import oracle
from tests.conform.environments import engine_python
from tests.conform.workload import conversations, with_aborts

SPEC = EngineSpec(
    block_size=16,
    usable_blocks=110,
    max_num_seqs=16,
    max_num_batched_tokens=256,
    max_model_len=1024,
    step_us=10_000,
)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_oracle_repeats_every_decision_of_the_engine(
    workers: Callable[[str], Worker], seed: int, engine: str, asynchronous: bool
) -> None:
    spec = replace(SPEC, asynchronous=asynchronous)
    table = with_aborts(conversations(seed), seed) if seed == 2 else conversations(seed)
    version = PROFILES[engine].version
    run = workers(engine).run(spec, table)
    simulated = oracle.simulate(spec, table, version)

    assert run.summary["version"].split("+")[0] == version
    assert run.summary["preemptions"] > 10
    assert run.summary["evictions"] > 1000
    comparison = compare(run.events, simulated.events)
    assert comparison.first is None
    assert comparison.steps > 500
    assert run.summary["steps"] == simulated.summary["steps"]
    assert run.summary["t_us"] == simulated.summary["t_us"]
    assert (run.summary["aborts"] > 20) == (seed == 2)


POLICY = """
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

def CLOCK():
    return -1

TIMES = []

class Scheduler(AsyncScheduler):
    def schedule(self, *args, **kwargs):
        TIMES.append(CLOCK())
        return super().schedule(*args, **kwargs)

def status():
    return {"steps": len(TIMES), "last": TIMES[-1], "first": TIMES[0]}
"""


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
def test_policy_file_runs_in_the_engine_on_the_virtual_clock(version: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(POLICY)
    table = conversations(3, requests=60)
    spec = replace(SPEC, asynchronous=True, policy_file=policy)
    run = run_engine(engine_python(version), spec, table)

    assert compare(run.events, oracle.simulate(spec, table, version).events).first is None
    status = run.summary["policy"]
    assert status["steps"] == run.summary["steps"]
    assert status["first"] == table.arrival_us[0]
    assert status["last"] > table.arrival_us[-1]


def test_a_request_that_fails_to_be_scheduled_ends_the_run_with_a_message(tmp_path: Path) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(
        "from vllm.v1.core.sched.scheduler import Scheduler as Base\n"
        "class Scheduler(Base):\n"
        "    def schedule(self, *args, **kwargs):\n"
        "        self.max_num_running_reqs = self.max_num_active_reqs = 0\n"
        "        return super().schedule(*args, **kwargs)\n"
    )
    spec = replace(SPEC, policy_file=policy)
    with pytest.raises(TanrenError, match=r"engine: no progress after step \d+: 5 requests left, .* r000000"):
        run_engine(engine_python("0.32.0"), spec, conversations(3, requests=5))


def test_workloads_cover_output_that_finishes_a_preempted_request() -> None:
    spec = replace(SPEC, asynchronous=True)
    runs = [oracle.simulate(spec, conversations(seed), "0.32.0") for seed in (0, 1, 2)]
    assert sum(run.summary["late_finishes"] for run in runs) > 0
