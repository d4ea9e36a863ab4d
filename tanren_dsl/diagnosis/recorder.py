"""Replay mode, request by request, with every eviction and what was known when it was decided.

The state before a request is the state of its decision but for two things, which are taken into
account: the request's own resident blocks have left the free queue by then, and the per-decision
signals are set as it begins. Nothing here changes a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.kernels.free_ring import EMPTY, LOW
from tanren_dsl.signals import REPLAY, STORED, column_of, decision_index, signals_of
from tanren_dsl.sim.pool import CHILD_COUNT, WHERE
from tanren_dsl.sim.replay import Replay
from tanren_dsl.sim.rule import Victims
from tanren_dsl.trace.table import RequestTable

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

_ROWS = signals_of("evict")
STORED_BLOCK = tuple(name for name in STORED["evict"] if REPLAY in _ROWS[name].provided_by)
"""Stored block signals of replay mode: what `Moment.rows` holds, in this order."""
BLOCK_SIGNALS = tuple(
    name for name, row in _ROWS.items() if row.scope == "object" and REPLAY in row.provided_by
)
"""All block signals of replay mode; `age` and `lifetime` are computed."""
DECISION = tuple(name for name, row in _ROWS.items() if row.scope == "decision" and REPLAY in row.provided_by)
"""Per-decision signals of replay mode."""
_CHILDREN = STORED_BLOCK.index("children")


@dataclass(frozen=True, eq=False)
class Moment:
    """A request that evicted, at its decision: c considered blocks, e of them evicted.

    Attributes:
        request: its number in the trace.
        decision: per-decision signals by name, times in microseconds.
        blocks: [c] hash ids of the considered blocks that hold one, in the engine's own order.
        rows: [c, S] stored signals, in the order of `STORED_BLOCK`.
        victims: [e] places of the evicted ones in `blocks`, in the order in which they were taken.
    """

    request: int
    decision: Mapping[str, float]
    blocks: Ints
    rows: Doubles
    victims: Ints

    def columns(self) -> dict[str, Doubles]:
        """[c] stored signals by name, as the interpreter takes them."""
        return {name: self.rows[:, k].copy() for k, name in enumerate(STORED_BLOCK)}


class Recorder:
    """A replay under way that shows its decisions.

    Args:
        trace: R requests.
        capacity: usable blocks.
        victims: how they are chosen.
        extra: free blocks considered beyond the n asked for.
        engine: the profile's name.
    """

    def __init__(self, trace: RequestTable, capacity: int, victims: Victims, extra: int, engine: str) -> None:
        self.trace, self.extra = trace, extra
        self.replay = Replay(trace, capacity, victims, engine, np.zeros(trace.lookups))
        self._columns = np.array([column_of("evict", name) for name in STORED_BLOCK])
        self._fresh = capacity
        self._place = np.full(capacity, -1, np.int64)
        self._pinned = np.zeros(capacity, bool)
        self._next = 0

    def step(self) -> Moment | None:
        """Replay the next request; its decision, or None where nothing was evicted."""
        pool, r = self.replay.pool, self._next
        self._next += 1
        wanted = self.trace.ids[self.trace.offsets[r] : self.trace.offsets[r + 1]]
        own = pool.hashes[wanted, WHERE]
        missing = int((own < 0).sum())
        if missing <= self._fresh:  # never-used blocks go first
            self._fresh -= missing
            self.replay.run(r + 1)
            return None
        considered = self._considered(own[own >= 0], missing)
        blocks = pool.block_hash[considered].astype(np.int64)
        rows = pool.rows[considered][:, self._columns]
        # a row's own count is kept only for policies that read it; the hash table's always
        rows[:, _CHILDREN] = pool.hashes[blocks, CHILD_COUNT]
        self._place[considered] = np.arange(len(considered))
        self._fresh = 0
        self.replay.run(r + 1)
        places = self._place[self.replay.job.victims[:missing]]
        self._place[considered] = -1
        decision = {name: float(pool.decision[decision_index(name)]) for name in DECISION}
        return Moment(r, decision, blocks, rows, places[places >= 0])

    def _considered(self, own: NDArray[np.int32], missing: int) -> Ints:
        """The considered blocks that carry a hash, in the engine's own order, without the request's own."""
        pool = self.replay.pool
        size = pool.ring.shape[0]
        head, tail = (int(end) & (size - 1) for end in pool.ends[:2])
        queue = pool.ring[head:tail] if head < tail else np.concatenate((pool.ring[head:], pool.ring[:tail]))
        free = (queue[queue != EMPTY] & LOW).astype(np.int64)
        self._pinned[own] = True
        free = free[~self._pinned[free]][: missing + self.extra]
        self._pinned[own] = False
        return np.asarray(free[pool.block_hash[free] >= 0])


def resident(replay: Replay) -> NDArray[np.bool_]:
    """[D] which hashes are in the cache between two requests."""
    return np.asarray(replay.pool.hashes[: replay.trace.distinct_blocks, WHERE] >= 0)
