"""Choosing victims from the pool: in the engine's own order, by a scan, or from a heap.

Every function modifies the pool it is given.
"""

from tanren_dsl.kernels.block_rows import WAITING_REFS
from tanren_dsl.kernels.free_ring import (
    EMPTY,
    LOW,
    ring_consider,
    ring_pop_front,
    ring_remove,
    ring_take,
    spare_of,
)
from tanren_dsl.kernels.jit import inlined
from tanren_dsl.kernels.static_heap import heap_take
from tanren_dsl.sim.pool import (
    DECISIONS,
    EVICTIONS,
    FAULTS,
    HEAP,
    LEFT,
    NEXT_LISTED,
    PASS_THROUGH,
    WHERE,
    pool_evict,
    score,
)


@inlined
def pool_take(pool, rule, n, out):
    """Choose n free blocks into `out` by a ranking of their own; hashes stay on them.

    They leave the queue. The blocks that the ranking names beyond n (see `pool_take_in_step`) stand behind
    them in `out`. Returns how many those are.
    """
    if n == 0:
        return 0
    if rule.mode == PASS_THROUGH:
        ring_pop_front(pool.ring, pool.pos, pool.ends, n, out)
        return 0
    if rule.mode == HEAP:
        return _take_from_heap(pool, n, out)
    plains, rated = ring_consider(pool.ring, pool.pos, pool.ends, n, rule.extra, pool.plain, pool.scored)
    spare = 0
    if plains < n:
        if rule.keeps_waiting != 0:
            _fill_waiting(pool, rated)
        score(pool, rule, pool.scored, rated)
        pool.counts[DECISIONS] += 1
        if rule.lists != 0:
            spare = spare_of(plains + rated, n)
    fault = ring_take(
        pool.ring,
        pool.pos,
        pool.ends,
        n,
        spare,
        pool.plain,
        plains,
        pool.scored,
        rated,
        pool.keys,
        pool.flat,
        pool.lows,
        pool.scratch,
        out,
    )
    pool.counts[FAULTS] += fault
    return spare if fault == 0 else 0


@inlined
def pool_take_in_step(pool, rule, n, out):
    """`pool_take` for an engine that takes several times a step: the next ones of a ranking that stands.

    A ranking stands until the step ends or any other block enters or leaves the queue (LEFT becomes 0).
    """
    if rule.mode == PASS_THROUGH:
        ring_pop_front(pool.ring, pool.pos, pool.ends, n, out)
        return
    counts = pool.counts
    if n <= counts[LEFT]:
        counts[LEFT] -= n
        if rule.mode == HEAP:
            _take_from_heap(pool, n, out)
            counts[DECISIONS] -= 1
            return
        for i in range(n):
            out[i] = pool.listed[counts[NEXT_LISTED]]
            counts[NEXT_LISTED] += 1
            ring_remove(pool.ring, pool.pos, pool.ends, out[i])
        return
    counts[LEFT] = pool_take(pool, rule, n, pool.listed)
    counts[NEXT_LISTED] = n
    for i in range(n):
        out[i] = pool.listed[i]


@inlined
def pool_replace(pool, rule, n, out):
    """Take n blocks that get another hash and their place in the queue at once; evict what they held.

    The same victims and effects as `pool_take` and `pool_evict`, less what would be overwritten.
    """
    if rule.mode != PASS_THROUGH:
        pool_take(pool, rule, n, out)
        for i in range(n):
            if pool.block_hash[out[i]] >= 0:
                pool.counts[EVICTIONS] += 1
                pool.hashes[pool_evict(pool, rule, out[i], pool.counts[EVICTIONS]), WHERE] = -1
        return
    mask = pool.ring.shape[0] - 1
    at = pool.ends[0]
    evictions = pool.counts[EVICTIONS]
    for i in range(n):
        entry = pool.ring[at & mask]
        while entry == EMPTY:
            at += 1
            entry = pool.ring[at & mask]
        at += 1
        block = entry & LOW
        out[i] = block
        if pool.block_hash[block] >= 0:
            evictions += 1
            pool.hashes[pool_evict(pool, rule, block, evictions), WHERE] = -1
    pool.counts[EVICTIONS] = evictions
    pool.ends[0] = at
    pool.ends[2] -= n


@inlined
def _fill_waiting(pool, n):
    for j in range(n):
        block = pool.scored[j]
        held = pool.block_hash[block]
        pool.rows[block, WAITING_REFS] = float(pool.awaited[held]) if held >= 0 else 0.0


@inlined
def _take_from_heap(pool, n, out):
    considered = pool.ends[2]
    decided, fault = heap_take(
        pool.ring,
        pool.pos,
        pool.ends,
        pool.entry_keys,
        pool.entry_block,
        pool.entry_stamp,
        pool.counts,
        pool.stamp,
        pool.bad,
        n,
        out,
    )
    pool.counts[DECISIONS] += decided
    pool.counts[FAULTS] += fault
    return spare_of(considered, n) if decided > fault else 0
