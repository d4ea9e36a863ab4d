"""The emitted file's choice of victims: a scan of the considered set, or a heap over it.

Copied, below the marker line, behind `vllm_kernels.py`; above it stand stand-ins.
"""

from typing import Any

from tanren_dsl.backends.vllm_kernels import catch_up, close_gaps
from tanren_dsl.backends.vllm_state import (
    _BAD,
    _CHILD_COUNT,
    _DECISION,
    _DECISIONS,
    _ENDS,
    _ENTRY_BLOCK,
    _ENTRY_KEYS,
    _ENTRY_STAMP,
    _FAULT,
    _FAULTS,
    _FRONT,
    _FRONTIER,
    _GONE,
    _HASHED,
    _HEAP,
    _IN_ORDER,
    _KEYS,
    _LEFT,
    _LOWS,
    _NEXT,
    _OUT,
    _OUT_OF_STEP,
    _OWN,
    _PICKED,
    _PLAIN,
    _SCORED,
    _SCRATCH,
    _SETTLED,
    _SLOTS,
    _STAMP,
    _STANDS,
    _STRAYS,
    _WAITING_COUNT,
    HEAP,
    KEY_COUNT,
    SETTLED_WIDTH,
    _f8,
    _i8,
    _jit,
    _queue,
    _table,
    _u1,
    _u4,
)
from tanren_dsl.kernels.block_rows import CHILDREN, WAITING_REFS
from tanren_dsl.kernels.free_ring import EMPTY, LOW, UNSCORED, ring_take, spare_of
from tanren_dsl.kernels.static_heap import heap_enter, heap_take


def order(decision: Any, rows: Any, ids: Any, n: int, keys: Any, scratch: Any) -> None:
    """The policy's keys, from the settled rows; see `kernels/abi.py`."""


# ======== runtime ========


@_jit
def pick(state, table, n, free, extra):
    """Choose n of the free blocks; they leave the queue and lose their hash.

    Answers _OUT_OF_STEP if the queue is not so long as the engine's, _FAULT if a key was not finite
    and so the engine's own order holds, _IN_ORDER if the choice happens to be that, _PICKED: they are
    the first of the section _OUT, or _STANDS: the next of it, for the step's ranking still stands.
    """
    catch_up(state)
    ends = _i8(state, _ENDS)
    if ends[2] != free or free < n:
        return _OUT_OF_STEP
    hashed, out = _u1(state, _HASHED), _u4(state, _OUT)
    stands = n <= ends[_LEFT]
    if HEAP and ends[_STRAYS] == 0:
        answer, fault = _pop(state, n, extra, stands)
    elif stands:
        ends[_NEXT] += n
        catch_up(state)
        return _STANDS
    else:
        answer, fault = _scan(state, table, n, extra)
    ends[_FAULTS] += fault
    for i in range(n):
        hashed[out[i]] = 0
    return _FAULT if fault != 0 else answer


@_jit
def _pop(state, n, extra, stands):
    ring, pos, ends = _queue(state)
    out, lows = _u4(state, _OUT), _u4(state, _LOWS)
    considered = min(n + extra, ends[2])
    if not stands:
        _advance(state, considered)
    firsts = _first_queued(state, n)
    decided, fault = heap_take(
        ring, pos, ends, _table(state, _ENTRY_KEYS, KEY_COUNT), _u4(state, _ENTRY_BLOCK),
        _i8(state, _ENTRY_STAMP), _i8(state, _HEAP), _i8(state, _STAMP), _u1(state, _BAD), n, out,
    )  # fmt: skip
    ends[_FRONT] -= n
    if stands:
        ends[_LEFT] -= n
    else:
        ends[_DECISIONS] += decided
        ends[_LEFT] = spare_of(considered, n) if decided > fault else 0
    for i in range(firsts):
        if lows[i] != out[i]:
            return _PICKED, fault
    return _IN_ORDER if firsts == n else _PICKED, fault


@_jit
def _advance(state, considered):
    """The first `considered` blocks of the queue are considered; the heap learns of those it did not know."""
    ring, _, ends = _queue(state)
    scored, slots, mask, known = _u4(state, _SCORED), _u4(state, _SLOTS), ring.shape[0] - 1, 0
    while ends[_FRONT] < considered:
        slot = ends[_FRONTIER] & mask
        entry = ring[slot]
        ends[_FRONTIER] += 1
        if entry != EMPTY:
            ends[_FRONT] += 1
            if entry < UNSCORED:
                scored[known] = entry
                slots[known] = slot
                known += 1
    if known > 0:
        _enter_heap(state, known)


@_jit
def _first_queued(state, n):
    """The first n blocks of the queue into _LOWS, or fewer if they stand too far apart. Returns how many."""
    ring, _, ends = _queue(state)
    lows, mask, at, count = _u4(state, _LOWS), ring.shape[0] - 1, ends[0], 0
    last = min(ends[1], at + 2 * n + 64)
    while count < n and at < last:
        entry = ring[at & mask]
        at += 1
        if entry != EMPTY:
            lows[count] = entry & LOW
            count += 1
    return count


@_jit
def fill_counts(settled, table, ids, slots, n):
    """Write what is counted by hash into the settled rows of n blocks; see `Hashes`."""
    for j in range(n):
        own = table[ids[j], _OWN]
        if CHILDREN >= 0:
            settled[slots[j], CHILDREN] = float(table[own, _CHILD_COUNT]) if own >= 0 else 0.0
        if WAITING_REFS >= 0:
            settled[slots[j], WAITING_REFS] = float(table[own, _WAITING_COUNT]) if own >= 0 else 0.0


@_jit
def _consider(state, n, extra):
    """The considered set, as the simulator takes it; with the places of the scored blocks in the ring.

    Returns the numbers of both and the position behind the considered set.
    """
    ring, _, ends = _queue(state)
    plain, scored, slots = _u4(state, _PLAIN), _u4(state, _SCORED), _u4(state, _SLOTS)
    mask, want, at = ring.shape[0] - 1, min(n + extra, ends[2]), ends[0]
    plains = rated = 0
    while plains + rated < want:
        slot = at & mask
        entry = ring[slot]
        at += 1
        if entry < UNSCORED:
            scored[rated] = entry
            slots[rated] = slot
            rated += 1
        elif entry != EMPTY:
            plain[plains] = entry & LOW
            plains += 1
            if plains == n and rated == 0:
                break
    return plains, rated, at


@_jit
def _scan(state, table, n, extra):
    ring, pos, ends = _queue(state)
    plain, scored, slots = _u4(state, _PLAIN), _u4(state, _SCORED), _u4(state, _SLOTS)
    flat, scratch, out = _f8(state, _KEYS), _f8(state, _SCRATCH), _u4(state, _OUT)
    keys, settled = _table(state, _KEYS, KEY_COUNT), _table(state, _SETTLED, SETTLED_WIDTH)
    plains, rated, behind = _consider(state, n, extra)
    spare = 0
    if plains < n:
        ends[_DECISIONS] += 1
        spare = spare_of(plains + rated, n)
        if CHILDREN >= 0 or WAITING_REFS >= 0:
            fill_counts(settled, table, scored, slots, rated)
        order(_f8(state, _DECISION), settled, slots, rated, keys, scratch)
    fault = ring_take(
        ring, pos, ends, n, spare, plain, plains, scored, rated, keys, flat, _u4(state, _LOWS), scratch, out
    )
    ends[_LEFT] = spare if fault == 0 else 0
    ends[_NEXT] = ends[_GONE] = n
    if behind - ends[0] > 2 * (plains + rated) + 64:
        close_gaps(state, behind)
    same = rated == 0
    if not same and plains == 0:
        same = True
        for i in range(n):
            same = same and out[i] == scored[i]
    return _IN_ORDER if same else _PICKED, fault


@_jit
def _enter_heap(state, n):
    """The heap learns of the n blocks in _SCORED, whose keys will not change."""
    scored, slots, keys = _u4(state, _SCORED), _u4(state, _SLOTS), _table(state, _KEYS, KEY_COUNT)
    settled = _table(state, _SETTLED, SETTLED_WIDTH)
    order(_f8(state, _DECISION), settled, slots, n, keys, _f8(state, _SCRATCH))
    entry_keys, entry_block = _table(state, _ENTRY_KEYS, KEY_COUNT), _u4(state, _ENTRY_BLOCK)
    entry_stamp, stamp = _i8(state, _ENTRY_STAMP), _i8(state, _STAMP)
    heap, bad = _i8(state, _HEAP), _u1(state, _BAD)
    for j in range(n):
        heap_enter(keys, j, entry_keys, entry_block, entry_stamp, heap, stamp, bad, scored[j])
