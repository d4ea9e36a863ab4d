"""Engine mode's inner loop: vLLM V1's scheduler, cache manager and block pool in virtual time.

First come first served, one full-attention group, prefix caching on, chunked prefill;
synchronous (depth 1) and asynchronous (depth 2). Shapes and the order of events follow
the engine's source; `conform/engine_driver.py` states the same loop around the real one.

The pool is `sim/pool.py`'s. What stands here is what replay mode lacks: references,
several blocks a hash (the first cached is the one hit), requests in flight, batches.
"""

from tanren_dsl.kernels.block_rows import (
    GAPS,
    GENERATED,
    HIT_RATE,
    HIT_RATES,
    KV_FREE,
    MEAN_GAP,
    NOW,
    OLDEST_WAIT,
    RATES,
    RUNNING,
    SERVICE_RATE,
    WAITING,
    moving_mean,
)
from tanren_dsl.kernels.jit import inlined, jit
from tanren_dsl.sim.engine_state import (
    ABORTED,
    ABORTS,
    ADMITTED,
    AWAY,
    DONE,
    EVENTS,
    EVICTED,
    FINISHED,
    FULL,
    GOING,
    HEAD,
    HIT_TOKENS,
    IDLE,
    MARK,
    NEXT,
    OVER,
    PENDING,
    PREEMPTED,
    PREEMPTIONS,
    RUNS,
    RUNS_NOW,
    STEP,
    STUCK,
    TIME,
    TOKENS,
    UNFLUSHED,
    WAITS,
    WAITS_IN_LINE,
    count_waiting,
    drop_running,
    drop_waiting,
    link_hash,
    note,
    stir,
    unlink_hash,
)
from tanren_dsl.sim.pool import (
    EVICTIONS,
    LEFT,
    WHERE,
    pool_evict,
    pool_forget,
    pool_release,
    pool_use,
    pool_write,
)
from tanren_dsl.sim.take import pool_take_in_step

STUCK_STEPS = 8
"""So many empty steps in a row, with nothing to come, and the requests that remain wait for ever."""


@inlined
def count_hits(engine, pool, limits, r):
    """Leading blocks of the request that are cached; the last token is never looked up."""
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


@jit
def cache_upto(engine, pool, rule, limits, r, tokens):
    """Full blocks below `tokens` get their hash."""
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


@inlined
def freeze(engine, pool, limits):
    """Hold every signal that is *as of this step*; the ranking of the last one no longer stands."""
    pool.counts[LEFT] = 0
    state, decision, tally = engine.state, pool.decision, pool.tally
    now = float(state[TIME])
    decision[NOW] = now
    if state[TIME] > state[MARK]:
        if state[TOKENS] > 0:
            moving_mean(tally, 4, float(state[TOKENS]) / float(state[TIME] - state[MARK]), RATES)
        state[MARK] = state[TIME]
        state[TOKENS] = 0
    decision[KV_FREE] = float(pool.ends[2]) / float(limits.usable)
    decision[MEAN_GAP] = tally[0]
    decision[HIT_RATE] = tally[2]
    decision[SERVICE_RATE] = tally[4]
    decision[WAITING] = float(state[WAITS])
    decision[RUNNING] = float(state[RUNS])
    oldest = state[TIME]
    mask = engine.waiting.shape[0] - 1
    for i in range(state[WAITS]):
        oldest = min(oldest, engine.arrival[engine.waiting[(state[HEAD] + i) & mask]])
    decision[OLDEST_WAIT] = now - float(oldest)
    count_waiting(engine, pool, limits)


@inlined
def preempt(engine, pool, rule, limits):
    """Push the last running request back to the head of the waiting queue. Returns it."""
    state = engine.state
    state[RUNS] -= 1
    victim = engine.running[state[RUNS]]
    release(engine, pool, rule, limits, victim)
    engine.phase[victim] = WAITS_IN_LINE
    stir(engine, rule, victim)
    engine.computed[victim] = 0
    state[HEAD] -= 1
    state[WAITS] += 1
    engine.waiting[state[HEAD] & (engine.waiting.shape[0] - 1)] = victim
    state[PREEMPTIONS] += 1
    note(engine, PREEMPTED, state[STEP], victim, 0)
    return victim


@jit
def schedule(engine, pool, rule, limits, slot):
    """One `schedule()`: fills batch `slot`."""
    state = engine.state
    freeze(engine, pool, limits)
    budget = limits.max_tokens
    size = 0
    preempted = False
    index = 0
    while index < state[RUNS] and budget > 0:
        r = engine.running[index]
        flying = engine.placeholders[r]
        if flying > 0 and engine.computed[r] + 2 - flying >= engine.prompt[r] + engine.output[r]:
            index += 1
            continue
        new = min(engine.known[r] + flying - engine.computed[r], budget)
        new = min(new, limits.max_len - 1 - engine.computed[r])
        if new == 0:
            index += 1
            continue
        alone = False
        while not allocate(engine, pool, rule, limits, r, engine.computed[r], new, 0):
            preempted = True
            if preempt(engine, pool, rule, limits) == r:
                alone = True
                break
        if alone:
            break
        engine.batch_request[slot, size] = r
        engine.batch_tokens[slot, size] = new
        size += 1
        budget -= new
        index += 1
    mask = engine.waiting.shape[0] - 1
    while not preempted and state[WAITS] > 0 and budget > 0 and state[RUNS] < limits.max_seqs:
        r = engine.waiting[state[HEAD] & mask]
        hits = count_hits(engine, pool, limits, r)
        if count_need(engine, pool, limits, r, engine.known[r], hits) < 0:
            break
        looked_up = (engine.known[r] - 1) // limits.block_size
        computed = hits * limits.block_size
        new = min(engine.known[r] - computed, budget)
        if not allocate(engine, pool, rule, limits, r, computed, new, hits):
            break
        if looked_up > 0:
            moving_mean(pool.tally, 2, float(hits) / float(looked_up), HIT_RATES)
        state[HEAD] += 1
        state[WAITS] -= 1
        engine.running[state[RUNS]] = r
        state[RUNS] += 1
        engine.phase[r] = RUNS_NOW
        stir(engine, rule, r)
        engine.computed[r] = computed
        state[HIT_TOKENS] += computed
        note(engine, ADMITTED, state[STEP], r, computed)
        engine.batch_request[slot, size] = r
        engine.batch_tokens[slot, size] = new
        size += 1
        budget -= new
    engine.batch_size[slot] = size
    engine.batch_step[slot] = state[STEP]
    state[UNFLUSHED] = 0
    state[TOKENS] += limits.max_tokens - budget
    for i in range(size):
        r = engine.batch_request[slot, i]
        engine.computed[r] += engine.batch_tokens[slot, i]
        samples = engine.computed[r] >= engine.known[r] + engine.placeholders[r]
        engine.batch_sampled[slot, i] = 1 if samples else 0
        if samples and limits.depth > 1:
            engine.placeholders[r] += 1


@inlined
def leave(engine, rule, r):
    """The request is over; its id is flushed by the next step."""
    if engine.phase[r] == RUNS_NOW:
        drop_running(engine, r)
    else:
        drop_waiting(engine, r)
    engine.phase[r] = AWAY
    stir(engine, rule, r)
    engine.state[UNFLUSHED] = 1


@inlined
def abort(engine, pool, rule, limits, r):
    """The client gives up on the request, if it is there."""
    if engine.phase[r] == AWAY:
        return
    pool.decision[NOW] = float(engine.state[TIME])
    release(engine, pool, rule, limits, r)
    leave(engine, rule, r)
    note(engine, ABORTED, engine.state[STEP], r, 0)


@jit
def update(engine, pool, rule, limits, slot):
    """One `update_from_output()`: the tokens of batch `slot` arrive."""
    state = engine.state
    pool.decision[NOW] = float(state[TIME])
    for i in range(engine.batch_size[slot]):
        r = engine.batch_request[slot, i]
        if engine.batch_sampled[slot, i] == 0 or engine.phase[r] == AWAY:
            continue
        engine.known[r] += 1
        if limits.depth > 1:
            engine.placeholders[r] -= 1
            if engine.phase[r] == RUNS_NOW:
                cache_upto(engine, pool, rule, limits, r, engine.computed[r] - engine.placeholders[r])
        if engine.known[r] == engine.prompt[r] + engine.output[r]:
            release(engine, pool, rule, limits, r)
            note(engine, FINISHED, engine.batch_step[slot], r, 0)
            leave(engine, rule, r)


@jit
def run(engine, pool, rule, limits, steps):
    """At most `steps` more calls of `schedule()`; returns early when done, stuck or out of event room."""
    state = engine.state
    requests = engine.arrival.shape[0]
    aborts = engine.abort_at.shape[0]
    mask = engine.waiting.shape[0] - 1
    room = 2 * limits.usable + 4 * limits.max_seqs + 64
    state[OVER] = GOING
    while True:
        while state[NEXT] < requests and engine.arrival[state[NEXT]] <= state[TIME]:
            engine.waiting[(state[HEAD] + state[WAITS]) & mask] = state[NEXT]
            engine.phase[state[NEXT]] = WAITS_IN_LINE
            stir(engine, rule, state[NEXT])
            state[WAITS] += 1
            state[NEXT] += 1
        while state[ABORTS] < aborts and engine.abort_at[state[ABORTS]] <= state[TIME]:
            if engine.events.shape[0] - state[EVENTS] < room:
                state[OVER] = FULL
                return
            abort(engine, pool, rule, limits, engine.abort_of[state[ABORTS]])
            state[ABORTS] += 1
        if state[WAITS] + state[RUNS] + state[UNFLUSHED] > 0:
            if steps == 0:
                return
            if engine.events.shape[0] - state[EVENTS] < room:
                state[OVER] = FULL
                return
            steps -= 1
            slot = state[STEP] & 1
            schedule(engine, pool, rule, limits, slot)
            state[STEP] += 1
            state[PENDING] += 1
            size = engine.batch_size[slot]
            waits = state[WAITS] + state[RUNS] > 0
            to_come = state[NEXT] < requests or state[ABORTS] < aborts
            state[IDLE] = state[IDLE] + 1 if waits and size == 0 and not to_come else 0
            if state[IDLE] > STUCK_STEPS:
                state[OVER] = STUCK
                return
            if state[PENDING] < limits.depth and (size > 0 or (limits.refill != 0 and waits)):
                continue
        elif state[PENDING] == 0:
            if state[NEXT] == requests:
                state[OVER] = DONE
                return
            state[TIME] = max(state[TIME], engine.arrival[state[NEXT]])
            continue
        state[TIME] += limits.step_us
        update(engine, pool, rule, limits, (state[STEP] - state[PENDING]) & 1)
        state[PENDING] -= 1
