"""The order of requests in the simulated engine: who is admitted next, who is pushed out.

Three ways: the engine's own (first come first served), its priority policy, or a schedule
policy, which orders the waiting queue once a step, and the running list if it has `preempt by`.

Every function modifies the engine it is given.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tanren_dsl.kernels.abi import DECISION_WIDTH
from tanren_dsl.kernels.call import call_scorer
from tanren_dsl.kernels.decision import moving_mean
from tanren_dsl.kernels.jit import inlined, jit
from tanren_dsl.kernels.line_order import (
    ATTAINED_TOKENS,
    CACHED_TOKENS,
    COMPUTED_TOKENS,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    RESUMED,
    UNCACHED_TOKENS,
    line_up,
    victims_last,
)
from tanren_dsl.kernels.line_order import WAITS as GUARD_WAITS
from tanren_dsl.signals import REFRESHED
from tanren_dsl.sim.engine_blocks import count_hits
from tanren_dsl.sim.engine_state import (
    HEAD,
    LINED,
    ORDER_FAULTS,
    ORDERINGS,
    RESCUED,
    RUNS,
    TIME,
    WAITS,
    WAITS_IN_LINE,
)

_Array: TypeAlias = np.ndarray[Any, Any]

OWN, PRIORITY, POLICY = range(3)
"""Who orders."""


class Line(NamedTuple):
    """How requests are ordered.

    Attributes:
        waits: who orders the waiting queue.
        runs: who decides what is pushed out.
        wait_address, run_address: the compiled orderings, where a policy decides.
        refreshes: the policy reads how much of a request is cached.
        guards: requests that waited too long go first.
        decision: the decision vector, with the policy's knobs behind.
    """

    waits: int
    runs: int
    wait_address: int
    run_address: int
    refreshes: int
    guards: int
    decision: _Array


@inlined
def joins(engine, line, r, now):
    """The request was added to the waiting queue."""
    if line.waits != OWN:
        state = engine.state
        engine.line[state[LINED]] = r
        state[LINED] += 1
        engine.fresh[r] = 1
        engine.since[r] = now


@inlined
def rejoins(engine, line, r, now):
    """The request was pushed out and waits again; it takes its old place among those added."""
    if line.waits != OWN:
        state = engine.state
        at = state[LINED]
        while at > 0 and engine.line[at - 1] > r:
            engine.line[at] = engine.line[at - 1]
            at -= 1
        engine.line[at] = r
        state[LINED] += 1
        engine.fresh[r] = 1
        engine.since[r] = now


@inlined
def admits(engine, line, r):
    """The request is admitted: its wait counts."""
    if line.guards != 0:
        now = float(engine.state[TIME])
        moving_mean(engine.guard, 0, now - engine.since[r], GUARD_WAITS)
        engine.state[RESCUED] += engine.overdue[r]
        engine.overdue[r] = 0


@inlined
def _fill_row(engine, r):
    """Bring the request's row up to date, but for what is looked up in the cache."""
    row = engine.rows[r]
    output = float(engine.known[r] - engine.prompt[r])
    row[OUTPUT_TOKENS] = output
    row[COMPUTED_TOKENS] = float(engine.computed[r])
    row[ATTAINED_TOKENS] = float(engine.attained[r])
    row[PREEMPTIONS] = float(engine.preempted[r])
    row[RESUMED] = 1.0 if engine.preempted[r] > 0 and engine.phase[r] == WAITS_IN_LINE else 0.0
    row[UNCACHED_TOKENS] = float(engine.prompt[r]) + output - row[CACHED_TOKENS]


@inlined
def _look_up(engine, pool, limits, r):
    row = engine.rows[r]
    row[CACHED_TOKENS] = float(count_hits(engine, pool, limits, r) * limits.block_size)
    row[UNCACHED_TOKENS] = float(engine.known[r]) - row[CACHED_TOKENS]


@jit
def _gather(engine, pool, line, limits):
    """Drop from `line` who no longer waits, and bring the rows of the others up to date. How many wait."""
    state = engine.state
    if line.refreshes != 0:
        mask = engine.waiting.shape[0] - 1
        for i in range(min(state[WAITS], REFRESHED)):
            _look_up(engine, pool, limits, engine.waiting[(state[HEAD] + i) & mask])
    n = 0
    for i in range(state[LINED]):
        r = engine.line[i]
        if engine.phase[r] == WAITS_IN_LINE:
            engine.line[n] = r
            n += 1
            if engine.fresh[r] != 0:
                engine.fresh[r] = 0
                if line.refreshes != 0:
                    _look_up(engine, pool, limits, r)
                _fill_row(engine, r)
    state[LINED] = n
    return n


@inlined
def _score(engine, pool, line, address, ids, n, keys):
    """Keys of the n requests in `ids` by the ordering at `address`."""
    for k in range(DECISION_WIDTH):
        line.decision[k] = pool.decision[k]
    call_scorer(
        address,
        line.decision.ctypes.data,
        engine.rows.ctypes.data,
        ids.ctypes.data,
        n,
        keys.ctypes.data,
        engine.line_scratch.ctypes.data,
    )
    engine.state[ORDERINGS] += 1


@jit
def order_waiting(engine, pool, line, limits):
    """Put the waiting queue into order of service, at the top of a step."""
    state = engine.state
    n = _gather(engine, pool, line, limits)
    if n < 2:
        return
    if line.waits == PRIORITY:
        for j in range(n):
            r = engine.line[j]
            engine.wait_keys[j, 0] = float(engine.priority[r])
            engine.wait_keys[j, 1] = float(engine.arrival[r])
    else:
        _score(engine, pool, line, line.wait_address, engine.line, n, engine.wait_keys)
    fault = line_up(
        engine.wait_keys,
        n,
        float(state[TIME]),
        max(engine.guard[0], engine.guard[2]) if line.guards != 0 else -1.0,
        engine.since,
        engine.line,
        engine.places,
        engine.spare,
        engine.overdue,
        engine.lined_up,
    )
    state[ORDER_FAULTS] += fault
    state[HEAD] = 0
    for j in range(n):
        engine.waiting[j] = engine.lined_up[j]


@jit
def order_running(engine, pool, line):
    """Put the running list into order of service, those to be pushed out first at its end."""
    state = engine.state
    n = state[RUNS]
    if n < 2:
        return
    for i in range(n):  # insertion: ids in the order in which they were added
        r = engine.running[i]
        _fill_row(engine, r)
        j = i
        while j > 0 and engine.lined_up[j - 1] > r:
            engine.lined_up[j] = engine.lined_up[j - 1]
            j -= 1
        engine.lined_up[j] = r
    _score(engine, pool, line, line.run_address, engine.lined_up, n, engine.run_keys)
    state[ORDER_FAULTS] += victims_last(
        engine.run_keys, n, engine.lined_up, engine.places, engine.spare, engine.running
    )


@inlined
def next_victim(engine, line):
    """Index in `running` of the request that is pushed out when memory runs out."""
    last = engine.state[RUNS] - 1
    if line.runs != PRIORITY:
        return last
    best = 0
    for i in range(1, last + 1):
        r, held = engine.running[i], engine.running[best]
        later = engine.priority[r] == engine.priority[held] and engine.arrival[r] > engine.arrival[held]
        if engine.priority[r] > engine.priority[held] or later:
            best = i
    return best
