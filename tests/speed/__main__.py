"""`python -m tests.speed`: every measurement, printed."""

from __future__ import annotations

from tests.speed import dropin, line, lru, search, serving
from tests.speed.data import the_trace


def main() -> None:
    """Measure and print."""
    trace = the_trace()
    lru.measure(trace)
    search.measure(trace)
    dropin.measure()
    line.measure()
    serving.measure()


main()
