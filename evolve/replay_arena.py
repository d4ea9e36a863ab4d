"""Evict policies in replay mode: what counts is hits, against the engine's own order (LRU).

The gain of a configuration is that in hit rate, in percentage points. The tail is what a policy
loses where it loses: no operator forgives a rule that is good on the mean and bad on Mondays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.measures import Measure, Place, Stage, Worth
from tanren_dsl.evolve.windows import Capacities, Ranges, Role, label_of, refuse_twice, repeats_of
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.signals import REPLAY, Kind
from tanren_dsl.sim.replay import Replay
from tanren_dsl.sim.rule import Victims, belady, stock, victims_of
from tanren_dsl.trace.table import RequestTable

HITS, LOOKUPS, CAPACITY = range(3)
"""Figures of a measure, in blocks."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What a loss of hit rate costs, in percentage points.

    Attributes:
        s: the loss from which it costs.
        k: how fast the penalty rises: `k * max(0, loss - s) ** 2`.
        limit: a loss beyond it is a violation.
    """

    s: float = 0.25
    k: float = 4.0
    limit: float = 0.5


@dataclass(frozen=True, eq=False)
class ReplayPlace:
    """One configuration: requests, and the cache that serves them.

    Attributes:
        warm: of the first requests, that fill the cache and are not counted.
    """

    place: Place
    table: RequestTable
    capacity: int
    warm: int = 0


@dataclass(frozen=True)
class ReplayArena:
    """Windows at cache sizes; see `measures.Arena`.

    Attributes:
        configurations: by role and stage.
    """

    configurations: Mapping[tuple[Role, Stage], tuple[ReplayPlace, ...]]
    engine: str
    compile_ordering: CompileOrdering
    loss: Loss
    kind: Kind = "evict"
    mode: str = REPLAY
    heads: tuple[str, ...] = ("hits", "lookups", "capacity (blocks)")
    base_name: str = "LRU"
    unit: str = "points of hit rate"

    @cached_property
    def unused(self) -> NDArray[np.float64]:
        """Room for next uses, which only Belady reads."""
        lookups = (one.table.lookups for rows in self.configurations.values() for one in rows)
        return np.zeros(max(lookups, default=0))

    def places(self, role: Role, stage: Stage) -> tuple[Place, ...]:
        """The configurations of a role."""
        return tuple(one.place for one in self.configurations[role, stage])

    def measure(self, policy: Policy, role: Role, stage: Stage) -> tuple[Measure, ...]:
        """A policy in every configuration of a role; ends at the first with a fault."""
        found: list[Measure] = []
        for at in self.configurations[role, stage]:
            victims = victims_of(policy, self.compile_ordering, at.capacity, REPLAY)
            found.append(self._run(at, victims))
            if found[-1].faults:
                break
        return tuple(found)

    def base(self, role: Role, stage: Stage) -> tuple[Measure, ...]:
        """LRU, as the engine has it."""
        return tuple(self._run(at, stock()) for at in self.configurations[role, stage])

    def bounds(self, role: Role) -> Mapping[str, tuple[Measure, ...]]:
        """Belady with pins: what no policy exceeds."""
        rows = self.configurations[role, "full"]
        return {"belady": tuple(self._run(at, belady(at.capacity), foresees=True) for at in rows)}

    def worth(self, measure: Measure, base: Measure) -> Worth:
        """The gain in hit rate, less the penalty of a loss."""
        lookups = max(1.0, base.figures[LOOKUPS])
        gain = 100.0 * (measure.figures[HITS] - base.figures[HITS]) / lookups
        excess = max(0.0, -gain - self.loss.s)
        return Worth(gain, -gain, gain - self.loss.k * excess * excess, -gain > self.loss.limit)

    def shown(self, measure: Measure) -> str:
        """The hit rate."""
        return f"{100 * measure.figures[HITS] / max(1.0, measure.figures[LOOKUPS]):.2f} %"

    def hits_each(self, policy: Policy | None, at: ReplayPlace) -> NDArray[np.int64]:
        """[R] hit blocks of each request under a policy, or under LRU; the warming ones are left out."""
        victims = (
            stock() if policy is None else victims_of(policy, self.compile_ordering, at.capacity, REPLAY)
        )
        run = Replay(at.table, at.capacity, victims, self.engine, self.unused[: at.table.lookups])
        run.run()
        return run.hits_each[at.warm :]

    def _run(self, at: ReplayPlace, victims: Victims, *, foresees: bool = False) -> Measure:
        unused = None if foresees else self.unused[: at.table.lookups]
        run = Replay(at.table, at.capacity, victims, self.engine, unused)
        run.run()
        found = run.result()
        # which block holds what in the end tells apart what hit counts alone do not
        digest = hashlib.sha256(run.hits_each.tobytes() + run.pool.block_hash.tobytes()).hexdigest()
        lookups = at.table.lookups - int(at.table.offsets[at.warm])
        figures = (float(run.hits_each[at.warm :].sum()), float(lookups), float(found.capacity))
        return Measure(at.place, figures, found.faults, digest[:16])


def replay_arena(
    trace: RequestTable,
    ranges: Ranges,
    roles: Sequence[Role],
    capacities: Capacities,
    *,
    engine: str,
    compile_ordering: CompileOrdering,
    loss: Loss,
    repeats: int = 1,
    warm: int = 0,
    short: float | None = None,
) -> ReplayArena:
    """The arena of some roles.

    Args:
        trace: the whole trace.
        ranges: request numbers of every window.
        roles: those that are made; nothing of the others is kept.
        capacities: tried on each window.
        engine: free order and victim rule.
        compile_ordering: the backend.
        loss: what a loss costs.
        repeats: of each window.
        warm: requests before each window, as far as there are, that fill the cache and are not counted.
        short: share of a training window that the short stage replays, at the smallest size and without
            warming; None: no such stage.

    Raises:
        TanrenError: a request does not fit a size, or a size is given twice.
    """
    found: dict[tuple[Role, Stage], tuple[ReplayPlace, ...]] = {}
    for role in roles:
        rows: list[ReplayPlace] = []
        brief: list[ReplayPlace] = []
        for start, stop in ranges[role]:
            window = label_of(start, stop)
            for repeat, (begin, end) in enumerate(repeats_of(start, stop, repeats)):
                table = trace.slice(begin, end)
                sizes = capacities.of(table)
                first = max(0, begin - warm)
                warmed = trace.slice(first, end) if first < begin else table
                refuse_twice("capacities", [name for name, _ in sizes])
                for name, blocks in sizes:
                    label = name if repeats == 1 else f"{name}, repeat {repeat}"
                    _refuse_small(name, blocks, warmed, role, window)
                    rows.append(ReplayPlace(Place(role, window, label), warmed, blocks, begin - first))
                if short is not None and role == "train" and not repeat:
                    name, blocks = min(sizes, key=lambda size: size[1])
                    head = table.head(max(1, round(short * len(table))))
                    label = f"{name}, first {len(head):,}"
                    brief.append(ReplayPlace(Place(role, window, label), head, blocks))
        found[role, "full"] = tuple(rows)
        if short is not None and role == "train":
            found[role, "short"] = tuple(brief)
    return ReplayArena(found, engine, compile_ordering, loss)


def _refuse_small(name: str, blocks: int, table: RequestTable, role: Role, window: str) -> None:
    if blocks < table.longest():
        raise TanrenError(
            f"capacities: {name} ({blocks:,} blocks) is smaller than a request of "
            f"{table.longest():,} blocks in the {role} window, {window}",
            hint=f"use {table.longest():,} blocks or more",
        )
