"""State of the simulated engine: requests, hash chains, references, batches, events.

The loop over it is `engine_kernel.py`; the pool is `pool.py`.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tanren_dsl.kernels.jit import inlined
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
) = range(17)
STATE_WIDTH = 17
# event rows: (kind, step, time, a, b)
EVICTED, ADMITTED, PREEMPTED, FINISHED, ABORTED = range(5)
# phase[r]: not there (yet, or any more), in the waiting queue, in the running list
AWAY, WAITS_IN_LINE, RUNS_NOW = range(3)
# OVER
GOING, DONE, FULL, STUCK = range(4)


class Limits(NamedTuple):
    """Sizes of the engine; `unhashed_first` and `refill` are what differs between versions."""

    block_size: int
    usable: int
    max_seqs: int
    max_tokens: int
    max_len: int
    step_us: int
    depth: int
    unhashed_first: int
    refill: int


class Engine(NamedTuple):
    """State of requests, references, hash chains and batches (shapes: `new_engine`)."""

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


def new_engine(
    arrival: _Array, abort: _Array, prompt: _Array, output: _Array, hash_at: _Array, hashes: _Array,
    parent: _Array, limits: Limits, event_room: int,
) -> Engine:  # fmt: skip
    """An idle engine that will serve these R requests (H hashes); `abort` is -1 for never."""
    requests, seqs, ids = len(arrival), limits.max_seqs, limits.usable + 1
    held = -(-(prompt + output) // limits.block_size)
    room = 1 << max(2, (requests + 1).bit_length())
    by_time = np.argsort(abort, kind="stable")
    by_time = by_time[abort[by_time] >= 0]
    per_request = [np.zeros(requests, np.int64) for _ in range(4)]
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
    )


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
