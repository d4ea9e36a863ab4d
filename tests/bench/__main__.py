"""`python -m tests.bench`: every measurement, printed."""

from __future__ import annotations

from tests.bench import lru, search
from tests.bench.data import the_trace


def main() -> None:
    """Measure and print."""
    trace = the_trace()
    lru.measure(trace)
    search.measure(trace)


main()
