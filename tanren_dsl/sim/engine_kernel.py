"""Engine mode's inner loop: vLLM V1's scheduler, cache manager and block pool in virtual time.

One full-attention group; synchronous (depth 1) and asynchronous (depth 2). Shapes and the
order of events follow the engine's source; `conform/engine_driver.py` states the same loop
around the real one. A step takes the time that a latency profile gives it.

The pool is `sim/pool.py`'s, the blocks of a request are `engine_blocks.py`'s, who is next is
`line.py`'s. What stands here is requests in flight and batches.
"""

from tanren_dsl.kernels.decision import (
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
from tanren_dsl.sim.engine_blocks import allocate, cache_upto, count_hits, count_need, has_slots, release
from tanren_dsl.sim.engine_state import (
    ABORTED,
    ABORTS,
    ADMITTED,
    AWAY,
    DONE,
    EVENTS,
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
    TRAIL,
    UNFLUSHED,
    WAITS,
    WAITS_IN_LINE,
    count_waiting,
    drop_running,
    drop_waiting,
    note,
    stir,
)
from tanren_dsl.sim.latency import step_time
from tanren_dsl.sim.line import (
    OWN,
    POLICY,
    PRIORITY,
    admits,
    joins,
    next_victim,
    order_running,
    order_waiting,
    rejoins,
)
from tanren_dsl.sim.pool import LEFT

STUCK_STEPS = 8
"""So many empty steps in a row, with nothing to come, and the requests that remain wait for ever."""


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
    if limits.keeps_oldest != 0:
        oldest = state[TIME]
        mask = engine.waiting.shape[0] - 1
        for i in range(state[WAITS]):
            oldest = min(oldest, engine.arrival[engine.waiting[(state[HEAD] + i) & mask]])
        decision[OLDEST_WAIT] = now - float(oldest)
    count_waiting(engine, pool, limits)


@inlined
def preempt(engine, pool, rule, line, limits, index):
    """Push the request at `index` of the running list back into the waiting queue. Returns it."""
    state = engine.state
    victim = engine.running[index]
    state[RUNS] -= 1
    for i in range(index, state[RUNS]):
        engine.running[i] = engine.running[i + 1]
    release(engine, pool, rule, limits, victim)
    engine.phase[victim] = WAITS_IN_LINE
    stir(engine, rule, victim)
    engine.computed[victim] = 0
    state[HEAD] -= 1
    state[WAITS] += 1
    engine.waiting[state[HEAD] & (engine.waiting.shape[0] - 1)] = victim
    rejoins(engine, line, victim, float(state[TIME]))
    state[PREEMPTIONS] += 1
    engine.preempted[victim] += 1
    note(engine, PREEMPTED, state[STEP], victim, 0)
    return victim


@inlined
def unschedule(engine, slot, size, r):
    """Take a request out of a batch of `size`. Returns its tokens, 0 if it is not in it."""
    for i in range(size):
        if engine.batch_request[slot, i] == r:
            tokens = engine.batch_tokens[slot, i]
            for j in range(i, size - 1):
                engine.batch_request[slot, j] = engine.batch_request[slot, j + 1]
                engine.batch_tokens[slot, j] = engine.batch_tokens[slot, j + 1]
            return tokens
    return 0


@inlined
def close_batch(engine, limits, slot, size):
    """What the batch of `size` requests computes counts as computed; what it takes is noted."""
    work = engine.batch_work[slot]
    work[:] = 0
    for i in range(size):
        r = engine.batch_request[slot, i]
        new = engine.batch_tokens[slot, i]
        held = engine.computed[r]
        work[0] += new
        if new == 1 and held >= engine.prompt[r]:
            work[3] += 1
            work[4] += held + 1
        else:
            work[1] += new
            work[2] += new * held + new * (new + 1) // 2
        engine.attained[r] += new
        engine.computed[r] = held + new
        samples = held + new >= engine.known[r] + engine.placeholders[r]
        engine.batch_sampled[slot, i] = 1 if samples else 0
        if samples and limits.depth > 1:
            engine.placeholders[r] += 1
    engine.batch_size[slot] = size
    engine.batch_step[slot] = engine.state[STEP]
    engine.state[TOKENS] += work[0]


@inlined
def schedule(engine, pool, rule, line, limits, slot):
    """One `schedule()`: fills batch `slot`."""
    state = engine.state
    freeze(engine, pool, limits)
    if line.waits != OWN:
        order_waiting(engine, pool, line, limits)
    if line.runs == POLICY:
        order_running(engine, pool, line)
    threshold = limits.threshold if limits.threshold > 0 else limits.max_len
    if limits.alone_exempt != 0 and state[RUNS] + state[WAITS] == 1:
        threshold = limits.max_len
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
        new = min(engine.known[r] + flying - engine.computed[r], threshold, budget)
        new = min(new, limits.max_len - 1 - engine.computed[r])
        if new == 0:
            index += 1
            continue
        alone = False
        while not (
            has_slots(engine, limits, r, engine.computed[r] + new)
            or allocate(engine, pool, rule, limits, r, engine.computed[r], new, 0)
        ):
            preempted = True
            at = next_victim(engine, line)
            victim = preempt(engine, pool, rule, line, limits, at)
            if line.runs == PRIORITY:
                back = unschedule(engine, slot, size, victim)
                if back > 0:
                    size -= 1
                    budget += back
                if back > 0 or (limits.index_fixed != 0 and at < index):
                    index -= 1
            if victim == r:
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
        computed = hits * limits.block_size
        new = min(engine.known[r] - computed, threshold)
        if limits.chunked == 0 and new > budget:
            break
        new = min(new, budget)
        if limits.reserve != 0 and count_need(engine, pool, limits, r, engine.known[r], hits) < 0:
            break
        if not allocate(engine, pool, rule, limits, r, computed, new, hits):
            break
        looked_up = (engine.known[r] - 1) // limits.block_size
        if looked_up > 0:
            moving_mean(pool.tally, 2, float(hits) / float(looked_up), HIT_RATES)
        state[HEAD] += 1
        state[WAITS] -= 1
        engine.running[state[RUNS]] = r
        state[RUNS] += 1
        engine.phase[r] = RUNS_NOW
        stir(engine, rule, r)
        admits(engine, line, r)
        if engine.first_scheduled[r] < 0:
            engine.first_scheduled[r] = state[TIME]
            engine.cached_first[r] = computed
        engine.computed[r] = computed
        state[HIT_TOKENS] += computed
        note(engine, ADMITTED, state[STEP], r, computed)
        engine.batch_request[slot, size] = r
        engine.batch_tokens[slot, size] = new
        size += 1
        budget -= new
    state[UNFLUSHED] = 0
    close_batch(engine, limits, slot, size)
    if limits.keeps_trail != 0:
        row = engine.trail[state[TRAIL]]
        row[0] = state[TIME]
        row[1] = engine.batch_work[slot, 0]
        row[2] = size
        row[3] = state[WAITS]
        row[4] = state[RUNS]
        row[5] = pool.ends[2]
        state[TRAIL] += 1


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


@inlined
def update(engine, pool, rule, limits, slot):
    """One `update_from_output()`: the tokens of batch `slot` arrive."""
    state = engine.state
    pool.decision[NOW] = float(state[TIME])
    for i in range(engine.batch_size[slot]):
        r = engine.batch_request[slot, i]
        if engine.batch_sampled[slot, i] == 0 or engine.phase[r] == AWAY:
            continue
        engine.known[r] += 1
        if engine.known[r] == engine.prompt[r] + 1:
            engine.first_token[r] = state[TIME]
        if limits.depth > 1:
            engine.placeholders[r] -= 1
            filled = engine.computed[r] - engine.placeholders[r] >= (engine.cached[r] + 1) * limits.block_size
            if filled and engine.phase[r] == RUNS_NOW:
                cache_upto(engine, pool, rule, limits, r, engine.computed[r] - engine.placeholders[r])
        if engine.known[r] == engine.prompt[r] + engine.output[r]:
            release(engine, pool, rule, limits, r)
            engine.ended[r] = state[TIME]
            note(engine, FINISHED, engine.batch_step[slot], r, 0)
            leave(engine, rule, r)


@inlined
def is_full(engine, limits):
    """Whether a step might write more events, or a row of the trail, than there is room for."""
    room = 2 * limits.usable + 4 * limits.max_seqs + 64
    crowded = engine.events.shape[0] - engine.state[EVENTS] < room
    return crowded or (limits.keeps_trail != 0 and engine.state[TRAIL] == engine.trail.shape[0])


@jit
def run(engine, pool, rule, line, limits, steps):
    """At most `steps` more calls of `schedule()`; returns early when done, stuck or out of room."""
    state = engine.state
    requests = engine.arrival.shape[0]
    aborts = engine.abort_at.shape[0]
    mask = engine.waiting.shape[0] - 1
    state[OVER] = GOING
    while True:
        while state[NEXT] < requests and engine.arrival[state[NEXT]] <= state[TIME]:
            r = state[NEXT]
            engine.waiting[(state[HEAD] + state[WAITS]) & mask] = r
            engine.phase[r] = WAITS_IN_LINE
            stir(engine, rule, r)
            joins(engine, line, r, float(state[TIME]))
            state[WAITS] += 1
            state[NEXT] += 1
        while state[ABORTS] < aborts and engine.abort_at[state[ABORTS]] <= state[TIME]:
            if is_full(engine, limits):
                state[OVER] = FULL
                return
            abort(engine, pool, rule, limits, engine.abort_of[state[ABORTS]])
            state[ABORTS] += 1
        if state[WAITS] + state[RUNS] + state[UNFLUSHED] > 0:
            if steps == 0:
                return
            if is_full(engine, limits):
                state[OVER] = FULL
                return
            steps -= 1
            slot = state[STEP] & 1
            schedule(engine, pool, rule, line, limits, slot)
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
        slot = (state[STEP] - state[PENDING]) & 1
        work = engine.batch_work[slot]
        state[TIME] += step_time(engine.latency, work[0], work[1], work[2], work[3], work[4])
        update(engine, pool, rule, limits, slot)
        state[PENDING] -= 1
