"""The compiled half of the emitted file's schedule policy.

Copied, below the marker line, before `vllm_dispatcher.py`; above it stand stand-ins.
"""

from typing import Any

from tanren_dsl.kernels.line_order import line_up, victims_last

rank: Any = None
rank_running: Any = None


def _jit(function: Any) -> Any:
    return function


# ======== runtime ========


@_jit
def still_waiting(line, lined, waits_now):
    """Drop from `line` those that no longer wait. Returns how many do."""
    n = 0
    for i in range(lined):
        if waits_now[line[i]] != 0:
            line[n] = line[i]
            n += 1
    return n


@_jit
def take_number(line, lined, number):
    """Put a number into the ascending `line`, unless it stands there. Returns how many do."""
    at = lined
    while at > 0 and line[at - 1] > number:
        at -= 1
    if at > 0 and line[at - 1] == number:
        return lined
    for i in range(lined, at, -1):
        line[i] = line[i - 1]
    line[at] = number
    return lined + 1


@_jit
def dispatch(
    decision, rows, line, n, keys, scratch, places, spare, since, overdue, out, now, mean_wait
):  # fmt: skip
    """The waiting requests in order of service, into `out`. Returns 1 for a fault."""
    rank(decision, rows, line, n, keys, scratch)
    return line_up(keys, n, now, mean_wait, since, line, places, spare, overdue, out)


@_jit
def to_be_pushed_out(decision, rows, ids, n, keys, scratch, places, spare, out):
    """The running requests into `out`, those to be pushed out first at its end. Returns 1 for a fault."""
    rank_running(decision, rows, ids, n, keys, scratch)
    return victims_last(keys, n, ids, places, spare, out)
