"""One engine process that serves many runs, and what happens when it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tanren_dsl.conform.harness import EngineSpec, StuckError
from tanren_dsl.conform.worker import Worker
from tanren_dsl.errors import TanrenError
from tests.conform.test_harness import script
from tests.conform.workload import conversations

SPEC = EngineSpec(16, 110, 16, 256, 1024, 10_000)
TABLE = conversations(0, requests=3)
READ = """read line; out=$(echo "$line" | sed 's/.*, "\\(.*\\)"]/\\1/')"""
ANSWER = f"""while {READ}; do echo "{{\\"end\\": true, \\"process\\": $$}}" > $out; echo 0; done"""


def test_one_process_serves_all_runs(tmp_path: Path) -> None:
    with Worker(script(tmp_path / "python", ANSWER)) as worker:
        processes = {worker.run(SPEC, TABLE).summary["process"] for _ in range(3)}
    assert len(processes) == 1


def test_a_process_that_died_is_replaced(tmp_path: Path) -> None:
    body = ANSWER.replace("echo 0;", f"echo 0; {READ}; echo bad >&2; exit 9;")
    with Worker(script(tmp_path / "python", body)) as worker:
        first = worker.run(SPEC, TABLE).summary["process"]
        with pytest.raises(TanrenError, match=r"status 9 and no summary\nbad"):
            worker.run(SPEC, TABLE)
        assert worker.run(SPEC, TABLE).summary["process"] != first


def test_a_run_that_outstays_its_time_ends_the_process(tmp_path: Path) -> None:
    with Worker(script(tmp_path / "python", "sleep 60")) as worker:
        with pytest.raises(TanrenError, match="longer than 1 s"):
            worker.run(SPEC, TABLE, 1.0)
        assert worker._process is None


def test_requests_that_are_left_are_an_error_of_its_own(tmp_path: Path) -> None:
    event = '{"step": 0, "phase": "update", "t_us": 5, "finished": []}'
    body = f"{READ}; echo '{event}' > $out; echo '{{\"error\": \"no progress\"}}' >> $out; echo 3; {READ}"
    python = script(tmp_path / "python", body)
    with Worker(python) as worker, pytest.raises(StuckError, match="engine: no progress") as stuck:
        worker.run(SPEC, TABLE)
    assert [event["t_us"] for event in stuck.value.events] == [5]


def test_a_missing_environment_and_a_request_that_never_fits_are_refused(tmp_path: Path) -> None:
    with Worker(tmp_path / "none") as worker:
        with pytest.raises(TanrenError, match="make vllm-env"):
            worker.run(SPEC, TABLE)
        with pytest.raises(TanrenError, match=r"request \d .* never fits into 1 blocks"):
            worker.run(replace(SPEC, usable_blocks=1), TABLE)


POLICY = """
import os
from vllm.v1.core.sched.scheduler import Scheduler

def status():
    return os.environ.get("KNOB")
"""


def test_variables_are_those_of_one_run(workers: Callable[[str], Worker], tmp_path: Path) -> None:
    (tmp_path / "policy.py").write_text(POLICY)
    spec = replace(SPEC, policy_file=tmp_path / "policy.py")
    said = [
        workers("vllm-0.32").run(spec, TABLE, environment=wanted).summary["policy"]
        for wanted in ({"KNOB": "7"}, {}, {"KNOB": "8"})
    ]
    assert said == ["7", None, "8"]
