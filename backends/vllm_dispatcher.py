"""The schedule policy at work inside vLLM: who is admitted next, and who is pushed out.

`backends/vllm.py` copies everything below the marker line, behind `vllm_runtime.py`, into a file
that has a schedule policy. Above the marker stand stand-ins for what the emitted file has
already defined there. It never runs from here.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from itertools import islice
from typing import Any

import numpy as np

from tanren_dsl.backends.vllm_line import dispatch, still_waiting, take_number, to_be_pushed_out
from tanren_dsl.backends.vllm_requests import Requests, make_waiting_class
from tanren_dsl.backends.vllm_runtime import _OWN_ORDER, Part, knob_values, number_of
from tanren_dsl.kernels.decision import (
    BLOCK_SIZE,
    CAPACITY,
    HIT_RATE,
    HIT_RATES,
    KV_FREE,
    MAX_RUNNING,
    NOW,
    OLDEST_WAIT,
    RATES,
    RUNNING,
    SERVICE_RATE,
    TOKEN_BUDGET,
    WAITING,
    moving_mean,
)
from tanren_dsl.kernels.line_order import (
    ATTAINED_TOKENS,
    CACHED_TOKENS,
    COMPUTED_TOKENS,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    RESUMED,
    UNCACHED_TOKENS,
    WAITS,
)

LINE_POLICY = ""
LINE_KNOBS: tuple[tuple[str, float, float], ...] = ()
LINE_READS: frozenset[str] = frozenset()
GUARD = REFRESHES = EVERY_STEP = True
LINE_WIDTH = 11
ORDER_KEYS = PREEMPT_KEYS = 1
DECISION_WIDTH = 12
REFRESHED = 32
_LINE_STATUS: dict[str, Any] = {}
_LOG = logging.getLogger("vllm.tanren")


# ======== runtime ========

_GUARD_SEED_US = 1e6
_LENGTH = deque.__len__
_ALWAYS = EVERY_STEP or PREEMPT_KEYS > 0  # there is something to do in every step


class Dispatcher(Part, Requests):
    """The policy at work: once a step, the requests in order of service."""

    status = _LINE_STATUS
    noun = "steps"

    @staticmethod
    def reason_not_to_attach(scheduler: Any) -> str | None:
        """Why this engine is none that the file can serve; None if it is one."""
        if type(scheduler.waiting).__name__ != "FCFSRequestQueue":
            return "the engine has a scheduling policy of its own (drop --scheduling-policy)"
        manager = scheduler.kv_cache_manager
        if REFRESHES and manager.enable_caching and manager.num_kv_cache_groups != 1:
            return f"{manager.num_kv_cache_groups} KV cache groups, this policy's signals are of one"
        return None

    def __init__(self, scheduler: Any) -> None:
        Part.__init__(self)
        Requests.__init__(self, scheduler)
        pool = scheduler.kv_cache_manager.block_pool
        self.free_queue, self.usable = pool.free_block_queue, len(pool.blocks) - 1
        self.mark, self.tokens, self.ran = 0.0, 0, 0
        self.orderings = self.faults = self.rescued = 0
        self.tally = np.zeros(6)
        guards = GUARD and os.environ.get("TANREN_NO_GUARD") != "1"
        self.seed_us = number_of("TANREN_GUARD_SEED_S", _GUARD_SEED_US, 1e6)
        if self.seed_us < 0:
            raise ValueError("TANREN_GUARD_SEED_S is below 0")
        self.mean_wait = np.array([self.seed_us, 1.0]) if guards else None
        self.decision = np.zeros(DECISION_WIDTH + len(LINE_KNOBS))
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        self.decision[DECISION_WIDTH:] = knob_values(LINE_KNOBS)

        self._warm_up()
        self.awake, self.ours = False, self.schedule
        self.stock_waiting = type(scheduler.waiting)
        scheduler.waiting.changes, scheduler.waiting.tanren = 0, self
        scheduler.waiting.__class__ = make_waiting_class(self.stock_waiting)
        if _ALWAYS:
            self.wake()

    # -- what the engine tells us ------------------------------------------------

    def joined(self, request: Any) -> None:
        """The request was added; it is ours to order if it stands in the queue that we order."""
        if self.scheduler.requests.get(request.request_id) is not request:
            return  # more input for one that is there
        self.frozen = False
        self.freeze_now()
        number, waiting = self._number_of(request), self.scheduler.waiting
        if waiting and waiting[-1] is request:
            self._queue(number, self.now)
        self.frozen = False

    def pushed_out(self, request: Any) -> None:
        """The request is about to be pushed out, and will wait again."""
        self.freeze_now()
        number = self._number_of(request)
        if ATTAINED_TOKENS >= 0:
            self.attained[number] += request.num_computed_tokens - self.hits[number]
        self._queue(number, self.now)

    def wake(self) -> None:
        """Somebody came to wait: stand before the engine's `schedule()`."""
        if self.on and not self.awake:
            self.awake, self.other = True, vars(self.scheduler).get("schedule")
            self.scheduler.schedule = self.ours

    def rest(self) -> None:
        """Nobody waits: step aside, unless another has put itself before us."""
        if vars(self.scheduler).get("schedule") is self.ours:
            self.awake = False
            if self.other is None:
                del self.scheduler.schedule
            else:
                self.scheduler.schedule = self.other

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's `schedule()`, with the requests in order before it."""
        self.frozen = False
        if self.on:
            try:
                self.step_begins()
            except Exception as error:
                self.failed(error)
        if self.other is not None:
            output = self.other(*args, **kwargs)
        else:
            output = type(self.scheduler).schedule(self.scheduler, *args, **kwargs)
        if self.on:
            try:
                self.step_ends(output)
                self.frozen = False
                if not (_ALWAYS or _LENGTH(self.scheduler.waiting)):
                    self.rest()
            except Exception as error:
                self.failed(error)
        return output

    def step_begins(self) -> None:
        """Put the waiting requests into order, and the running ones if the policy says who is pushed out."""
        scheduler = self.scheduler
        waiting, running = scheduler.waiting, scheduler.running
        self.ran = len(running)
        self._forget_over()
        if EVERY_STEP:
            self._measure_rate()
        if waiting or (PREEMPT_KEYS and self.ran > 1):
            began = time.perf_counter()
            self._order(waiting, running)
            self.spent(time.perf_counter() - began)

    def step_ends(self, output: Any) -> None:
        """What the step did is known: who was admitted, after what wait."""
        self.tokens += output.total_num_scheduled_tokens
        running = self.scheduler.running
        for request in running[self.ran :]:  # a step that pushes out admits nobody
            self._admitted(request, output.num_scheduled_tokens.get(request.request_id, 0))

    # -- the decision ------------------------------------------------------------

    def _order(self, waiting: Any, running: Any) -> None:
        self.freeze_now()
        if waiting.changes != self.changes or len(waiting) != self.waits:
            self._look_again(waiting)
        if REFRESHES:
            self._take_cache()
            for request in islice(waiting, REFRESHED):
                self._look_up(self.number[request.request_id])
        for number in self.fresh:
            if self.waits_now[number]:
                self._fill(number)
        self.fresh.clear()
        n = self.lined = still_waiting(self.line, self.lined, self.waits_now)
        if n > 1 or (PREEMPT_KEYS and self.ran > 1):
            self._freeze_signals(n)
        if n > 1:
            mean_wait = -1.0 if self.mean_wait is None else max(self.mean_wait[0], self.seed_us)
            fault = dispatch(
                self.decision, self.rows, self.line, n, self.keys, self.scratch, self.places, self.spare,
                self.since, self.overdue, self.out, self.now, mean_wait,
            )  # fmt: skip
            self._count(fault)
            if n != len(waiting):
                raise RuntimeError(f"{len(waiting)} requests wait, {n} are known")
            first = list(map(self.requests.__getitem__, self.out[:n].tolist()))
            waiting.clear()
            waiting.extend(first)
        if PREEMPT_KEYS and self.ran > 1:
            self._order_running(running)

    def _order_running(self, running: Any) -> None:
        n = len(running)
        ids = np.sort(np.array(self._numbers_of(running), np.uint32))
        requests = list(map(self.requests.__getitem__, ids.tolist()))
        rows = self.rows
        if COMPUTED_TOKENS >= 0:
            rows[ids, COMPUTED_TOKENS] = [request.num_computed_tokens for request in requests]
        if OUTPUT_TOKENS >= 0:
            rows[ids, OUTPUT_TOKENS] = [request.num_output_tokens for request in requests]
        if UNCACHED_TOKENS >= 0:
            rows[ids, UNCACHED_TOKENS] = [request.num_tokens for request in requests]
            rows[ids, UNCACHED_TOKENS] -= rows[ids, CACHED_TOKENS]
        if ATTAINED_TOKENS >= 0:
            computed = [request.num_computed_tokens for request in requests]
            rows[ids, ATTAINED_TOKENS] = self.attained[ids] + computed - self.hits[ids]
        if PREEMPTIONS >= 0:
            rows[ids, PREEMPTIONS] = [request.num_preemptions for request in requests]
        if RESUMED >= 0:
            rows[ids, RESUMED] = 0.0
        fault = to_be_pushed_out(
            self.decision, rows, ids, n, self.run_keys, self.scratch, self.places, self.spare, self.out
        )
        self._count(fault)
        running[:] = map(self.requests.__getitem__, self.out[:n].tolist())

    def _count(self, fault: int) -> None:
        self.orderings += 1
        if fault:
            self.faults += 1
            if self.faults == 1:
                _LOG.warning("tanren: policy %s gave a key that is not finite; %s", LINE_POLICY, _OWN_ORDER)

    def _freeze_signals(self, waiting: int) -> None:
        decision, scheduler = self.decision, self.scheduler
        decision[NOW] = self.now
        if "waiting" in LINE_READS:
            decision[WAITING] = float(scheduler.get_request_counts()[1])
        if "running" in LINE_READS:
            decision[RUNNING] = float(self.ran)
        if "kv_free" in LINE_READS:
            decision[KV_FREE] = self.free_queue.num_free_blocks / max(1, self.usable)
        if "hit_rate" in LINE_READS:
            decision[HIT_RATE] = self.tally[2]
        if "service_rate" in LINE_READS:
            decision[SERVICE_RATE] = self.tally[4]
        if "oldest_wait" in LINE_READS:
            oldest = min(self.now, self.arrival[self.line[:waiting]].min()) if waiting else self.now
            decision[OLDEST_WAIT] = self.now - oldest

    def _measure_rate(self) -> None:
        self.freeze_now()
        if self.now > self.mark:
            if self.tokens > 0:
                moving_mean(self.tally, 4, self.tokens / (self.now - self.mark), RATES)
            self.mark, self.tokens = self.now, 0

    def _admitted(self, request: Any, tokens: int) -> None:
        number = self._number_of(request)
        hits = request.num_computed_tokens - tokens
        self.hits[number] = hits
        if not self.waits_now[number]:  # it came from another queue of vLLM's
            self._fill(number)
            if CACHED_TOKENS >= 0:
                self.rows[number, CACHED_TOKENS] = hits
            if UNCACHED_TOKENS >= 0:
                self.rows[number, UNCACHED_TOKENS] = request.num_tokens - hits
            return
        self.changes += 1
        self.waits_now[number] = 0
        self.waits -= 1
        self.hashes[number] = None
        if self.mean_wait is not None:
            moving_mean(self.mean_wait, 0, self.now - self.since[number], WAITS)
            self.rescued += int(self.overdue[number])
            self.overdue[number] = 0
        asked = (request.num_tokens - 1) // self.block_size
        if "hit_rate" in LINE_READS and asked > 0:
            moving_mean(self.tally, 2, hits // self.block_size / asked, HIT_RATES)

    def _warm_up(self) -> None:
        """Compile everything now; nothing compiles on the request path."""
        for number in (1, 0):
            take_number(self.line, 1, number)
        still_waiting(self.line, 2, self.waits_now)
        args = (self.keys, self.scratch, self.places, self.spare)
        dispatch(self.decision, self.rows, self.line, 2, *args, self.since, self.overdue, self.out, 0.0, -1.0)
        if PREEMPT_KEYS:
            to_be_pushed_out(self.decision, self.rows, self.line[:2], 2, self.run_keys, *args[1:], self.out)
        moving_mean(np.zeros(2), 0, 0.5, WAITS)

    def give_back(self) -> None:
        """VLLM's `schedule()`, and its queue in the order in which the requests were added."""
        self.rest()
        waiting, last = self.scheduler.waiting, len(self.requests)
        waiting.__class__ = self.stock_waiting
        own = sorted(waiting, key=lambda request: self.number.get(request.request_id, last))
        waiting.clear()
        waiting.extend(own)

    def counts(self) -> dict[str, Any]:
        """Orders made, those that fell back on the engine's, requests that the guard served first, cost."""
        return {
            "orderings": self.orderings,
            "faults": self.faults,
            "rescued": self.rescued,
            "errors": self.errors,
            "us_per_ordering": round(1e6 * self.spent_s / max(1, self.orderings), 1),
        }
