"""Policies in serving mode: what counts is a time of requests, against the engine's own orders.

A schedule policy stands against first come first served, an evict policy against LRU under first
come first served. The gain of a configuration is the share by which the mean is shorter; the tail
is the p99 over the base's. See `scoring.formula`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.measures import Measure, Place, Stage, Worth
from tanren_dsl.evolve.windows import Ranges, Role, label_of, repeats_of
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.scoring.arms import Arm, base_arm, oracle_arm
from tanren_dsl.scoring.formula import ratio, score, violates
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.scoring.windows import at_load, saturation
from tanren_dsl.signals import ENGINE, Kind
from tanren_dsl.sim.latency import Latency, read_latency
from tanren_dsl.sim.rule import victims_of
from tanren_dsl.sim.service import service_of
from tanren_dsl.sim.serving import Served, serve
from tanren_dsl.trace.blocks import EngineBlocks, engine_blocks
from tanren_dsl.trace.table import RequestTable

MEAN_S, P99_S, WORST_WAIT_S, PREEMPTIONS, RESCUED = range(5)
"""Figures of a measure; seconds and counts."""


@dataclass(frozen=True, eq=False)
class ServingPlace:
    """One configuration: requests at a load."""

    place: Place
    table: RequestTable
    blocks: EngineBlocks


@dataclass(frozen=True)
class ServingArena:
    """Windows at loads; see `measures.Arena`.

    Attributes:
        configurations: by role and stage.
        metric: `ttft`, or `e2e` for the whole of a request.
    """

    configurations: Mapping[tuple[Role, Stage], tuple[ServingPlace, ...]]
    settings: Settings
    latency: Latency
    compile_ordering: CompileOrdering
    kind: Kind
    metric: str = "ttft"
    mode: str = ENGINE
    unit: str = "share of the mean"

    @property
    def base_name(self) -> str:
        """The engine's own order."""
        return "FCFS" if self.kind == "schedule" else "LRU"

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the figures."""
        return f"mean {self.metric} (s)", f"p99 {self.metric} (s)", "worst wait (s)", "preemptions", "rescued"

    def places(self, role: Role, stage: Stage) -> tuple[Place, ...]:
        """The configurations of a role."""
        return tuple(one.place for one in self.configurations[role, stage])

    def measure(self, policy: Policy, role: Role, stage: Stage) -> tuple[Measure, ...]:
        """A policy in every configuration of a role; ends at the first with a fault."""
        found: list[Measure] = []
        for at in self.configurations[role, stage]:
            found.append(self._measured(at, self.served(policy, at)))
            if found[-1].faults:
                break
        return tuple(found)

    def base(self, role: Role, stage: Stage) -> tuple[Measure, ...]:
        """First come first served, evicting least recently used."""
        rows = self.configurations[role, stage]
        return tuple(self._measured(at, self.served(None, at)) for at in rows)

    def bounds(self, role: Role) -> Mapping[str, tuple[Measure, ...]]:
        """An order that knows all outputs: a yardstick, no proven optimum."""
        if self.kind != "schedule":
            return {}
        oracle, rows = oracle_arm(), self.configurations[role, "full"]
        return {oracle.label: tuple(self._measured(at, self._by(oracle, at)) for at in rows)}

    def worth(self, measure: Measure, base: Measure) -> Worth:
        """The share by which the mean is shorter, less the penalty of the tail."""
        mean, p99 = measure.figures[MEAN_S], measure.figures[P99_S]
        of_base, tail_of_base = base.figures[MEAN_S], base.figures[P99_S]
        points = score(mean, p99, of_base, tail_of_base, s=self.settings.s, k=self.settings.k)
        gain = 1.0 - ratio(mean, of_base)
        return Worth(gain, ratio(p99, tail_of_base), points, violates(p99, tail_of_base))

    def shown(self, measure: Measure) -> str:
        """Mean and p99."""
        return f"{measure.figures[MEAN_S]:.2f} s, p99 {measure.figures[P99_S]:.2f} s"

    def served(self, policy: Policy | None, at: ServingPlace) -> Served:
        """What each request lived through under a policy, or under the engine's own orders."""
        settings = self.settings
        if policy is None:
            return self._by(base_arm(), at)
        if policy.kind == "evict":
            victims = victims_of(policy, self.compile_ordering, settings.capacity, ENGINE)
            return serve(at.table, settings.server, self.latency, victims=victims, blocks=at.blocks)
        service = service_of(
            policy, self.compile_ordering, guard=settings.guard, seed_s=settings.guard_seed_s
        )
        return serve(at.table, settings.server, self.latency, service=service, blocks=at.blocks)

    def times_s(self, served: Served) -> NDArray[np.float64]:
        """[R] the time that counts, of each request."""
        return served.ttft_s if self.metric == "ttft" else served.e2e_s

    def _by(self, arm: Arm, at: ServingPlace) -> Served:
        return serve(
            at.table, self.settings.server, self.latency, service=arm.service,
            priority=arm.priority(at.table), blocks=at.blocks,
        )  # fmt: skip

    def _measured(self, at: ServingPlace, served: Served) -> Measure:
        times_s = self.times_s(served)
        figures = (
            float(times_s.mean()),
            float(np.percentile(times_s, 99)),
            float(served.wait_s.max()),
            float(served.totals.preemptions),
            float(served.totals.rescued),
        )
        moments = served.first_scheduled_us.tobytes() + served.end_us.tobytes()
        digest = hashlib.sha256(moments + served.cached_tokens.tobytes()).hexdigest()
        return Measure(at.place, figures, served.totals.faults + served.totals.order_faults, digest[:16])


def serving_arena(
    trace: RequestTable,
    ranges: Ranges,
    roles: Sequence[Role],
    settings: Settings,
    *,
    kind: Kind,
    metric: str,
    compile_ordering: CompileOrdering,
    short: float | None = None,
) -> ServingArena:
    """The arena of some roles.

    Args:
        trace: the requests that the server can serve, see `scoring.windows.servable`.
        ranges: request numbers of every window.
        roles: those that are made; nothing of the others is kept.
        settings: server, latency profile, loads, repeats, guard and penalty.
        kind: of the policies.
        metric: `ttft` or `e2e`.
        compile_ordering: the backend.
        short: share of the requests of a training window that the short stage serves, at the highest
            load and where most work comes in the least time; None: no such stage.

    Raises:
        TanrenError: the requests of a window arrive all at once.
    """
    latency = read_latency(settings.profile)
    found: dict[tuple[Role, Stage], tuple[ServingPlace, ...]] = {}
    for role in roles:
        rows: list[ServingPlace] = []
        brief: list[ServingPlace] = []
        for start, stop in ranges[role]:
            window = label_of(start, stop)
            for repeat, (begin, end) in enumerate(repeats_of(start, stop, settings.repeats)):
                table = trace.slice(begin, end)
                saturated = saturation(table, settings.server, latency)
                for load in settings.loads:
                    label = f"load {load:g}, repeat {repeat}" if settings.repeats > 1 else f"load {load:g}"
                    loaded = _at_load(table, load, saturated, window)
                    rows.append(_place(role, window, label, loaded, settings))
                if short is not None and role == "train" and not repeat:
                    load = max(settings.loads)
                    loaded = _at_load(table, load, saturated, window)
                    rush = _busiest(loaded, max(2, round(short * len(table))))
                    label = f"load {load:g}, busiest {len(rush):,}"
                    brief.append(_place(role, window, label, rush, settings))
        found[role, "full"] = tuple(rows)
        if short is not None and role == "train":
            found[role, "short"] = tuple(brief)
    return ServingArena(found, settings, latency, compile_ordering, kind, metric)


def resized(arena: ServingArena, **changes: int) -> ServingArena:
    """The same requests on a server of another size, such as `block_size=32`."""
    settings = arena.settings.changed(**changes)
    found = {
        key: tuple(replace(one, blocks=engine_blocks(one.table, settings.block_size)) for one in rows)
        for key, rows in arena.configurations.items()
    }
    return replace(arena, configurations=found, settings=settings)


def _place(role: Role, window: str, label: str, table: RequestTable, settings: Settings) -> ServingPlace:
    return ServingPlace(Place(role, window, label), table, engine_blocks(table, settings.block_size))


def _busiest(table: RequestTable, requests: int) -> RequestTable:
    """The stretch of so many requests with the most tokens a second: where the order matters."""
    if requests >= len(table):
        return table
    tokens = np.concatenate((np.zeros(1), np.cumsum(table.prompt_tokens + table.output_tokens)))
    work = tokens[requests:] - tokens[:-requests]
    span_us = table.arrival_us[requests - 1 :] - table.arrival_us[: len(table) - requests + 1]
    start = int(np.argmax(work / np.maximum(span_us, 1)))
    return table.slice(start, start + requests)


def _at_load(table: RequestTable, load: float, saturated: float, window: str) -> RequestTable:
    try:
        return at_load(table, load, saturated)
    except TanrenError as error:
        raise TanrenError(f"windows: {window}: {error.diagnostics[0].message}") from None
