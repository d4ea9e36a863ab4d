"""Several schedulers serve one workload in turns, in one process; seconds a step.

A script that runs inside a vLLM environment as `PYTHON lockstep.py DRIVER_FOLDER SPEC.json
OUT.json`; `dropin.py` starts it. The specification is the driver's (`conform/engine_driver.py`)
with `arms`: a policy file, or null for stock, by name. Synchronous.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
sys.path.insert(0, sys.argv[1])
import engine_driver

SLICE = 20
"""Steps that one arm does before it is the next one's turn."""
MANY = 1000
TIMES = 9


class Arm(engine_driver.Run):  # type: ignore[misc, name-defined]
    """One scheduler and the seconds of its steps."""

    def __init__(self, spec: dict[str, Any], table: Any) -> None:
        super().__init__({**spec, "profile": True}, table, None)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.taken = 0
        self.steps: list[tuple[float, float, int, bool]] = []

    def steps_of_run(self) -> Iterator[None]:
        """Serve everything; stops after each step."""
        arrivals, upcoming = self.table["arrival_us"].tolist(), 0
        while True:
            while upcoming < len(arrivals) and arrivals[upcoming] <= self.now_us:
                self._add(upcoming)
                upcoming += 1
            if not self.scheduler.has_requests():
                if upcoming == len(arrivals):
                    return
                self.now_us = max(self.now_us, arrivals[upcoming])
                continue
            free = self.pool.free_block_queue.num_free_blocks
            before = self.counts.schedule_s, self.counts.update_s
            batch = self._schedule()
            gone = free - self.pool.free_block_queue.num_free_blocks
            self.taken += max(0, gone)
            self.now_us += int(self.spec["step_us"])
            self._update(*batch)
            spent = self.counts.schedule_s - before[0], self.counts.update_s - before[1]
            self.steps.append((*spent, gone, self.taken > self.spec["usable_blocks"]))
            yield

    def seconds_of_many(self) -> float:
        """Median seconds to take many blocks at once, the pool idle and full of cached ones."""
        spent = []
        for _ in range(TIMES):
            began = time.perf_counter()
            blocks = self.pool.get_new_blocks(min(MANY, self.spec["usable_blocks"]))
            spent.append(time.perf_counter() - began)
            self.pool.free_blocks(reversed(blocks))
        return float(np.median(spent))


def main() -> None:
    """Run all arms and write what they took."""
    spec = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    table = dict(np.load(spec["tokens"]))
    arms = {name: Arm({**spec, "policy_file": file}, table) for name, file in spec["arms"].items()}
    gc.collect()
    gc.freeze()
    live = {name: arm.steps_of_run() for name, arm in arms.items()}
    turn = 0
    while live:
        for name in list(live)[:: -1 if turn % 2 else 1]:
            for _ in range(SLICE):
                if next(live[name], 0) == 0:
                    del live[name]
                    break
        turn += 1
    out = {
        name: {
            "steps": arm.steps,
            "many_s": arm.seconds_of_many(),
            "hit_tokens": arm.counts.hit_tokens,
            "policy": None if arm.module is None else arm.module.status(),
        }
        for name, arm in arms.items()
    }
    Path(sys.argv[3]).write_text(json.dumps(out, default=str), encoding="utf-8")


main()
