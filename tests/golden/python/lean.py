"""Policy lean: the order of requests to serve, lowest key first.

Generated: edit the policy instead.

sha256 of the text below: 0f4db76be8544a426d221049810c8598e91ed104e27901d872e5a75d521d30d8

policy lean : schedule
"""

import math

import numpy as np

DECISION = {"now": 0}  # signals of the decision and their places
COLUMNS = {"uncached_tokens": 3, "arrival": 0}  # signals of an object and their columns
KNOBS = {"budget": 3.0, "slo": 2.5}  # the operator's settings; times in microseconds


def div(x, y):
    """`x / y`, and 0 when `y` is 0."""
    if y == 0.0:
        return 0.0
    return x / y


def maximum(x, y):
    """The second if it is greater, else the first."""
    if y > x:
        return y
    return x


def select_rank(values, n, k):
    """The k-th lowest (from 0) of the first n values, never -0; NaN if any is. Reorders `values`."""
    for j in range(n):
        if values[j] != values[j]:
            return values[j]
    low = 0
    high = n - 1
    seed = 1
    while low < high:
        seed = (seed * 1103515245 + 12345) % 2147483648
        pivot = values[low + seed % (high - low + 1)]
        i = low
        j = high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                held = values[i]
                values[i] = values[j]
                values[j] = held
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return values[k] + 0.0


def order(decision, rows, ids, n, keys, scratch):
    # key 1: ((uncached_tokens - (p90(uncached_tokens) / 2)) ** 2) / (p90(uncached_tokens) / 2)
    if n == 0:
        return
    for j in range(n):
        i = ids[j]
        uncached_tokens = float(rows[i, 3])
        scratch[j] = uncached_tokens
    p90_of_uncached_tokens = float(select_rank(scratch, n, (9 * n + 9) // 10 - 1))
    t1 = p90_of_uncached_tokens / 2.0
    for j in range(n):
        i = ids[j]
        uncached_tokens = float(rows[i, 3])
        t2 = uncached_tokens - t1
        keys[j, 0] = div(t2 * t2, t1)


def preempt(decision, rows, ids, n, keys, scratch):
    # key 1: wait / highest(wait)
    if n == 0:
        return
    now = float(decision[0])
    highest_of_wait = 0.0
    for j in range(n):
        i = ids[j]
        wait = now - float(rows[i, 0])
        highest_of_wait = wait if j == 0 else maximum(highest_of_wait, wait)
    for j in range(n):
        i = ids[j]
        wait = now - float(rows[i, 0])
        keys[j, 0] = div(wait, highest_of_wait)


def keys(decision, objects, knobs=None):
    """Keys of objects given as dicts of signals, in the engine's own order; the lowest goes first.

    `decision` holds the values of the decision by name; times are in microseconds.
    """
    return _keys(order, 1, decision, objects, knobs or {})


def preempt_keys(decision, objects, knobs=None):
    """Keys of objects given as dicts of signals, in the engine's own order; the lowest goes first.

    `decision` holds the values of the decision by name; times are in microseconds.
    """
    return _keys(preempt, 1, decision, objects, knobs or {})


def _keys(function, count, decision, objects, knobs):
    n = len(objects)
    vector = np.zeros(12 + len(KNOBS))
    for name, place in DECISION.items():
        vector[place] = decision[name]
    for place, (name, default) in enumerate(KNOBS.items()):
        vector[12 + place] = knobs.get(name, default)
    rows = np.zeros((n, 16))
    for j, signals in enumerate(objects):
        for name, column in COLUMNS.items():
            rows[j, column] = signals[name]
    out = np.zeros((n, count))
    function(vector, rows, np.arange(n, dtype=np.int32), n, out, np.zeros(n))
    return [tuple(float(key) for key in row) for row in out]
