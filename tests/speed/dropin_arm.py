"""One scheduler serves a workload, a slice of steps for each line on its input; seconds a step.

A script that runs inside a vLLM environment as `PYTHON dropin_arm.py DRIVER_FOLDER SPEC.json
OUT.json`; `dropin.py` starts one for each arm and lets them take turns, so that each has a process
(and the interpreter's own caches) to itself. The specification is the driver's
(`conform/engine_driver.py`); synchronous.
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

SLICE = 400
"""Steps that one arm does before it is the next one's turn, and finds the caches of the processor cold."""
MANY = 1000
TIMES = 9


class Arm(engine_driver.Run):  # type: ignore[misc, name-defined]
    """One scheduler and the seconds of its steps."""

    def __init__(self, spec: dict[str, Any], table: Any) -> None:
        super().__init__({**spec, "profile": True}, table, None)
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.taken = 0
        self.steps: list[tuple[float, float, int, bool, int]] = []

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
            waits = len(self.scheduler.waiting)
            free = self.pool.free_block_queue.num_free_blocks
            before = self.counts.schedule_s, self.counts.update_s
            batch = self._schedule()
            gone = free - self.pool.free_block_queue.num_free_blocks
            self.taken += max(0, gone)
            *output, takes_us = batch
            self.now_us += takes_us
            self._update(*output)
            spent = self.counts.schedule_s - before[0], self.counts.update_s - before[1]
            full = self.taken > self.spec["usable_blocks"]
            self.steps.append((*spent, gone, full, waits))
            yield

    def seconds_of_many(self) -> float:
        """Median seconds to take many blocks at once, the pool idle and full of cached ones.

        None of them is given back in between: it would have no hash, and some engines take such first.
        """
        spent = []
        for _ in range(max(1, min(TIMES, self.spec["usable_blocks"] // MANY))):
            began = time.perf_counter()
            self.pool.get_new_blocks(min(MANY, self.spec["usable_blocks"]))
            spent.append(time.perf_counter() - began)
        return float(np.median(spent))


def main() -> None:
    """Run a slice for each line, answer with what is left, and write what the steps took."""
    spec = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    answers, sys.stdout = sys.stdout, sys.stderr
    arm = Arm(spec, dict(np.load(spec["tokens"])))
    gc.collect()
    gc.freeze()
    steps, more = arm.steps_of_run(), True
    for _ in sys.stdin:
        more = more and all(next(steps, False) is None for _ in range(SLICE))
        print("more" if more else "done", file=answers, flush=True)
    out = {
        "steps": arm.steps,
        "many_s": arm.seconds_of_many(),
        "policy": None if arm.module is None else arm.module.status(),
    }
    Path(sys.argv[3]).write_text(json.dumps(out, default=str), encoding="utf-8")


main()
