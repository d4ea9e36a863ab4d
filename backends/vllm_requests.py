"""The requests as the emitted file's schedule policy sees them: a table, and the queue they wait in.

Copied, below the marker line, before `vllm_dispatcher.py`; above it stand stand-ins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tanren_dsl.backends.vllm_line import take_number
from tanren_dsl.backends.vllm_runtime import CLOCK, say_farewell
from tanren_dsl.kernels.line_order import (
    ARRIVAL,
    ATTAINED_TOKENS,
    CACHED_TOKENS,
    COMPUTED_TOKENS,
    MAX_TOKENS,
    OUTPUT_TOKENS,
    PREEMPTIONS,
    PROMPT_TOKENS,
    RESUMED,
    UNCACHED_TOKENS,
    USER_PRIORITY,
)

REFRESHES = True
LINE_WIDTH = 11
ORDER_KEYS = PREEMPT_KEYS = 1


# ======== runtime ========

_ROOM = 1024
_GROUP = (0).to_bytes(4, "big")


def make_dispatching_class(base: Any) -> Any:
    """The scheduler of vLLM, which tells the schedule policy who comes and who is pushed out."""

    class DispatchingScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; what its methods do is its own.

        `schedule()` is not among them: while nobody waits, it is vLLM's, without a detour.
        """

        tanren_line: Any = None

        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            answer = super().add_request(request, *args, **kwargs)
            dispatcher = self.tanren_line
            if dispatcher is not None and dispatcher.on:
                try:
                    dispatcher.joined(request)
                except Exception as error:
                    dispatcher.failed(error)
            return answer

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            dispatcher = self.tanren_line
            if dispatcher is not None and dispatcher.on:
                try:
                    dispatcher.pushed_out(request)
                except Exception as error:
                    dispatcher.failed(error)
            return super()._preempt_request(request, *args, **kwargs)

        def shutdown(self, *args: Any, **kwargs: Any) -> Any:
            if self.tanren_line is not None:
                say_farewell(self.tanren_line)
            return super().shutdown(*args, **kwargs)

    return DispatchingScheduler


def make_waiting_class(base: Any) -> Any:
    """The waiting queue of vLLM, which counts how often it was changed and tells when it is entered."""

    class TanrenWaiting(base):  # type: ignore[misc]
        """vLLM's queue; what it holds is not touched here."""

        changes: int
        tanren: Any

        def add_request(self, request: Any) -> None:
            self.changes += 1
            base.add_request(self, request)
            self.tanren.wake()

        def pop_request(self) -> Any:
            self.changes += 1
            return base.pop_request(self)

        def prepend_request(self, request: Any) -> None:
            self.changes += 1
            base.prepend_request(self, request)
            self.tanren.wake()

        def prepend_requests(self, requests: Any) -> None:
            self.changes += 1
            base.prepend_requests(self, requests)
            self.tanren.wake()

        def remove_request(self, request: Any) -> None:
            self.changes += 1
            base.remove_request(self, request)

        def remove_requests(self, requests: Any) -> None:
            self.changes += 1
            base.remove_requests(self, requests)

    return TanrenWaiting


class Requests:
    """The requests that the policy may order, in flat arrays, numbered as they were added."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.block_size = int(scheduler.block_size)
        manager = scheduler.kv_cache_manager
        self.pool, self.caches = manager.block_pool, bool(manager.enable_caching)
        self.cached: Any = None  # what the prefix cache holds, taken anew in each step
        self.start = CLOCK()
        self.now, self.frozen = 0.0, False
        self.number: dict[str, int] = {}
        self.requests: list[Any] = []  # by number; None for one that is over
        self.hashes: list[Any] = []  # by number; what a waiting one looks up in the cache
        self.fresh: list[int] = []  # numbers queued since the last step
        self.waits = 0  # requests in `line` that still wait
        self.lined = 0
        self.changes = 0  # of the waiting queue, as far as they are accounted for
        self._make_room(_ROOM)

    def freeze_now(self) -> None:
        """Hold the clock still until the next step; one that was set back goes on from here."""
        if self.frozen:
            return
        now = CLOCK() - self.start
        if now < self.now:
            self.start += now - int(self.now)
            now = int(self.now)
        self.now, self.frozen = float(now), True

    def _number_of(self, request: Any) -> int:
        number = self.number.get(request.request_id)
        if number is not None and self.requests[number] is request:
            return number
        self._let_go(request.request_id)  # of another one of that name, which is over
        if len(self.requests) == len(self.rows):
            self._forget_gaps()
        number = self.number[request.request_id] = len(self.requests)
        self.requests.append(request)
        self.hashes.append(None)
        self.attained[number] = self.hits[number] = 0
        self.overdue[number] = self.waits_now[number] = 0
        self.arrival[number] = self._arrival_of(request)
        return number

    def _numbers_of(self, requests: Any) -> list[int]:
        for request in requests:  # numbering one may number all anew, so that comes first
            self._number_of(request)
        return [self.number[request.request_id] for request in requests]

    def _arrival_of(self, request: Any) -> float:
        """By our clock; the frontend's may be ahead of it, on another machine."""
        return min(float(round(request.arrival_time * 1e6) - self.start), self.now)

    def _queue(self, number: int, since: float) -> None:
        self.changes += 1
        self.waits += 1 - int(self.waits_now[number])
        self.waits_now[number] = 1
        self.since[number] = since
        self.fresh.append(number)
        self.lined = take_number(self.line, self.lined, number)

    def _fill(self, number: int) -> None:
        """Bring the row of a request that came to wait up to date; it changes no more while it waits."""
        request, row = self.requests[number], self.rows[number]
        if ARRIVAL >= 0:
            row[ARRIVAL] = self.arrival[number]
        if PROMPT_TOKENS >= 0:
            row[PROMPT_TOKENS] = request.num_prompt_tokens
        if MAX_TOKENS >= 0:
            row[MAX_TOKENS] = request.max_tokens
        if USER_PRIORITY >= 0:
            row[USER_PRIORITY] = request.priority
        if OUTPUT_TOKENS >= 0:
            row[OUTPUT_TOKENS] = request.num_output_tokens
        if COMPUTED_TOKENS >= 0:
            row[COMPUTED_TOKENS] = 0.0
        if ATTAINED_TOKENS >= 0:
            row[ATTAINED_TOKENS] = self.attained[number]
        if PREEMPTIONS >= 0:
            row[PREEMPTIONS] = request.num_preemptions
        if RESUMED >= 0:
            row[RESUMED] = 1.0 if request.num_preemptions else 0.0
        if REFRESHES:
            self.hashes[number] = None
            self._look_up(number)

    def _take_cache(self) -> None:
        """The dictionary of what is cached; vLLM replaces it when the cache is reset."""
        if self.caches:
            found = self.pool.cached_block_hash_to_block
            self.cached = getattr(found, "_cache", None)
            if self.cached is None:
                self.cached = _Found(found.get_one_block)

    def _look_up(self, number: int) -> None:
        """Count the leading tokens that are cached; the last token never is looked up."""
        request, row, hits = self.requests[number], self.rows[number], 0
        if self.cached is not None and not request.skip_reading_prefix_cache:
            keys = self.hashes[number]
            if keys is None:
                keys = self.hashes[number] = []
            cached, digests = self.cached, request.block_hashes
            most = (request.num_tokens - 1) // self.block_size
            while hits < most:
                if hits == len(keys):  # made as far as they are looked up
                    keys.append(digests[hits] + _GROUP)
                if keys[hits] not in cached:
                    break
                hits += 1
        tokens = hits * self.block_size
        row[CACHED_TOKENS] = tokens
        if UNCACHED_TOKENS >= 0:
            row[UNCACHED_TOKENS] = request.num_tokens - tokens

    def _forget_over(self) -> None:
        """Let go of the requests that are over; while nobody waits, steps pass in which nobody looks."""
        known = self.scheduler.requests
        over = list(self.scheduler.finished_req_ids)
        if len(self.number) > len(known):
            over = list(self.number)
        for name in over:
            number = self.number.get(name)
            if number is not None and known.get(name) is not self.requests[number]:
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        number = self.number.pop(name, None)
        if number is not None:
            self.requests[number] = self.hashes[number] = None
            self.waits -= int(self.waits_now[number])
            self.waits_now[number] = 0

    def _look_again(self, waiting: Any) -> None:
        """The queue is not as it was left, for vLLM moves requests in ways of its own: take it as it is."""
        numbers = np.array(self._numbers_of(waiting), np.int64)
        if len(numbers) != self.waits or not self.waits_now[numbers].all():
            left = self.waits_now.copy()
            left[numbers] = 0
            self.waits_now[left > 0] = 0
            for number in np.sort(numbers).tolist():
                if not self.waits_now[number]:
                    self._queue(number, self.now)
            self.waits = len(numbers)
        self.changes = waiting.changes

    def _forget_gaps(self) -> None:
        """Number the requests anew, without those that are over, and make room for as many again."""
        kept = [number for number, request in enumerate(self.requests) if request is not None]
        old = {name: getattr(self, name) for name in _BY_NUMBER}
        line = self.line[: self.lined]
        line = line[self.waits_now[line] > 0]
        self._make_room(max(_ROOM, 4 * len(kept)))
        for name, values in old.items():
            getattr(self, name)[: len(kept)] = values[kept]
        anew = {number: place for place, number in enumerate(kept)}
        self.lined = len(line)
        self.line[: self.lined] = [anew[number] for number in line.tolist()]
        self.fresh = [anew[number] for number in self.fresh if number in anew]
        self.number = {name: anew[number] for name, number in self.number.items()}
        self.requests = [self.requests[number] for number in kept]
        self.hashes = [self.hashes[number] for number in kept]

    def _make_room(self, room: int) -> None:
        self.rows = np.zeros((room, LINE_WIDTH))
        self.arrival, self.since = np.zeros(room), np.zeros(room)
        self.attained, self.hits = np.zeros(room), np.zeros(room)
        self.overdue, self.waits_now = np.zeros(room, np.uint8), np.zeros(room, np.uint8)
        self.line, self.out = np.zeros(room, np.uint32), np.zeros(room, np.uint32)
        self.keys = np.zeros((room, ORDER_KEYS))
        self.run_keys = np.zeros((room, max(1, PREEMPT_KEYS)))
        self.scratch = np.zeros(room)
        self.places, self.spare = np.zeros(room, np.int64), np.zeros(room, np.int64)


_BY_NUMBER = ("rows", "arrival", "since", "attained", "hits", "overdue", "waits_now")


class _Found:
    """Membership of the prefix cache where its dictionary is not at hand."""

    def __init__(self, find: Any) -> None:
        self.find = find

    def __contains__(self, key: Any) -> bool:
        return self.find(key) is not None
