"""The engine's block pool in flat arrays: free queue, hashes, signals.

What it is: the state and the verbs that replay mode and engine mode share; victims are
chosen in `take.py`. What it isn't: a lookup table from hash to blocks, which differs
between the two (replay mode keeps one block a hash, engine mode keeps duplicates as vLLM
does).

Every verb modifies the pool it is given, unless it says otherwise.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tanren_dsl.kernels.block_rows import (
    CHILDREN,
    DEPTH,
    GHOST_USES,
    HUGE,
    LAST_USE,
    USES,
    new_rows,
    row_released,
    row_used,
    row_written,
)
from tanren_dsl.kernels.call import call_scorer
from tanren_dsl.kernels.free_ring import (
    UNSCORED,
    new_ring,
    ring_compact,
    ring_push_back,
    ring_push_front,
    ring_remove,
)
from tanren_dsl.kernels.jit import inlined
from tanren_dsl.kernels.static_heap import heap_enter, heap_leave

_Array: TypeAlias = np.ndarray[Any, Any]

PASS_THROUGH = 0
"""The policy's order is the engine's own: pop the head."""
SCAN = 1
"""Score the considered set, for each ranking."""
HEAP = 2
"""Static keys, every free block considered: a heap."""

EVICTIONS, FAULTS, DECISIONS, LEFT, NEXT_LISTED = range(3, 8)
"""Places in `counts`; the first three are the heap's. LEFT: blocks that the step's ranking still names,
from number NEXT_LISTED of `listed` on."""
WHERE, CHILD_COUNT, GHOST_SEQ, GHOST_COUNT = range(4)
"""Columns of the hash table: the block that a lookup finds (-1: none), cached blocks whose parent
this is, the number of its last eviction, and the uses it had collected by then. Where several
blocks carry a hash, `Pool.after` leads from the one that is found to the others."""


class Rule(NamedTuple):
    """How victims are chosen.

    Attributes:
        mode: PASS_THROUGH, SCAN or HEAP.
        address: the compiled ordering; 0 means the oracle's keys (furthest next use, deepest).
        extra: free blocks considered beyond the n asked for.
        lists: a ranking serves a whole step (engine mode); in replay mode a request takes once.
        keeps_children: the ordering reads `children`, so the rows carry it.
        keeps_waiting: the ordering reads `waiting_refs`; replay mode, where nobody waits, never has it.
    """

    mode: int
    address: int
    extra: int
    lists: int
    keeps_children: int
    keeps_waiting: int


class Pool(NamedTuple):
    """State of a pool with B block ids and H hashes (see `new_pool` for shapes)."""

    ring: _Array
    pos: _Array
    ends: _Array
    rows: _Array
    decision: _Array
    tally: _Array
    plain: _Array
    scored: _Array
    keys: _Array
    flat: _Array
    lows: _Array
    listed: _Array
    scratch: _Array
    entry_keys: _Array
    entry_block: _Array
    entry_stamp: _Array
    stamp: _Array
    bad: _Array
    counts: _Array
    next_use: _Array
    block_hash: _Array
    block_parent: _Array
    hashes: _Array
    after: _Array
    awaited: _Array


def new_pool(
    blocks: int, hashes: int, key_count: int, decision: _Array, *, with_heap: bool, with_waiting: bool = False
) -> Pool:
    """A pool of block ids 0 to blocks - 1, none of them queued yet; `awaited` is by hash."""
    ring, pos, ends = new_ring(blocks)
    entries = 4 * blocks + 64 if with_heap else 1
    keys = np.zeros((blocks, key_count), np.float64)
    return Pool(
        ring=ring,
        pos=pos,
        ends=ends,
        rows=new_rows(blocks),
        decision=decision,
        tally=np.zeros(6, np.float64),
        plain=np.zeros(blocks, np.uint32),
        scored=np.zeros(blocks, np.uint32),
        keys=keys,
        flat=keys.reshape(-1),
        lows=np.zeros(blocks, np.uint32),
        listed=np.zeros(blocks, np.uint32),
        scratch=np.zeros(blocks, np.float64),
        entry_keys=np.zeros((entries, key_count), np.float64),
        entry_block=np.zeros(entries, np.uint32),
        entry_stamp=np.zeros(entries, np.int64),
        stamp=np.zeros(blocks, np.int64),
        bad=np.zeros(blocks, np.uint8),
        counts=np.zeros(8, np.int64),
        next_use=np.zeros(blocks, np.float64),
        block_hash=np.full(blocks, -1, np.int32),
        block_parent=np.full(blocks, -1, np.int32),
        hashes=_new_hashes(hashes),
        after=np.full(blocks, -1, np.int32),
        awaited=np.zeros(hashes + 1 if with_waiting else 1, np.int32),
    )


def _new_hashes(count: int) -> _Array:
    table = np.empty((max(count + 1, HUGE // 16), 4), np.int32)[: count + 1]
    table[:] = 0
    table[:, WHERE] = -1
    table[:, GHOST_SEQ] = -(1 << 30)
    return table


@inlined
def score(pool, rule, ids, n):
    """Keys of the n blocks in `ids` into `pool.keys`."""
    if rule.address == 0:
        for j in range(n):
            pool.keys[j, 0] = -pool.next_use[ids[j]]
            pool.keys[j, 1] = -pool.rows[ids[j], DEPTH]
        return
    call_scorer(
        rule.address,
        pool.decision.ctypes.data,
        pool.rows.ctypes.data,
        ids.ctypes.data,
        n,
        pool.keys.ctypes.data,
        pool.scratch.ctypes.data,
    )


@inlined
def _leave(pool, rule, block):
    ring_remove(pool.ring, pool.pos, pool.ends, block)
    if rule.mode == HEAP:
        heap_leave(pool.counts, pool.stamp, pool.bad, block)


@inlined
def pool_use(pool, rule, block, now, chain, mean_gap):
    """An admission uses a cached block, which leaves the queue if it is in it. Returns the gap before."""
    if pool.pos[block] != -1:
        pool.counts[LEFT] = 0
        _leave(pool, rule, block)
    return row_used(pool.rows, block, now, chain, mean_gap)


@inlined
def _count_child(pool, rule, parent, change):
    count = pool.hashes[parent, CHILD_COUNT] + change
    pool.hashes[parent, CHILD_COUNT] = count
    if rule.keeps_children != 0:
        block = pool.hashes[parent, WHERE]
        while block >= 0:
            pool.rows[block, CHILDREN] = float(count)
            block = pool.after[block]


@inlined
def pool_write(pool, rule, block, hashed, parent, now, depth, chain, usable):
    """A block gets a hash (`parent` is the hash before it in the chain, or -1)."""
    pool.block_hash[block] = hashed
    pool.block_parent[block] = parent
    if parent >= 0:
        _count_child(pool, rule, parent, 1)
    ghost = 0.0
    if pool.counts[EVICTIONS] - pool.hashes[hashed, GHOST_SEQ] < usable:
        ghost = float(pool.hashes[hashed, GHOST_COUNT])
    row_written(pool.rows, block, now, depth, chain, ghost)
    if rule.keeps_children != 0:
        pool.rows[block, CHILDREN] = float(pool.hashes[hashed, CHILD_COUNT])


@inlined
def pool_evict(pool, rule, block, number):
    """A taken block loses its hash, in eviction number so many. Returns the hash (see `pool_forget`)."""
    held = pool.block_hash[block]
    parent = pool.block_parent[block]
    if parent >= 0:
        _count_child(pool, rule, parent, -1)
    pool.hashes[held, GHOST_SEQ] = number
    pool.hashes[held, GHOST_COUNT] = int(pool.rows[block, USES] + pool.rows[block, GHOST_USES])
    return held


@inlined
def pool_forget(pool, block):
    """An evicted block carries no hash; not needed where it gets another at once."""
    pool.block_hash[block] = -1
    pool.block_parent[block] = -1


@inlined
def pool_release(pool, rule, block, now, to_front, unhashed_unscored):
    """A block's last reference is gone: it enters the free queue, at the back unless told otherwise."""
    pool.counts[LEFT] = 0
    hashed = 1 if pool.block_hash[block] >= 0 else 0
    row_released(pool.rows, block, now, hashed)
    mark = UNSCORED if hashed == 0 and unhashed_unscored != 0 else 0
    if to_front != 0:
        ring_push_front(pool.ring, pool.pos, pool.ends, block, mark)
    else:
        ring_push_back(pool.ring, pool.pos, pool.ends, block, mark)
    if rule.mode == HEAP and mark == 0:
        _enter_heap(pool, rule, block)


@inlined
def pool_reserve(pool, n):
    """Make room for n more blocks at the back of the queue. Returns the position of the first."""
    if pool.ends[1] + n - pool.ends[0] > pool.ring.shape[0]:
        ring_compact(pool.ring, pool.pos, pool.ends)
    return pool.ends[1]


@inlined
def pool_place(pool, block, at, now):
    """Give a block its place in the reserved room; it counts as queued from `pool_admit` on."""
    pool.rows[block, LAST_USE] = now
    pool.ring[at & (pool.ring.shape[0] - 1)] = block
    pool.pos[block] = at


@inlined
def pool_admit(pool, rule, blocks, n):
    """The n blocks placed in the reserved room, the last of `blocks` first, enter the free queue."""
    pool.ends[1] += n
    pool.ends[2] += n
    if rule.mode == HEAP:
        for j in range(n - 1, -1, -1):
            _enter_heap(pool, rule, blocks[j])


@inlined
def _enter_heap(pool, rule, block):
    pool.scored[0] = block
    score(pool, rule, pool.scored, 1)
    heap_enter(
        pool.keys,
        0,
        pool.entry_keys,
        pool.entry_block,
        pool.entry_stamp,
        pool.counts,
        pool.stamp,
        pool.bad,
        block,
    )


@inlined
def pool_fill(pool, first, last):
    """Queue the never-used blocks first to last - 1, in ascending order."""
    for block in range(first, last):
        ring_push_back(pool.ring, pool.pos, pool.ends, block, UNSCORED)
