"""The policy at work inside vLLM: the last part of the emitted file's runtime.

`backends/vllm.py` copies everything below the marker line, behind that of
`vllm_runtime.py` and `vllm_hashes.py`. Above the marker stand stand-ins for what the emitted file has
already defined there. It never runs from here.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from tanren_dsl.backends.vllm_hashes import Ghosts, HashNumbers
from tanren_dsl.backends.vllm_runtime import CLOCK, in_one_line, make_queue_class, settings
from tanren_dsl.kernels.block_rows import (
    BLOCK_SIZE,
    CAPACITY,
    GENERATED,
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
    fill_children,
    moving_mean,
    new_rows,
    row_released,
    row_used,
    row_written,
    rows_used,
)
from tanren_dsl.kernels.free_ring import (
    UNSCORED,
    new_ring,
    ring_consider,
    ring_push_back,
    ring_push_front,
    ring_remove,
    ring_take,
)

POLICY = ""
PERCENT: float | None = None
KEY_COUNT = 1
KNOBS: tuple[tuple[str, float, float], ...] = ()
READS: frozenset[str] = frozenset()
DECISION_WIDTH = 12
_LOG = logging.getLogger("vllm.tanren")
_STATUS: dict[str, Any] = {}
_SLOW_LIMIT = 3
_SLOW_MEMORY = 500


def order(decision: Any, rows: Any, ids: Any, n: int, keys: Any, scratch: Any) -> None:
    """The policy's keys; see `kernels/abi.py`."""


# ======== runtime ========


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
        self.budget_s, knobs = settings()
        self.start = CLOCK()
        self.now = 0.0
        self.mark, self.tokens = 0.0, 0
        self.decisions = self.faults = 0
        self.slow = 0.0
        self.admits, self.chain = False, 0.0

        self.ring, self.pos, self.ends = new_ring(count)
        self.rows = new_rows(count)
        self.tally = np.zeros(TALLY_WIDTH)
        self.keys = np.zeros((count, KEY_COUNT))
        self.flat = self.keys.reshape(-1)
        self.scratch = np.zeros(count)
        self.plain, self.scored, self.lows = (np.zeros(count, np.uint32) for _ in range(3))
        self.decision = np.zeros(DECISION_WIDTH + len(KNOBS))
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        self.decision[DECISION_WIDTH:] = knobs

        self.numbers = HashNumbers(2 * count + 2)
        self.children = np.zeros(2 * count + 2, np.int32)
        self.block_hash = np.full(count, -1, np.int32)
        self.block_parent = np.full(count, -1, np.int32)
        self.hash_key: list[Any] = [None] * count
        self.ghosts = Ghosts(self.usable)

        for block in self.queue.get_all_free_blocks():
            ring_push_back(self.ring, self.pos, self.ends, block.block_id, UNSCORED)
        self._warm_up()
        self._attach()

    # -- what the engine tells us ------------------------------------------------

    def freeze_now(self) -> None:
        """Hold the clock still until the next step or output; one that was set back goes on from here."""
        clock = CLOCK()
        self.start = min(self.start, clock - int(self.now))
        self.now = float(clock - self.start)
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
            first = min(
                (request.arrival_time for queue in self._waiting() for request in queue), default=None
            )
            arrival = self.now if first is None else float(round(first * 1e6) - self.start)
            decision[OLDEST_WAIT] = max(0.0, self.now - arrival)

    def _waiting(self) -> list[Any]:
        names = ("waiting", "skipped_waiting", "kv_holding_waiting")
        queues = [getattr(self.scheduler, name) for name in names if hasattr(self.scheduler, name)]
        return [getattr(queue, "_heap", queue) for queue in queues]  # iterating a priority queue sorts it

    def admitting(self, request: Any, hit: Any) -> None:
        """A waiting request got its blocks."""
        looked_up = (request.num_tokens - 1) // self.block_size
        if looked_up > 0:
            hits = 0 if hit is None else len(hit.blocks[0])
            moving_mean(self.tally, 2, hits / looked_up, HIT_RATES)

    def used(self, blocks: Any) -> None:
        """An admission hits these blocks, in chain order."""
        ids = np.array([block.block_id for block in blocks if not block.is_null], np.uint32)
        rows_used(self.rows, ids, self.now, self.chain, self.decision[MEAN_GAP], self.tally)

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
            self.block_hash[b] = self.numbers.hold(key)
            self.hash_key[b] = key
            if parent is not None:
                self.block_parent[b] = self.numbers.hold(parent)
                self.children[self.block_parent[b]] += 1
            ghost = self.ghosts.recall(key)
            generated = 1.0 if (i + 1) * self.block_size > prompt else 0.0
            row_written(self.rows, b, self.now, float(i * self.block_size), float(prompt), ghost)
            self.rows[b, GENERATED] = generated

    def evicted(self, block: Any) -> None:
        """A block lost its hash."""
        b = block.block_id
        if self.block_hash[b] < 0:
            return
        if "ghost_uses" in READS:
            self.ghosts.remember(self.hash_key[b], float(self.rows[b, USES] + self.rows[b, GHOST_USES]))
        self._forget(b)
        if self.pos[b] != -1:
            self._left_unhashed(b)

    def released(self, blocks: Any, to_front: bool) -> None:
        """Blocks enter the free queue, in this order, at its back or (the first as head) its front."""
        for block in reversed(blocks) if to_front else blocks:
            b = block.block_id
            hashed = 1 if block.block_hash is not None else 0
            row_released(self.rows, b, self.now, hashed)
            mark = UNSCORED if not hashed and self.unhashed_unscored else 0
            if to_front:
                ring_push_front(self.ring, self.pos, self.ends, b, mark)
            else:
                ring_push_back(self.ring, self.pos, self.ends, b, mark)

    def reset(self) -> None:
        """All hashes are gone."""
        for b in range(len(self.blocks)):
            if self.block_hash[b] >= 0:
                self._forget(b)
                if self.pos[b] != -1:
                    self._left_unhashed(b)
        self.ghosts = Ghosts(self.usable)

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
            self.off(in_one_line(error))
            return None
        late = time.perf_counter() - began > self.budget_s
        self.slow += late - self.slow / _SLOW_MEMORY  # a rare pause of the machine is forgotten
        if self.slow > _SLOW_LIMIT - 0.5:
            self.off(f"{_SLOW_LIMIT} decisions over {self.budget_s * 1e3:g} ms (TANREN_BUDGET_MS)")
        return victims

    def _victims(self, n: int) -> list[Any]:
        free = self.queue.num_free_blocks
        if self.ends[2] != free or free < n:
            raise RuntimeError(f"{n} blocks asked for, {free} free, {self.ends[2]} in the mirror")
        queue, plain, scored = (self.ring, self.pos, self.ends), self.plain, self.scored
        plains, rated = ring_consider(*queue, n, self.extra, plain, scored)
        if plains < n:
            if "children" in READS:
                fill_children(self.rows, scored, rated, self.block_hash, self.children)
            order(self.decision, self.rows, scored, rated, self.keys, self.scratch)
            self.decisions += 1
        out = np.empty(n, np.uint32)
        fault = ring_take(
            *queue, n, plain, plains, scored, rated, self.keys, self.flat, self.lows, self.scratch, out
        )
        if fault and not self.faults:
            _LOG.warning(
                "tanren: policy %s gave a key that is not finite; vLLM's own order then holds", POLICY
            )
        self.faults += fault
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
            self.off(in_one_line(error))

    def off(self, reason: str) -> None:
        """Give every decision back to vLLM, for good, and say so once."""
        if not self.on:
            return
        self.on = False
        self.queue.__class__ = self.stock_queue
        for owner, name, original, ours in self.wrapped:
            if vars(owner).get(name) is ours:  # else another has wrapped it since
                setattr(owner, name, original)
        if _STATUS.get("evictor") is self:
            _STATUS["mode"] = f"off: {reason}"
        _LOG.error("tanren: policy %s is off, vLLM's own order holds: %s", POLICY, reason)

    def counts(self) -> dict[str, Any]:
        """Decisions scored and decisions that fell back on the engine's order."""
        return {"decisions": self.decisions, "faults": self.faults}

    # -- attaching ---------------------------------------------------------------

    def _attach(self) -> None:
        """Enter the engine; what may fail comes first, so that a failure leaves nothing behind."""
        self.wrapped = [
            self._wrapped(self.manager, "allocate_slots", self._allocate_slots),
            self._wrapped(self.pool, "touch", self._touch),
            self._wrapped(self.pool, "cache_full_blocks", self._cache_full_blocks),
            self._wrapped(self.pool, "_maybe_evict_cached_block", self._maybe_evict_cached_block),
            self._wrapped(self.pool, "reset_prefix_cache", self._reset_prefix_cache),
        ]
        self.stock_queue = type(self.queue)
        self.queue.tanren = self
        self.queue.__class__ = make_queue_class(self.stock_queue)
        for owner, name, _, ours in self.wrapped:
            setattr(owner, name, ours)

    def _wrapped(self, owner: Any, name: str, around: Any) -> tuple[Any, str, Any, Any]:
        original = getattr(owner, name)
        return owner, name, original, lambda *args, **kwargs: around(original, *args, **kwargs)

    def _allocate_slots(self, original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        waits = request.status.name in ("WAITING", "PREEMPTED")
        self.admits, self.chain = True, float(request.num_prompt_tokens)
        result = original(request, *args, **kwargs)
        self.admits = False
        if waits and result is not None:
            hit = kwargs.get("new_computed_blocks", args[2] if len(args) > 2 else None)
            self.guarded(self.admitting, request, hit)
        return result

    def _touch(self, original: Any, blocks: Any) -> Any:
        if self.admits:  # else a connector holds blocks while it copies them
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

    def _forget(self, b: int) -> None:
        parent = int(self.block_parent[b])
        if parent >= 0:
            self.children[parent] -= 1
            self.numbers.let_go(parent)
        self.numbers.let_go(int(self.block_hash[b]))
        self.block_hash[b] = self.block_parent[b] = -1
        self.hash_key[b] = None

    def _left_unhashed(self, b: int) -> None:
        last_use = self.rows[b, LAST_USE]
        row_released(self.rows, b, last_use, 0)
        if self.unhashed_unscored:
            self.ring[self.pos[b] & (len(self.ring) - 1)] = b + UNSCORED

    def _warm_up(self) -> None:
        """Compile everything now; nothing compiles on the request path."""
        ring, pos, ends = new_ring(4)
        rows, keys, scratch = new_rows(4), np.zeros((4, KEY_COUNT)), np.zeros(4)
        lists = [np.zeros(4, np.uint32) for _ in range(4)]
        ring_push_back(ring, pos, ends, 2, 0)
        ring_push_front(ring, pos, ends, 1, 0)
        row_written(rows, 1, 0.0, 0.0, 0.0, 0.0)
        row_released(rows, 1, 0.0, 1)
        row_used(rows, 1, 0.0, 0.0, 0.0)
        moving_mean(self.tally.copy(), 0, 0.0, HIT_RATES)
        rows_used(rows, lists[3][:0], 0.0, 0.0, self.decision[MEAN_GAP], self.tally)
        fill_children(rows, lists[1], 2, np.zeros(4, np.int32), np.zeros(4, np.int32))
        plains, rated = ring_consider(ring, pos, ends, 1, 4, lists[0], lists[1])
        order(self.decision, rows, lists[1], rated, keys, scratch)
        flat = keys.reshape(-1)
        ring_take(
            ring, pos, ends, 1, lists[0], plains, lists[1], rated, keys, flat, lists[2], scratch, lists[3]
        )
        ring_remove(ring, pos, ends, int(pos.argmax()))
