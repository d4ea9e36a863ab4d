"""Find the knee: the cache size at which a load begins to suffer. Pure logic; `measure` does the work.

Definitions. The *plateau* is the sample at the largest capacity. A capacity *has left* it if its p99
TTFT is more than `ttft_rise` (a share) above the plateau's, its hit rate more than `hit_rate_drop`
(an absolute share) below, or it has more errors. The *knee* is a capacity that has left, while one
at most `resolution` (a share) or one block above it has not. Below the knee an eviction
policy has something to decide; above it, every policy does alike.

Search. Capacities go down from the largest by a constant factor until two in a row have left: one
alone is taken for noise, unless it is the smallest. Then the gap above the first of the two is
halved, geometrically. The path depends on the samples only, so a search that is given what an earlier one
measured goes the same way without measuring it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tanren_dsl.errors import TanrenError


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured at one capacity. TTFT in milliseconds, hit rate as a share, failed requests."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    hit_rate: float
    errors: int


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a sample may be from the plateau and still be on it."""

    ttft_rise: float = 0.25
    hit_rate_drop: float = 0.05

    def departures(self, sample: Sample, plateau: Sample) -> tuple[str, ...]:
        """By which quantities a sample has left the plateau; empty if it has not.

        >>> flat, slow = Sample(20, 80, 0.6, 0), Sample(25, 140, 0.58, 0)
        >>> Tolerance().departures(slow, flat)
        ('ttft_p99_ms',)
        """
        left = {
            "ttft_p99_ms": sample.ttft_p99_ms > plateau.ttft_p99_ms * (1 + self.ttft_rise),
            "hit_rate": sample.hit_rate < plateau.hit_rate - self.hit_rate_drop,
            "errors": sample.errors > plateau.errors,
        }
        return tuple(name for name, true in left.items() if true)


@dataclass(frozen=True, slots=True)
class Knee:
    """Where the search ended.

    `blocks` is the knee and `above` the capacity that bounds it from above, still on the
    plateau; `left_by` says by which quantities the knee has left. Without a knee down to the smallest
    capacity, `blocks` is None and `above` that capacity. `samples` holds all that is known, by capacity.
    """

    blocks: int | None
    above: int
    left_by: tuple[str, ...]
    samples: Mapping[int, Sample]


def find_knee(
    measure: Callable[[int], Sample],
    largest: int,
    smallest: int,
    known: Mapping[int, Sample] | None = None,
    *,
    tolerance: Tolerance | None = None,
    factor: float = 0.7,
    resolution: float = 0.05,
) -> Knee:
    """Search the knee between two capacities.

    Args:
        measure: gives the sample at a capacity in blocks; called once a capacity.
        largest: capacity in blocks at which nothing need be evicted, or little.
        smallest: capacity in blocks at which the longest request just fits.
        known: samples of an earlier search; not measured again.
        tolerance: what counts as leaving the plateau.
        factor: from one capacity of the way down to the next, above 0 and below 1.
        resolution: share by which the bound from above may exceed the knee.

    Raises:
        TanrenError: the capacities, the factor or the resolution make no search.
    """
    _check(largest, smallest, factor, resolution)
    samples = dict(known or {})
    tolerance = tolerance or Tolerance()

    def left_by(blocks: int) -> tuple[str, ...]:
        for capacity in (largest, blocks):
            if capacity not in samples:
                samples[capacity] = measure(capacity)
        return tolerance.departures(samples[blocks], samples[largest])

    grid = _grid(largest, smallest, factor)
    first = next((i for i in range(1, len(grid)) if all(left_by(b) for b in grid[i : i + 2])), None)
    if first is None:
        return Knee(None, smallest, (), samples)
    above, knee = grid[first - 1], grid[first]
    while above - knee > 1 and above > knee * (1 + resolution):
        middle = min(max(round(math.sqrt(above * knee)), knee + 1), above - 1)
        if left_by(middle):
            knee = middle
        else:
            above = middle
    return Knee(knee, above, left_by(knee), samples)


def _grid(largest: int, smallest: int, factor: float) -> list[int]:
    """Capacities down from the largest to the smallest, each the factor times the one before, or one less."""
    grid = [largest]
    while grid[-1] > smallest:
        grid.append(max(min(round(grid[-1] * factor), grid[-1] - 1), smallest))
    return grid


def _check(largest: int, smallest: int, factor: float, resolution: float) -> None:
    if not 1 <= smallest < largest:
        raise TanrenError(
            f"a knee is searched between a smallest capacity of at least 1 block and a larger one, "
            f"found {smallest} and {largest}"
        )
    if not 0 < factor < 1 or not resolution > 0:
        raise TanrenError(
            f"the factor must be between 0 and 1 and the resolution above 0, found {factor} and {resolution}"
        )
