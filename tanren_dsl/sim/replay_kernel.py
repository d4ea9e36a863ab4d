"""Replay mode's inner loop: requests one by one, one trace id is one full block.

A request looks up its longest resident prefix (those are hits), uses what else of it
is resident in place, takes blocks for the rest, and releases everything, tail first.
Its own blocks are pinned meanwhile, since they are out of the free queue.
"""

from tanren_dsl.kernels.block_rows import (
    BLOCK_SIZE,
    CAPACITY,
    HIT_RATE,
    HIT_RATES,
    KV_FREE,
    MEAN_GAP,
    NOW,
    moving_mean,
)
from tanren_dsl.kernels.jit import jit
from tanren_dsl.sim.pool import PASS_THROUGH, pool_evict, pool_release, pool_take, pool_use, pool_write

HITS, LOOKUPS, NEXT = range(3)


@jit
def replay(pool, rule, where, held, victims, totals, hits, arrival, offsets, ids, next_use, usable, tokens, last):
    """Replay requests `totals[NEXT]` to `last - 1`; modifies everything but the trace.

    Shapes: where int32[H] block of a hash or -1, held int32[longest], victims uint32[longest], ids uint32[lookups],
    totals int64[3], hits int64[R] per request, next_use float64[lookups] (next request with the id).
    """
    pool.decision[CAPACITY] = float(usable * tokens)
    pool.decision[BLOCK_SIZE] = float(tokens)
    foresees = rule.mode != PASS_THROUGH and rule.address == 0
    for r in range(totals[NEXT], last):
        start = offsets[r]
        length = offsets[r + 1] - start
        now = float(arrival[r])
        chain = float(length * tokens)
        mean_gap = pool.tally[0]
        pool.decision[NOW] = now
        pool.decision[KV_FREE] = float(pool.ends[2]) / float(usable)
        pool.decision[HIT_RATE] = pool.tally[2]
        pool.decision[MEAN_GAP] = mean_gap

        prefix = 0
        while prefix < length and where[ids[start + prefix]] >= 0:
            prefix += 1
        missing = 0
        for j in range(length):
            block = where[ids[start + j]]
            held[j] = block
            if block >= 0:
                pool_use(pool, block, now, chain, mean_gap)
            else:
                missing += 1
        if length > 0:
            moving_mean(pool.tally, 2, float(prefix) / float(length), HIT_RATES)

        pool_take(pool, rule, missing, victims)
        for i in range(missing):
            if pool.block_hash[victims[i]] >= 0:
                where[pool_evict(pool, victims[i])] = -1
        taken = 0
        for j in range(prefix, length):
            if held[j] < 0:
                block = victims[taken]
                taken += 1
                parent = ids[start + j - 1] if j > 0 else -1
                pool_write(pool, block, ids[start + j], parent, now, float(j * tokens), chain, 0.0, usable)
                where[ids[start + j]] = block
                held[j] = block
        for j in range(length - 1, -1, -1):
            if foresees:
                pool.next_use[held[j]] = next_use[start + j]
            pool_release(pool, rule, held[j], now, 0, 0)

        hits[r] = prefix
        totals[HITS] += prefix
        totals[LOOKUPS] += length
        totals[NEXT] = r + 1
