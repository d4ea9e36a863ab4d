"""The emitted file's kernels: what is kept of the free queue and of every block.

The functions are also what runs, as plain Python, where there is no Numba.

`backends/vllm.py` copies everything below the marker line into the file it emits,
behind `vllm_state.py`. Above the marker stand stand-ins, so that this module can be read
and linted as it is. It never runs from here.
"""

from typing import Any

from tanren_dsl.backends.vllm_state import (
    _BAD,
    _DECISION,
    _FRESH,
    _FRONT,
    _FRONTIER,
    _GONE,
    _HASHED,
    _HEAP,
    _LEFT,
    _LOWS,
    _NEXT,
    _OUT,
    _ROWS,
    _SCRATCH,
    _SETTLED,
    _STAMP,
    _STRAYS,
    _TALLY,
    ROW_WIDTH,
    SETTLED_WIDTH,
    _f8,
    _i8,
    _queue,
    _table,
    _u1,
    _u4,
)
from tanren_dsl.kernels.block_rows import GAPS, GENERATED, LAST_USE, row_released, row_used, row_written
from tanren_dsl.kernels.decision import MEAN_GAP, moving_mean
from tanren_dsl.kernels.free_ring import (
    EMPTY,
    LOW,
    UNSCORED,
    ring_push_back,
    ring_push_front,
    ring_remove,
)
from tanren_dsl.kernels.static_heap import BAD, HEAP_SIZE, heap_leave

SETTLED = 1
HEAP = False


def _jit(function: Any) -> Any:
    return function


def settle(decision: Any, rows: Any, ids: Any, n: int, keys: Any, scratch: Any) -> None:
    """What of the keys is known when a block begins to rest, from the books' rows."""


# ======== runtime ========


@_jit
def settle_rows(state, ids):
    """These blocks begin to rest: keep what of their keys is known."""
    if SETTLED > 0:
        fresh, settled = _table(state, _FRESH, SETTLED), _table(state, _SETTLED, SETTLED_WIDTH)
        ring, pos, _ = _queue(state)
        n, mask = ids.shape[0], ring.shape[0] - 1
        settle(_f8(state, _DECISION), _table(state, _ROWS, ROW_WIDTH), ids, n, fresh, _f8(state, _SCRATCH))
        for j in range(n):
            for c in range(SETTLED):
                settled[pos[ids[j]] & mask, c] = fresh[j, c]


@_jit
def catch_up(state):
    """Blocks that were taken from the standing ranking without a call leave the mirror."""
    ring, pos, ends = _queue(state)
    if ends[_NEXT] > ends[_GONE]:
        hashed, out = _u1(state, _HASHED), _u4(state, _OUT)
        for i in range(ends[_GONE], ends[_NEXT]):
            ring_remove(ring, pos, ends, out[i])
            hashed[out[i]] = 0
        ends[_LEFT] -= ends[_NEXT] - ends[_GONE]
        ends[_GONE] = ends[_NEXT]


@_jit
def close_gaps(state, upto):
    """Close the gaps in the ring before position `upto`, towards it; the order does not change."""
    ring, pos, ends = _queue(state)
    settled, mask = _table(state, _SETTLED, SETTLED_WIDTH), ring.shape[0] - 1
    write = upto
    for read in range(upto - 1, ends[0] - 1, -1):
        entry = ring[read & mask]
        if entry != EMPTY:
            write -= 1
            if write != read:
                ring[write & mask] = entry
                pos[entry & LOW] = write
                for c in range(SETTLED):
                    settled[write & mask, c] = settled[read & mask, c]
    ends[0] = write


@_jit
def released(state, ids, now, unscored):
    """Blocks enter the free queue at its back, in this order; `unscored`: at its front, the first as head."""
    catch_up(state)
    ring, pos, ends = _queue(state)
    rows, hashed = _table(state, _ROWS, ROW_WIDTH), _u1(state, _HASHED)
    n = ids.shape[0]
    ends[_LEFT] = 0
    if ends[1] - ends[0] + n > ring.shape[0]:
        close_gaps(state, ends[1])
        ends[_FRONTIER] = ends[1] - ends[2] + ends[_FRONT]
    if unscored:
        for i in range(n - 1, -1, -1):
            ring_push_front(ring, pos, ends, ids[i], UNSCORED)
        ends[_FRONT] += n
        return
    for i in range(n):
        row_released(rows, ids[i], now, hashed[ids[i]])
        ring_push_back(ring, pos, ends, ids[i], 0)
    settle_rows(state, ids)


@_jit
def taken_back(state, ids):
    """Blocks are held again; those in the free queue leave it."""
    catch_up(state)
    ring, pos, ends = _queue(state)
    for i in range(ids.shape[0]):
        if pos[ids[i]] != -1:
            if HEAP and pos[ids[i]] < ends[_FRONTIER]:
                ends[_FRONT] -= 1
                heap_leave(_i8(state, _HEAP), _i8(state, _STAMP), _u1(state, _BAD), ids[i])
            ring_remove(ring, pos, ends, ids[i])
            ends[_LEFT] = 0


@_jit
def used(state, ids, now, chain):
    """An admission hits these blocks, in chain order; those in the free queue leave it."""
    taken_back(state, ids)
    rows, tally = _table(state, _ROWS, ROW_WIDTH), _f8(state, _TALLY)
    mean_gap = _f8(state, _DECISION)[MEAN_GAP]
    for i in range(ids.shape[0]):
        if ids[i] != 0:  # the null block stands for what was never computed
            moving_mean(tally, 0, row_used(rows, ids[i], now, chain, mean_gap), GAPS)


@_jit
def written(state, ids, spans, block_size):
    """Blocks got their hash: of each span (how many, when, number of the first in its chain, prompt)."""
    catch_up(state)
    rows, hashed = _table(state, _ROWS, ROW_WIDTH), _u1(state, _HASHED)
    at = 0
    for k in range(0, spans.shape[0], 4):
        now, first, prompt = spans[k + 1], int(spans[k + 2]), spans[k + 3]
        for i in range(int(spans[k])):
            block = ids[at]
            at += 1
            if block != 0:
                row_written(rows, block, now, float((first + i) * block_size), prompt, 0.0)
                if GENERATED >= 0:
                    rows[block, GENERATED] = 1.0 if (first + i + 1) * block_size > prompt else 0.0
                hashed[block] = 1


@_jit
def unhashed(state, block, unscored):
    """A block lost its hash otherwise than as a victim; one that is queued rests on without it."""
    catch_up(state)
    ring, pos, ends = _queue(state)
    _u1(state, _HASHED)[block] = 0
    if pos[block] == -1:
        return
    lone = _u4(state, _LOWS)[:1]
    lone[0] = block
    _forget(state, lone)
    at = pos[block] & (ring.shape[0] - 1)
    if unscored and ring[at] < UNSCORED:
        ring[at] = block + UNSCORED
    ends[_STRAYS] += 1
    ends[_LEFT] = 0


@_jit
def _forget(state, ids):
    rows = _table(state, _ROWS, ROW_WIDTH)
    for i in range(ids.shape[0]):
        row_released(rows, ids[i], rows[ids[i], LAST_USE] if LAST_USE >= 0 else 0.0, 0)
    settle_rows(state, ids)


@_jit
def all_unhashed(state, unscored):
    """All hashes are gone; what is queued rests on, in the same order."""
    catch_up(state)
    ring, _, ends = _queue(state)
    lows, mask, count = _u4(state, _LOWS), ring.shape[0] - 1, 0
    for at in range(ends[0], ends[1]):
        entry = ring[at & mask]
        if entry < UNSCORED:
            lows[count] = entry
            count += 1
            if unscored:
                ring[at & mask] = entry + UNSCORED
    _forget(state, lows[:count])
    _u1(state, _HASHED)[:] = 0
    ends[_LEFT] = ends[_STRAYS] = 0
    if HEAP:
        _i8(state, _HEAP)[HEAP_SIZE] = _i8(state, _HEAP)[BAD] = 0
        _i8(state, _STAMP)[:] = -1
        _u1(state, _BAD)[:] = 0
        ends[_FRONTIER], ends[_FRONT] = ends[0], 0
