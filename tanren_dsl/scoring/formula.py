"""The score of a schedule policy against first come first served (FCFS): pure functions of numbers.

For each configuration, a window of a trace at one load, with `mean` and `p99` of a time that should
be short, such as the time to first token (TTFT):

    score = 1 - mean / mean_FCFS - k * max(0, p99 / p99_FCFS - s) ** 2

So FCFS itself scores exactly 0, a mean half as long 0.5, and nothing above 1. The penalty
of the tail starts below the limit (1.04 against 1.05) and rises smoothly: a cliff would breed
policies that stand at its edge. A policy's total is the sum over all configurations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tanren_dsl.errors import TanrenError

SLACK = 1.04
"""The default of `s`: how often FCFS's p99 a p99 may be before it costs."""
PENALTY = 1600.0
"""The default of `k`: 1 % beyond the slack costs 0.16."""
LIMIT = 1.05
"""A p99 of more than so many times FCFS's is a violation."""

_TICK_S = 1e-6
"""The simulator's clock: what a time of 0 is taken for where it divides."""


def score(
    mean_s: float, p99_s: float, fcfs_mean_s: float, fcfs_p99_s: float, *,
    s: float = SLACK, k: float = PENALTY,
) -> float:  # fmt: skip
    """The score of one configuration.

    Args:
        mean_s: of the policy, in seconds.
        p99_s: of the policy.
        fcfs_mean_s: of FCFS on the same requests.
        fcfs_p99_s: of FCFS.
        s: ratio of the p99 at which the penalty begins, at least 1.
        k: how fast it rises, at least 0.

    Raises:
        TanrenError: a time is negative or not finite, or `s` or `k` is out of range.

    >>> score(2.0, 9.0, 2.0, 9.0), score(1.0, 9.0, 2.0, 9.0), score(2.0, 10.0, 2.0, 10.0, s=1.0)
    (0.0, 0.5, 0.0)
    >>> round(score(1.0, 10.4, 2.0, 10.0), 9), round(score(1.0, 10.5, 2.0, 10.0), 9)
    (0.5, 0.34)
    """
    if not (1 <= s < math.inf and 0 <= k < math.inf):
        raise TanrenError(f"expected s of at least 1 and k of at least 0, found {s!r} and {k!r}")
    excess = max(0.0, ratio(p99_s, fcfs_p99_s) - s)
    return 1.0 - ratio(mean_s, fcfs_mean_s) - k * excess * excess


def violates(p99_s: float, fcfs_p99_s: float) -> bool:
    """Whether the tail is worse than the limit allows.

    >>> violates(10.5, 10.0), violates(10.51, 10.0), violates(0.0, 0.0)
    (False, True, False)
    """
    # multiplied out: 10.5 / 10 is not above 1.05, and must not become so by rounding
    return ratio(p99_s, fcfs_p99_s) > LIMIT and p99_s > LIMIT * fcfs_p99_s


def total(scores: Iterable[float]) -> float:
    """The sum over configurations, the same in any order; 0 where there are none.

    >>> total([0.1] * 10), total([])
    (1.0, 0.0)
    """
    return math.fsum(scores)


def ratio(value_s: float, fcfs_s: float) -> float:
    """One time over another, total: equal times give 1, also two of 0; 0 is else one microsecond.

    Raises:
        TanrenError: a time is negative or not finite.

    >>> ratio(3.0, 2.0), ratio(0.0, 0.0), ratio(0.0, 2.0), ratio(2e-6, 0.0)
    (1.5, 1.0, 0.0, 2.0)
    """
    for time_s in (value_s, fcfs_s):
        if not 0 <= time_s < math.inf:
            raise TanrenError(f"expected times of 0 s or more, found {value_s!r} and {fcfs_s!r}")
    return 1.0 if value_s == fcfs_s else value_s / max(fcfs_s, _TICK_S)
