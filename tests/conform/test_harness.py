"""Running the driver as a process, and comparing two event lists."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.conform.harness import EngineSpec, compare, run_engine
from tanren_dsl.errors import TanrenError
from tests.conform.workload import conversations, table_of

SPEC = EngineSpec(16, 110, 16, 256, 1024, 10_000)
TABLE = conversations(0, requests=3)


def script(path: Path, body: str) -> Path:
    """An executable that stands for an environment's Python; `$3` is the driver's output file."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_events_and_summary_are_read(tmp_path: Path) -> None:
    event = '{"step": 0, "phase": "update", "t_us": 5, "finished": []}'
    python = script(tmp_path / "python", f"echo '{event}' > $3; echo '{{\"end\": true, \"steps\": 4}}' >> $3")
    run = run_engine(python, SPEC, TABLE)
    assert run.events == [{"step": 0, "phase": "update", "t_us": 5, "finished": []}]
    assert run.summary["steps"] == 4


def test_variables_reach_the_engine(tmp_path: Path) -> None:
    python = script(tmp_path / "python", 'echo "{\\"end\\": true, \\"knob\\": \\"$KNOB\\"}" > $3')
    assert run_engine(python, SPEC, TABLE, 10.0, {"KNOB": "7"}).summary["knob"] == "7"


def test_driver_error_is_reported_as_is(tmp_path: Path) -> None:
    python = script(tmp_path / "python", 'echo "{\\"error\\": \\"no room\\"}" > $3; exit 3')
    with pytest.raises(TanrenError, match="engine: no room"):
        run_engine(python, SPEC, TABLE)


def test_death_without_a_word_shows_the_end_of_stderr(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo Segmentation fault >&2; exit 139")
    with pytest.raises(TanrenError, match=r"status 139 and no summary\nSegmentation fault"):
        run_engine(python, SPEC, TABLE)


def test_time_limit_ends_the_whole_process_group(tmp_path: Path) -> None:
    child = tmp_path / "child"
    python = script(tmp_path / "python", f"sleep 60 & echo $! > {child}; wait")
    with pytest.raises(TanrenError, match="longer than 1 s"):
        run_engine(python, SPEC, TABLE, limit_s=1.0)
    pid = int(child.read_text())
    deadline = time.monotonic() + 5
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(pid)


def test_missing_environment_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match="make vllm-env"):
        run_engine(tmp_path / "none", SPEC, TABLE)


def test_request_that_never_fits_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    table = table_of([0, 1], [np.arange(5), np.arange(90)], [np.arange(2), np.arange(40)])
    with pytest.raises(TanrenError, match=r"request 1 \(prompt 90, output 40 tokens\) never fits into 8"):
        run_engine(tmp_path / "none", replace(SPEC, usable_blocks=8), table)


def test_same_events_compare_equal() -> None:
    events = [{"step": 2, "phase": "schedule", "t_us": 1, "evicted": [3]}]
    comparison = compare(events, list(events))
    assert (comparison.steps, comparison.divergences, comparison.first) == (1, 0, None)


def test_first_difference_shows_both_sides() -> None:
    engine = [
        {"step": 2, "phase": "schedule", "t_us": 1, "evicted": [3], "admitted": []},
        {"step": 4, "phase": "update", "t_us": 9, "finished": ["r000001"]},
    ]
    simulated = [{"step": 2, "phase": "schedule", "t_us": 1, "evicted": [5], "admitted": []}]
    comparison = compare(engine, simulated)
    assert (comparison.steps, comparison.divergences) == (2, 2)
    assert comparison.first is not None
    assert comparison.first.splitlines() == [
        "first difference at step 2, schedule:",
        "  evicted: engine [3], simulated [5]",
    ]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")
