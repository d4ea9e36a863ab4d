"""A lazy heap for static orders: keys that rest while the block rests.

With `candidates all` and static keys, a block's keys are computed once, when it
enters the free queue, and the lowest are popped in O(log n). Entries of blocks that
left the queue meanwhile go stale and are dropped when met. An entry is valid when
its stamp is still the block's stamp; a block that leaves the queue loses it.

Arrays (B block ids, E entries): entry_keys: float64[E, keys], entry_block: uint32[E],
entry_stamp: int64[E], stamp: int64[B], bad: uint8[B] (1: queued with a key that is not
finite), heap: int64[3] (entries in use, last stamp given, bad blocks queued).

Every function here is also copied, as text, into the emitted vLLM file.
"""

from tanren_dsl.kernels.free_ring import EMPTY, LOW, UNSCORED, all_finite, ring_remove
from tanren_dsl.kernels.jit import inlined

HEAP_SIZE = 0
LAST_STAMP = 1
BAD = 2


@inlined
def entry_less(entry_keys, entry_stamp, a, b):
    """Whether entry a stands before entry b: keys ascending, then the engine's own order."""
    for k in range(entry_keys.shape[1]):
        if entry_keys[a, k] < entry_keys[b, k]:
            return True
        if entry_keys[b, k] < entry_keys[a, k]:
            return False
    return entry_stamp[a] < entry_stamp[b]


@inlined
def entry_swap(entry_keys, entry_block, entry_stamp, a, b):
    """Exchange two entries."""
    for k in range(entry_keys.shape[1]):
        entry_keys[a, k], entry_keys[b, k] = entry_keys[b, k], entry_keys[a, k]
    entry_block[a], entry_block[b] = entry_block[b], entry_block[a]
    entry_stamp[a], entry_stamp[b] = entry_stamp[b], entry_stamp[a]


@inlined
def entry_up(entry_keys, entry_block, entry_stamp, child):
    """Restore the heap upwards from an entry."""
    while child > 0:
        parent = (child - 1) >> 1
        if not entry_less(entry_keys, entry_stamp, child, parent):
            break
        entry_swap(entry_keys, entry_block, entry_stamp, child, parent)
        child = parent


@inlined
def entry_down(entry_keys, entry_block, entry_stamp, hole, size):
    """Restore the heap downwards from an entry."""
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and entry_less(entry_keys, entry_stamp, child + 1, child):
            child += 1
        if not entry_less(entry_keys, entry_stamp, child, hole):
            break
        entry_swap(entry_keys, entry_block, entry_stamp, child, hole)
        hole = child


@inlined
def heap_push(entry_keys, entry_block, entry_stamp, size, stamp, keys, row, block):
    """Add a block with the keys in a row of `keys`; returns the new size. Drops stale entries when full."""
    if size == entry_block.shape[0]:
        live = 0
        for i in range(size):
            owner = entry_block[i]
            if stamp[owner] == entry_stamp[i]:
                entry_swap(entry_keys, entry_block, entry_stamp, live, i)
                live += 1
        size = live
        for i in range(size // 2 - 1, -1, -1):
            entry_down(entry_keys, entry_block, entry_stamp, i, size)
    for k in range(entry_keys.shape[1]):
        entry_keys[size, k] = keys[row, k]
    entry_block[size] = block
    entry_stamp[size] = stamp[block]
    entry_up(entry_keys, entry_block, entry_stamp, size)
    return size + 1


@inlined
def heap_pop(entry_keys, entry_block, entry_stamp, size, stamp):
    """Drop the lowest entry; returns (its block, the new size), block -1 if it was stale."""
    block = entry_block[0]
    if stamp[block] != entry_stamp[0]:
        block = -1
    size -= 1
    if size > 0:
        entry_swap(entry_keys, entry_block, entry_stamp, 0, size)
        entry_down(entry_keys, entry_block, entry_stamp, 0, size)
    return block, size


@inlined
def heap_enter(keys, row, entry_keys, entry_block, entry_stamp, heap, stamp, bad, block):
    """A block enters the free queue; a row of `keys` holds its keys."""
    heap[LAST_STAMP] += 1
    stamp[block] = heap[LAST_STAMP]
    if all_finite(keys[row], keys.shape[1]):
        heap[HEAP_SIZE] = heap_push(
            entry_keys, entry_block, entry_stamp, heap[HEAP_SIZE], stamp, keys, row, block
        )
    else:
        bad[block] = 1
        heap[BAD] += 1


@inlined
def heap_leave(heap, stamp, bad, block):
    """A block leaves the free queue otherwise than by `heap_take`."""
    stamp[block] = -1
    if bad[block] != 0:
        bad[block] = 0
        heap[BAD] -= 1


@inlined
def heap_take(ring, pos, ends, entry_keys, entry_block, entry_stamp, heap, stamp, bad, n, out):
    """Choose n free blocks into `out`: the unscored ones in front, then the lowest. Modifies the queue.

    Any key that is not finite among the queued blocks: the engine's own order. Returns
    (1 if keys decided or should have, 1 for such a fault).
    """
    filled = 0
    mask = ring.shape[0] - 1
    while filled < n:
        entry = ring[ends[0] & mask]
        if entry < UNSCORED:
            break
        if entry != EMPTY:
            out[filled] = entry & LOW
            ring_remove(ring, pos, ends, out[filled])
            filled += 1
        ends[0] += 1
    if filled == n:
        return 0, 0
    if heap[BAD] > 0:
        while filled < n:
            entry = ring[ends[0] & mask]
            if entry != EMPTY:
                block = entry & LOW
                out[filled] = block
                filled += 1
                ring_remove(ring, pos, ends, block)
                heap_leave(heap, stamp, bad, block)
            ends[0] += 1
        return 1, 1
    size = heap[HEAP_SIZE]
    while filled < n:
        block, size = heap_pop(entry_keys, entry_block, entry_stamp, size, stamp)
        if block >= 0:
            out[filled] = block
            filled += 1
            stamp[block] = -1
            ring_remove(ring, pos, ends, block)
    heap[HEAP_SIZE] = size
    return 1, 0
