"""The free queue of an engine as flat arrays, and the choice of victims from it.

The queue is a ring of block ids. A block's position counts up without end; its slot
is the position masked. Taking a block out of the middle only forgets its position,
so the slot goes stale and is skipped. Entry `p` is valid when `pos[ring[p & mask]] == p`.

Arrays (B block ids in all, ring size a power of two, at least twice B):
    ring: uint32[size], pos: int64[B] (-1: not in the queue), ends: int64[3] (head, tail, count).

Every function here is also copied, as text, into the emitted vLLM file.
"""

import numpy as np

from tanren_dsl.kernels.jit import inlined


@inlined
def ring_push_back(ring, pos, ends, block):
    """Append a block. Modifies the queue; makes room by dropping stale slots."""
    if ends[1] - ends[0] == ring.shape[0]:
        ring_compact(ring, pos, ends)
    ring[ends[1] & (ring.shape[0] - 1)] = block
    pos[block] = ends[1]
    ends[1] += 1
    ends[2] += 1


@inlined
def ring_push_front(ring, pos, ends, block):
    """Prepend a block. Modifies the queue; makes room by dropping stale slots."""
    if ends[1] - ends[0] == ring.shape[0]:
        ring_compact(ring, pos, ends)
    ends[0] -= 1
    ring[ends[0] & (ring.shape[0] - 1)] = block
    pos[block] = ends[0]
    ends[2] += 1


@inlined
def ring_remove(pos, ends, block):
    """Take a block out, wherever it stands. Modifies the queue."""
    pos[block] = -1
    ends[2] -= 1


@inlined
def ring_compact(ring, pos, ends):
    """Close all gaps towards the tail; the order does not change."""
    mask = ring.shape[0] - 1
    write = ends[1]
    for read in range(ends[1] - 1, ends[0] - 1, -1):
        block = ring[read & mask]
        if pos[block] == read:
            write -= 1
            ring[write & mask] = block
            pos[block] = write
    ends[0] = write


@inlined
def ring_pop_front(ring, pos, ends, n, out):
    """Take the first n blocks in the engine's own order into `out`. Modifies the queue."""
    mask = ring.shape[0] - 1
    at = ends[0]
    found = 0
    while found < n:
        block = ring[at & mask]
        if pos[block] == at:
            pos[block] = -1
            out[found] = block
            found += 1
        at += 1
    ends[0] = at
    ends[2] -= n


@inlined
def ring_consider(ring, pos, ends, n, extra, unscored, seen, scored):
    """The considered set of an allocation of n blocks: the first n + extra free ones.

    `seen` gets them all in the engine's order, `scored` those that are not marked in
    `unscored`. Stops early when the first n are all unscored, for then those are taken.
    Returns (number seen, number scored). May close gaps; the order does not change.
    """
    mask = ring.shape[0] - 1
    want = min(n + extra, ends[2])
    at = ends[0]
    found = 0
    rated = 0
    while found < want:
        block = ring[at & mask]
        if pos[block] == at:
            seen[found] = block
            found += 1
            if unscored[block] == 0:
                scored[rated] = block
                rated += 1
            if found == n and rated == 0:
                break
        at += 1
    if at - ends[0] > 2 * found + 64:
        write = at
        for i in range(found - 1, -1, -1):
            write -= 1
            ring[write & mask] = seen[i]
            pos[seen[i]] = write
        ends[0] = write
    return found, rated


@inlined
def keys_less(keys, a, b):
    """Whether row a stands before row b: keys ascending, then the engine's own order."""
    for k in range(keys.shape[1]):
        if keys[a, k] < keys[b, k]:
            return True
        if keys[b, k] < keys[a, k]:
            return False
    return a < b


@inlined
def keys_finite(keys, n):
    """Whether the first n rows hold no inf and no nan."""
    for i in range(n):
        for k in range(keys.shape[1]):
            if not (-1.7976931348623157e308 <= keys[i, k] <= 1.7976931348623157e308):
                return False
    return True


@inlined
def lowest_rows(keys, n, want, heap):
    """Indices of the `want` lowest of the first n rows, ascending, into `heap`."""
    size = 0
    for i in range(n):
        if size < want:
            child = size
            size += 1
            while child > 0:
                parent = (child - 1) >> 1
                if not keys_less(keys, heap[parent], i):
                    break
                heap[child] = heap[parent]
                child = parent
            heap[child] = i
        elif keys[i, 0] > keys[heap[0], 0]:
            continue
        elif keys_less(keys, i, heap[0]):
            heap_sink(keys, heap, size, i)
    while size > 1:
        size -= 1
        last = heap[size]
        heap[size] = heap[0]
        heap_sink(keys, heap, size, last)


@inlined
def heap_sink(keys, heap, size, item):
    """Put `item` in place of the greatest row of the heap."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and keys_less(keys, heap[child], heap[child + 1]):
            child += 1
        if not keys_less(keys, item, heap[child]):
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = item


@inlined
def ring_take(pos, ends, n, unscored, seen, found, scored, rated, keys, heap, out):
    """Choose n of the considered blocks into `out`, by the keys of `scored`. Modifies the queue.

    Unscored ones go first, in the engine's order; then the lowest (keys, engine's order).
    Any non-finite key: the engine's own order for the whole decision. Returns 1 for such a fault.
    """
    plain = found - rated
    fault = 0
    if plain < n and not keys_finite(keys, rated):
        fault = 1
        for i in range(n):
            out[i] = seen[i]
    else:
        filled = 0
        if plain > 0:
            for i in range(found):
                if unscored[seen[i]] != 0:
                    out[filled] = seen[i]
                    filled += 1
                    if filled == n:
                        break
        if filled < n:
            want = n - filled
            lowest_rows(keys, rated, want, heap)
            for i in range(want):
                out[filled + i] = scored[heap[i]]
    for i in range(n):
        pos[out[i]] = -1
    ends[2] -= n
    return fault


def new_ring(blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Empty queue for block ids 0 to blocks - 1: (ring, pos, ends)."""
    size = 1 << max(4, (2 * blocks + 2).bit_length())
    return np.zeros(size, np.uint32), np.full(blocks, -1, np.int64), np.array([1 << 40, 1 << 40, 0], np.int64)
