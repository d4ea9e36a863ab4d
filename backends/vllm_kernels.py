"""The emitted file's kernels: everything that is kept, in one piece of memory.

Calling a compiled function costs by the number of arrays handed over, so all arrays
live in one (`state`, bytes), and each function takes the views that it needs. The
functions are also what runs, as plain Python, where there is no Numba.

`backends/vllm.py` copies everything below the marker line into the file it emits,
behind the kernel functions and the policy's own `order`. Above the marker stand
stand-ins, so that this module can be read and linted as it is. It never runs from here.
"""

from typing import Any

import numpy as np

from tanren_dsl.kernels.block_rows import (
    CHILDREN,
    GAPS,
    GENERATED,
    LAST_USE,
    MEAN_GAP,
    TALLY_WIDTH,
    WAITING_REFS,
    moving_mean,
    row_released,
    row_used,
    row_written,
)
from tanren_dsl.kernels.free_ring import (
    UNSCORED,
    ring_consider,
    ring_push_back,
    ring_push_front,
    ring_remove,
    ring_take,
)
from tanren_dsl.kernels.static_heap import heap_enter, heap_leave, heap_take

DECISION_WIDTH = 12
KEY_COUNT = 1
ROW_WIDTH = 16
SETTLED = 1
SETTLED_WIDTH = 1
HEAP = False
KNOBS: tuple[tuple[str, float, float], ...] = ()


def _jit(function: Any) -> Any:
    return function


def _typed(_signature: str) -> Any:
    return _jit


def settle(decision: Any, rows: Any, ids: Any, n: int, keys: Any, scratch: Any) -> None:
    """What of the keys is known when a block begins to rest, from the books' rows."""


def order(decision: Any, rows: Any, ids: Any, n: int, keys: Any, scratch: Any) -> None:
    """The policy's keys, from the settled rows; see `kernels/abi.py`."""


# ======== runtime ========

# Sections of the state: where each begins and ends stands in its first 512 bytes.
(
    _POS, _ENDS, _ROWS, _SETTLED, _FRESH, _DECISION, _TALLY, _KEYS, _SCRATCH, _PLAIN, _SCORED, _LOWS, _OUT,
    _RING, _HASHED, _ENTRY_KEYS, _ENTRY_BLOCK, _ENTRY_STAMP, _STAMP, _BAD, _HEAP,
) = range(21)  # fmt: skip
_DECISIONS, _FAULTS, _STRAYS = 3, 4, 5  # in _ENDS, behind head, tail and count
_OUT_OF_STEP, _PICKED, _IN_ORDER, _FAULT = range(4)  # what `pick` answers
# Columns of the table by hash: first a row for each block id, then one for each hash; see `Hashes`.
_OWN, _PARENT = 0, 1
_HOLDERS, _CHILD_COUNT, _EVICTED_AT, _EVICTED_USES, _WAITING_COUNT = range(5)


def new_state(blocks: int) -> Any:
    """The memory of an empty queue of so many block ids, every section on cache lines of its own."""
    starts: list[int] = []
    at = 512
    for size in _sizes(blocks):
        starts += [at, at + size]
        at += -(-size // 64) * 64
    room = np.zeros(at + 64, np.uint8)
    skip = -room.ctypes.data % 64
    state = room[skip : skip + at]
    state[:512].view(np.int64)[: len(starts)] = starts
    _i8(state, _POS)[:] = -1
    _i8(state, _ENDS)[:2] = 1 << 40
    return state


def _sizes(blocks: int) -> tuple[int, ...]:
    entries = 4 * blocks + 64 if HEAP else 0
    heaped = blocks if HEAP else 0
    ring = 1 << max(4, (2 * blocks + 2).bit_length())
    return (
        8 * blocks, 8 * 8, 8 * blocks * ROW_WIDTH, 8 * blocks * SETTLED_WIDTH, 8 * blocks * max(1, SETTLED),
        8 * (DECISION_WIDTH + len(KNOBS)), 8 * TALLY_WIDTH,
        8 * blocks * KEY_COUNT, 8 * blocks, 4 * blocks, 4 * blocks, 4 * blocks, 4 * blocks, 4 * ring, blocks,
        8 * entries * KEY_COUNT, 4 * entries, 8 * entries, 8 * heaped, heaped, 8 * 3,
    )  # fmt: skip


@_typed("float64[::1](uint8[::1], int64)")
def _f8(state, section):
    at = state[:512].view(np.int64)
    return state[at[2 * section] : at[2 * section + 1]].view(np.float64)


@_typed("int64[::1](uint8[::1], int64)")
def _i8(state, section):
    at = state[:512].view(np.int64)
    return state[at[2 * section] : at[2 * section + 1]].view(np.int64)


@_typed("uint32[::1](uint8[::1], int64)")
def _u4(state, section):
    at = state[:512].view(np.int64)
    return state[at[2 * section] : at[2 * section + 1]].view(np.uint32)


@_typed("uint8[::1](uint8[::1], int64)")
def _u1(state, section):
    at = state[:512].view(np.int64)
    return state[at[2 * section] : at[2 * section + 1]]


@_jit
def _queue(state):
    return _u4(state, _RING), _i8(state, _POS), _i8(state, _ENDS)


@_jit
def _rows(state):
    return _f8(state, _ROWS).reshape(-1, ROW_WIDTH)


@_jit
def _settled(state):
    return _f8(state, _SETTLED).reshape(-1, SETTLED_WIDTH)


@_jit
def settle_rows(state, ids):
    """These blocks begin to rest: keep what of their keys is known."""
    if SETTLED > 0:
        fresh, settled = _f8(state, _FRESH).reshape(-1, SETTLED), _settled(state)
        n = ids.shape[0]
        settle(_f8(state, _DECISION), _rows(state), ids, n, fresh, _f8(state, _SCRATCH))
        for j in range(n):
            for c in range(SETTLED):
                settled[ids[j], c] = fresh[j, c]


@_jit
def enter_heap(state, ids):
    """These blocks are queued; the heap learns their keys, which will not change."""
    n = ids.shape[0]
    keys = _f8(state, _KEYS).reshape(-1, KEY_COUNT)
    order(_f8(state, _DECISION), _settled(state), ids, n, keys, _f8(state, _SCRATCH))
    entry_keys, entry_block = _f8(state, _ENTRY_KEYS).reshape(-1, KEY_COUNT), _u4(state, _ENTRY_BLOCK)
    entry_stamp, stamp = _i8(state, _ENTRY_STAMP), _i8(state, _STAMP)
    heap, bad = _i8(state, _HEAP), _u1(state, _BAD)
    for j in range(n):
        heap_enter(keys, j, entry_keys, entry_block, entry_stamp, heap, stamp, bad, ids[j])


@_jit
def _leave_heap(state, block):
    heap_leave(_i8(state, _HEAP), _i8(state, _STAMP), _u1(state, _BAD), block)


@_jit
def released(state, ids, now, unscored):
    """Blocks enter the free queue at its back, in this order; `unscored`: at its front, the first as head."""
    ring, pos, ends = _queue(state)
    rows, hashed = _rows(state), _u1(state, _HASHED)
    n = ids.shape[0]
    if unscored:
        for i in range(n - 1, -1, -1):
            ring_push_front(ring, pos, ends, ids[i], UNSCORED)
        return
    for i in range(n):
        row_released(rows, ids[i], now, hashed[ids[i]])
        ring_push_back(ring, pos, ends, ids[i], 0)
    settle_rows(state, ids)
    if HEAP:
        enter_heap(state, ids)


@_jit
def taken_back(state, ids):
    """Blocks are held again; those in the free queue leave it."""
    ring, pos, ends = _queue(state)
    for i in range(ids.shape[0]):
        if pos[ids[i]] != -1:
            ring_remove(ring, pos, ends, ids[i])
            if HEAP:
                _leave_heap(state, ids[i])


@_jit
def used(state, ids, now, chain):
    """An admission hits these blocks, in chain order; those in the free queue leave it."""
    taken_back(state, ids)
    rows, tally = _rows(state), _f8(state, _TALLY)
    mean_gap = _f8(state, _DECISION)[MEAN_GAP]
    for i in range(ids.shape[0]):
        if ids[i] != 0:  # the null block stands for what was never computed
            moving_mean(tally, 0, row_used(rows, ids[i], now, chain, mean_gap), GAPS)


@_jit
def written(state, ids, now, first, block_size, prompt):
    """Blocks number `first` and on of a chain got their hash."""
    rows, hashed = _rows(state), _u1(state, _HASHED)
    for i in range(ids.shape[0]):
        block = ids[i]
        if block != 0:
            row_written(rows, block, now, float((first + i) * block_size), float(prompt), 0.0)
            if GENERATED >= 0:
                rows[block, GENERATED] = 1.0 if (first + i + 1) * block_size > prompt else 0.0
            hashed[block] = 1


@_jit
def unhashed(state, block, unscored):
    """A block lost its hash otherwise than as a victim; one that is queued rests on without it."""
    ring, pos, ends = _queue(state)
    _u1(state, _HASHED)[block] = 0
    if pos[block] == -1:
        return
    rows = _rows(state)
    row_released(rows, block, rows[block, LAST_USE] if LAST_USE >= 0 else 0.0, 0)
    lone = _u4(state, _LOWS)[:1]
    lone[0] = block
    settle_rows(state, lone)
    at = pos[block] & (ring.shape[0] - 1)
    if HEAP and ring[at] < UNSCORED:
        _leave_heap(state, block)
        if not unscored:
            enter_heap(state, lone)
    if unscored and ring[at] < UNSCORED:
        ring[at] = block + UNSCORED
        ends[_STRAYS] += 1


@_jit
def pick(state, table, n, free, extra):
    """Choose n of the free blocks into the section _OUT; they leave the queue and lose their hash.

    Answers _OUT_OF_STEP if the queue is not so long as the engine's, _FAULT if a key was not finite
    and so the engine's own order holds, _IN_ORDER if the choice happens to be that, else _PICKED.
    """
    ring, pos, ends = _queue(state)
    if ends[2] != free or free < n:
        return _OUT_OF_STEP
    hashed, out = _u1(state, _HASHED), _u4(state, _OUT)
    answer = _PICKED
    if HEAP and ends[_STRAYS] == 0:
        decided, fault = heap_take(
            ring, pos, ends, _f8(state, _ENTRY_KEYS).reshape(-1, KEY_COUNT), _u4(state, _ENTRY_BLOCK),
            _i8(state, _ENTRY_STAMP), _i8(state, _HEAP), _i8(state, _STAMP), _u1(state, _BAD), n, out,
        )  # fmt: skip
        if decided == 0:
            answer = _IN_ORDER
    else:
        answer, decided, fault = _scan(state, table, n, extra)
    ends[_DECISIONS] += decided
    ends[_FAULTS] += fault
    for i in range(n):
        hashed[out[i]] = 0
    return _FAULT if fault != 0 else answer


@_jit
def fill_counts(settled, table, ids, n):
    """Write what is counted by hash into the settled rows of n blocks; see `Hashes`."""
    for j in range(n):
        own = table[ids[j], _OWN]
        if CHILDREN >= 0:
            settled[ids[j], CHILDREN] = float(table[own, _CHILD_COUNT]) if own >= 0 else 0.0
        if WAITING_REFS >= 0:
            settled[ids[j], WAITING_REFS] = float(table[own, _WAITING_COUNT]) if own >= 0 else 0.0


@_jit
def _scan(state, table, n, extra):
    ring, pos, ends = _queue(state)
    plain, scored, out = _u4(state, _PLAIN), _u4(state, _SCORED), _u4(state, _OUT)
    flat, scratch = _f8(state, _KEYS), _f8(state, _SCRATCH)
    keys, settled = flat.reshape(-1, KEY_COUNT), _settled(state)
    plains, rated = ring_consider(ring, pos, ends, n, extra, plain, scored)
    decided = 0
    if plains < n:
        decided = 1
        if CHILDREN >= 0 or WAITING_REFS >= 0:
            fill_counts(settled, table, scored, rated)
        order(_f8(state, _DECISION), settled, scored, rated, keys, scratch)
    fault = ring_take(
        ring, pos, ends, n, plain, plains, scored, rated, keys, flat, _u4(state, _LOWS), scratch, out
    )
    if HEAP:
        for i in range(n):
            _leave_heap(state, out[i])
    same = rated == 0
    if not same and plains == 0:
        same = True
        for i in range(n):
            same = same and out[i] == scored[i]
    return _IN_ORDER if same else _PICKED, decided, fault
