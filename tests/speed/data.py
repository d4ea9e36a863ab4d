"""The trace that is measured on, and how times are taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable
from tests.public import MOONCAKE


def the_trace() -> RequestTable:
    """The public Mooncake conversation trace where present, else the embedded generator's."""
    if MOONCAKE.exists():
        return read_trace(MOONCAKE)
    print(f"note: {MOONCAKE} is not there; measured on the embedded trace, which the targets are not about")
    return read_trace("chat:0:12000")


def seconds(action: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def spread(values: list[float], scale: float = 1e3, unit: str = "ms") -> str:
    """Median, least and most, as text."""
    middle = statistics.median(values)
    return f"{middle * scale:.2f} {unit} ({min(values) * scale:.2f} to {max(values) * scale:.2f})"


def verdict(value: float, limit: float, *, at_least: bool) -> str:
    """Whether a figure holds its target, in words."""
    holds = value >= limit if at_least else value <= limit
    return f"{'holds' if holds else 'MISSES'} the target of {'at least' if at_least else 'at most'} {limit:g}"
