"""What an emitted schedule policy adds to vLLM's step, without a model: with 1,000 waiting, and with none.

Stock twice and the policies serve the same requests in turns, each in a process of its own of
which one runs at a time. The queue is kept long by requests that all come at once and run
long; it is kept empty by requests that come one after another.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.conform import tokens_of
from tanren_dsl.conform.harness import EngineSpec
from tanren_dsl.trace.read import read_trace
from tests.conform.test_engine_oracle import engine_python
from tests.speed.data import verdict
from tests.speed.dropin import VERSIONS, in_turns

WAITING, RUNNING, STEPS = 1_000, 32, 1_200
LIMIT_US = 200.0
POLICIES = {
    "sjf": "order by prompt_tokens, arrival",
    "20 nodes": (
        "order by min(1, waiting / max_running) * uncached_tokens / mean(uncached_tokens)"
        " - log1p(wait / mean(wait)) + 0.2 * user_priority, arrival"
    ),
    "preempt": "order by attained_tokens, arrival preempt by -attained_tokens / mean(attained_tokens)",
}


def measure() -> None:
    """Print, per version, what a step takes over stock with a long queue and with an empty one."""
    for version in VERSIONS:
        report(version, engine_python(version))


def report(version: str, python: Path) -> None:
    """The same for one version."""
    for title, waiting in (("1,000 waiting", True), ("nobody waits", False)):
        out = _run(python, waiting=waiting)
        first, again, *others = ((name, _step_us(arm, waiting=waiting)) for name, arm in out.items())
        stock = (first[1] + again[1]) / 2
        print(
            f"schedule policy, vLLM {version}, {title}: stock takes {stock:.1f} us in schedule(); "
            f"stock again over stock: {again[1] / first[1]:.3f}"
        )
        for name, step_us in others:
            if out[name]["policy"]["schedule"]["mode"] != "active":
                raise SystemExit(f"the policy was not at work: {out[name]['policy']}")
            added = step_us - stock
            says = f" ({verdict(added, LIMIT_US, at_least=False)})" if waiting else ""
            print(f"  {name:<10} {added:+.1f} us a step{says}, ratio {step_us / stock:.3f}")


def _run(python: Path, *, waiting: bool) -> dict[str, Any]:
    trace = read_trace(f"chat:7:{WAITING + 2 * RUNNING if waiting else 400}")
    count = len(trace)
    if waiting:  # whoever runs does so for the whole measurement
        arrival, output = np.zeros(count, np.int64), np.full(count, STEPS + 100)
    else:
        arrival, output = np.arange(count) * 900_000, np.full(count, 40)
    trace = replace(trace, arrival_us=arrival, output_tokens=output)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    with tempfile.TemporaryDirectory(prefix="tanren-line-") as name:
        folder = Path(name)
        tokens_of(trace).save(folder / "tokens.npz")
        arms: dict[str, str | None] = {"stock": None, "again": None}
        for place, (policy, text) in enumerate(POLICIES.items()):
            file = folder / f"policy_{place}.py"
            file.write_text(emit(None, loads(f"policy p : schedule {text}")))
            arms[policy] = str(file)
        spec = EngineSpec(
            block_size=16, usable_blocks=40_000, max_num_seqs=RUNNING, max_num_batched_tokens=2048,
            max_model_len=longest + 1, step_us=20_000,
        )  # fmt: skip
        return in_turns(python, folder, spec.as_json(folder / "tokens.npz"), arms, most=STEPS)


def _step_us(arm: dict[str, Any], *, waiting: bool) -> float:
    """Mean microseconds of the steps with so many waiting, without the slowest hundredth."""
    steps = np.array(arm["steps"], float)
    wanted = steps[steps[:, 4] >= WAITING] if waiting else steps[steps[:, 4] == 0]
    times = np.sort(wanted[50:, 0])
    return float(times[: int(len(times) * 0.99)].mean() * 1e6)
