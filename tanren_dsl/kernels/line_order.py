"""Putting requests in order: a stable sort by keys, and the starvation guard.

Pure functions of arrays, shared by the simulated engine and, as text, by the emitted file.
The engine's own order of requests is that in which they were added: objects are handed over
in it, aggregates fold in it, ties are broken by it, and a decision with a key that is not
finite falls back on it.
"""

from tanren_dsl.kernels.jit import inlined, jit
from tanren_dsl.signals import GUARD_TIMES, GUARD_WINDOW, column_of

ARRIVAL = column_of("schedule", "arrival")
PROMPT_TOKENS = column_of("schedule", "prompt_tokens")
CACHED_TOKENS = column_of("schedule", "cached_tokens")
UNCACHED_TOKENS = column_of("schedule", "uncached_tokens")
COMPUTED_TOKENS = column_of("schedule", "computed_tokens")
OUTPUT_TOKENS = column_of("schedule", "output_tokens")
MAX_TOKENS = column_of("schedule", "max_tokens")
ATTAINED_TOKENS = column_of("schedule", "attained_tokens")
PREEMPTIONS = column_of("schedule", "preemptions")
USER_PRIORITY = column_of("schedule", "user_priority")
RESUMED = column_of("schedule", "resumed")

TIMES = float(GUARD_TIMES)
WAITS = float(GUARD_WINDOW)
SHORT_RUN = 12
LARGEST = 1.7976931348623157e308


@inlined
def goes_before(keys, a, b):
    """Whether the keys of object a are lower than those of b."""
    for k in range(keys.shape[1]):
        if keys[a, k] != keys[b, k]:
            return keys[a, k] < keys[b, k]
    return False


@jit
def sort_places(keys, n, places, spare):
    """Sort the n objects named by `places` by their keys, in place and stably; `spare` is room for n.

    Runs that are in order already cost one comparison.
    """
    for low in range(0, n, SHORT_RUN):
        for i in range(low + 1, min(low + SHORT_RUN, n)):
            moving = places[i]
            j = i
            while j > low and goes_before(keys, moving, places[j - 1]):
                places[j] = places[j - 1]
                j -= 1
            places[j] = moving
    width = SHORT_RUN
    while width < n:
        for low in range(0, n - width, 2 * width):
            middle = low + width
            high = min(middle + width, n)
            if not goes_before(keys, places[middle], places[middle - 1]):
                continue
            for i in range(width):
                spare[i] = places[low + i]
            left = 0
            right = middle
            at = low
            while left < width:
                if right < high and goes_before(keys, places[right], spare[left]):
                    places[at] = places[right]
                    right += 1
                else:
                    places[at] = spare[left]
                    left += 1
                at += 1
        width *= 2


@jit
def has_fault(keys, n):
    """Whether a key of the first n objects is not finite."""
    for j in range(n):
        for k in range(keys.shape[1]):
            if not abs(keys[j, k]) <= LARGEST:
                return True
    return False


@jit
def line_up(keys, n, now, mean_wait, since, ids, places, spare, overdue, out):
    """Who is served first, into `out`: those that waited too long, then the others by their keys.

    `keys` [>= n, k] are those of the objects `ids[:n]`, which stand in the engine's own order;
    `mean_wait` is the running mean of waits at admission, in microseconds (negative: no guard);
    `since` has, by id, the moment since when one waits; `places` and `spare` are room for n;
    `overdue` gets, by id, 1 for one that is served ahead of its keys.

    Returns 1 if a key was not finite, so that the engine's own order holds; else 0.
    """
    fault = has_fault(keys, n)
    for j in range(n):
        places[j] = j
    if not fault:
        sort_places(keys, n, places, spare)
    ahead = 0
    if mean_wait >= 0.0:
        for j in range(n):
            late = now - since[ids[j]] > TIMES * mean_wait
            overdue[ids[j]] = 1 if late else 0
            if late:
                out[ahead] = ids[j]
                ahead += 1
    if ahead == 0:
        for j in range(n):
            out[j] = ids[places[j]]
    else:
        for j in range(n):
            if overdue[ids[places[j]]] == 0:
                out[ahead] = ids[places[j]]
                ahead += 1
    return 1 if fault else 0


@jit
def victims_last(keys, n, ids, places, spare, out):
    """The running requests into `out` so that the lowest keys come last: first to be pushed out.

    Among equals the one added last comes last. Returns 1 if a key was not finite: then all are equal.
    """
    fault = has_fault(keys, n)
    for j in range(n):
        places[j] = n - 1 - j
    if not fault:
        sort_places(keys, n, places, spare)
    for j in range(n):
        out[n - 1 - j] = ids[places[j]]
    return 1 if fault else 0
