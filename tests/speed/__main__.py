"""`python -m tests.speed`: every measurement, printed."""

from __future__ import annotations

from tanren_dsl.trace.read import read_trace
from tests.public import AZURE
from tests.speed import dropin, evolving, line, lru, search, serving
from tests.speed.data import the_trace


def main() -> None:
    """Measure and print."""
    trace = the_trace()
    lru.measure(trace)
    search.measure(trace)
    evolving.measure(trace, read_trace(AZURE) if AZURE.is_file() else None)
    dropin.measure()
    line.measure()
    serving.measure()


main()
