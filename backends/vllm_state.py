"""The emitted file's memory: every array that its compiled functions share, in one piece.

Calling a compiled function costs by the number of arrays handed over, so all of them live in
one (`state`, bytes), and each function takes the views that it needs. A view is two loads and an
addition: NumPy's own slicing and its counting of references would be most of a function's code.

Copied, below the marker line, before `vllm_kernels.py`; above it stand stand-ins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tanren_dsl.kernels.decision import TALLY_WIDTH

DECISION_WIDTH = 12
KEY_COUNT = 1
ROW_WIDTH = 16
SETTLED = 1
SETTLED_WIDTH = 1
HEAP = False
HAVE_NUMBA = False
KNOBS: tuple[tuple[str, float, float], ...] = ()


def _jit(function: Any) -> Any:
    return function


# ======== runtime ========

# Sections of the state: where each begins and ends stands in its first 512 bytes. What is read of every
# considered block, _SETTLED, stands by its place in the ring, so that it is read in order; the rest by id.
(
    _POS, _ENDS, _ROWS, _SETTLED, _FRESH, _DECISION, _TALLY, _KEYS, _SCRATCH, _PLAIN, _SCORED, _SLOTS, _LOWS,
    _OUT, _RING, _HASHED, _ENTRY_KEYS, _ENTRY_BLOCK, _ENTRY_STAMP, _STAMP, _BAD, _HEAP,
) = range(22)  # fmt: skip
# In _ENDS, behind head, tail and count. _LEFT: blocks that the step's ranking still names; it stands in
# _OUT, of which those before _NEXT are taken and those before _GONE have left the mirror. _FRONTIER: the
# position before which the considered blocks are, _FRONT many. (The last two where there is a heap.)
_DECISIONS, _FAULTS, _STRAYS, _LEFT, _NEXT, _GONE, _FRONTIER, _FRONT = range(3, 11)
_OUT_OF_STEP, _PICKED, _IN_ORDER, _STANDS, _FAULT = range(5)  # what `pick` answers
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
    view(state, _POS, np.int64)[:] = -1
    ends = view(state, _ENDS, np.int64)
    ends[:2] = ends[_FRONTIER] = 1 << 40
    return state


def _sizes(blocks: int) -> tuple[int, ...]:
    entries = 4 * blocks + 64 if HEAP else 0
    heaped = blocks if HEAP else 0
    ring = 1 << max(4, (2 * blocks + 2).bit_length())
    return (
        8 * blocks, 8 * 16, 8 * blocks * ROW_WIDTH, 8 * ring * SETTLED_WIDTH, 8 * blocks * max(1, SETTLED),
        8 * (DECISION_WIDTH + len(KNOBS)), 8 * TALLY_WIDTH,
        8 * blocks * KEY_COUNT, 8 * blocks, 4 * blocks, 4 * blocks, 4 * blocks, 4 * blocks,
        4 * blocks, 4 * ring, blocks,
        8 * entries * KEY_COUNT, 4 * entries, 8 * entries, 8 * heaped, heaped, 8 * 3,
    )  # fmt: skip


def view(state: Any, section: int, kind: Any) -> Any:
    """One section as an array."""
    at = state[:512].view(np.int64)
    return state[at[2 * section] : at[2 * section + 1]].view(kind)


def queue_of(state: Any) -> Any:
    """The ring, the places in it and its ends."""
    return view(state, _RING, np.uint32), view(state, _POS, np.int64), view(state, _ENDS, np.int64)


def _compiled_views() -> Any:
    """What compiled functions have in place of `view`, by kind: two loads and an addition."""
    from numba.core import types
    from numba.extending import intrinsic
    from numba.np.arrayobj import make_array, populate_array

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = signature.return_type
        word = context.get_value_type(types.int64)
        size = word(array.dtype.bitwidth // 8)
        start = make_array(signature.args[0])(context, builder, args[0]).data
        marks = builder.bitcast(start, word.as_pointer())
        place = builder.mul(args[1], word(2))
        first = builder.load(builder.gep(marks, [place]))
        last = builder.load(builder.gep(marks, [builder.add(place, word(1))]))
        shape, strides = [builder.udiv(builder.sub(last, first), size)], [size]
        if array.ndim == 2:
            shape = [builder.udiv(shape[0], args[2]), args[2]]
            strides = [builder.mul(args[2], size), size]
        out = make_array(array)(context, builder)
        data = builder.bitcast(builder.gep(start, [first]), out.data.type)
        populate_array(out, data, shape, strides, size, None)
        return out._getvalue()

    def flat(kind: Any) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def part(_context: Any, state: Any, _section: Any) -> Any:
            return types.Array(kind, 1, "C")(state, types.int64), generate

        return part

    @intrinsic  # type: ignore[untyped-decorator]
    def table(_context: Any, state: Any, _section: Any, _width: Any) -> Any:
        return types.Array(types.float64, 2, "C")(state, types.int64, types.int64), generate

    return *map(flat, (types.float64, types.int64, types.uint32, types.uint8)), table


def _plain_views() -> Any:
    def flat(kind: Any) -> Any:
        return lambda state, section: view(state, section, kind)

    def table(state: Any, section: int, width: int) -> Any:
        return view(state, section, np.float64).reshape(-1, width)

    return *map(flat, (np.float64, np.int64, np.uint32, np.uint8)), table


_f8, _i8, _u4, _u1, _table = _compiled_views() if HAVE_NUMBA else _plain_views()


@_jit
def _queue(state):
    return _u4(state, _RING), _i8(state, _POS), _i8(state, _ENDS)
