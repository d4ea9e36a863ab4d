"""State of the simulated engine: requests, hash chains, references, batches, events.

The loop over it is `engine_kernel.py`; the pool is `pool.py`.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tanren_dsl.kernels.jit import inlined
from tanren_dsl.kernels.line_order import ARRIVAL, MAX_TOKENS, PROMPT_TOKENS, USER_PRIORITY
from tanren_dsl.signals import ROW_WIDTH
from tanren_dsl.sim.pool import WHERE

_Array: TypeAlias = np.ndarray[Any, Any]

# state[...]
(
    TIME,
    STEP,
    NEXT,
    HEAD,
    WAITS,
    RUNS,
    PENDING,
    UNFLUSHED,
    EVENTS,
    HIT_TOKENS,
    PREEMPTIONS,
    MARK,
    TOKENS,
    OVER,
    IDLE,
    ABORTS,
    STIRS,
    LINED,
    ORDERINGS,
    ORDER_FAULTS,
    RESCUED,
    TRAIL,
) = range(22)
STATE_WIDTH = 22
# trail rows, one a step: when it began, its tokens and requests, those waiting and running then, free blocks
TRAIL_WIDTH = 6
TRAIL_ROOM = 1 << 16
# batch_work[slot]: tokens, prefill tokens, pairs, decode sequences, their context (see `latency.py`)
WORK_WIDTH = 5
# event rows: (kind, step, time, a, b)
EVICTED, ADMITTED, PREEMPTED, FINISHED, ABORTED = range(5)
# phase[r]: not there (yet, or any more), in the waiting queue, in the running list
AWAY, WAITS_IN_LINE, RUNS_NOW = range(3)
# OVER
GOING, DONE, FULL, STUCK = range(4)


class Limits(NamedTuple):
    """Sizes and switches of the engine.

    Attributes:
        threshold: most tokens of one prefill in a step, 0 for no such limit.
        depth: batches in flight, 1 (synchronous) or 2.
        caching, chunked, reserve: whether prefixes are cached, prefills are cut to the budget,
            and a request is admitted only where its whole prompt fits.
        unhashed_first, refill, alone_exempt, index_fixed: what differs between versions (`profiles.py`).
        keeps_oldest: a policy reads `oldest_wait`.
        keeps_trail: a row of `trail` is written for each step.
    """

    block_size: int
    usable: int
    max_seqs: int
    max_tokens: int
    max_len: int
    threshold: int
    depth: int
    caching: int
    chunked: int
    reserve: int
    unhashed_first: int
    refill: int
    alone_exempt: int
    index_fixed: int
    keeps_oldest: int
    keeps_trail: int


class Engine(NamedTuple):
    """State of requests, references, hash chains and batches (shapes: `new_engine`).

    `waiting` is the queue as a ring, in order of service; `line` has the same requests, and those
    that ceased to wait since the last step, in the order in which they were added.
    """

    state: _Array
    events: _Array
    arrival: _Array
    abort_at: _Array
    abort_of: _Array
    prompt: _Array
    output: _Array
    known: _Array
    computed: _Array
    placeholders: _Array
    cached: _Array
    held: _Array
    phase: _Array
    counted: _Array
    stirred: _Array
    stirs: _Array
    block_at: _Array
    blocks: _Array
    hash_at: _Array
    hashes: _Array
    parent: _Array
    refs: _Array
    last_of: _Array
    before: _Array
    waiting: _Array
    running: _Array
    taken: _Array
    batch_request: _Array
    batch_tokens: _Array
    batch_sampled: _Array
    batch_size: _Array
    batch_step: _Array
    batch_work: _Array
    latency: _Array
    trail: _Array
    priority: _Array
    attained: _Array
    preempted: _Array
    first_scheduled: _Array
    first_token: _Array
    ended: _Array
    cached_first: _Array
    rows: _Array
    line: _Array
    fresh: _Array
    since: _Array
    overdue: _Array
    guard: _Array
    wait_keys: _Array
    run_keys: _Array
    line_scratch: _Array
    places: _Array
    spare: _Array
    lined_up: _Array


class Asked(NamedTuple):
    """R requests as the engine gets them: microseconds, tokens.

    `abort` is -1 for never; `declared` is the cap on the output that the client names.
    """

    arrival: _Array
    abort: _Array
    prompt: _Array
    output: _Array
    declared: _Array
    priority: _Array


def new_engine(
    asked: Asked, hash_at: _Array, hashes: _Array, parent: _Array, limits: Limits, latency: _Array,
    event_room: int, key_counts: tuple[int, int] | None, seed_us: float,
) -> Engine:  # fmt: skip
    """An idle engine that will serve these R requests (H hashes).

    `latency` are the coefficients of a step's time (`latency.py`), `key_counts` the number of keys of
    the waiting and of the running order (0: there is none; None: nothing is ordered), and `seed_us` is the
    mean wait at admission before any.
    """
    arrival, abort, prompt, output = asked.arrival, asked.abort, asked.prompt, asked.output
    requests, seqs, ids = len(arrival), limits.max_seqs, limits.usable + 1
    lined = requests if key_counts is not None else 1
    sorted_ = max(lined, seqs) if key_counts is not None else 1
    keys = key_counts if key_counts is not None else (1, 0)
    held = -(-(prompt + output) // limits.block_size)
    room = 1 << max(2, (requests + 1).bit_length())
    by_time = np.argsort(abort, kind="stable")
    by_time = by_time[abort[by_time] >= 0]
    per_request = [np.zeros(requests, np.int64) for _ in range(6)]
    times = [np.full(requests, -1, np.int64) for _ in range(4)]
    return Engine(
        state=np.zeros(STATE_WIDTH, np.int64),
        events=np.zeros((event_room, 5), np.int64),
        arrival=arrival,
        abort_at=abort[by_time],
        abort_of=by_time,
        prompt=prompt,
        output=output,
        known=prompt.copy(),
        computed=per_request[0],
        placeholders=per_request[1],
        cached=per_request[2],
        held=per_request[3],
        phase=np.full(requests, AWAY, np.uint8),
        counted=np.zeros(requests, np.uint8),
        stirred=np.zeros(requests, np.uint8),
        stirs=np.zeros(requests, np.int64),
        block_at=np.concatenate((np.zeros(1, np.int64), np.cumsum(held))),
        blocks=np.zeros(int(held.sum()), np.uint32),
        hash_at=hash_at,
        hashes=hashes,
        parent=parent,
        refs=np.zeros(ids, np.int32),
        last_of=np.full(len(parent) + 1, -1, np.int32),
        before=np.full(ids, -1, np.int32),
        waiting=np.zeros(room, np.int64),
        running=np.zeros(seqs, np.int64),
        taken=np.zeros(ids, np.uint32),
        batch_request=np.zeros((2, seqs), np.int64),
        batch_tokens=np.zeros((2, seqs), np.int64),
        batch_sampled=np.zeros((2, seqs), np.uint8),
        batch_size=np.zeros(2, np.int64),
        batch_step=np.zeros(2, np.int64),
        batch_work=np.zeros((2, WORK_WIDTH), np.int64),
        latency=latency,
        trail=np.zeros((TRAIL_ROOM if limits.keeps_trail else 1, TRAIL_WIDTH), np.int64),
        priority=asked.priority,
        attained=per_request[4],
        preempted=per_request[5],
        first_scheduled=times[0],
        first_token=times[1],
        ended=times[2],
        cached_first=times[3],
        rows=_request_rows(asked, lined),
        line=np.zeros(lined, np.uint32),
        fresh=np.zeros(lined, np.uint8),
        since=np.zeros(lined, np.float64),
        overdue=np.zeros(lined, np.uint8),
        guard=np.array([seed_us, 1.0, seed_us]),
        wait_keys=np.zeros((lined, keys[0]), np.float64),
        run_keys=np.zeros((seqs if keys[1] else 1, max(keys[1], 1)), np.float64),
        line_scratch=np.zeros(sorted_, np.float64),
        places=np.zeros(sorted_, np.int64),
        spare=np.zeros(sorted_, np.int64),
        lined_up=np.zeros(sorted_, np.uint32),
    )


def _request_rows(asked: Asked, lined: int) -> _Array:
    """What never changes of each request, in the columns of the object table."""
    rows = np.zeros((lined, ROW_WIDTH))
    if lined == len(asked.arrival):
        rows[:, ARRIVAL] = asked.arrival
        rows[:, PROMPT_TOKENS] = asked.prompt
        rows[:, MAX_TOKENS] = asked.declared
        rows[:, USER_PRIORITY] = asked.priority
    return rows


@inlined
def note(engine, kind, step, a, b):
    """Write down an event."""
    row = engine.events[engine.state[EVENTS]]
    row[0] = kind
    row[1] = step
    row[2] = engine.state[TIME]
    row[3] = a
    row[4] = b
    engine.state[EVENTS] += 1


@inlined
def stir(engine, rule, r):
    """The request came to wait, or ceased to: the next step counts it anew (`count_waiting`)."""
    if rule.keeps_waiting != 0 and engine.stirred[r] == 0:
        engine.stirred[r] = 1
        engine.stirs[engine.state[STIRS]] = r
        engine.state[STIRS] += 1


@inlined
def count_waiting(engine, pool, limits):
    """`pool.awaited` counts the requests that wait now; only those that stirred are looked at."""
    for k in range(engine.state[STIRS]):
        r = engine.stirs[k]
        waits = 1 if engine.phase[r] == WAITS_IN_LINE else 0
        change = waits - int(engine.counted[r])
        start = engine.hash_at[r]
        for i in range(engine.prompt[r] // limits.block_size if change != 0 else 0):
            pool.awaited[engine.hashes[start + i]] += change
        engine.counted[r] = waits
        engine.stirred[r] = 0
    engine.state[STIRS] = 0


@inlined
def link_hash(engine, pool, block, held):
    """The block becomes the newest of those that carry a hash."""
    last = engine.last_of[held]
    engine.before[block] = last
    pool.after[block] = -1
    if last >= 0:
        pool.after[last] = block
    else:
        pool.hashes[held, WHERE] = block
    engine.last_of[held] = block


@inlined
def unlink_hash(engine, pool, block, held):
    """The block no longer carries the hash."""
    before, after = engine.before[block], pool.after[block]
    if before >= 0:
        pool.after[before] = after
    else:
        pool.hashes[held, WHERE] = after
    if after >= 0:
        engine.before[after] = before
    else:
        engine.last_of[held] = before


@inlined
def drop_waiting(engine, r):
    """Take a request out of the waiting queue, wherever it stands."""
    state = engine.state
    mask = engine.waiting.shape[0] - 1
    found = False
    for i in range(state[WAITS]):
        if found:
            engine.waiting[(state[HEAD] + i - 1) & mask] = engine.waiting[(state[HEAD] + i) & mask]
        elif engine.waiting[(state[HEAD] + i) & mask] == r:
            found = True
    state[WAITS] -= 1


@inlined
def drop_running(engine, r):
    """Take a request out of the running list, keeping its order."""
    state = engine.state
    found = False
    for i in range(state[RUNS]):
        if found:
            engine.running[i - 1] = engine.running[i]
        elif engine.running[i] == r:
            found = True
    state[RUNS] -= 1
