"""What the engine-mode simulator says a server would find in its cache, for the same requests.

Served one after the other, the requests leave nothing to chance: the prediction should be met
exactly, by policies that do not look at the time. Under load it is a guess, since the simulator's
steps all take the same time and the server's do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.sim.engine import MODE, EngineLimits, EngineRun
from tanren_dsl.sim.rule import stock, victims_of
from tanren_dsl.sim.service import first_come, service_of
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.table import Ints, RequestTable

_SERIAL_STEP_US = 1000


@dataclass(frozen=True, slots=True)
class Engine:
    """The sizes of the server that is predicted, in tokens and requests, and its profile's name."""

    profile: str
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    asynchronous: bool


def predict_hits(
    policy: Policy | None,
    table: RequestTable,
    engine: Engine,
    usable_blocks: int,
    compile_ordering: CompileOrdering,
    *,
    step_us: int | None,
) -> int:
    """Tokens of the prompts that are found in the cache.

    Args:
        policy: an evict or a schedule policy, or None for the engine's own orders.
        table: the requests as they are sent.
        engine: sizes.
        usable_blocks: of the cache.
        compile_ordering: makes the policy's machine code.
        step_us: microseconds of a step, with arrivals as in the table; None: one request at a time.

    Raises:
        TanrenError: a request needs more blocks than there are.
        UnsupportedError: the policy reads what the simulator does not provide.
    """
    arrival_us = table.arrival_us if step_us is not None else _one_by_one(table, engine)
    limits = EngineLimits(
        usable_blocks=usable_blocks,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        step_us=step_us or _SERIAL_STEP_US,
        asynchronous=engine.asynchronous,
    )
    victims, service = stock(), first_come()
    if policy is not None and policy.kind == "evict":
        victims = victims_of(policy, compile_ordering, usable_blocks, MODE)
    elif policy is not None:
        service = service_of(policy, compile_ordering)
    blocks = engine_blocks(table, engine.block_size)
    run = EngineRun(blocks, arrival_us, limits, victims, engine.profile, service=service)
    run.run(keep_events=False)
    return run.result().hit_tokens


def _one_by_one(table: RequestTable, engine: Engine) -> Ints:
    """Arrivals so far apart that each request has ended, by a few steps, when the next one comes."""
    steps = -(-table.prompt_tokens // engine.max_num_batched_tokens) + table.output_tokens + 4
    ends = np.cumsum(steps) * _SERIAL_STEP_US
    return np.asarray(np.concatenate((np.zeros(1, np.int64), ends[:-1])), np.int64)
