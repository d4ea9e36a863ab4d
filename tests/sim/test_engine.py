"""Engine mode against the plain-Python engine, and its state after every step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.conform.conform import tokens_of
from tanren_dsl.conform.harness import EngineSpec
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.engine import EngineLimits, EngineRun
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.sim.rule import stock, victims_of
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable
from tests.conform import oracle

POLICIES = {
    "lru": "order by last_use",
    "slru": "order by 1 if uses >= 2 else 0, last_use",
    "lfu": "order by uses, last_use candidates all",
    "every signal": (
        "order by hit_rate * uses + children + ghost_uses + spaced_uses - age / (mean_gap + highest(age)), "
        "depth / chain + gap / lifetime + (1 if generated else 0) * running / max_running + kv_free "
        "+ waiting / max_running + oldest_wait / (oldest_wait + mean_gap) "
        "+ service_rate * age / token_budget, "
        "-capacity / block_size * lifetime candidates 30%"
    ),
}


def workload(seed: int, block_size: int, *, asynchronous: bool, requests: int = 120) -> tuple[
    RequestTable, EngineLimits
]:  # fmt: skip
    trace = read_trace(f"chat:{seed}:{requests}").with_outputs(30 + 10 * seed).with_rate(15 + 10 * seed)
    trace = replace(trace, output_tokens=np.maximum(trace.output_tokens, 1))
    total = trace.prompt_tokens + trace.output_tokens
    usable = int((-(-total // block_size)).max()) + 20 + 10 * seed
    return trace, EngineLimits(usable, 8 + 8 * seed, 256 << seed, int(total.max()) + 1, 20_000, asynchronous)


@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("seed", "block_size"), [(0, 16), (1, 32), (2, 48), (3, 7)])
def test_lru_is_the_plain_engine_step_by_step(
    engine: str, asynchronous: bool, seed: int, block_size: int
) -> None:
    trace, limits = workload(seed, block_size, asynchronous=asynchronous)
    spec = EngineSpec(
        block_size=block_size, usable_blocks=limits.usable_blocks, max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens, max_model_len=limits.max_model_len,
        step_us=limits.step_us, asynchronous=asynchronous,
    )  # fmt: skip
    expected = oracle.simulate(spec, tokens_of(trace), PROFILES[engine].version)
    lru = loads("policy lru : evict order by last_use")
    for victims in (
        stock(),
        victims_of(lru, compile_ordering, limits.usable_blocks, "engine", use_shortcuts=False),
    ):
        run = EngineRun(engine_blocks(trace, block_size), trace.arrival_us, limits, victims, engine)
        run.run()
        result = run.result()
        assert result.events == expected.events
        assert result.evictions > 100
        assert result.steps == expected.summary["steps"]


@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize("name", list(POLICIES))
def test_state_is_consistent_after_every_step(engine: str, name: str) -> None:
    trace, limits = workload(1, 16, asynchronous=True, requests=60)
    policy = loads(f"policy p : evict {POLICIES[name]}")
    victims = victims_of(policy, compile_ordering, limits.usable_blocks, "engine")
    run = EngineRun(engine_blocks(trace, 16), trace.arrival_us, limits, victims, engine)
    while run.run(1):
        run.check_integrity()
    assert run.result().faults == 0
    assert run.result().evictions > 100


@pytest.mark.parametrize("name", ["lru", "slru", "lfu"])
def test_shortcuts_change_nothing(name: str) -> None:
    trace, limits = workload(2, 16, asynchronous=False)
    policy = loads(f"policy p : evict {POLICIES[name]}")
    blocks = engine_blocks(trace, 16)
    events = []
    for use_shortcuts in (True, False):
        victims = victims_of(
            policy, compile_ordering, limits.usable_blocks, "engine", use_shortcuts=use_shortcuts
        )
        run = EngineRun(blocks, trace.arrival_us, limits, victims, "vllm-0.32")
        run.run()
        events.append(run.result().events)
    assert events[0] == events[1]


def test_a_request_that_never_fits_is_refused() -> None:
    trace, limits = workload(0, 16, asynchronous=False)
    with pytest.raises(TanrenError, match="smaller than request"):
        EngineRun(
            engine_blocks(trace, 16),
            trace.arrival_us,
            replace(limits, usable_blocks=20),
            stock(),
            "vllm-0.19",
        )
