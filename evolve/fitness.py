"""What a policy is worth: hits on each window and cache size, against the engine's own order.

The score on a role is the mean over its configurations of the gain in hit rate over LRU,
in percentage points, less a price for complexity. A policy with a fault (a key that is not
finite) in any configuration is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.evolve.windows import Role, Window
from tanren_dsl.ir import Apply, Fold, Policy
from tanren_dsl.ops import OP_BY_NAME, SIGNAL_COST
from tanren_dsl.sim.replay import ReplayResult, simulate, simulate_belady, simulate_stock

Place: TypeAlias = tuple[Role, str, str]
"""A configuration: role, window, cache size."""


@dataclass(frozen=True, slots=True)
class Count:
    """Hits of one policy in one configuration; everything counts blocks."""

    role: Role
    window: str
    label: str
    capacity: int
    lookups: int
    hits: int
    faults: int = 0

    @property
    def place(self) -> Place:
        """The configuration."""
        return self.role, self.window, self.label

    @property
    def hit_rate(self) -> float:
        """Hits of lookups."""
        return self.hits / self.lookups if self.lookups else 0.0


@dataclass(frozen=True)
class Bench:
    """What candidates are measured on; sent to every worker once."""

    windows: tuple[Window, ...]
    engine: str

    @cached_property
    def unused(self) -> NDArray[np.float64]:
        """Room for next uses, which only Belady reads."""
        return np.zeros(max(window.table.lookups for window in self.windows))

    def configurations(self, role: Role) -> Iterator[tuple[Window, str, int]]:
        """Every window of a role at every cache size."""
        for window in self.windows:
            if window.role == role:
                for label, blocks in window.capacities:
                    yield window, label, blocks


def measure(bench: Bench, text: str, role: Role) -> tuple[Count, ...]:
    """Replay a policy in every configuration of a role; ends at the first with a fault."""
    policy = loads(text)
    counts: list[Count] = []
    for window, label, blocks in bench.configurations(role):
        unused = bench.unused[: window.table.lookups]
        found = simulate(window.table, policy, compile_ordering, blocks, engine=bench.engine, next_use=unused)
        counts.append(_count(window, label, found))
        if found.faults:
            break
    return tuple(counts)


def measure_stock(bench: Bench, role: Role) -> tuple[Count, ...]:
    """The engine's own order, which is LRU."""
    return tuple(
        _count(window, label, simulate_stock(window.table, blocks, engine=bench.engine))
        for window, label, blocks in bench.configurations(role)
    )


def measure_belady(bench: Bench, role: Role) -> tuple[Count, ...]:
    """Knowledge of the future: what no policy exceeds."""
    return tuple(
        _count(window, label, simulate_belady(window.table, blocks, engine=bench.engine))
        for window, label, blocks in bench.configurations(role)
    )


def mean_gain(counts: Sequence[Count], stock: Mapping[Place, Count]) -> float:
    """Mean over configurations of the gain over LRU, in percentage points of hit rate."""
    return fmean(100.0 * (count.hit_rate - stock[count.place].hit_rate) for count in counts)


def has_faults(counts: Iterable[Count]) -> bool:
    """Whether a key was ever not finite."""
    return any(count.faults for count in counts)


def cost_of(policy: Policy) -> float:
    """Complexity of the normal form by the weights of the operator table.

    >>> cost_of(loads("policy p : evict order by uses / mean(uses), last_use"))
    5.5
    """
    return sum(
        OP_BY_NAME[node.op].cost if isinstance(node, Apply | Fold) else SIGNAL_COST
        for node in policy.order.nodes
    )


def _count(window: Window, label: str, found: ReplayResult) -> Count:
    return Count(window.role, window.label, label, found.capacity, found.lookups, found.hits, found.faults)
