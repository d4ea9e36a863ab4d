"""From a schedule policy, or one of the engine's own, to the rule by which requests are served."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import DECISION_WIDTH, CompiledOrdering, CompileOrdering
from tanren_dsl.passes.provides import require_signals
from tanren_dsl.signals import ENGINE
from tanren_dsl.sim.line import OWN, POLICY, PRIORITY, Line

GUARD_SEED_S = 1.0
"""Mean wait at admission, in seconds, that the starvation guard starts from."""


@dataclass(frozen=True)
class Service:
    """How requests are ordered.

    Attributes:
        label: the policy's declared name, `fcfs` or `priority`.
        key_counts: keys of the waiting and of the running order (0: none); None: nothing is ordered.
        seed_us: mean wait at admission that the starvation guard starts from, in microseconds.
        reads: signals that the orderings read.
        code: keeps the compiled orderings alive.
    """

    label: str
    line: Line
    key_counts: tuple[int, int] | None = None
    seed_us: float = GUARD_SEED_S * 1e6
    reads: frozenset[str] = frozenset()
    code: tuple[CompiledOrdering, ...] = ()


def first_come() -> Service:
    """First come first served, the engine's default."""
    return Service("fcfs", _line(OWN, OWN))


def by_priority() -> Service:
    """The engine's own priority policy: by priority and arrival, the worst of both is pushed out."""
    return Service("priority", _line(PRIORITY, PRIORITY), (2, 0))


def service_of(
    policy: Policy, compile_ordering: CompileOrdering, *, guard: bool = True, seed_s: float = GUARD_SEED_S
) -> Service:
    """The rule of a schedule policy.

    Args:
        policy: a checked schedule policy.
        compile_ordering: the backend.
        guard: serve first what waits far longer than the mean.
        seed_s: mean wait that the guard starts from, in seconds.

    Raises:
        UnsupportedError: the policy evicts, or reads a signal that engine mode does not provide.
        TanrenError: a seed that is no number of seconds.
    """
    if policy.kind != "schedule":
        raise UnsupportedError(f"{policy.name} is an evict policy; here a schedule policy is needed")
    if not (math.isfinite(seed_s) and seed_s >= 0):
        raise TanrenError(
            f"expected a mean wait of 0 s or more for the guard to start from, found {seed_s!r}"
        )
    require_signals(policy, ENGINE, "engine mode")
    waits = compile_ordering(policy, policy.order)
    code = [waits]
    if policy.preempt is not None:
        code.append(compile_ordering(policy, policy.preempt))
    runs = code[1] if policy.preempt is not None else None
    reads = frozenset(policy.signals())
    decision = np.zeros(DECISION_WIDTH + len(policy.knobs))
    decision[DECISION_WIDTH:] = [knob.default for knob in policy.knobs]
    line = Line(
        waits=POLICY,
        runs=OWN if runs is None else POLICY,
        wait_address=waits.address,
        run_address=0 if runs is None else runs.address,
        refreshes=int(not reads.isdisjoint(("cached_tokens", "uncached_tokens"))),
        guards=int(guard),
        decision=decision,
    )
    counts = (waits.key_count, 0 if runs is None else runs.key_count)
    return Service(policy.name, line, counts, seed_s * 1e6, reads, tuple(code))


def _line(waits: int, runs: int) -> Line:
    decision: NDArray[np.float64] = np.zeros(DECISION_WIDTH)
    return Line(waits, runs, 0, 0, 0, 0, decision)
