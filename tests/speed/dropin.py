"""What the emitted file adds to vLLM's own scheduler, without a model, as ratios.

Stock twice (their mean is the measure, their difference the noise), LRU with the pass-through
switched off, and a policy of more than 20 nodes serve the same chat requests in turns of 400 steps,
each in a process of its own of which one runs at a time, at three sizes of memory. Only steps after
the whole memory was used once count, so blocks are evicted all the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.conform import Setting, prepared, tokens_of
from tanren_dsl.conform.harness import DRIVER, EngineSpec
from tanren_dsl.trace.read import read_trace
from tests.conform.test_engine_oracle import engine_python
from tests.speed.data import verdict

VERSIONS = ("0.19.1", "0.32.0")
REQUESTS = {1_000: 500, 10_000: 1_200, 100_000: 2_600}
"""Requests by usable blocks of 16 tokens: enough to use the whole memory and go on."""
RATE = 10.0
MIXED = """
let safe = depth >= 0.5 * chain
let warm = 0.4 * log1p(uses) + 0.7 * (1 - depth / capacity)
order by 0 if safe else 1, warm - age / mean(age) + min(1, gap / mean_gap)
"""
POLICIES = {
    "lru": "order by last_use",
    "mixed 1%": f"{MIXED} candidates 1%",
    "mixed 10%": f"{MIXED} candidates 10%",
}
SLICE = 400
"""Steps of a turn, as `dropin_arm.py` has it."""
TOTAL, ALLOCATING, MANY_MS = 1.05, 1.3, 5.0


def measure() -> None:
    """Print, per version and size, what each arm took over stock."""
    for version in VERSIONS:
        for blocks in REQUESTS:
            _report(version, blocks, _run(engine_python(version), blocks))


def _run(python: Path, blocks: int) -> dict[str, Any]:
    setting = Setting("vllm-0.32", rate=RATE, outputs=150)
    trace = prepared(read_trace(f"chat:5:{REQUESTS[blocks]}"), setting)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    with tempfile.TemporaryDirectory(prefix="tanren-dropin-") as name:
        folder = Path(name)
        tokens_of(trace).save(folder / "tokens.npz")
        arms: dict[str, str | None] = {"stock": None, "again": None}
        for place, (policy, text) in enumerate(POLICIES.items()):
            file = folder / f"policy_{place}.py"
            file.write_text(emit(loads(f"policy p : evict {text}")))
            arms[policy] = str(file)
        spec = EngineSpec(
            block_size=16, usable_blocks=max(blocks, longest // 16 + 2), max_num_seqs=128,
            max_num_batched_tokens=2048, max_model_len=longest + 1, step_us=20_000,
        )  # fmt: skip
        return in_turns(python, folder, spec.as_json(folder / "tokens.npz"), arms)


def in_turns(
    python: Path, folder: Path, spec: Mapping[str, Any], arms: Mapping[str, str | None], most: int = 0
) -> dict[str, Any]:
    """What each arm (its name, and the file of its policy or None) writes, after serving in turns.

    To the end, or (about) so many steps of each.
    """
    script = Path(__file__).with_name("dropin_arm.py")
    variables = {"TANREN_NO_IDENTITY": "1", "TANREN_BUDGET_MS": "1000", "PYTHONHASHSEED": "0"}
    variables["VLLM_CACHE_ROOT"] = str(python.parent.parent / ".vllm-cache")
    with ExitStack() as stack:
        running = {}
        for place, (name, file) in enumerate(arms.items()):
            (folder / f"spec_{place}.json").write_text(json.dumps({**spec, "policy_file": file}))
            command = [python, script, DRIVER.parent, folder / f"spec_{place}.json", folder / f"{place}.json"]
            errors = stack.enter_context((folder / f"errors_{place}.txt").open("w"))
            process = subprocess.Popen(
                command, env={**os.environ, **variables}, text=True, bufsize=1,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
            running[name] = stack.enter_context(process)
            _turn(running[name])  # made, and one at a time: the machine is quiet when times are taken
        live, done = list(running), 0
        while live and (most == 0 or done < most * len(running)):
            done += SLICE * len(live)
            live = [name for name in live if _turn(running[name])]
            live = live[1:] + live[:1]  # no arm runs twice in a row, or always behind the same one
        for process in running.values():
            process.stdin.close()
            process.wait()
    return {name: json.loads((folder / f"{place}.json").read_text()) for place, name in enumerate(arms)}


def _turn(process: Any) -> bool:
    """Let one arm do a slice; whether there is more."""
    process.stdin.write("\n")
    answer = process.stdout.readline().strip()
    if not answer:
        raise SystemExit(f"an arm ended early, status {process.wait()}")
    return bool(answer == "more")


def _report(version: str, blocks: int, out: dict[str, Any]) -> None:
    first, again, *others = ({"name": name, **_figures(arm)} for name, arm in out.items())
    stock = {part: (first[part] + again[part]) / 2 for part in ("schedule", "update", "allocating")}
    print(
        f"drop-in, vLLM {version}, {blocks:,} blocks, {first['share']:.0%} of steps allocate; stock "
        f"takes {stock['schedule'] * 1e6:.0f} us in schedule(), {stock['update'] * 1e6:.0f} in "
        "update_from_output(), "
        f"{first['many_ms']:.2f} ms for 1,000 blocks; stock again over stock: "
        f"{again['schedule'] / first['schedule']:.3f}"
    )
    for arm in others:
        total, allocating = (arm[part] / stock[part] for part in ("schedule", "allocating"))
        both = (arm["schedule"] + arm["update"]) / (stock["schedule"] + stock["update"])
        if not (arm["policy"] or {}).get("mode") == "active":
            raise SystemExit(f"the policy was not at work: {arm['policy']}")
        says = [
            verdict(value, limit, at_least=False)
            for value, limit in ((total, TOTAL), (allocating, ALLOCATING), (arm["many_ms"], MANY_MS))
        ]
        print(
            f"  {arm['name']:<10} schedule() {total:.3f} ({says[0]}); steps that allocate {allocating:.3f} "
            f"({says[1]}); both calls {both:.3f}; 1,000 blocks at once {arm['many_ms']:.2f} ms ({says[2]})"
        )


def _figures(arm: dict[str, Any]) -> dict[str, Any]:
    steps = np.array(arm["steps"], float)
    steps = steps[steps[:, 3] > 0]
    allocating = steps[:, 2] > 0
    return {
        "schedule": steps[:, 0].mean(),
        "update": steps[:, 1].mean(),
        "allocating": steps[allocating, 0].mean(),
        "share": allocating.mean(),
        "many_ms": arm["many_s"] * 1e3,
        "policy": arm["policy"],
    }
