"""The part of the emitted vLLM file that does not depend on the policy.

`backends/vllm.py` copies everything below the marker line into the file it emits,
behind the policy's constants, the kernel functions and the policy's own `order`
function. Above the marker stand stand-ins, so that this module can be read, linted
and type-checked as it is. It never runs from here.
"""

# ruff: noqa: D101, D102, D103
from __future__ import annotations

import logging
import os
import time
from typing import Any

import numpy as np

from tanren_dsl.kernels.block_rows import (
    BLOCK_SIZE,
    CAPACITY,
    CHILDREN,
    GHOST_USES,
    HIT_RATE,
    HIT_RATES,
    KV_FREE,
    LAST_USE,
    MAX_RUNNING,
    MEAN_GAP,
    NOW,
    OLDEST_WAIT,
    RATES,
    RUNNING,
    SERVICE_RATE,
    TALLY_WIDTH,
    TOKEN_BUDGET,
    USES,
    WAITING,
    moving_mean,
    new_rows,
    row_released,
    row_used,
    row_written,
)
from tanren_dsl.kernels.free_ring import new_ring, ring_consider, ring_push_back, ring_push_front, ring_remove, ring_take
from tanren_dsl.kernels.jit import jit as _jit

POLICY = ""
POLICY_SHA256 = ""
FITS: tuple[str, ...] = ()
SHAPE = "dynamic"
PERCENT: float | None = None
KEY_COUNT = 1
KNOBS: tuple[tuple[str, float, float], ...] = ()
READS: frozenset[str] = frozenset()
ROW_WIDTH = 16
DECISION_WIDTH = 12
HAVE_NUMBA = True


def order(decision: Any, rows: Any, ids: Any, n: int, keys: Any, scratch: Any) -> None: ...


# ======== runtime ========


def CLOCK() -> int:  # noqa: N802 - the one injectable name of this file
    """Whole microseconds of the wall clock; a test may replace it."""
    return time.time_ns() // 1000


_LOG = logging.getLogger("vllm.tanren")
_STATUS: dict[str, Any] = {"policy": POLICY, "sha256": POLICY_SHA256, "mode": "not started"}
_SLOW_LIMIT = 3


def status() -> dict[str, Any]:
    """What the policy is doing: mode, decisions, faults, and why it is off if it is."""
    live = _STATUS.get("evictor")
    out = {key: value for key, value in _STATUS.items() if key != "evictor"}
    if live is not None:
        out.update(live.counts())
    return out


def Scheduler(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - named by --scheduler-cls
    """Make vLLM's scheduler with the policy in it; asynchronous exactly when the engine is."""
    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    if config.scheduler_config.async_scheduling:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler as Base
    else:
        from vllm.v1.core.sched.scheduler import Scheduler as Base
    reason = _reason_to_stand_aside()
    if reason is not None:
        return _stand_aside(Base, reason, args, kwargs)
    scheduler = _scheduler_class(Base)(*args, **kwargs)
    reason = _reason_not_to_attach(scheduler)
    if reason is not None:
        return _stand_aside(Base, reason, args, kwargs)
    scheduler.tanren = Evictor(scheduler)
    _STATUS.update(mode="active", evictor=scheduler.tanren)
    _LOG.info("tanren: policy %s (%s) decides evictions, numba %s", POLICY, POLICY_SHA256[:12], HAVE_NUMBA)
    return scheduler


def _stand_aside(base: Any, reason: str, args: Any, kwargs: Any) -> Any:
    _STATUS["mode"] = reason
    _LOG.warning("tanren: policy %s stands aside, vLLM's own order holds: %s", POLICY, reason)
    return base(*args, **kwargs)


def _reason_to_stand_aside() -> str | None:
    import vllm

    if os.environ.get("TANREN_DISABLE") == "1":
        return "TANREN_DISABLE=1"
    version = vllm.__version__.split("+")[0]
    if version not in FITS and os.environ.get("TANREN_FORCE") != "1":
        return f"vLLM {version} is not one of {', '.join(FITS)} (TANREN_FORCE=1 overrides)"
    if SHAPE == "identity" and os.environ.get("TANREN_NO_IDENTITY") != "1":
        return "pass-through: this policy's order is vLLM's own"
    return None


def _reason_not_to_attach(scheduler: Any) -> str | None:
    manager = scheduler.kv_cache_manager
    if not manager.enable_caching:
        return "prefix caching is off, nothing to decide"
    if manager.num_kv_cache_groups != 1:
        return f"{manager.num_kv_cache_groups} KV cache groups, this file handles one"
    if type(manager.block_pool.free_block_queue).__name__ != "FreeKVCacheBlockQueue":
        return "another free queue is already in place"
    return None


def _scheduler_class(base: Any) -> Any:
    class TanrenScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; freezes the moment at the top of a step, nothing else."""

        tanren: Evictor | None = None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is None or not evictor.on:
                return super().schedule(*args, **kwargs)
            evictor.guarded(evictor.step_begins)
            output = super().schedule(*args, **kwargs)
            evictor.tokens += output.total_num_scheduled_tokens
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is not None and evictor.on:
                evictor.guarded(evictor.freeze_now)
            return super().update_from_output(*args, **kwargs)

    return TanrenScheduler


def _queue_class(base: Any) -> Any:
    class TanrenQueue(base):  # type: ignore[misc]
        """vLLM's free queue, which stays the storage; only the choice of victims differs."""

        tanren: Evictor

        def popleft(self) -> Any:
            return self.popleft_n(1)[0]

        def popleft_n(self, n: int) -> Any:
            victims = self.tanren.choose(n) if n > 0 else None
            if victims is None:
                return super().popleft_n(n)
            remove = super().remove
            for block in victims:
                remove(block)
            return victims

        def remove(self, block: Any) -> None:
            self.tanren.guarded(self.tanren.left, block.block_id)
            super().remove(block)

        def append(self, block: Any) -> None:
            super().append(block)
            self.tanren.guarded(self.tanren.released, [block], False)

        def append_n(self, blocks: Any) -> None:
            super().append_n(blocks)
            self.tanren.guarded(self.tanren.released, blocks, False)

        def prepend_n(self, blocks: Any) -> None:
            super().prepend_n(blocks)
            self.tanren.guarded(self.tanren.released, blocks, True)

    return TanrenQueue


class Evictor:
    """The policy at work: a mirror of the free queue and the signals, in flat arrays by block id."""

    def __init__(self, scheduler: Any) -> None:
        self.on = True
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.queue = self.pool.free_block_queue
        self.blocks = self.pool.blocks
        count = len(self.blocks)
        self.usable = count - 1
        self.block_size = int(scheduler.block_size)
        self.unhashed_unscored = hasattr(self.queue, "prepend_n")
        self.extra = count if PERCENT is None else -int(-PERCENT * self.usable // 100)
        self.budget_s = float(os.environ.get("TANREN_BUDGET_MS", "20")) / 1e3
        self.start = CLOCK()
        self.now = 0.0
        self.mark, self.tokens = 0.0, 0
        self.decisions = self.faults = self.slow = 0
        self.chain = 0.0

        self.ring, self.pos, self.ends = new_ring(count)
        self.unscored = np.ones(count, np.uint8)
        self.rows = new_rows(count)
        self.tally = np.zeros(TALLY_WIDTH)
        self.keys = np.zeros((count, KEY_COUNT))
        self.scratch = np.zeros(count)
        self.plain, self.scored, self.lows = (np.zeros(count, np.uint32) for _ in range(3))
        self.decision = np.zeros(DECISION_WIDTH + len(KNOBS))
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        for i, (name, scale, default) in enumerate(KNOBS):
            written = os.environ.get(f"TANREN_KNOB_{name.upper()}")
            self.decision[DECISION_WIDTH + i] = default if written is None else float(written) * scale

        self.evictions = 0
        self.number: dict[Any, int] = {}
        self.holders = np.zeros(2 * count + 2, np.int32)
        self.children = np.zeros(2 * count + 2, np.int32)
        self.spare = list(range(2 * count + 1, -1, -1))
        self.name_of: list[Any] = [None] * (2 * count + 2)
        self.block_hash = np.full(count, -1, np.int32)
        self.block_parent = np.full(count, -1, np.int32)
        self.hash_key: list[Any] = [None] * count
        self.ghosts: dict[Any, tuple[int, float]] = {}
        self.ghost_line: list[Any] = [None] * self.usable

        for block in self.queue.get_all_free_blocks():
            ring_push_back(self.ring, self.pos, self.ends, block.block_id)
        self._warm_up()
        self._attach()

    # -- what the engine tells us ------------------------------------------------

    def freeze_now(self) -> None:
        """Hold the clock still until the next step or output."""
        self.now = max(self.now, float(CLOCK() - self.start))
        self.decision[NOW] = self.now

    def step_begins(self) -> None:
        """Freeze everything that is *as of this step*."""
        self.freeze_now()
        scheduler, decision = self.scheduler, self.decision
        if self.now > self.mark:
            if self.tokens > 0:
                moving_mean(self.tally, 4, self.tokens / (self.now - self.mark), RATES)
            self.mark, self.tokens = self.now, 0
        decision[KV_FREE] = self.queue.num_free_blocks / self.usable
        decision[MEAN_GAP] = self.tally[0]
        decision[HIT_RATE] = self.tally[2]
        decision[SERVICE_RATE] = self.tally[4]
        if "waiting" in READS or "running" in READS:
            decision[WAITING] = float(sum(len(queue) for queue in self._waiting()))
            decision[RUNNING] = float(len(scheduler.running))
        if "oldest_wait" in READS:
            first = min((request.arrival_time for queue in self._waiting() for request in queue), default=None)
            arrival = self.now if first is None else float(round(first * 1e6) - self.start)
            decision[OLDEST_WAIT] = max(0.0, self.now - arrival)

    def _waiting(self) -> list[Any]:
        names = ("waiting", "skipped_waiting", "kv_holding_waiting")
        return [getattr(self.scheduler, name) for name in names if hasattr(self.scheduler, name)]

    def admitting(self, request: Any, hits: int) -> None:
        """A waiting request got its blocks."""
        looked_up = (request.num_tokens - 1) // self.block_size
        if looked_up > 0:
            moving_mean(self.tally, 2, hits / looked_up, HIT_RATES)

    def used(self, blocks: Any) -> None:
        """An admission hits these blocks, in chain order."""
        ids = np.array([block.block_id for block in blocks if not block.is_null], np.uint32)
        _rows_used(self.rows, ids, self.now, self.chain, self.decision[MEAN_GAP], self.tally)

    def written(self, request: Any, blocks: Any, first: int, last: int) -> None:
        """Blocks first to last - 1 of the request's chain may have got their hash."""
        prompt = request.num_prompt_tokens
        for i, block in enumerate(blocks[first:last], first):
            b = block.block_id
            if block.is_null or block.block_hash is None:
                continue
            if self.block_hash[b] >= 0:
                self._forget(b)
            key = request.block_hashes[i]
            parent = request.block_hashes[i - 1] if i > 0 else None
            self.block_hash[b] = self._hold(key)
            self.hash_key[b] = key
            if parent is not None:
                self.block_parent[b] = self._hold(parent)
                self.children[self.block_parent[b]] += 1
            ghost = 0.0
            if "ghost_uses" in READS and key in self.ghosts:
                ghost = self.ghosts[key][1]
            generated = 1.0 if (i + 1) * self.block_size > prompt else 0.0
            row_written(
                self.rows, b, self.now, float(i * self.block_size), float(prompt), generated, ghost
            )

    def evicted(self, block: Any) -> None:
        """A block lost its hash."""
        b = block.block_id
        if self.block_hash[b] < 0:
            return
        if "ghost_uses" in READS:
            slot = self.evictions % self.usable
            old = self.ghost_line[slot]
            if old is not None and self.ghosts[old][0] == self.evictions - self.usable:
                del self.ghosts[old]
            key = self.hash_key[b]
            self.ghosts[key] = (self.evictions, float(self.rows[b, USES] + self.rows[b, GHOST_USES]))
            self.ghost_line[slot] = key
        self.evictions += 1
        self._forget(b)
        if self.pos[b] != -1:
            self._left_unhashed(b)

    def released(self, blocks: Any, to_front: bool) -> None:
        """Blocks enter the free queue, in this order, at its back or (the first as head) its front."""
        for block in reversed(blocks) if to_front else blocks:
            b = block.block_id
            hashed = 1 if block.block_hash is not None else 0
            row_released(self.rows, b, self.now, hashed)
            self.unscored[b] = 1 if not hashed and self.unhashed_unscored else 0
            if to_front:
                ring_push_front(self.ring, self.pos, self.ends, b)
            else:
                ring_push_back(self.ring, self.pos, self.ends, b)

    def reset(self) -> None:
        """All hashes are gone."""
        for b in range(len(self.blocks)):
            if self.block_hash[b] >= 0:
                self._forget(b)
                self._left_unhashed(b)
        self.ghosts.clear()
        self.ghost_line = [None] * self.usable

    def left(self, b: int) -> None:
        """A block leaves the free queue otherwise than as a victim: it is hit."""
        if self.pos[b] != -1:
            ring_remove(self.ring, self.pos, self.ends, b)

    # -- the decision ------------------------------------------------------------

    def choose(self, n: int) -> list[Any] | None:
        """The n blocks to take, best victim first; None: take vLLM's own."""
        if not self.on:
            return None
        began = time.perf_counter()
        try:
            victims = self._victims(n)
        except Exception as error:
            self.off(f"{type(error).__name__}: {error}")
            return None
        if time.perf_counter() - began > self.budget_s:
            self.slow += 1
            if self.slow == _SLOW_LIMIT:
                self.off(f"{_SLOW_LIMIT} decisions over {self.budget_s * 1e3:g} ms (TANREN_BUDGET_MS)")
        return victims

    def _victims(self, n: int) -> list[Any]:
        free = self.queue.num_free_blocks
        if self.ends[2] != free or free < n:
            raise RuntimeError(f"{n} blocks asked for, {free} free, {self.ends[2]} in the mirror")
        plains, rated = ring_consider(
            self.ring, self.pos, self.ends, n, self.extra, self.unscored, self.plain, self.scored
        )
        if plains < n:
            if "children" in READS:
                _fill_children(self.rows, self.scored, rated, self.block_hash, self.children)
            order(self.decision, self.rows, self.scored, rated, self.keys, self.scratch)
            self.decisions += 1
        out = np.empty(n, np.uint32)
        self.faults += ring_take(
            self.ring, self.pos, self.ends, n, self.plain, plains, self.scored, rated, self.keys, self.lows, self.scratch, out
        )
        victims = [self.blocks[b] for b in out.tolist()]
        if any(block.ref_cnt != 0 or block.next_free_block is None for block in victims):
            raise RuntimeError("the mirror of the free queue is out of step")
        return victims

    # -- the guard ---------------------------------------------------------------

    def guarded(self, action: Any, *args: Any) -> None:
        """Run one of our own steps; a failure switches the policy off and vLLM goes on."""
        if not self.on:
            return
        try:
            action(*args)
        except Exception as error:
            self.off(f"{type(error).__name__}: {error}")

    def off(self, reason: str) -> None:
        """Give every decision back to vLLM, for good, and say so once."""
        if not self.on:
            return
        self.on = False
        self.queue.__class__ = self.stock_queue
        for owner, name in self.wrapped:
            delattr(owner, name)
        _STATUS["mode"] = f"off: {reason}"
        _LOG.error("tanren: policy %s is off, vLLM's own order holds: %s", POLICY, reason)

    def counts(self) -> dict[str, Any]:
        """Decisions scored and decisions that fell back on the engine's order."""
        return {"decisions": self.decisions, "faults": self.faults}

    # -- attaching ---------------------------------------------------------------

    def _attach(self) -> None:
        self.stock_queue = type(self.queue)
        self.queue.tanren = self
        self.queue.__class__ = _queue_class(self.stock_queue)
        self.wrapped: list[tuple[Any, str]] = []
        self._wrap(self.manager, "allocate_slots", self._allocate_slots)
        self._wrap(self.pool, "touch", self._touch)
        self._wrap(self.pool, "cache_full_blocks", self._cache_full_blocks)
        self._wrap(self.pool, "_maybe_evict_cached_block", self._maybe_evict_cached_block)
        self._wrap(self.pool, "reset_prefix_cache", self._reset_prefix_cache)

    def _wrap(self, owner: Any, name: str, around: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))
        self.wrapped.append((owner, name))

    def _allocate_slots(self, original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        waits = request.status.name in ("WAITING", "PREEMPTED")
        self.chain = float(request.num_prompt_tokens)
        result = original(request, *args, **kwargs)
        if waits and result is not None:
            hit = kwargs.get("new_computed_blocks", args[2] if len(args) > 2 else None)
            self.guarded(self.admitting, request, 0 if hit is None else len(hit.blocks[0]))
        return result

    def _touch(self, original: Any, blocks: Any) -> Any:
        self.guarded(self.used, blocks)
        return original(blocks)

    def _cache_full_blocks(self, original: Any, request: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        first = kwargs.get("num_cached_blocks", args[0] if args else 0)
        last = kwargs.get("num_full_blocks", args[1] if len(args) > 1 else 0)
        result = original(request, blocks, *args, **kwargs)
        self.guarded(self.written, request, blocks, first, last)
        return result

    def _maybe_evict_cached_block(self, original: Any, block: Any) -> Any:
        gone = original(block)
        if gone:
            self.guarded(self.evicted, block)
        return gone

    def _reset_prefix_cache(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        if done:
            self.guarded(self.reset)
        return done

    # -- small parts -------------------------------------------------------------

    def _hold(self, key: Any) -> int:
        number = self.number.get(key)
        if number is None:
            number = self.spare.pop()
            self.number[key] = number
            self.name_of[number] = key
        self.holders[number] += 1
        return number

    def _let_go(self, number: int) -> None:
        self.holders[number] -= 1
        if self.holders[number] == 0:
            del self.number[self.name_of[number]]
            self.name_of[number] = None
            self.spare.append(number)

    def _forget(self, b: int) -> None:
        parent = int(self.block_parent[b])
        if parent >= 0:
            self.children[parent] -= 1
            self._let_go(parent)
        self._let_go(int(self.block_hash[b]))
        self.block_hash[b] = self.block_parent[b] = -1
        self.hash_key[b] = None

    def _left_unhashed(self, b: int) -> None:
        last_use = self.rows[b, LAST_USE]
        row_released(self.rows, b, last_use, 0)
        self.unscored[b] = 1 if self.unhashed_unscored else 0

    def _warm_up(self) -> None:
        """Compile everything now; nothing compiles on the request path."""
        ring, pos, ends = new_ring(4)
        rows, keys, scratch = new_rows(4), np.zeros((4, KEY_COUNT)), np.zeros(4)
        lists = [np.zeros(4, np.uint32) for _ in range(4)]
        flags = np.zeros(4, np.uint8)
        ring_push_back(ring, pos, ends, 2)
        ring_push_front(ring, pos, ends, 1)
        row_written(rows, 1, 0.0, 0.0, 0.0, 0.0, 0.0)
        row_released(rows, 1, 0.0, 1)
        row_used(rows, 1, 0.0, 0.0, 0.0, self.tally.copy())
        moving_mean(self.tally.copy(), 0, 0.0, HIT_RATES)
        _rows_used(rows, lists[3][:0], 0.0, 0.0, self.decision[MEAN_GAP], self.tally)
        _fill_children(rows, lists[1], 2, np.zeros(4, np.int32), np.zeros(4, np.int32))
        plains, rated = ring_consider(ring, pos, ends, 1, 4, flags, lists[0], lists[1])
        order(self.decision, rows, lists[1], rated, keys, scratch)
        ring_take(ring, pos, ends, 1, lists[0], plains, lists[1], rated, keys, lists[2], scratch, lists[3])
        ring_remove(ring, pos, ends, int(pos.argmax()))


@_jit
def _rows_used(rows, ids, now, chain, mean_gap, tally):
    for i in range(ids.shape[0]):
        row_used(rows, ids[i], now, chain, mean_gap, tally)


@_jit
def _fill_children(rows, ids, n, block_hash, children):
    for j in range(n):
        held = block_hash[ids[j]]
        rows[ids[j], CHILDREN] = children[held] if held >= 0 else 0.0
