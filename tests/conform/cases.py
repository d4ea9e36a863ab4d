"""Random small workloads on random small engines: what the engine tests draw from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.conform.conform import tokens_of
from tanren_dsl.conform.harness import EngineSpec, TokenTable
from tanren_dsl.errors import TanrenError
from tanren_dsl.ir import Policy
from tanren_dsl.sim.engine import EngineLimits, EngineResult, EngineRun
from tanren_dsl.sim.latency import Latency
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.sim.rule import stock, victims_of
from tanren_dsl.sim.service import by_priority, first_come, service_of
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.table import RequestTable, relabel
from tests.strategies import Draw

STEP_US = 20_000
LATENCY = Latency("drawn", "made up", "estimate", 4_000.5, 37.3, 900.0, 310.0, 21.7, 150.0)
CHUNK = 8
"""Tokens of a trace block: prompts of one stem part at multiples of it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: steps after the one before it, what it shares, and when its client gives up (steps)."""

    after: float
    stem: int
    shared: int
    own: int
    partial: int
    output: int
    abort: float | None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and an engine; `spare` blocks beyond what the largest request needs, or too few."""

    asks: tuple[Ask, ...]
    block_size: int
    spare: int
    max_num_seqs: int
    budget: int
    asynchronous: bool
    scheduling: str = "fcfs"
    threshold: int = 0
    caching: bool = True
    latency: Latency | None = None

    @property
    def trace(self) -> RequestTable:
        """The requests as a trace; a stem's blocks are numbered by place, a request's own are its own."""
        ids = [
            [1000 * ask.stem + k for k in range(ask.shared)] + [10**6 + 1000 * r + k for k in range(ask.own)]
            for r, ask in enumerate(self.asks)
        ]
        lengths = np.array([len(part) for part in ids])
        steps = np.cumsum([ask.after for ask in self.asks])
        arrival = np.rint((steps - steps[0]) * STEP_US).astype(np.int64)
        return RequestTable(
            name="drawn",
            block_tokens=CHUNK,
            arrival_us=arrival,
            prompt_tokens=lengths * CHUNK - np.array([ask.partial for ask in self.asks]),
            output_tokens=np.array([ask.output for ask in self.asks]),
            session=np.full(len(ids), -1),
            offsets=np.concatenate(([0], np.cumsum(lengths))),
            ids=relabel(np.array([i for part in ids for i in part])),
        )

    @property
    def table(self) -> TokenTable:
        """The requests as the engine gets them."""
        trace = self.trace
        delays = [-1 if ask.abort is None else round(ask.abort * STEP_US) for ask in self.asks]
        aborts = np.where(np.array(delays) < 0, -1, trace.arrival_us + delays)
        priority = np.array([ask.priority for ask in self.asks])
        return replace(tokens_of(trace), abort_us=aborts, priority=priority)

    @property
    def limits(self) -> EngineLimits:
        """Sizes for the simulator."""
        total = self.trace.prompt_tokens + self.trace.output_tokens
        usable = max(1, int((-(-(total - 1) // self.block_size)).max()) + self.spare)
        longest = int(total.max()) + 1
        return EngineLimits(
            usable, self.max_num_seqs, self.budget, longest, STEP_US, self.asynchronous,
            long_prefill_token_threshold=self.threshold, enable_prefix_caching=self.caching,
        )  # fmt: skip

    @property
    def spec(self) -> EngineSpec:
        """The same for the engine."""
        limits = self.limits
        return EngineSpec(
            block_size=self.block_size, usable_blocks=limits.usable_blocks, max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens, max_model_len=limits.max_model_len,
            step_us=limits.step_us, asynchronous=limits.asynchronous,
            enable_prefix_caching=self.caching, long_prefill_token_threshold=self.threshold,
            scheduling_policy=self.scheduling, latency=self.latency,
        )  # fmt: skip

    def simulate(
        self, engine: str, policy: Policy | None = None, schedule: Policy | None = None, *,
        shortcuts: bool = True, guard: float | None = 1.0,
    ) -> tuple[EngineResult, bool]:  # fmt: skip
        """What engine mode does, integrity checked at its end, and whether it got stuck.

        `guard` is the mean wait that the starvation guard starts from, in seconds; None: there is none.
        """
        limits = self.limits
        victims = (
            stock()
            if policy is None or not self.caching
            else victims_of(policy, compile_ordering, limits.usable_blocks, "engine", use_shortcuts=shortcuts)
        )
        blocks, table = engine_blocks(self.trace, self.block_size), self.table
        service = by_priority() if self.scheduling == "priority" else first_come()
        if schedule is not None:
            service = service_of(schedule, compile_ordering, guard=guard is not None, seed_s=guard or 0.0)
        run = EngineRun(
            blocks, self.trace.arrival_us, limits, victims, engine, table.aborts, must_fit=False,
            service=service, priority=table.priority, latency=self.latency,
        )  # fmt: skip
        stuck = False
        try:
            run.run()
        except TanrenError:
            stuck = True
        run.check_integrity()
        return run.result(), stuck


@st.composite
def asks(draw: Draw, block_size: int, aborts: list[float | None]) -> Ask:
    """One request of up to five blocks of shared prompt, three of its own and two of output."""
    per_block = block_size // CHUNK
    shared = draw(st.integers(0, 5 * per_block))
    return Ask(
        after=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0, 12.0, 12.0, 60.0])),
        stem=draw(st.integers(0, 2)),
        shared=shared,
        own=draw(st.integers(0 if shared else 1, 3 * per_block)),
        partial=draw(st.sampled_from([0, 0, 1, CHUNK - 1])),
        output=draw(st.integers(1, 2 * block_size + 4)),
        abort=draw(st.sampled_from(aborts)),
        priority=draw(st.integers(-1, 2)),
    )


@st.composite
def cases(
    draw: Draw, *, fits: bool = True, schedulings: tuple[str, ...] = ("fcfs",),
    may_cache: tuple[bool, ...] = (True, True, True, False),
) -> Case:  # fmt: skip
    """Bursts of requests with shared prefixes, outputs and aborts; memory from tight to ample.

    Unless it `fits`, the largest request may need more blocks than there are.
    """
    block_size = draw(st.sampled_from([16, 32]))
    max_num_seqs = draw(st.sampled_from([16, 8, 4, 2, 1]))
    some = [None] * 12 + [0.0, 1.0, 2.0, 4.5, 20.0, 40.0]
    one = asks(block_size, draw(st.sampled_from([[None], some])))
    count = draw(st.integers(1, 40))
    return Case(
        asks=tuple(draw(st.lists(one, min_size=count, max_size=count))),
        block_size=block_size,
        spare=draw(st.sampled_from([0, 2, 4, 8, 12, 60] if fits else [-6, -3, -2, -1, -1, 0, 2])),
        max_num_seqs=max_num_seqs,
        budget=draw(st.sampled_from([16, 40, 128, 512])),
        asynchronous=draw(st.booleans()),
        scheduling=draw(st.sampled_from(schedulings)),
        threshold=draw(st.sampled_from([0, 0, 0, 1, 24, 100])),
        caching=draw(st.sampled_from(may_cache)),
        latency=draw(st.sampled_from([None, LATENCY])),
    )


ENGINES = list(PROFILES)
GUARDS = [None, 1.0, 0.004, 0.0]
"""No starvation guard, or the mean wait that it starts from, in seconds."""
