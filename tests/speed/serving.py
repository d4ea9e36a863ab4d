"""The serving simulator beside the real scheduler, and how its time and memory grow.

The real scheduler runs in process, without a model, on the same requests in virtual time; only
its `schedule()` and `update_from_output()` are timed. The two take turns, and the median counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.conform import tokens_of
from tanren_dsl.conform.harness import EngineSpec
from tanren_dsl.conform.worker import Worker
from tanren_dsl.ir import Policy
from tanren_dsl.sim.engine import EngineLimits, EngineRun
from tanren_dsl.sim.rule import stock
from tanren_dsl.sim.service import first_come, service_of
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable
from tests.conform.test_engine_oracle import engine_python
from tests.speed.data import seconds, verdict

TURNS = 5
LEAST = 200.0
QUEUE = "order by min(1, waiting / max_running) * prompt_tokens / mean(prompt_tokens) - wait / mean(wait)"
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def measure() -> None:
    """Print the ratios and the exponents."""
    steady = read_trace("chat:7:1500").with_rate(8).with_outputs(150)
    burst = replace(steady.head(1_100), arrival_us=np.zeros(1_100, np.int64))
    _beside("first come first served", steady, None, 12_000)
    policy = loads(f"policy p : schedule {QUEUE}")
    _beside("a policy of 12 nodes, 1,000 waiting at first", burst, policy, 12_000)
    _growth()


def _beside(title: str, trace: RequestTable, policy: Policy | None, blocks: int) -> None:
    trace = replace(trace, output_tokens=np.maximum(trace.output_tokens, 1))
    longest = int((trace.prompt_tokens + trace.output_tokens).max()) + 1
    limits = EngineLimits(blocks, 64, 2048, longest, 20_000)
    spec = EngineSpec(
        block_size=16, usable_blocks=blocks, max_num_seqs=64, max_num_batched_tokens=2048,
        max_model_len=longest, step_us=20_000, log=False, profile=True,
    )  # fmt: skip
    engine_blocks_ = engine_blocks(trace, 16)
    service = first_come() if policy is None else service_of(policy, compile_ordering)
    tokens = tokens_of(trace)
    real, ours, steps = [], [], 0
    with (
        tempfile.TemporaryDirectory(prefix="tanren-serving-") as name,
        Worker(engine_python("0.32.0")) as worker,
    ):
        if policy is not None:
            file = Path(name, "policy.py")
            file.write_text(emit(None, policy))
            spec = spec.with_policy(file)
        EngineRun(engine_blocks_, trace.arrival_us, limits, stock(), "vllm-0.32", service=service).run()
        for _ in range(TURNS):  # the kernel is loaded by now
            summary = worker.run(spec, tokens, 600.0, {}).summary
            real.append((summary["schedule_seconds"] + summary["update_seconds"]) / summary["steps"])
            run = EngineRun(engine_blocks_, trace.arrival_us, limits, stock(), "vllm-0.32", service=service)
            took_s = seconds(lambda run=run: run.run(keep_events=False))  # type: ignore[misc]
            steps = run.result().steps
            if steps != summary["steps"]:
                raise SystemExit(f"{steps} steps simulated, {summary['steps']} in the engine")
            ours.append(took_s / steps)
    ratio = float(np.median(real) / np.median(ours))
    print(
        f"serving, {title}: {steps:,} steps, vLLM 0.32.0 {np.median(real) * 1e6:.0f} us a step, simulated "
        f"{np.median(ours) * 1e6:.2f} us: {ratio:.0f}x"
        + (f" ({verdict(ratio, LEAST, at_least=True)})" if policy is None else "")
    )


def _growth() -> None:
    """Each size in a process of its own, so that its peak memory is its own."""
    found = []
    for size in SIZES:
        done = subprocess.run(
            [sys.executable, "-m", "tests.speed.serving", str(size)],
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(json.loads(done.stdout))
    times = [one["seconds"] for one in found]
    bytes_ = [one["bytes"] for one in found]
    for size, time_s, room in zip(SIZES, times, bytes_, strict=True):
        print(f"  {size:>9,} requests: {time_s:.3f} s, {room / 1e6:,.0f} MB for them")
    print(
        f"serving, growth from {SIZES[0]:,} to {SIZES[-1]:,} requests: time n^{_exponent(times):.2f}, "
        f"memory n^{_exponent(bytes_):.2f}"
    )


def _exponent(values: list[float]) -> float:
    """Slope of a straight line through the logarithms."""
    return float(np.polyfit(np.log(SIZES), np.log(values), 1)[0])


def one_size(count: int) -> dict[str, Any]:
    """Serve so many requests at a load that the engine just bears; seconds, and the most bytes held."""
    _serve(100)  # compiled before time is taken
    took_s = float(np.median([_serve(count) for _ in range(TURNS)]))
    tracemalloc.start()
    _serve(1)
    engine = tracemalloc.get_traced_memory()[1]  # what the server itself takes, whoever comes
    tracemalloc.reset_peak()
    _serve(count)
    return {"seconds": took_s, "bytes": tracemalloc.get_traced_memory()[1] - engine}


def _serve(count: int) -> float:
    rng = np.random.default_rng(0)
    prompts = rng.integers(64, 961, count)
    trace = RequestTable(
        name="drawn",
        block_tokens=1024,
        arrival_us=np.arange(count) * 25_000,
        prompt_tokens=prompts,
        output_tokens=rng.integers(8, 57, count),
        session=np.full(count, -1),
        offsets=np.arange(count + 1),
        ids=np.arange(count, dtype=np.int32),
    )
    limits = EngineLimits(20_000, 64, 2048, 1_024, 20_000)
    run = EngineRun(engine_blocks(trace, 16), trace.arrival_us, limits, stock(), "vllm-0.32")
    return seconds(lambda: run.run(keep_events=False))


if __name__ == "__main__":
    print(json.dumps(one_size(int(sys.argv[1]))))
