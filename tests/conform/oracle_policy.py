"""Every signal of engine mode in plain Python, and a policy's choice of victims by the interpreter.

It hangs on the oracle's pool, told what happens to each block; counts over blocks and waiting
requests are made anew for each decision. No code in common with the simulator's kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tanren_dsl import interp
from tanren_dsl.conform.harness import EngineSpec
from tanren_dsl.ir import Policy
from tanren_dsl.signals import GAP_WINDOW, HIT_RATE_WINDOW, RATE_WINDOW
from tests.sim.naive import Mean

Block = dict[str, Any]


class Judge:
    """The signals of a pool's blocks and of the step, and the order over the considered set."""

    def __init__(self, policy: Policy, spec: EngineSpec, *, unhashed_unscored: bool) -> None:
        self.policy, self.spec, self.unhashed_unscored = policy, spec, unhashed_unscored
        self.blocks: dict[int, Block] = {}  # of every block ever released or written
        self.ghosts: dict[int, tuple[int, float]] = {}
        self.evictions = self.faults = 0
        self.gap, self.hit_rate, self.rate = Mean(GAP_WINDOW), Mean(HIT_RATE_WINDOW), Mean(RATE_WINDOW)
        self.now, self.mark, self.tokens = 0.0, 0.0, 0
        self.step: dict[str, float] = {}
        self.wanted: list[set[int]] = []
        self.ranked: list[int] = []  # what the step's ranking still names, and the queue it ranked
        self.queue: list[int] = []

    def begin(self, now: float, free: int, running: int, waiting: Iterable[Any]) -> None:
        """Freeze what is *as of this step*; `waiting` are the oracle's requests."""
        self.now, self.ranked = now, []
        if now > self.mark:
            if self.tokens > 0:
                self.rate.add(self.tokens / (now - self.mark))
            self.mark, self.tokens = now, 0
        spec, line = self.spec, list(waiting)
        self.wanted = [set(one.hashes[: len(one.prompt) // spec.block_size]) for one in line]
        self.step = {
            "now": now,
            "waiting": float(len(line)),
            "running": float(running),
            "max_running": float(spec.max_num_seqs),
            "kv_free": free / spec.usable_blocks,
            "capacity": float(spec.usable_blocks * spec.block_size),
            "token_budget": float(spec.max_num_batched_tokens),
            "block_size": float(spec.block_size),
            "hit_rate": self.hit_rate.value,
            "mean_gap": self.gap.value,
            "oldest_wait": now - min([float(one.arrival_us) for one in line], default=now),
            "service_rate": self.rate.value,
        }

    def written(self, block: int, digest: int, parent: int | None, index: int, prompt: int) -> None:
        """A block got its hash: number `index` of its chain, of a request with such a prompt."""
        when, uses = self.ghosts.get(digest, (-self.spec.usable_blocks, 0.0))
        size = self.spec.block_size
        self.blocks.setdefault(block, {}).update(
            digest=digest, parent=parent, created=self.now, used_at=self.now, spaced_at=self.now, gap=0.0,
            depth=float(index * size), chain=float(prompt), uses=0.0, spaced_uses=0.0,
            ghost_uses=uses if self.evictions - when < self.spec.usable_blocks else 0.0,
            generated=float((index + 1) * size > prompt),
        )  # fmt: skip

    def used(self, block: int, prompt: int) -> None:
        """An admission hits a block."""
        row = self.blocks[block]
        row["gap"], row["used_at"] = self.now - row["used_at"], self.now
        row["uses"] += 1.0
        if self.now - row["spaced_at"] >= self.step["mean_gap"]:
            row["spaced_uses"] += 1.0
            row["spaced_at"] = self.now
        row["chain"] = max(row["chain"], float(prompt))
        self.gap.add(row["gap"])

    def evicted(self, block: int) -> None:
        """A block lost its hash."""
        row = self.blocks[block]
        self.evictions += 1
        self.ghosts[row["digest"]] = (self.evictions, row["uses"] + row["ghost_uses"])
        row["digest"] = row["parent"] = None

    def released(self, block: int) -> None:
        """A block entered the free queue."""
        row = self.blocks.setdefault(block, {"digest": None, "parent": None})
        if row["digest"] is None:
            row.update(created=self.now, depth=0.0, chain=0.0, gap=0.0, uses=0.0, spaced_uses=0.0)
            row.update(ghost_uses=0.0, generated=0.0)
        row["last_use"] = self.now

    def choose(self, free: list[int], count: int) -> list[int]:
        """The victims among the free blocks, which stand in the engine's own order.

        A ranking serves the whole step, unless another block enters or leaves the queue.
        """
        if free != self.queue or count > len(self.ranked):
            self.ranked = self._rank(free, count)
        victims, self.ranked = self.ranked[:count], self.ranked[count:]
        self.queue = [block for block in free if block not in victims]
        return victims

    def _rank(self, free: list[int], count: int) -> list[int]:
        percent, usable = self.policy.percent, self.spec.usable_blocks
        considered = free[: count + (usable if percent is None else -int(-percent * usable // 100))]
        plain = [block for block in considered if self._is_unscored(block)]
        scored = [block for block in considered if not self._is_unscored(block)]
        if len(plain) >= count:
            return plain[:count]
        _, stored = interp.reads(self.policy, self.policy.order)
        columns = {
            name: np.array([self._value(block, name) for block in scored], np.float64) for name in stored
        }
        keys = interp.evaluate(self.policy, self.policy.order, self.step, columns, len(scored))
        order, fault = interp.order(keys)
        self.faults += fault
        if fault:
            return considered[:count]
        spare = min(16, (len(considered) - count) // 2)
        return (plain + [scored[i] for i in order])[: count + spare]

    def _is_unscored(self, block: int) -> bool:
        row = self.blocks.get(block)
        return row is None or (self.unhashed_unscored and row["digest"] is None)

    def _value(self, block: int, name: str) -> float:
        row = self.blocks[block]
        if name == "children":
            digest = row["digest"]
            others = self.blocks.values()
            return float(sum(other["parent"] == digest for other in others if digest is not None))
        if name == "waiting_refs":
            return float(sum(row["digest"] in one for one in self.wanted))
        return float(row[name])
