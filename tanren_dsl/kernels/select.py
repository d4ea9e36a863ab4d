"""The value of a rank, for `median` and `p90`: a quickselect that needs no further memory.

Only the value is defined (equal values are one value), so backends may select
in any way. Numba compiles this text, and it is copied into emitted files.
"""

from collections.abc import MutableSequence


def select_rank(values: MutableSequence[float], n: int, k: int) -> float:
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
