"""Blocks of a request in the simulated engine: found in the cache, taken, hashed, given back.

One full-attention group. Every function modifies the engine and the pool it is given, unless
it only counts.
"""

from tanren_dsl.kernels.block_rows import GAPS, GENERATED
from tanren_dsl.kernels.decision import MEAN_GAP, NOW, moving_mean
from tanren_dsl.kernels.jit import inlined, jit
from tanren_dsl.sim.engine_state import EVICTED, STEP, link_hash, note, unlink_hash
from tanren_dsl.sim.pool import (
    EVICTIONS,
    WHERE,
    pool_evict,
    pool_forget,
    pool_release,
    pool_use,
    pool_write,
)
from tanren_dsl.sim.take import pool_take_in_step


@inlined
def count_hits(engine, pool, limits, r):
    """Leading blocks of the request that are cached; the last token is never looked up."""
    if limits.caching == 0:
        return 0
    most = (engine.known[r] - 1) // limits.block_size
    start = engine.hash_at[r]
    n = 0
    while n < most and pool.hashes[engine.hashes[start + n], WHERE] >= 0:
        n += 1
    return n


@inlined
def count_need(engine, pool, limits, r, tokens, hits):
    """New blocks needed to hold `tokens` with so many hits, or -1 if the pool has too few."""
    need = (tokens + limits.block_size - 1) // limits.block_size - engine.held[r] - hits
    need = max(need, 0)
    resting = 0
    start = engine.hash_at[r]
    for i in range(hits):
        if engine.refs[pool.hashes[engine.hashes[start + i], WHERE]] == 0:
            resting += 1
    return need if need + resting <= pool.ends[2] else -1


@inlined
def has_slots(engine, limits, r, tokens):
    """Whether its blocks hold so many tokens and none of them becomes full: there is nothing to do."""
    size = limits.block_size
    fills = limits.caching != 0 and tokens >= (engine.cached[r] + 1) * size
    return tokens <= engine.held[r] * size and not fills


@jit
def cache_upto(engine, pool, rule, limits, r, tokens):
    """Full blocks below `tokens` get their hash."""
    if limits.caching == 0:
        return
    start = engine.hash_at[r]
    for i in range(engine.cached[r], tokens // limits.block_size):
        block = engine.blocks[engine.block_at[r] + i]
        held = engine.hashes[start + i]
        parent = engine.hashes[start + i - 1] if i > 0 else -1
        generated = 1.0 if (i + 1) * limits.block_size > engine.prompt[r] else 0.0
        depth = float(i * limits.block_size)
        chain = float(engine.prompt[r])
        pool_write(pool, rule, block, held, parent, pool.decision[NOW], depth, chain, limits.usable)
        pool.rows[block, GENERATED] = generated
        link_hash(engine, pool, block, held)
        engine.cached[r] = i + 1


@jit
def allocate(engine, pool, rule, limits, r, computed, new, hits):
    """Slots for `new` tokens behind `computed`; False, and nothing changed, if there is no room."""
    need = count_need(engine, pool, limits, r, computed + new, hits)
    if need < 0:
        return False
    start = engine.hash_at[r]
    at = engine.block_at[r]
    for i in range(hits):
        block = pool.hashes[engine.hashes[start + i], WHERE]
        gap = pool_use(
            pool, rule, block, pool.decision[NOW], float(engine.prompt[r]), pool.decision[MEAN_GAP]
        )
        moving_mean(pool.tally, 0, gap, GAPS)
        engine.refs[block] += 1
        engine.blocks[at + engine.held[r]] = block
        engine.held[r] += 1
    engine.cached[r] += hits
    pool_take_in_step(pool, rule, need, engine.taken)
    for i in range(need):
        block = engine.taken[i]
        if pool.block_hash[block] >= 0:
            note(engine, EVICTED, engine.state[STEP], block, 0)
            pool.counts[EVICTIONS] += 1
            unlink_hash(engine, pool, block, pool_evict(pool, rule, block, pool.counts[EVICTIONS]))
            pool_forget(pool, block)
        engine.refs[block] = 1
        engine.blocks[at + engine.held[r]] = block
        engine.held[r] += 1
    cache_upto(engine, pool, rule, limits, r, min(computed + new, engine.known[r]))
    return True


@jit
def release(engine, pool, rule, limits, r):
    """Free the request's blocks, tail first, as the version does."""
    at = engine.block_at[r]
    now = pool.decision[NOW]
    aside = 0
    for i in range(engine.held[r] - 1, -1, -1):
        block = engine.blocks[at + i]
        engine.refs[block] -= 1
        if engine.refs[block] == 0:
            if limits.unhashed_first != 0 and pool.block_hash[block] < 0:
                engine.taken[aside] = block
                aside += 1
            else:
                pool_release(pool, rule, block, now, 0, limits.unhashed_first)
    for i in range(aside - 1, -1, -1):
        pool_release(pool, rule, engine.taken[i], now, 1, limits.unhashed_first)
    engine.held[r] = 0
    engine.cached[r] = 0
