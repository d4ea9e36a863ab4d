"""Schedule policies in real vLLM, the simulator beside it: who is admitted when, and who is pushed out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import load, loads
from tanren_dsl.cli.options import examples
from tanren_dsl.conform.conform import Conformance, Setting, conform
from tanren_dsl.conform.worker import Worker
from tanren_dsl.ir import Policy
from tanren_dsl.sim.latency import read_latency
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.trace.read import read_trace
from tests.public import AZURE

EVERY = loads("""\
policy every : schedule
let size = prompt_tokens / mean(prompt_tokens) + uncached_tokens / mean(uncached_tokens)
let done = (computed_tokens + attained_tokens) / token_budget + output_tokens / block_size + preemptions
let queue = waiting / max_running + running / max_running + kv_free + hit_rate
let pace = min(1, service_rate * oldest_wait / capacity)
order by size + done + queue * pace - wait / mean(wait) + 0.2 * user_priority - (1 if resumed else 0),
  -cached_tokens, arrival
preempt by attained_tokens / mean(attained_tokens) - wait / mean(wait), uncached_tokens, -preemptions
""")


def run(
    workers: Callable[[str], Worker], engine: str, policies: list[Policy], load_: float, **changes: object
) -> Conformance:
    """One window of Azure's conversations (of the generator's where they are not), memory short."""
    if AZURE.is_file():
        trace, given = read_trace(AZURE), {"skip": 4000, "load": load_}
    else:
        trace, given = read_trace("chat"), {"rate": 5.5 * load_}
    setting = Setting(
        engine, requests=100, outputs=120, latency=read_latency("gb10-llama-3.1-8b"), **{**given, **changes}
    )  # type: ignore[arg-type]
    return conform(policies, trace, setting, workers(engine), emit=emit, compile_ordering=compile_ordering)


@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize("scheduling", ["fcfs", "priority"])
@pytest.mark.parametrize("load_", [0.2, 0.6, 1.5])
def test_stock_scheduling_is_the_engines(
    workers: Callable[[str], Worker], engine: str, scheduling: str, load_: float
) -> None:
    for asynchronous, caching in ((False, True), (True, False)):
        found = run(
            workers, engine, [], load_, scheduling=scheduling, asynchronous=asynchronous, caching=caching
        )
        assert found.first is None
        assert found.preemptions > 0


@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize("name", ["every", "sjf", "las", "longest_prefix_match", "residual_sjf"])
def test_the_emitted_file_orders_as_the_simulator(
    workers: Callable[[str], Worker], engine: str, name: str
) -> None:
    policy = EVERY if name == "every" else load(examples()[name])
    for load_, asynchronous, caching, guard in ((0.6, True, True, True), (1.5, False, False, False)):
        found = run(workers, engine, [policy], load_, asynchronous=asynchronous, caching=caching, guard=guard)
        assert found.first is None
        assert (found.divergences, found.order_faults) == (0, 0)
        assert found.orderings > 300
        assert found.preemptions > 3
        assert guard or found.rescued == 0


@pytest.mark.parametrize("engine", list(PROFILES))
def test_one_file_decides_evictions_and_scheduling(workers: Callable[[str], Worker], engine: str) -> None:
    found = run(workers, engine, [load(examples()["slru"]), EVERY], 1.5, asynchronous=True)
    assert (found.first, found.faults, found.order_faults) == (None, 0, 0)
    assert found.decisions > 100
    assert found.orderings > 300
