"""The order of requests in plain Python, by the interpreter: the schedule half of the engine's oracle.

It sees the oracle's requests, knows them by the order in which they were added, and puts
the oracle's queues into order at the top of a step. No code in common with the kernels.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tanren_dsl import interp
from tanren_dsl.conform.harness import EngineSpec
from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.signals import GUARD_TIMES, GUARD_WINDOW, REFRESHED
from tests.sim.naive import Mean

Request = Any


class Line:
    """A schedule policy over the oracle's requests."""

    def __init__(self, policy: Policy, spec: EngineSpec, *, guard: float | None) -> None:
        self.policy, self.spec = policy, spec
        self.waits = None if guard is None else Mean(GUARD_WINDOW)
        self.least = 0.0 if guard is None else guard * 1e6
        if self.waits is not None and guard is not None:
            self.waits.add(guard * 1e6)
        self.added: dict[str, int] = {}
        self.since: dict[str, float] = {}
        self.cached: dict[str, int] = {}
        self.attained: dict[str, int] = {}
        self.preempted: dict[str, int] = {}
        self.late: set[str] = set()
        self.new: set[str] = set()
        self.orderings = self.faults = self.rescued = 0

    def joined(self, request: Request, now: float) -> None:
        """The request came, or was pushed out, and waits."""
        self.added.setdefault(request.name, len(self.added))
        self.since[request.name] = now
        self.new.add(request.name)

    def pushed_out(self, request: Request, now: float) -> None:
        self.preempted[request.name] = self.preempted.get(request.name, 0) + 1
        self.joined(request, now)

    def admitted(self, request: Request, now: float) -> None:
        if self.waits is not None:
            self.waits.add(now - self.since[request.name])
            self.rescued += request.name in self.late
            self.late.discard(request.name)

    def computed(self, batch: dict[Request, int]) -> None:
        for request, tokens in batch.items():
            self.attained[request.name] = self.attained.get(request.name, 0) + tokens

    def order(
        self, step: dict[str, float], waiting: deque[Request], running: list[Request],
        hits: Callable[[Request], int],
    ) -> None:  # fmt: skip
        """Put both queues into order, in place."""
        for place, request in enumerate(waiting):
            if place < REFRESHED or request.name in self.new:
                self.cached[request.name] = hits(request)
        self.new.clear()
        if len(waiting) > 1:
            line = sorted(waiting, key=lambda request: self.added[request.name])
            ranked = [line[i] for i in self._ranks(self.policy.order, step, line)]
            if self.waits is not None:
                limit = GUARD_TIMES * max(self.waits.value, self.least)
                late = [one for one in line if step["now"] - self.since[one.name] > limit]
                names = {one.name for one in late}
                self.late = (self.late - {one.name for one in line}) | names
                ranked = late + [one for one in ranked if one.name not in names]
            waiting.clear()
            waiting.extend(ranked)
        if self.policy.preempt is not None and len(running) > 1:
            line = sorted(running, key=lambda request: self.added[request.name])
            keys = self._keys(self.policy.preempt, step, line)
            if all(map(math.isfinite, keys.flat)):
                places = sorted(range(len(line)), key=lambda i: (*keys[i].tolist(), -i))
            else:
                self.faults += 1
                places = list(range(len(line)))[::-1]
            running[:] = [line[i] for i in reversed(places)]

    def _ranks(self, ordering: Ordering, step: dict[str, float], line: Sequence[Request]) -> list[int]:
        order, fault = interp.order(self._keys(ordering, step, line))
        self.faults += fault
        return list(range(len(line))) if fault else list(order)

    def _keys(self, ordering: Ordering, step: dict[str, float], line: Sequence[Request]) -> Any:
        self.orderings += 1
        _, stored = interp.reads(self.policy, ordering)
        columns = {name: np.array([self._value(one, name) for one in line], np.float64) for name in stored}
        return interp.evaluate(self.policy, ordering, step, columns, len(line))

    def _value(self, request: Request, name: str) -> float:
        preempted = self.preempted.get(request.name, 0)
        cached = self.cached[request.name]
        values = {
            "arrival": request.arrival_us,
            "prompt_tokens": len(request.prompt),
            "cached_tokens": cached,
            "uncached_tokens": len(request.tokens) - cached,
            "computed_tokens": request.computed,
            "output_tokens": request.delivered,
            "max_tokens": len(request.output),
            "attained_tokens": self.attained.get(request.name, 0),
            "preemptions": preempted,
            "user_priority": request.priority,
            "resumed": preempted > 0 and not request.running,
        }
        return float(values[name])
