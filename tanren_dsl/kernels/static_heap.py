"""A lazy heap for static orders: keys that rest while the block rests.

With `candidates all` and static keys, a block's keys are computed once, when it
enters the free queue, and the lowest are popped in O(log n). Entries of blocks that
left the queue meanwhile go stale and are dropped when met. An entry is valid when
its stamp is still the block's stamp; a block that leaves the queue loses it.
"""

from tanren_dsl.kernels.jit import inlined


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
def heap_push(entry_keys, entry_block, entry_stamp, size, stamp, keys, block):
    """Add a block with the keys in row 0 of `keys`; returns the new size. Drops stale entries when full."""
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
        entry_keys[size, k] = keys[0, k]
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
