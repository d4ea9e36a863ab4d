"""Consistency of a pool, for tests and debug runs. Reads, never modifies."""

from __future__ import annotations

import numpy as np

from tanren_dsl.kernels.free_ring import EMPTY, LOW, UNSCORED
from tanren_dsl.kernels.static_heap import BAD, HEAP_SIZE
from tanren_dsl.sim.pool import CHILD_COUNT, Pool


def check_pool(pool: Pool, *, first_block: int, with_heap: bool) -> None:
    """Raise AssertionError unless queue, hashes, child counts and heap agree.

    `first_block` is the least block id that may be queued (1 in engine mode).
    """
    head, tail, count = (int(value) for value in pool.ends)
    size = len(pool.ring)
    assert 0 <= tail - head <= size, "the ring overran itself"
    positions = np.arange(head, tail)
    blocks = pool.ring[positions & (size - 1)]
    valid = blocks != EMPTY
    queued = blocks[valid] & LOW
    unscored = blocks[valid] >= UNSCORED
    assert (pool.pos[queued] == positions[valid]).all(), "a block does not know its place"
    assert len(queued) == count, "the queue's count is wrong"
    assert len(np.unique(queued)) == count, "a block is queued twice"
    assert set(np.flatnonzero(pool.pos != -1)) == set(queued.tolist()), "a block thinks it is queued"
    assert (queued >= first_block).all(), "the null block is queued"
    hashed = np.flatnonzero(pool.block_hash >= 0)
    children = np.zeros(len(pool.hashes), np.int32)
    parents = pool.block_parent[hashed]
    np.add.at(children, parents[parents >= 0], 1)
    assert (children == pool.hashes[:, CHILD_COUNT]).all(), "child counts are wrong"
    assert not np.isin(queued[unscored], hashed).any(), "a hashed block is marked unscored"
    assert np.isfinite(pool.rows).all(), "a signal is not finite"
    if with_heap:
        entries = slice(0, int(pool.counts[HEAP_SIZE]))
        owners = pool.entry_block[entries]
        live = (pool.stamp[owners] == pool.entry_stamp[entries]) & (pool.pos[owners] != -1)
        assert int(live.sum()) + int(pool.counts[BAD]) == int((~unscored).sum()), "the heap lost a block"
