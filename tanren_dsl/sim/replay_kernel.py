"""Replay mode's inner loop: requests one by one, one trace id is one full block.

A request looks up its longest resident prefix (those are hits), uses what else of it
is resident in place, takes blocks for the rest, and releases everything, tail first.
Its own blocks are pinned meanwhile, since they are out of the free queue.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tanren_dsl.kernels.block_rows import GAPS
from tanren_dsl.kernels.decision import (
    BLOCK_SIZE,
    CAPACITY,
    HIT_RATE,
    HIT_RATES,
    KV_FREE,
    MEAN_GAP,
    NOW,
    mean_after,
    moving_mean,
)
from tanren_dsl.kernels.jit import inlined, jit
from tanren_dsl.sim.pool import (
    HEAP,
    PASS_THROUGH,
    SCAN,
    WHERE,
    Rule,
    pool_admit,
    pool_place,
    pool_reserve,
    pool_use,
    pool_write,
)
from tanren_dsl.sim.take import pool_replace

_Array: TypeAlias = np.ndarray[Any, Any]

HITS, LOOKUPS, NEXT = range(3)


class Job(NamedTuple):
    """The trace (R requests, L lookups), room to work in, and what was counted.

    Attributes:
        arrival: int64[R] microseconds; offsets: int64[R + 1]; ids: uint32[L].
        next_use: float64[L], number of the next request with the id; for the bounds only.
        held, victims: uint32[longest request], room.
        totals: int64[3]; hits: int64[R], hit blocks of each request.
    """

    arrival: _Array
    offsets: _Array
    ids: _Array
    next_use: _Array
    held: _Array
    victims: _Array
    totals: _Array
    hits: _Array


@inlined
def serve(pool, rule, job, usable, tokens, last):
    """Replay requests `totals[NEXT]` to `last - 1`; modifies everything but the trace."""
    arrival, offsets, ids, next_use, held, victims, totals, hits = job
    pool.decision[CAPACITY] = float(usable * tokens)
    pool.decision[BLOCK_SIZE] = float(tokens)
    foresees = rule.mode != PASS_THROUGH and rule.address == 0
    for r in range(totals[NEXT], last):
        start = offsets[r]
        length = offsets[r + 1] - start
        wanted = ids[start : start + length]
        now = float(arrival[r])
        chain = float(length * tokens)
        mean_gap = pool.tally[0]
        pool.decision[NOW] = now
        pool.decision[KV_FREE] = float(pool.ends[2]) / float(usable)
        pool.decision[HIT_RATE] = pool.tally[2]
        pool.decision[MEAN_GAP] = mean_gap

        prefix = 0
        missing = 0
        mean, count = mean_gap, pool.tally[1]
        deepest = pool_reserve(pool, length)
        for j in range(length):
            block = pool.hashes[wanted[j], WHERE]
            if block < 0:
                missing += 1
            else:
                held[j] = block
                count += 1.0
                mean = mean_after(mean, count, pool_use(pool, rule, block, now, chain, mean_gap), GAPS)
                pool_place(pool, block, deepest + length - 1 - j, now)
                if missing == 0:
                    prefix += 1
        pool.tally[0] = mean
        pool.tally[1] = count
        if length > 0:
            moving_mean(pool.tally, 2, float(prefix) / float(length), HIT_RATES)

        pool_replace(pool, rule, missing, victims)
        taken = 0
        for j in range(prefix, length):
            if pool.hashes[wanted[j], WHERE] < 0:
                block = victims[taken]
                taken += 1
                parent = wanted[j - 1] if j > 0 else -1
                pool_write(pool, rule, block, wanted[j], parent, now, float(j * tokens), chain, usable)
                pool.hashes[wanted[j], WHERE] = block
                pool_place(pool, block, deepest + length - 1 - j, now)
                held[j] = block
        if foresees:
            for j in range(length):
                pool.next_use[held[j]] = next_use[start + j]
        pool_admit(pool, rule, held, length)

        hits[r] = prefix
        totals[HITS] += prefix
        totals[LOOKUPS] += length
        totals[NEXT] = r + 1


@jit
def replay_in_order(pool, _rule, job, usable, tokens, last):
    """`serve` in the engine's own order."""
    serve(pool, Rule(PASS_THROUGH, 0, 0, 0, 0, 0), job, usable, tokens, last)


@jit
def replay_by_scan(pool, rule, job, usable, tokens, last):
    """`serve` with victims found by scoring the considered set."""
    serve(pool, Rule(SCAN, rule.address, rule.extra, 0, rule.keeps_children, 0), job, usable, tokens, last)


@jit
def replay_by_heap(pool, rule, job, usable, tokens, last):
    """`serve` with victims from the heap."""
    serve(pool, Rule(HEAP, rule.address, rule.extra, 0, 0, 0), job, usable, tokens, last)


REPLAY: dict[int, Callable[..., None]] = {
    PASS_THROUGH: replay_in_order,
    SCAN: replay_by_scan,
    HEAP: replay_by_heap,
}
"""The kernel of each mode: the same loop, compiled with the mode known."""
