"""Replay mode: requests one by one in file order, one trace id is one full block.

For search and for comparison with the literature. The definitions (what is a hit, what
is pinned, when a block is released) stand in `docs/simulators.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.sim.integrity import check_pool
from tanren_dsl.sim.pool import DECISIONS, EVICTIONS, FAULTS, WHERE, new_pool, pool_fill
from tanren_dsl.sim.profiles import profile_of
from tanren_dsl.sim.replay_kernel import HITS, LOOKUPS, NEXT, REPLAY, Job
from tanren_dsl.sim.rule import Victims, belady, stock, victims_of
from tanren_dsl.trace.table import RequestTable

MODE = "replay"
_NEVER = 1e15


@dataclass(frozen=True)
class ReplayResult:
    """Counts of one replay; everything counts blocks.

    `hits_each` is int64[requests], the hit blocks of each request.
    """

    policy: str
    engine: str
    capacity: int
    requests: int
    lookups: int
    hits: int
    evictions: int
    decisions: int
    faults: int
    hits_each: NDArray[np.int64]
    mode: str = MODE

    @property
    def hit_rate(self) -> float:
        """Hits of lookups, 0 for an empty trace."""
        return self.hits / self.lookups if self.lookups else 0.0

    def as_json(self) -> dict[str, object]:
        """The row that commands print."""
        return {
            "policy": self.policy,
            "mode": self.mode,
            "engine": self.engine,
            "capacity": self.capacity,
            "hits": self.hits,
            "lookups": self.lookups,
            "hit_rate": self.hit_rate,
            "evictions": self.evictions,
            "faults": self.faults,
        }


class Replay:
    """One replay under way: a trace, a capacity in blocks, a way to choose victims."""

    def __init__(
        self, trace: RequestTable, capacity: int, victims: Victims, engine: str = "vllm-0.19",
        next_use: NDArray[np.float64] | None = None,
    ) -> None:  # fmt: skip
        profile_of(engine)
        check_capacity(trace, capacity)
        self.trace, self.capacity, self.victims, self.engine = trace, capacity, victims, engine
        distinct, longest = trace.distinct_blocks, max(1, trace.longest())
        self.pool = new_pool(
            capacity, distinct, victims.key_count, victims.decision.copy(), with_heap=victims.with_heap
        )
        pool_fill(self.pool, 0, capacity)
        self.totals = np.zeros(3, np.int64)
        self.hits_each = np.zeros(len(trace), np.int64)
        self.job = Job(
            arrival=trace.arrival_us,
            offsets=trace.offsets,
            ids=trace.ids.view(np.uint32),
            next_use=next_uses(trace) if next_use is None else next_use,
            held=np.zeros(longest, np.uint32),
            victims=np.zeros(longest, np.uint32),
            totals=self.totals,
            hits=self.hits_each,
        )

    def run(self, upto: int | None = None) -> None:
        """Replay the next requests, up to request number `upto` (all by default)."""
        trace = self.trace
        last = len(trace) if upto is None else min(upto, len(trace))
        kernel = REPLAY[self.victims.rule.mode]
        kernel(self.pool, self.victims.rule, self.job, self.capacity, trace.block_tokens, last)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the state between two requests is consistent."""
        check_pool(self.pool, first_block=0, with_heap=self.victims.with_heap)
        assert self.pool.ends[2] == self.capacity, "between requests every block is free"
        where = self.pool.hashes[:, WHERE]
        resident = np.flatnonzero(where >= 0)
        assert (self.pool.block_hash[where[resident]] == resident).all(), "a hash points at another's block"
        assert (self.pool.block_hash >= 0).sum() == len(resident), "a block carries a hash that nobody finds"

    def result(self) -> ReplayResult:
        """Counts so far."""
        return ReplayResult(
            policy=self.victims.label,
            engine=self.engine,
            capacity=self.capacity,
            requests=int(self.totals[NEXT]),
            lookups=int(self.totals[LOOKUPS]),
            hits=int(self.totals[HITS]),
            evictions=int(self.pool.counts[EVICTIONS]),
            decisions=int(self.pool.counts[DECISIONS]),
            faults=int(self.pool.counts[FAULTS]),
            hits_each=self.hits_each,
        )


def simulate(
    trace: RequestTable, policy: Policy, compile_ordering: CompileOrdering, capacity: int, *,
    engine: str = "vllm-0.19", use_shortcuts: bool = True, next_use: NDArray[np.float64] | None = None,
) -> ReplayResult:  # fmt: skip
    """Replay a whole trace under a policy.

    Raises:
        TanrenError: unknown engine, or a capacity smaller than one request.
        UnsupportedError: replay mode does not provide a signal that the policy reads.
    """
    victims = victims_of(policy, compile_ordering, capacity, MODE, use_shortcuts=use_shortcuts)
    return _finished(Replay(trace, capacity, victims, engine, next_use))


def simulate_stock(trace: RequestTable, capacity: int, *, engine: str = "vllm-0.19") -> ReplayResult:
    """Replay a whole trace in the engine's own order, which is LRU, tail first."""
    return _finished(Replay(trace, capacity, stock(), engine, np.zeros(trace.lookups)))


def simulate_belady(
    trace: RequestTable, capacity: int, *, engine: str = "vllm-0.19", window: int | None = None
) -> ReplayResult:
    """Replay with knowledge of the future, in the whole pool or in the first n + window free blocks."""
    return _finished(Replay(trace, capacity, belady(capacity, window), engine))


def next_uses(trace: RequestTable) -> NDArray[np.float64]:
    """float64[lookups]: number of the next request with the same id, a huge one if there is none."""
    order = np.argsort(trace.ids, kind="stable")
    request = np.repeat(np.arange(len(trace)), np.diff(trace.offsets))
    out = np.full(trace.lookups, _NEVER)
    same = trace.ids[order[1:]] == trace.ids[order[:-1]]
    out[order[:-1][same]] = request[order[1:][same]]
    return out


def check_capacity(trace: RequestTable, capacity: int) -> None:
    """Refuse a pool in which one request of the trace does not fit."""
    if capacity < 1:
        raise TanrenError(f"expected a capacity of at least 1 block, found {capacity}")
    lengths = np.diff(trace.offsets)
    if len(lengths) and lengths.max() > capacity:
        worst = int(lengths.argmax())
        raise TanrenError(
            f"{trace.name}: a capacity of {capacity} blocks is smaller than request {worst + 1}, "
            f"which has {int(lengths[worst])} blocks of {trace.block_tokens} tokens",
            hint=f"use --capacity {int(lengths.max())} or more",
        )


def _finished(run: Replay) -> ReplayResult:
    run.run()
    return run.result()
