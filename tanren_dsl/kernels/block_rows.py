"""How the per-block signals are kept: one row of doubles a block, updated at each event.

Columns are found by `signals.column_of`; two of them are helpers of our own: when the
block was last used, and the mark of its last spaced use (before the first one, `created`).
The decision vector is `signals.DECISION_ORDER`. `tally` holds the moving means:
[mean gap, hits, hit rate, admissions, service rate, steps with time].

Every function here is also copied, as text, into the emitted vLLM file. There a row holds
only the columns that its policy needs: the constants of the others are -1, and what would
keep them falls away.
"""

import numpy as np

from tanren_dsl import signals
from tanren_dsl.kernels.jit import inlined
from tanren_dsl.signals import GAP_WINDOW, ROW_WIDTH, column_of

LAST_USE = column_of("evict", "last_use")
CREATED = column_of("evict", "created")
GAP = column_of("evict", "gap")
DEPTH = column_of("evict", "depth")
CHAIN = column_of("evict", "chain")
USES = column_of("evict", "uses")
SPACED_USES = column_of("evict", "spaced_uses")
GHOST_USES = column_of("evict", "ghost_uses")
CHILDREN = column_of("evict", "children")
GENERATED = column_of("evict", "generated")
WAITING_REFS = column_of("evict", "waiting_refs")
USED_AT = column_of("evict", signals.USED_AT)
MARK = column_of("evict", signals.MARK)

HUGE = 1 << 22
"""From so many bytes on, NumPy asks for huge pages, which spare the translation of addresses."""
GAPS = float(GAP_WINDOW)


@inlined
def row_written(rows, block, now, depth, chain, ghost_uses):
    """A block got its hash; `generated` and `children` are the caller's to keep."""
    row = rows[block]
    if USES >= 0:
        row[USES] = 0.0
    if DEPTH >= 0:
        row[DEPTH] = depth
    if CHAIN >= 0:
        row[CHAIN] = chain
    if GAP >= 0:
        row[GAP] = 0.0
    if SPACED_USES >= 0:
        row[SPACED_USES] = 0.0
    if USED_AT >= 0:
        row[USED_AT] = now
    if CREATED >= 0:
        row[CREATED] = now
    if GHOST_USES >= 0:
        row[GHOST_USES] = ghost_uses


@inlined
def row_used(rows, block, now, chain, mean_gap):
    """An admission hit a block. Returns the gap, which belongs into the mean gap."""
    row = rows[block]
    gap = 0.0
    if USED_AT >= 0:
        gap = now - row[USED_AT]
        row[USED_AT] = now
    if GAP >= 0:
        row[GAP] = gap
    if USES >= 0:
        row[USES] += 1.0
    if SPACED_USES >= 0:
        mark = row[MARK] if row[SPACED_USES] > 0.0 else row[CREATED]
        spaced = now - mark >= mean_gap
        row[SPACED_USES] += 1.0 if spaced else 0.0
        row[MARK] = now if spaced else mark
    if CHAIN >= 0:
        row[CHAIN] = chain if chain > row[CHAIN] else row[CHAIN]
    return gap


@inlined
def row_released(rows, block, now, hashed):
    """A block entered the free queue; one without a hash keeps nothing but the moment."""
    row = rows[block]
    if hashed == 0:
        for c in range(rows.shape[1]):
            row[c] = 0.0
        if CREATED >= 0:
            row[CREATED] = now
    if LAST_USE >= 0:
        row[LAST_USE] = now


def new_rows(blocks: int) -> np.ndarray:
    """Rows of zeros, each on cache lines of its own: float64[blocks, ROW_WIDTH]."""
    room = np.empty(max(blocks * ROW_WIDTH + 8, HUGE // 8))
    room.fill(0.0)
    start = -(room.ctypes.data // 8) % 8
    return room[start : start + blocks * ROW_WIDTH].reshape(blocks, ROW_WIDTH)
