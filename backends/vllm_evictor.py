"""The policy at work inside vLLM: the last part of the emitted file's runtime.

`backends/vllm.py` copies everything below the marker line, behind that of
`vllm_runtime.py`, `vllm_kernels.py` and `vllm_hashes.py`. Above the marker stand stand-ins for what the
emitted file has already defined there. It never runs from here.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from tanren_dsl.backends.vllm_choice import pick
from tanren_dsl.backends.vllm_hashes import Hashes
from tanren_dsl.backends.vllm_kernels import all_unhashed, released, taken_back, unhashed, used, written
from tanren_dsl.backends.vllm_queue import make_queue_class, noted_after, told_after, told_before
from tanren_dsl.backends.vllm_runtime import _OWN_ORDER, CLOCK, Part, knob_values
from tanren_dsl.backends.vllm_state import (
    _DECISION,
    _DECISIONS,
    _ENDS,
    _FAULT,
    _FAULTS,
    _LEFT,
    _NEXT,
    _OUT,
    _OUT_OF_STEP,
    _PICKED,
    _STANDS,
    _TALLY,
    new_state,
    queue_of,
    view,
)
from tanren_dsl.backends.vllm_warm import ids_of, warm_up
from tanren_dsl.kernels.decision import (
    BLOCK_SIZE,
    CAPACITY,
    HIT_RATE,
    HIT_RATES,
    KV_FREE,
    MAX_RUNNING,
    MEAN_GAP,
    NOW,
    OLDEST_WAIT,
    RATES,
    RUNNING,
    SERVICE_RATE,
    TOKEN_BUDGET,
    WAITING,
    moving_mean,
)
from tanren_dsl.kernels.free_ring import UNSCORED, ring_push_back

POLICY = ""
PERCENT: float | None = None
READS: frozenset[str] = frozenset()
WRITES = USES_MATTER = NUMBERED = AS_OF_STEP = AHEAD = True
DECISION_WIDTH = 12
_LOG = logging.getLogger("vllm.tanren")
_STATUS: dict[str, Any] = {}
KNOBS: tuple[tuple[str, float, float], ...] = ()


# ======== runtime ========

_MANY_PENDING = 256


class Evictor(Part):
    """The policy at work: a mirror of the free queue and the signals, in flat arrays by block id."""

    status = _STATUS

    @staticmethod
    def reason_not_to_attach(scheduler: Any) -> str | None:
        """Why this engine is none that the file can serve; None if it is one."""
        manager = scheduler.kv_cache_manager
        if not manager.enable_caching:
            return "prefix caching is off, nothing to decide"
        if manager.num_kv_cache_groups != 1:
            return f"{manager.num_kv_cache_groups} KV cache groups, this file handles one"
        if manager.block_pool.hash_block_size != scheduler.block_size:
            return "blocks and their hashes differ in size"
        if type(manager.block_pool.free_block_queue).__name__ != "FreeKVCacheBlockQueue":
            return "another free queue is already in place"
        return None

    def __init__(self, scheduler: Any) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.queue = self.pool.free_block_queue
        self.blocks = self.pool.blocks
        self.block_of = self.blocks.__getitem__
        count = len(self.blocks)
        self.usable = count - 1
        self.block_size = int(scheduler.block_size)
        self.unhashed_unscored = hasattr(self.queue, "prepend_n")
        self.extra = count if PERCENT is None else -int(-PERCENT * self.usable // 100)
        self.start = CLOCK()
        self.now = 0.0
        self.mark, self.tokens = 0.0, 0
        self.admission: tuple[Any, int] | None = None
        self.hit_end: Any = None

        self.state = new_state(count)
        self.ends = view(self.state, _ENDS, np.int64)
        self.out = view(self.state, _OUT, np.uint32)
        self.marks, self.names = memoryview(self.ends), memoryview(self.out)  # the same, cheap to read
        self.tally = view(self.state, _TALLY, np.float64)
        self.decision = view(self.state, _DECISION, np.float64)
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        self.decision[DECISION_WIDTH:] = knob_values(KNOBS)
        self.hashes = Hashes(count, self.usable) if NUMBERED else None
        self.no_table = np.zeros((1, 1), np.int64)
        self.pending: list[Any] = []
        self.named: list[int] = []  # by the step's ranking; those before `at` are taken
        self.at = self.standing = self.expected = 0

        ring, pos, ends = queue_of(self.state)
        for block in self.queue.get_all_free_blocks():
            ring_push_back(ring, pos, ends, block.block_id, UNSCORED)
        warm_up(self.decision)
        self._attach()

    # -- what the engine tells us ------------------------------------------------

    def freeze_now(self) -> None:
        """Hold the clock still until the next step or output; one that was set back goes on from here."""
        now = CLOCK() - self.start
        if now < self.now:
            self.start += now - int(self.now)
            now = int(self.now)
        self.now = float(now)

    def step_begins(self) -> None:
        """Freeze everything that is *as of this step*; the ranking of the last one no longer stands."""
        self.freeze_now()
        self.standing = self.marks[_LEFT] = 0
        if WRITES and len(self.pending) > _MANY_PENDING:
            self.flush()
        if AS_OF_STEP:
            self._freeze_signals()

    def _freeze_signals(self) -> None:
        decision, tally = self.decision, self.tally
        decision[NOW] = self.now
        if "mean_gap" in READS or "spaced_uses" in READS:
            decision[MEAN_GAP] = tally[0]
        if "kv_free" in READS:
            decision[KV_FREE] = self.queue.num_free_blocks / self.usable
        if "hit_rate" in READS:
            decision[HIT_RATE] = tally[2]
        if "service_rate" in READS:
            if self.now > self.mark:
                if self.tokens > 0:
                    moving_mean(tally, 4, self.tokens / (self.now - self.mark), RATES)
                self.mark, self.tokens = self.now, 0
            decision[SERVICE_RATE] = tally[4]
        if "running" in READS:
            decision[RUNNING] = float(len(self.scheduler.running))
        if "waiting" in READS:
            decision[WAITING] = float(sum(len(queue) for queue in self._waiting()))
        if "oldest_wait" in READS:
            first = min((request.arrival_time for request in self._waiting_requests()), default=None)
            arrival = self.now if first is None else float(round(first * 1e6) - self.start)
            decision[OLDEST_WAIT] = max(0.0, self.now - arrival)
        if "waiting_refs" in READS and self.hashes is not None:
            self.hashes.wait(self._waiting_requests(), self.block_size)

    def step_ends(self, output: Any) -> None:
        """What the step did is known."""
        self.tokens += output.total_num_scheduled_tokens
        self.admitted()

    def looked_up(self, request: Any, hit: Any) -> None:
        """A waiting request found these blocks cached; it may be admitted with them."""
        self.admitted()
        self.admission = (request, len(hit))
        self.hit_end = hit[-1] if hit else None

    def admitted(self) -> None:
        """Count the admission in question, if it came about."""
        if self.admission is None:
            return
        request, hits = self.admission
        self.admission = self.hit_end = None
        asked = (request.num_tokens - 1) // self.block_size
        if "hit_rate" in READS and asked > 0 and request.status.name == "RUNNING":
            moving_mean(self.tally, 2, hits / asked, HIT_RATES)

    def touched(self, blocks: Any) -> None:
        """Blocks are held again: an admission hits them, or a connector copies them."""
        if not blocks:
            return
        self._before_change()
        ids = ids_of(blocks)
        if self.admission is not None and blocks[-1] is self.hit_end:
            self.hit_end = None
            used(self.state, ids, self.now, float(self.admission[0].num_prompt_tokens))
        else:
            taken_back(self.state, ids)

    def flush(self) -> None:
        """Hand over what was written; it must be known before any of it is released or counted."""
        pending, self.pending = self.pending, []
        blocks: list[Any] = []
        spans: list[float] = []
        chains: list[tuple[Any, int, int]] = []
        for now, args, kwargs in pending:
            for request, first, fresh in _spans_of(*args, **kwargs):
                blocks += fresh
                spans += (len(fresh), now, first, request.num_prompt_tokens)
                chains.append((request, first, len(fresh)))
        ids = ids_of(blocks)
        written(self.state, ids, np.array(spans, np.float64), self.block_size)
        if self.hashes is not None:
            for request, first, count in chains:
                self.hashes.written(self.state, ids[:count], request, first)
                ids = ids[count:]

    def _before_change(self) -> None:
        """The queue or the hashes of queued blocks are about to change."""
        self.standing = 0
        if self.pending:
            self.flush()

    def forgotten(self, block_ids: Any) -> None:
        """These blocks may have lost their hash otherwise than as victims."""
        self._before_change()
        gone = [b for b in block_ids if self.blocks[b].block_hash is None and b != 0]
        if self.hashes is not None:
            self.hashes.evicted(self.state, np.array(gone, np.uint32), len(gone))
        for b in gone:
            unhashed(self.state, b, self.unhashed_unscored)

    def reset(self) -> None:
        """All hashes are gone."""
        self._before_change()
        if self.hashes is not None:
            self.hashes.forget()
        all_unhashed(self.state, self.unhashed_unscored)

    def entered(self, blocks: Any, to_front: bool) -> None:
        """Blocks enter the free queue, in this order, at its back or (the first as head) its front."""
        self._before_change()
        released(self.state, ids_of(blocks), self.now, to_front)

    # -- the decision ------------------------------------------------------------

    def choose(self, n: int) -> list[Any] | None:
        """The n blocks to take, best victim first; None: take the engine's own."""
        at, free = self.at, self.queue.num_free_blocks
        if at + n <= self.standing and free == self.expected:
            self.at = self.marks[_NEXT] = at + n
            self.expected = free - n
            return list(map(self.block_of, self.named[at : at + n]))
        began = time.perf_counter()
        victims = self._decide(n, free)
        self.spent(time.perf_counter() - began)
        return victims

    def _decide(self, n: int, free: int) -> list[Any] | None:
        hashes = self.hashes
        if hashes is None:
            answer = pick(self.state, self.no_table, n, free, self.extra)
        else:
            if self.pending:
                self.flush()
            answer = pick(self.state, hashes.table, n, free, self.extra)
        if answer == _OUT_OF_STEP:
            raise RuntimeError(f"{n} blocks asked for, {free} free, {self.marks[2]} in the mirror")
        if answer == _FAULT and self.marks[_FAULTS] == 1:
            _LOG.warning("tanren: policy %s gave a key that is not finite; %s", POLICY, _OWN_ORDER)
        at = self.at if answer == _STANDS else 0
        self.at, self.expected = at + n, free - n
        if hashes is not None:
            hashes.evicted(self.state, self.out[at:], n)
        named = self.names[: self.at + self.marks[_LEFT] if AHEAD else self.at].tolist()
        if AHEAD:
            self.named, self.standing = named, len(named)
        return list(map(self.block_of, named[at : self.at])) if answer in (_PICKED, _STANDS) else None

    def give_back(self) -> None:
        """VLLM's queue and its methods as they were."""
        self.queue.__class__ = self.stock_queue
        for owner, name, original, ours in self.wrapped:
            if vars(owner).get(name) is ours:  # else another has wrapped it since
                setattr(owner, name, original)

    def counts(self) -> dict[str, Any]:
        """Decisions scored, those that fell back on the engine's order, and what they cost."""
        decisions = int(self.ends[_DECISIONS])
        return {
            "decisions": decisions,
            "faults": int(self.ends[_FAULTS]),
            "errors": self.errors,
            "us_per_decision": round(1e6 * self.spent_s / max(1, decisions), 1),
        }

    # -- attaching ---------------------------------------------------------------

    def _attach(self) -> None:
        """Enter the engine; what may fail comes first, so that a failure leaves nothing behind."""
        pool = self.pool
        self.wrapped = [
            told_before(self, pool, "touch", self.touched),
            told_after(self, pool, "evict_blocks", lambda _, block_ids: self.forgotten(block_ids)),
            told_after(self, pool, "reset_prefix_cache", lambda done, **_: self.reset() if done else None),
        ]
        if WRITES:
            self.wrapped.append(noted_after(self, pool, "cache_full_blocks"))
        if USES_MATTER or "hit_rate" in READS:
            found = lambda answer, request: self.looked_up(request, answer[0].blocks[0])  # noqa: E731
            self.wrapped.append(told_after(self, self.manager, "get_computed_blocks", found))
        self.stock_queue = type(self.queue)
        self.queue.tanren = self
        self.queue.__class__ = make_queue_class(self.stock_queue)
        for owner, name, _, ours in self.wrapped:
            setattr(owner, name, ours)

    # -- small parts -------------------------------------------------------------

    def _waiting(self) -> list[Any]:
        names = ("waiting", "skipped_waiting", "kv_holding_waiting")
        queues = [getattr(self.scheduler, name) for name in names if hasattr(self.scheduler, name)]
        return [getattr(queue, "_heap", queue) for queue in queues]  # iterating a priority queue sorts it

    def _waiting_requests(self) -> list[Any]:
        return [request for queue in self._waiting() for request in queue]


def _spans_of(
    request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int,
    *_: Any, block_mask: Any = None, **_more: Any,
) -> Any:  # fmt: skip
    """Runs of blocks to which this call of `cache_full_blocks` gave a hash: request, first number, blocks."""
    fresh = blocks[num_cached_blocks:num_full_blocks]  # may be fewer than named
    if block_mask is None or all(block_mask):
        return ((request, num_cached_blocks, fresh),)
    chosen = zip(fresh, block_mask, strict=False)
    return [(request, place, [block]) for place, (block, yes) in enumerate(chosen, num_cached_blocks) if yes]
