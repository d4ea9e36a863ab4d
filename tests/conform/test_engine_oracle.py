"""The plain-Python oracle decides as real vLLM does, step by step."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import oracle
import pytest
from workload import conversations

from tanren_dsl.conform.harness import EngineSpec, compare, run_engine

SPEC = EngineSpec(
    block_size=16,
    usable_blocks=110,
    max_num_seqs=16,
    max_num_batched_tokens=256,
    max_model_len=1024,
    step_us=10_000,
)


def engine_python(version: str) -> Path:
    """The Python of one vLLM environment, or a skipped test."""
    name = "TANREN_VLLM_" + version.replace(".", "_")
    root = Path(__file__).parents[2]
    python = Path(os.environ.get(name, root / f".venv-vllm-{version}" / "bin" / "python"))
    if not python.is_file():
        pytest.skip(f"no vLLM {version}: set {name} or run make vllm-env VLLM={version}")
    return python


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_oracle_repeats_every_decision_of_the_engine(seed: int, version: str, asynchronous: bool) -> None:
    spec = replace(SPEC, asynchronous=asynchronous)
    table = conversations(seed)
    run = run_engine(engine_python(version), spec, table)
    simulated = oracle.simulate(spec, table, version)

    assert run.summary["version"].split("+")[0] == version
    assert run.summary["preemptions"] > 10
    assert run.summary["evictions"] > 1000
    comparison = compare(run.events, simulated.events)
    assert comparison.first is None
    assert comparison.steps > 500
    assert run.summary["steps"] == simulated.summary["steps"]
    assert run.summary["t_us"] == simulated.summary["t_us"]
