"""Engine mode: the real engine's scheduler and cache, step by step, in virtual time.

Tokens, only full blocks are hashed, outputs, concurrency, chunked prefill, preemption,
synchronous and asynchronous stepping; N usable blocks, one more is the null block.
Events come out as the lines that the real engine's driver writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.kernels.decision import BLOCK_SIZE, CAPACITY, MAX_RUNNING, TOKEN_BUDGET
from tanren_dsl.sim.engine_kernel import run
from tanren_dsl.sim.engine_state import (
    ABORTED,
    ADMITTED,
    EVENTS,
    EVICTED,
    FINISHED,
    FULL,
    GOING,
    HIT_TOKENS,
    ORDER_FAULTS,
    ORDERINGS,
    OVER,
    PREEMPTED,
    PREEMPTIONS,
    RESCUED,
    STEP,
    STUCK,
    TIME,
    TRAIL,
    Asked,
    Limits,
    new_engine,
)
from tanren_dsl.sim.integrity import check_pool
from tanren_dsl.sim.latency import Latency, constant
from tanren_dsl.sim.pool import DECISIONS, EVICTIONS, FAULTS, WHERE, new_pool, pool_fill
from tanren_dsl.sim.profiles import profile_of
from tanren_dsl.sim.rule import Victims, as_array
from tanren_dsl.sim.service import Service, first_come
from tanren_dsl.trace.blocks import EngineBlocks

MODE = "engine"
_EVENT_ROOM = 1 << 16
_ALL_STEPS = 1 << 62


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of the engine: blocks, sequences, tokens a step, tokens a sequence; and its switches.

    `step_us` is what every step takes unless the run has a latency profile.
    """

    usable_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    step_us: int
    asynchronous: bool = False
    long_prefill_token_threshold: int = 0
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True


@dataclass(frozen=True)
class EngineResult:
    """Totals of a run, and its events if they were kept."""

    policy: str
    engine: str
    steps: int
    requests: int
    evictions: int
    hit_tokens: int
    preemptions: int
    decisions: int
    faults: int
    orderings: int
    order_faults: int
    rescued: int
    time_us: int
    events: list[dict[str, Any]]
    mode: str = MODE


class EngineRun:
    """One run under way.

    Args:
        blocks: R requests.
        arrival_us: [R] ascending.
        limits: sizes of the engine.
        victims: how victims are chosen.
        engine: the profile's name.
        abort_us: [R] when the client gives up, -1 for never; None: nobody does.
        must_fit: refuse requests that are larger than the memory. The engine takes them;
            it and all behind it then wait for ever, or until a client gives up.
        service: how requests are ordered; None: first come first served.
        latency: what a step takes; None: `limits.step_us`.
        declared: [R] caps on the output that clients name; None: what is generated.
        priority: [R] whole numbers that clients give; None: 0.
        keep_trail: hold what each step did.

    Raises:
        TanrenError: a size below 1, or a request that the engine refuses or never finishes.
    """

    def __init__(
        self, blocks: EngineBlocks, arrival_us: Any, limits: EngineLimits, victims: Victims, engine: str,
        abort_us: Any = None, *, must_fit: bool = True, service: Service | None = None,
        latency: Latency | None = None, declared: Any = None, priority: Any = None, keep_trail: bool = False,
    ) -> None:  # fmt: skip
        profile = profile_of(engine)
        _check(blocks, limits, must_fit)
        self.engine_name, self.victims = engine, victims
        self.service = service = service or first_come()
        keeps_oldest = "oldest_wait" in victims.reads | service.reads
        self.limits = Limits(
            block_size=blocks.block_size,
            usable=limits.usable_blocks,
            max_seqs=limits.max_num_seqs,
            max_tokens=limits.max_num_batched_tokens,
            max_len=limits.max_model_len,
            threshold=limits.long_prefill_token_threshold,
            depth=2 if limits.asynchronous else 1,
            caching=int(limits.enable_prefix_caching),
            chunked=int(limits.enable_chunked_prefill),
            reserve=int(limits.scheduler_reserve_full_isl),
            unhashed_first=int(profile.unhashed_first),
            refill=int(profile.refill),
            alone_exempt=int(profile.alone_exempt),
            index_fixed=int(profile.index_fixed),
            keeps_oldest=int(keeps_oldest),
            keeps_trail=int(keep_trail),
        )
        decision = victims.decision.copy()
        decision[CAPACITY] = float(limits.usable_blocks * blocks.block_size)
        decision[BLOCK_SIZE] = float(blocks.block_size)
        decision[MAX_RUNNING] = float(limits.max_num_seqs)
        decision[TOKEN_BUDGET] = float(limits.max_num_batched_tokens)
        ids = limits.usable_blocks + 1
        self.pool = new_pool(
            ids, blocks.distinct, victims.key_count, decision,
            with_heap=victims.with_heap, with_waiting=victims.rule.keeps_waiting != 0,
        )  # fmt: skip
        pool_fill(self.pool, 1, ids)
        asked = Asked(
            as_array(arrival_us),
            as_array(np.full(len(blocks), -1) if abort_us is None else abort_us),
            as_array(blocks.prompt_tokens),
            as_array(blocks.output_tokens),
            as_array(blocks.output_tokens if declared is None else declared),
            as_array(np.zeros(len(blocks)) if priority is None else priority),
        )
        self.engine = new_engine(
            asked, as_array(blocks.offsets), blocks.hash_ids, blocks.parent, self.limits,
            (latency or constant(limits.step_us)).coefficients,
            _EVENT_ROOM + 4 * ids + 8 * limits.max_num_seqs, service.key_counts, service.seed_us,
        )  # fmt: skip
        self.line = service.line._replace(decision=service.line.decision.copy())
        self.lines: list[dict[str, Any]] = []
        self.trail: list[NDArray[np.int64]] = []

    def run(self, steps: int | None = None, *, keep_events: bool = True) -> bool:
        """Run on, at most so many steps (to the end by default); True while there is more to do.

        Raises:
            TanrenError: requests remain that can never be scheduled.
        """
        state = self.engine.state
        upto = _ALL_STEPS if steps is None else int(state[STEP]) + steps
        while True:
            left = upto - int(state[STEP])
            run(self.engine, self.pool, self.victims.rule, self.line, self.limits, left)
            if keep_events:
                self.lines.extend(_lines(self.engine.events[: state[EVENTS]], self.lines))
            self.trail.append(self.engine.trail[: state[TRAIL]].copy())
            state[EVENTS] = state[TRAIL] = 0
            if state[OVER] == STUCK:
                raise TanrenError(
                    "requests remain that are never scheduled",
                    hint="a request needs more blocks than there are: raise --capacity",
                )
            if state[OVER] != FULL:
                return bool(state[OVER] == GOING)

    def check_integrity(self) -> None:
        """Raise AssertionError unless the state between two steps is consistent."""
        engine, pool = self.engine, self.pool
        check_pool(pool, first_block=1, with_heap=self.victims.with_heap)
        refs = np.zeros_like(engine.refs)
        for r in range(len(engine.arrival)):
            at = engine.block_at[r]
            np.add.at(refs, engine.blocks[at : at + engine.held[r]], 1)
        assert (refs == engine.refs).all(), "reference counts are wrong"
        free = pool.pos != -1
        assert (free[1:] == (refs[1:] == 0)).all(), "a block is neither free nor held, or both"
        carried = pool.block_hash[pool.block_hash >= 0]
        assert (np.flatnonzero(pool.hashes[:, WHERE] >= 0) == np.unique(carried)).all(), (
            "the hash map is wrong"
        )
        if self.victims.rule.keeps_waiting:
            awaited = np.zeros_like(pool.awaited)
            for r in np.flatnonzero(engine.counted).tolist():
                start = engine.hash_at[r]
                full = engine.prompt[r] // self.limits.block_size
                np.add.at(awaited, engine.hashes[start : start + full], 1)
            assert (awaited == pool.awaited).all(), "the waiting requests are counted wrong"

    def result(self) -> EngineResult:
        """Totals so far."""
        state, counts = self.engine.state, self.pool.counts
        return EngineResult(
            policy=self.victims.label,
            engine=self.engine_name,
            steps=int(state[STEP]),
            requests=len(self.engine.arrival),
            evictions=int(counts[EVICTIONS]),
            hit_tokens=int(state[HIT_TOKENS]),
            preemptions=int(state[PREEMPTIONS]),
            decisions=int(counts[DECISIONS]),
            faults=int(counts[FAULTS]),
            orderings=int(state[ORDERINGS]),
            order_faults=int(state[ORDER_FAULTS]),
            rescued=int(state[RESCUED]),
            time_us=int(state[TIME]),
            events=self.lines,
        )


def _check(blocks: EngineBlocks, limits: EngineLimits, must_fit: bool) -> None:
    for name in ("usable_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "step_us"):
        if getattr(limits, name) < 1:
            raise TanrenError(f"expected {name} of at least 1, found {getattr(limits, name)}")
    if limits.long_prefill_token_threshold < 0:
        raise TanrenError(
            "expected long_prefill_token_threshold of 0 (none) or more, found "
            f"{limits.long_prefill_token_threshold}"
        )
    if not limits.enable_chunked_prefill and limits.max_num_batched_tokens < limits.max_model_len:
        raise TanrenError(
            f"without chunked prefill a step must hold a whole prompt: max_num_batched_tokens "
            f"{limits.max_num_batched_tokens} is less than max_model_len {limits.max_model_len}"
        )
    computed = blocks.prompt_tokens + blocks.output_tokens - 1  # the last token never is
    need = -(-computed // blocks.block_size)
    if must_fit and len(need) and need.max() > limits.usable_blocks:
        worst = int(need.argmax())
        raise TanrenError(
            f"a capacity of {limits.usable_blocks} blocks is smaller than request {worst + 1}, "
            f"which needs {int(need[worst])} blocks of {blocks.block_size} tokens",
            hint=f"use --capacity {int(need.max())} or more",
        )
    if (blocks.output_tokens < 1).any() or (blocks.prompt_tokens < 1).any():
        worst = int(np.flatnonzero((blocks.output_tokens < 1) | (blocks.prompt_tokens < 1))[0])
        raise TanrenError(f"request {worst + 1} has no prompt or no output token; an engine refuses it")


def _name(request: int) -> str:
    return f"r{request:06d}"


def _lines(rows: Any, so_far: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Event rows as the driver's lines; continues the last line if it is of the same step."""
    out: list[dict[str, Any]] = []
    last = so_far[-1] if so_far else None
    for kind, step, time_us, a, b in rows.tolist():
        phase = "update" if kind == FINISHED else "schedule"
        if last is None or last["step"] != step or last["phase"] != phase:
            last = {"step": step, "phase": phase, "t_us": time_us}
            if phase == "update":
                last["finished"] = []
            else:
                last.update(evicted=[], admitted=[], preempted=[])
            out.append(last)
        if kind == EVICTED:
            last["evicted"].append(a)
        elif kind == ADMITTED:
            last["admitted"].append([_name(a), b])
        elif kind == PREEMPTED:
            last["preempted"].append(_name(a))
        elif kind == ABORTED:
            last.setdefault("aborted", []).append(_name(a))
        else:
            last["finished"].append(_name(a))
    return out
