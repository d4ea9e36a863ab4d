"""The serving simulator: what each request lived through under an evict and a schedule policy.

Engine mode in virtual time, with a latency profile in place of a step of fixed length.
Times are whole microseconds since the first arrival.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.engine import EngineLimits, EngineResult, EngineRun
from tanren_dsl.sim.latency import Latency
from tanren_dsl.sim.rule import Victims, stock
from tanren_dsl.sim.service import Service
from tanren_dsl.trace.blocks import EngineBlocks, engine_blocks
from tanren_dsl.trace.table import Ints, RequestTable

MODE = "serving"
DECLARED_TOKENS = 1_000_000
"""The cap on output that every request declares where a trace has none: one constant, never the length."""

Doubles = NDArray[np.float64]

STARTS, TOKENS, BATCH, WAITING, RUNNING, FREE = range(6)
"""Columns of `Served.steps`."""


@dataclass(frozen=True, slots=True)
class Server:
    """A simulated server. Sizes in blocks, tokens and sequences; defaults are the engine's own.

    Attributes:
        engine: the profile's name.
        usable_blocks: of the cache.
        block_size: tokens of a block.
        max_model_len: most tokens of a request; None: what the longest one needs.
        caching: whether prefixes are cached.
    """

    usable_blocks: int
    engine: str = "vllm-0.32"
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    asynchronous: bool = True
    long_prefill_token_threshold: int = 0
    caching: bool = True


@dataclass(frozen=True, eq=False)
class Served:
    """R requests and the S steps that served them.

    Attributes:
        totals: counts of the run.
        arrival_us, first_scheduled_us, first_token_us, end_us: [R] moments.
        cached_tokens: [R] found in the cache at first admission.
        output_tokens: [R] generated.
        preemptions: [R] how often each was pushed out.
        steps: [S, 6] begin, tokens, requests in the batch, requests waiting and running behind
            it, free blocks; empty unless asked for.
    """

    totals: EngineResult
    arrival_us: Ints
    first_scheduled_us: Ints
    first_token_us: Ints
    end_us: Ints
    cached_tokens: Ints
    output_tokens: Ints
    preemptions: Ints
    steps: Ints

    @property
    def ttft_s(self) -> Doubles:
        """[R] seconds from arrival to the first token."""
        return (self.first_token_us - self.arrival_us) / 1e6

    @property
    def wait_s(self) -> Doubles:
        """[R] seconds from arrival to the first admission."""
        return (self.first_scheduled_us - self.arrival_us) / 1e6

    @property
    def e2e_s(self) -> Doubles:
        """[R] seconds from arrival to the last token."""
        return (self.end_us - self.arrival_us) / 1e6

    @property
    def tpot_s(self) -> Doubles:
        """[R] seconds a token after the first; nan where there is one token only."""
        after = self.output_tokens - 1
        times = (self.end_us - self.first_token_us) / 1e6
        return np.asarray(np.divide(times, after, out=np.full(len(times), np.nan), where=after > 0))


def serve(
    table: RequestTable,
    server: Server,
    latency: Latency,
    *,
    victims: Victims | None = None,
    service: Service | None = None,
    priority: Ints | None = None,
    keep_steps: bool = False,
    blocks: EngineBlocks | None = None,
) -> Served:
    """Serve the requests to the last one.

    Args:
        table: R requests; every one with an output of at least one token (see `trace/load.py`).
        server: sizes.
        latency: what a step takes.
        victims: how blocks are evicted; None: the engine's own order.
        service: how requests are ordered; None: first come first served.
        priority: [R] what clients ask for; None: 0.
        keep_steps: hold what each step did.
        blocks: the table's, at the server's block size, where they are at hand; None: made here.

    Raises:
        TanrenError: no requests, or one that the engine refuses or can never hold.
    """
    if len(table) == 0:
        raise TanrenError(f"{table.name}: no requests to serve")
    longest = int((table.prompt_tokens + table.output_tokens).max()) + 1
    limits = EngineLimits(
        usable_blocks=server.usable_blocks,
        max_num_seqs=server.max_num_seqs,
        max_num_batched_tokens=server.max_num_batched_tokens,
        max_model_len=server.max_model_len or longest,
        step_us=1,
        asynchronous=server.asynchronous,
        long_prefill_token_threshold=server.long_prefill_token_threshold,
        enable_prefix_caching=server.caching,
    )
    run = EngineRun(
        blocks or engine_blocks(table, server.block_size), table.arrival_us, limits,
        victims if victims is not None and server.caching else stock(), server.engine,
        service=service, latency=latency, priority=priority, keep_trail=keep_steps,
        declared=np.full(len(table), DECLARED_TOKENS),
    )  # fmt: skip
    run.run(keep_events=False)
    engine = run.engine
    return Served(
        totals=run.result(),
        arrival_us=engine.arrival,
        first_scheduled_us=engine.first_scheduled,
        first_token_us=engine.first_token,
        end_us=engine.ended,
        cached_tokens=engine.cached_first,
        output_tokens=table.output_tokens,
        preemptions=engine.preempted,
        steps=np.concatenate(run.trail) if run.trail else np.zeros((0, 6), np.int64),
    )
