"""The serving simulator: laws of queues and of accounting, over random servers, traces and policies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.engine import EngineLimits, EngineRun
from tanren_dsl.sim.latency import Latency, constant
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.sim.rule import stock
from tanren_dsl.sim.service import Service, by_priority, first_come, service_of
from tanren_dsl.sim.serving import (
    BATCH,
    FREE,
    RUNNING,
    STARTS,
    TOKENS,
    WAITING,
    Served,
    Server,
    serve,
)
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.table import Ints, RequestTable
from tests.conform.cases import Case, cases
from tests.strategies import Draw, policies

LONGEST_PREFIX = loads("policy hot : schedule order by -cached_tokens")


@dataclass(frozen=True)
class Load:
    """A small trace, a server that can hold every request of it, an order of service, a latency."""

    table: RequestTable
    server: Server
    service: Service
    latency: Latency
    priority: Ints

    def serve(self) -> Served:
        """Every step kept."""
        return serve(
            self.table,
            self.server,
            self.latency,
            service=self.service,
            priority=self.priority,
            keep_steps=True,
        )


@st.composite
def latencies(draw: Draw) -> Latency:
    """Steps of a millisecond or a hundred, from flat to steep in every term."""
    base, empty = (
        draw(st.sampled_from([0.0, 1000.0, 20_000.0, 100_000.0])),
        draw(st.sampled_from([0.0, 300.0])),
    )
    terms = [draw(st.sampled_from([0.0, 1.0, 90.0, 5000.0])) for _ in range(4)]
    return Latency("drawn", "drawn", "estimate", base, *terms, empty)


@st.composite
def services(draw: Draw) -> Service:
    """The engine's own orders, or a random policy with or without the guard."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([first_come(), by_priority()]))
    policy = draw(policies("schedule", provided_by="engine")).policy
    seed_s = draw(st.sampled_from([0.0, 0.01, 1.0]))
    return service_of(policy, compile_ordering, guard=draw(st.booleans()), seed_s=seed_s)


@st.composite
def loads_(draw: Draw) -> Load:
    """Memory from tight to ample: some of them preempt, some do not."""
    case = draw(cases())
    limits = case.limits
    server = Server(
        usable_blocks=limits.usable_blocks,
        engine=draw(st.sampled_from(list(PROFILES))),
        block_size=case.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        asynchronous=limits.asynchronous,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 8, 24])),
        caching=draw(st.booleans()),
    )
    table = case.trace
    priority = np.array(draw(st.lists(st.integers(0, 3), min_size=len(table), max_size=len(table))), np.int64)
    return Load(table, server, draw(services()), draw(latencies()), priority)


def joined_us(load: Load, served: Served) -> Ints:
    """[R] the step at whose top each request was first in the queue: the engine looks only between steps."""
    begins = served.steps[:, STARTS]
    return np.asarray(begins[np.searchsorted(begins, load.table.arrival_us)])


def integral(served: Served, column: Ints) -> int:
    """A count behind every step, over time; after the last step it must be nothing."""
    assert column[-1] == 0
    return int((np.diff(served.steps[:, STARTS]) * column[:-1]).sum())


@settings(max_examples=200)
@given(loads_())
def test_littles_law_holds_to_the_microsecond(load: Load) -> None:
    """Number in the system over time is the sum of the times in it, preempted or not.

    Left are the steps' own queue lengths, right the requests' own moments; a request is in the
    system from the step that first sees it.
    """
    served = load.serve()
    inside = served.steps[:, WAITING] + served.steps[:, RUNNING]
    assert integral(served, inside) == (served.end_us - joined_us(load, served)).sum()


@settings(max_examples=200)
@given(loads_())
def test_littles_law_holds_for_the_queue_alone(load: Load) -> None:
    served = load.serve()
    waits = served.first_scheduled_us - joined_us(load, served)
    queue = integral(served, served.steps[:, WAITING])
    if served.totals.preemptions:
        assert queue >= waits.sum()  # those pushed out wait again
    else:
        assert queue == waits.sum()
    # a request waits for the engine to look for one step at most
    unseen = joined_us(load, served) - served.arrival_us
    assert (unseen >= 0).all()
    assert unseen.max() <= np.diff(served.steps[:, STARTS], append=served.end_us.max()).max()


@settings(max_examples=200)
@given(loads_())
def test_moments_of_a_request_stand_in_order(load: Load) -> None:
    served, outputs = load.serve(), load.table.output_tokens
    assert np.array_equal(served.arrival_us, load.table.arrival_us)
    assert (served.arrival_us <= served.first_scheduled_us).all()
    assert (served.first_scheduled_us < served.first_token_us).all()
    assert ((served.first_token_us == served.end_us) == (outputs == 1)).all()
    assert (served.first_token_us <= served.end_us).all()
    # a step gives a request one token
    begins = served.steps[:, STARTS]
    between = np.searchsorted(begins, served.end_us) - np.searchsorted(begins, served.first_scheduled_us)
    assert (between >= outputs).all()
    assert (served.cached_tokens < load.table.prompt_tokens).all()
    assert (served.cached_tokens >= 0).all()
    assert served.totals.preemptions == served.preemptions.sum()
    assert np.isnan(served.tpot_s).tolist() == (outputs == 1).tolist()


@settings(max_examples=200)
@given(loads_())
def test_no_step_exceeds_the_server(load: Load) -> None:
    served, server = load.serve(), load.server
    steps = served.steps
    assert (np.diff(steps[:, STARTS]) >= 0).all()
    assert steps[:, TOKENS].max() <= server.max_num_batched_tokens
    assert steps[:, [BATCH, RUNNING]].max() <= server.max_num_seqs
    assert (steps[:, BATCH] <= steps[:, TOKENS]).all()
    assert ((steps[:, BATCH] == 0) == (steps[:, TOKENS] == 0)).all()
    assert steps[:, FREE].min() >= 0
    assert steps[:, FREE].max() <= server.usable_blocks
    assert steps[-1, FREE] == server.usable_blocks
    assert (steps[:, WAITING] + steps[:, RUNNING]).max() <= len(load.table)


@settings(max_examples=200)
@given(loads_())
def test_no_request_that_fits_waits_while_nothing_runs(load: Load) -> None:
    """Every request of these traces fits when alone, so an empty engine with a queue wastes time."""
    steps = load.serve().steps
    lazy = (steps[:, BATCH] == 0) & (steps[:, RUNNING] == 0) & (steps[:, WAITING] > 0)
    assert not lazy.any()


@settings(max_examples=200)
@given(loads_())
def test_every_token_is_accounted_for(load: Load) -> None:
    """Scheduled tokens are what is computed: all but the last, less hits, more what preemption lost."""
    served, table = load.serve(), load.table
    computed = int(served.steps[:, TOKENS].sum())
    needed = int((table.prompt_tokens + table.output_tokens - 1).sum())
    if not served.totals.preemptions:
        assert served.totals.hit_tokens == served.cached_tokens.sum()
        assert computed == needed - served.totals.hit_tokens
    again = (served.preemptions * (table.prompt_tokens + table.output_tokens - 1)).sum()
    assert needed - served.totals.hit_tokens <= computed <= needed - served.cached_tokens.sum() + again
    if not load.server.caching:
        assert served.totals.hit_tokens == 0


@settings(max_examples=60)
@given(loads_())
def test_every_request_gets_exactly_its_tokens_and_the_state_stays_whole(load: Load) -> None:
    """The same run by hand, a step at a time: nothing depends on where it is interrupted."""
    table, server = load.table, load.server
    whole = load.serve()
    longest = int((table.prompt_tokens + table.output_tokens).max()) + 1
    run = EngineRun(
        engine_blocks(table, server.block_size), table.arrival_us, limits_of(server, longest), stock(),
        server.engine, service=load.service, latency=load.latency, priority=load.priority, keep_trail=True,
        declared=np.full(len(table), 1_000_000),
    )  # fmt: skip
    while run.run(1, keep_events=False):
        run.check_integrity()
    engine = run.engine
    assert np.array_equal(engine.known, table.prompt_tokens + table.output_tokens)
    steps = np.concatenate(run.trail)
    assert engine.attained.sum() == steps[:, TOKENS].sum()
    assert np.array_equal(steps, whole.steps)
    assert np.array_equal(engine.ended, whole.end_us)


def limits_of(server: Server, longest: int) -> EngineLimits:
    return EngineLimits(
        usable_blocks=server.usable_blocks, max_num_seqs=server.max_num_seqs,
        max_num_batched_tokens=server.max_num_batched_tokens, max_model_len=longest, step_us=1,
        asynchronous=server.asynchronous, long_prefill_token_threshold=server.long_prefill_token_threshold,
        enable_prefix_caching=server.caching,
    )  # fmt: skip


@settings(max_examples=100)
@given(cases(), latencies())
def test_one_at_a_time_is_lindleys_recursion(case: Case, latency: Latency) -> None:
    """A request begins when it has come and the one before it has ended, and takes what its steps take."""
    latency = replace(latency, empty_us=0.0)
    budget = case.limits.max_num_batched_tokens
    server = Server(
        case.limits.usable_blocks, block_size=case.block_size, max_num_seqs=1, max_num_batched_tokens=budget,
        asynchronous=False, caching=False,
    )  # fmt: skip
    served = serve(case.trace, server, latency)
    end, ends, firsts = 0, [], []
    rows = zip(case.trace.arrival_us, case.trace.prompt_tokens, case.trace.output_tokens, strict=True)
    for arrival, prompt, output in rows:
        begin = max(end, int(arrival))
        first, rest = alone_us(int(prompt), int(output), budget, latency)
        end = begin + first + rest
        firsts.append(begin + first)
        ends.append(end)
    assert served.first_token_us.tolist() == firsts
    assert served.end_us.tolist() == ends


def alone_us(prompt: int, output: int, budget: int, latency: Latency) -> tuple[int, int]:
    """Microseconds of a request's prefill and of its decoding, by the words of `latency.py`."""
    first, rest, computed = 0, 0, 0
    while computed < prompt:
        new = min(budget, prompt - computed)
        pairs = new * computed + new * (new + 1) // 2
        step_us = latency.base_us + latency.prefill_us * new + latency.attention_us * (pairs / 1e6)
        first += max(1, math.floor(step_us + 0.5))
        computed += new
    for context in range(prompt + 1, prompt + output):
        step_us = latency.base_us + latency.decode_us + latency.context_us * (context / 1e3)
        rest += max(1, math.floor(step_us + 0.5))
    return first, rest


def hot_and_cold() -> tuple[RequestTable, int]:
    """One request with a prompt of its own among 6,000, each 10 ms, that share theirs; and its place."""
    arrival = np.concatenate((np.zeros(4), [1000], 10_000 * np.arange(1, 6001))).astype(np.int64)
    count, cold, blocks = len(arrival), 4, 4
    ids = np.tile(np.arange(blocks), (count, 1))
    ids[cold] += blocks
    return (
        RequestTable(
            "hot and cold", 16, arrival, np.full(count, 16 * blocks), np.ones(count, np.int64),
            np.full(count, -1), blocks * np.arange(count + 1), ids.astype(np.int32).reshape(-1),
        ),
        cold,
    )  # fmt: skip


@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize("seed_s", [0.01, 1.0])
def test_the_guard_bounds_the_wait_of_a_cold_request(engine: str, seed_s: float) -> None:
    """Two are served in a step, and two come: the queue never empties, and the cold one is last in it."""
    table, cold = hot_and_cold()
    table.check()
    server = Server(1000, engine=engine, max_num_seqs=2, asynchronous=False)
    step_s = 0.02
    with_guard, without = (
        serve(
            table, server, constant(20_000), keep_steps=True,
            service=service_of(LONGEST_PREFIX, compile_ordering, guard=guard, seed_s=seed_s),
        )
        for guard in (True, False)
    )  # fmt: skip
    hot = np.arange(len(table)) != cold
    assert with_guard.steps[:-10, WAITING].min() > 0
    # without it, to the end: all others are admitted first
    assert without.first_scheduled_us[cold] == without.first_scheduled_us.max()
    assert without.wait_s[cold] > 59.0
    assert without.totals.rescued == 0
    # with it, up to 20 times the mean that the guard keeps, which is never below its seed
    before = with_guard.first_scheduled_us < with_guard.first_scheduled_us[cold]
    mean_s = (seed_s + with_guard.wait_s[before].sum()) / (1 + before.sum())
    assert with_guard.wait_s[cold] <= 20 * max(mean_s, seed_s) + 3 * step_s
    assert with_guard.totals.rescued == 1
    # nobody else waits longer for it by more than a step
    assert with_guard.wait_s[hot].max() <= without.wait_s[hot].max() + 2 * step_s
    assert with_guard.wait_s[cold] < (3.0 if seed_s < 0.1 else 21.0)


def test_steps_are_kept_only_where_asked_for() -> None:
    table = generate_chat(1, 20).with_outputs(5)
    found = serve(table, Server(2000), constant(1000))
    assert found.steps.shape == (0, 6)
    assert serve(table, Server(2000), constant(1000), keep_steps=True).steps.shape == (found.totals.steps, 6)


def test_twice_as_slow_a_server_takes_twice_as_long() -> None:
    """The unit of time is free: arrivals and steps doubled double every moment."""
    table = generate_chat(2, 200)
    table = replace(
        table, output_tokens=np.maximum(table.output_tokens, 1), arrival_us=table.arrival_us // 40
    )
    slow = replace(table, arrival_us=2 * table.arrival_us)
    once, twice = (
        serve(
            one, Server(3000), Latency("x", "x", "estimate", *(factor * np.array([9e3, 80, 0, 400, 0, 200])))
        )
        for one, factor in ((table, 1.0), (slow, 2.0))
    )
    assert np.array_equal(2 * once.end_us, twice.end_us)
    assert np.array_equal(2 * once.first_token_us, twice.first_token_us)


def test_first_come_is_first_served() -> None:
    table = generate_chat(3, 300)
    table = replace(
        table, output_tokens=np.maximum(table.output_tokens, 1), arrival_us=table.arrival_us // 100
    )
    found = serve(table, Server(20_000, max_num_seqs=8), constant(20_000))
    assert found.totals.preemptions == 0
    assert (np.diff(found.first_scheduled_us) >= 0).all()
    assert found.wait_s.max() > 1.0


def test_what_cannot_be_served_is_refused() -> None:
    table = generate_chat(1, 20)
    with pytest.raises(TanrenError, match="no requests to serve"):
        serve(table.head(0), Server(2000), constant(1000))
    with pytest.raises(TanrenError, match="no output token"):
        serve(table.with_outputs(0), Server(2000), constant(1000))
    with pytest.raises(TanrenError, match="is smaller than request"):
        serve(table, Server(2), constant(1000))
