"""Replay mode in plain Python, written from its definition: the oracle of the compiled kernel.

No code in common with the kernel: blocks are dictionaries, the free queue is a list, keys
come from the interpreter. Slow and obvious.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tanren_dsl import interp
from tanren_dsl.ir import Policy
from tanren_dsl.signals import GAP_WINDOW, HIT_RATE_WINDOW, signals_of
from tanren_dsl.trace.table import RequestTable

Block = dict[str, Any]
Choose = Callable[["Naive", int], list[Block]]


@dataclass
class Mean:
    """A plain mean at first, then a moving one."""

    window: int
    value: float = 0.0
    count: int = 0

    def add(self, x: float) -> None:
        self.count += 1
        if self.count < self.window:
            self.value = self.value + (x - self.value) / self.count
        else:
            self.value = self.value + (x - self.value) * (1.0 / self.window)


@dataclass
class Naive:
    """One replay; `evicted` are the evicted ids in order."""

    trace: RequestTable
    capacity: int
    choose: Choose
    queue: list[Block] = field(default_factory=list)
    resident: dict[int, Block] = field(default_factory=dict)
    ghosts: dict[int, tuple[int, float]] = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)
    decision: dict[str, float] = field(default_factory=dict)
    gap: Mean = field(default_factory=lambda: Mean(GAP_WINDOW))
    rate: Mean = field(default_factory=lambda: Mean(HIT_RATE_WINDOW))
    hits: int = 0
    faults: int = 0

    def run(self) -> None:
        self.queue = [{"id": None, "fresh": True} for _ in range(self.capacity)]
        for r in range(len(self.trace)):
            start, stop = self.trace.offsets[r : r + 2]
            self.serve(self.trace.ids[start:stop].tolist(), float(self.trace.arrival_us[r]))

    def serve(self, ids: list[int], now: float) -> None:
        size = self.trace.block_tokens
        chain = float(len(ids) * size)
        self.decision = {
            "now": now,
            "kv_free": len(self.queue) / self.capacity,
            "capacity": float(self.capacity * size),
            "block_size": float(size),
            "hit_rate": self.rate.value,
            "mean_gap": self.gap.value,
        }
        hits = next((n for n, i in enumerate(ids) if i not in self.resident), len(ids))
        for i in ids:
            if i in self.resident:
                self.use(self.resident[i], now, chain)
        if ids:
            self.rate.add(hits / len(ids))
        missing = [n for n, i in enumerate(ids) if i not in self.resident]
        victims = self.choose(self, len(missing)) if missing else []
        for block in victims:
            self.queue = [other for other in self.queue if other is not block]
        for block in victims:
            if block["id"] is not None:
                self.evict(block)
        for block, n in zip(victims, missing, strict=True):
            self.write(block, ids[n], ids[n - 1] if n else None, now, float(n * size), chain)
        for i in reversed(ids):
            block = self.resident[i]
            block["last_use"], block["fresh"] = now, False
            self.queue.append(block)
        self.hits += hits

    def use(self, block: Block, now: float, chain: float) -> None:
        self.queue = [other for other in self.queue if other is not block]
        block["gap"] = now - block["used_at"]
        block["used_at"] = now
        block["uses"] += 1.0
        if now - block["mark"] >= self.decision["mean_gap"]:
            block["spaced_uses"] += 1.0
            block["mark"] = now
        block["chain"] = max(block["chain"], chain)
        self.gap.add(block["gap"])

    def evict(self, block: Block) -> None:
        self.evicted.append(block["id"])
        self.ghosts[block["id"]] = (len(self.evicted), block["uses"] + block["ghost_uses"])
        del self.resident[block["id"]]
        block["id"] = block["parent"] = None

    def write(self, block: Block, i: int, parent: int | None, now: float, depth: float, chain: float) -> None:
        when, uses = self.ghosts.get(i, (-self.capacity, 0.0))
        remembered = uses if len(self.evicted) - when < self.capacity else 0.0
        block.update(
            id=i, parent=parent, created=now, used_at=now, mark=now, gap=0.0, depth=depth, chain=chain,
            uses=0.0, spaced_uses=0.0, ghost_uses=remembered, generated=0.0,
        )  # fmt: skip
        self.resident[i] = block

    def children(self, block: Block) -> float:
        return float(sum(other["parent"] == block["id"] for other in self.resident.values()))


def head(naive: Naive, n: int) -> list[Block]:
    """The engine's own order."""
    return naive.queue[:n]


def obey(policy: Policy) -> Choose:
    """The policy's order, by the interpreter, over the considered set."""
    rows = signals_of("evict")
    stored = sorted({rows[name].since or name for name in policy.signals() if rows[name].scope == "object"})

    def choose(naive: Naive, n: int) -> list[Block]:
        extra = naive.capacity if policy.percent is None else -int(-policy.percent * naive.capacity // 100)
        considered = naive.queue[: n + extra]
        fresh = [block for block in considered if block["fresh"]]
        scored = [block for block in considered if not block["fresh"]]
        if len(fresh) >= n:
            return fresh[:n]
        columns = {
            name: np.array(
                [naive.children(b) if name == "children" else float(b[name]) for b in scored],
                dtype=np.float64,
            )
            for name in stored
        }
        keys = interp.evaluate(policy, policy.order, naive.decision, columns, len(scored))
        order, fault = interp.order(keys)
        if fault:
            naive.faults += 1
            return considered[:n]
        return fresh + [scored[i] for i in order][: n - len(fresh)]

    return choose


def random_trace(seed: int, requests: int, block_tokens: int = 4) -> RequestTable:
    """A prefix-consistent trace: paths of a random tree, with repeats, in whole microseconds."""
    rng = np.random.default_rng(seed)
    nodes: dict[tuple[int, ...], int] = {}
    paths: list[list[int]] = []
    for _ in range(requests):
        path: tuple[int, ...] = ()
        for _ in range(int(rng.integers(1, 7))):
            path = (*path, int(rng.integers(0, 3) if len(path) < 3 else rng.integers(0, 2)))
            nodes.setdefault(path, len(nodes))
        paths.append([nodes[path[: k + 1]] for k in range(len(path))])
    dense: dict[int, int] = {}
    flat = [dense.setdefault(i, len(dense)) for path in paths for i in path]
    lengths = np.array([len(path) for path in paths])
    return RequestTable(
        name=f"random-{seed}",
        block_tokens=block_tokens,
        arrival_us=np.cumsum(rng.integers(0, 1000, requests)).astype(np.int64),
        prompt_tokens=lengths * block_tokens,
        output_tokens=np.ones(requests, np.int64),
        session=np.full(requests, -1, np.int64),
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
        ids=np.array(flat, np.int32),
        notes=(),
    )
