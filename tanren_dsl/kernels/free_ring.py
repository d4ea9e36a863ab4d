"""The free queue of an engine as flat arrays, and the choice of victims from it.

The queue is a ring of block ids. A block's position counts up without end; its slot
is the position masked. Taking a block out of the middle empties its slot, which is
skipped later and closed when there are too many, so that the head is read in order.

A block that no policy scores (never used, or without a hash where the engine takes
those first) is queued with UNSCORED added to its id.

Arrays (B block ids in all, ring size a power of two, at least twice B):
    ring: uint32[size] (EMPTY: no block), pos: int64[B] (-1: not in the queue),
    ends: int64[3] (head, tail, count).

Every function here is also copied, as text, into the emitted vLLM file.
"""

import numpy as np

from tanren_dsl.kernels.jit import inlined

EMPTY = 4294967295
UNSCORED = 2147483648
LOW = np.uint32(2147483647)
FEW = 96
"""Up to so many victims are found by insertion."""
SPARE = 16
"""A ranking names at most so many blocks beyond those asked for."""


@inlined
def ring_push_back(ring, pos, ends, block, mark):
    """Append a block (`mark`: 0 or UNSCORED). Modifies the queue; makes room by closing empty slots."""
    if ends[1] - ends[0] == ring.shape[0]:
        ring_compact(ring, pos, ends)
    ring[ends[1] & (ring.shape[0] - 1)] = block + mark
    pos[block] = ends[1]
    ends[1] += 1
    ends[2] += 1


@inlined
def ring_push_front(ring, pos, ends, block, mark):
    """Prepend a block (`mark`: 0 or UNSCORED). Modifies the queue; makes room by closing empty slots."""
    if ends[1] - ends[0] == ring.shape[0]:
        ring_compact(ring, pos, ends)
    ends[0] -= 1
    ring[ends[0] & (ring.shape[0] - 1)] = block + mark
    pos[block] = ends[0]
    ends[2] += 1


@inlined
def ring_remove(ring, pos, ends, block):
    """Take a block out, wherever it stands. Modifies the queue."""
    ring[pos[block] & (ring.shape[0] - 1)] = EMPTY
    pos[block] = -1
    ends[2] -= 1


@inlined
def ring_close(ring, pos, ends, upto):
    """Close the gaps before position `upto`, towards it; the order does not change."""
    mask = ring.shape[0] - 1
    write = upto
    for read in range(upto - 1, ends[0] - 1, -1):
        entry = ring[read & mask]
        if entry != EMPTY:
            write -= 1
            ring[write & mask] = entry
            pos[entry & LOW] = write
    ends[0] = write


@inlined
def ring_compact(ring, pos, ends):
    """Close all gaps."""
    ring_close(ring, pos, ends, ends[1])


@inlined
def ring_pop_front(ring, pos, ends, n, out):
    """Take the first n blocks in the engine's own order into `out`. Modifies the queue."""
    mask = ring.shape[0] - 1
    at = ends[0]
    for i in range(n):
        entry = ring[at & mask]
        while entry == EMPTY:
            at += 1
            entry = ring[at & mask]
        at += 1
        block = entry & LOW
        pos[block] = -1
        out[i] = block
    ends[0] = at
    ends[2] -= n


@inlined
def ring_consider(ring, pos, ends, n, extra, plain, scored):
    """The considered set of an allocation of n blocks: the first n + extra free ones.

    Those marked UNSCORED go to `plain`, the others to `scored`, each in the engine's
    order. Stops early when the first n are all unscored, for then those are taken.
    Returns (number of plain, number of scored). May close gaps; the order does not change.
    """
    mask = ring.shape[0] - 1
    want = min(n + extra, ends[2])
    at = ends[0]
    plains = 0
    rated = 0
    while plains + rated < want:
        entry = ring[at & mask]
        at += 1
        if entry < UNSCORED:
            scored[rated] = entry
            rated += 1
        elif entry != EMPTY:
            plain[plains] = entry & LOW
            plains += 1
            if plains == n and rated == 0:
                break
    if at - ends[0] > 2 * want + 64:
        ring_close(ring, pos, ends, at)
    return plains, rated


@inlined
def spare_of(considered, n):
    """How many blocks beyond n a ranking of so many considered ones names, for the rest of the step."""
    return min(SPARE, (considered - n) // 2)


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
def all_finite(values, n):
    """Whether the first n values hold no inf and no nan."""
    odd = 0
    for i in range(n):
        odd += not (abs(values[i]) <= 1.7976931348623157e308)
    return odd == 0


@inlined
def lowest_rows(keys, n, want, chosen, firsts):
    """Indices of the `want` lowest of the first n rows, ascending, into `chosen`.

    `firsts` is room for `want` doubles: a few are kept sorted, beside their first key; many in a heap.
    """
    if want <= FEW:
        lowest_few(keys, n, want, chosen, firsts)
    else:
        lowest_many(keys, n, want, chosen)


@inlined
def lowest_few(keys, n, want, chosen, firsts):
    """`lowest_rows` by insertion."""
    size = 0
    bound = np.inf
    last = 0
    count = keys.shape[1]
    for i in range(n):
        key = keys[i, 0]
        if key > bound:
            continue
        if size < want:
            at = size
            size += 1
        else:
            if key == bound:  # a tie goes to the earlier row, unless a later key decides
                if count == 1 or keys[i, 1] > keys[last, 1]:
                    continue
                if keys[i, 1] == keys[last, 1] and (count == 2 or keys[i, 2] >= keys[last, 2]):
                    continue
            at = want - 1
        while at > 0:
            before = firsts[at - 1]
            if key > before or (key == before and not keys_less(keys, i, chosen[at - 1])):
                break
            firsts[at] = before
            chosen[at] = chosen[at - 1]
            at -= 1
        firsts[at] = key
        chosen[at] = i
        if size == want:
            bound = firsts[want - 1]
            last = chosen[want - 1]


@inlined
def lowest_many(keys, n, want, chosen):
    """`lowest_rows` by a heap, its greatest in front."""
    size = 0
    bound = 0.0
    for i in range(n):
        if size < want:
            child = size
            size += 1
            while child > 0:
                parent = (child - 1) >> 1
                if not keys_less(keys, chosen[parent], i):
                    break
                chosen[child] = chosen[parent]
                child = parent
            chosen[child] = i
            bound = keys[chosen[0], 0]
        elif keys[i, 0] <= bound and keys_less(keys, i, chosen[0]):
            heap_sink(keys, chosen, size, i)
            bound = keys[chosen[0], 0]
    while size > 1:
        size -= 1
        last = chosen[size]
        chosen[size] = chosen[0]
        heap_sink(keys, chosen, size, last)


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
def ring_take(ring, pos, ends, n, spare, plain, plains, scored, rated, keys, flat, chosen, firsts, out):
    """Choose n of the considered blocks into `out`, by the keys of `scored`. Modifies the queue.

    Unscored ones go first, in the engine's order; then the lowest (keys, engine's order). The `spare`
    next ones stand behind them in `out` and stay in the queue (0, if all n are unscored).
    Any non-finite key (`flat` is `keys` in one dimension): the engine's own order for the whole
    decision, and none behind it. Returns 1 for such a fault.
    """
    if plains < n and not all_finite(flat, rated * keys.shape[1]):
        ring_pop_front(ring, pos, ends, n, out)
        return 1
    filled = min(plains, n)
    for i in range(filled):
        out[i] = plain[i]
    if filled < n:
        lowest_rows(keys, rated, n - filled + spare, chosen, firsts)
        for i in range(n - filled + spare):
            out[filled + i] = scored[chosen[i]]
    for i in range(n):
        ring_remove(ring, pos, ends, out[i])
    return 0


def new_ring(blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Empty queue for block ids 0 to blocks - 1: (ring, pos, ends)."""
    size = 1 << max(4, (2 * blocks + 2).bit_length())
    return np.zeros(size, np.uint32), np.full(blocks, -1, np.int64), np.array([1 << 40, 1 << 40, 0], np.int64)
