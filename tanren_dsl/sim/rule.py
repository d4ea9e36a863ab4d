"""From a checked policy to the rule a pool obeys: pass-through, heap or scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import UnsupportedError
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import DECISION_WIDTH, CompiledOrdering, CompileOrdering
from tanren_dsl.passes.order import analyze
from tanren_dsl.passes.provides import require_signals
from tanren_dsl.sim.pool import HEAP, PASS_THROUGH, SCAN, Rule


@dataclass(frozen=True)
class Victims:
    """How victims are chosen at one pool size.

    Attributes:
        label: the policy's declared name, or the bound's.
        decision: float64[width], the decision vector with the knobs in place.
        code: keeps the compiled ordering alive.
        reads: signals that the ordering reads.
    """

    label: str
    rule: Rule
    key_count: int
    decision: NDArray[np.float64]
    code: CompiledOrdering | None = None
    reads: frozenset[str] = frozenset()

    @property
    def with_heap(self) -> bool:
        """Whether the pool needs room for the heap."""
        return self.rule.mode == HEAP


def considered_extra(percent: float | None, usable: int) -> int:
    """Free blocks considered beyond the n asked for: ceil(P % of the usable blocks)."""
    return usable if percent is None else -int(-percent * usable // 100)


def victims_of(
    policy: Policy, compile_ordering: CompileOrdering, usable: int, mode: str, *, use_shortcuts: bool = True
) -> Victims:
    """The rule of an evict policy.

    Args:
        policy: a checked evict policy.
        compile_ordering: the backend.
        usable: blocks of the pool.
        mode: `replay` or `engine`, for the signals that it provides.
        use_shortcuts: pass-through for the engine's own order, and the heap; else always scan.

    Raises:
        UnsupportedError: the policy schedules, or reads a signal that the mode does not provide.
    """
    if policy.kind != "evict":
        raise UnsupportedError(
            f"{policy.name} is a schedule policy; the cache simulator needs an evict policy"
        )
    require_signals(policy, mode, f"{mode} mode")
    shape = analyze(policy).shape
    decision = np.zeros(DECISION_WIDTH + len(policy.knobs))
    decision[DECISION_WIDTH:] = [knob.default for knob in policy.knobs]
    extra = considered_extra(policy.percent, usable)
    if use_shortcuts and shape == "identity":
        return Victims(policy.name, Rule(PASS_THROUGH, 0, 0, 0, 0, 0), 1, decision)
    code = compile_ordering(policy, policy.order)
    heap = use_shortcuts and shape != "dynamic" and policy.percent is None
    keeps_children, keeps_waiting = (int(name in policy.signals()) for name in ("children", "waiting_refs"))
    rule = Rule(HEAP if heap else SCAN, code.address, extra, 1, keeps_children, keeps_waiting)
    return Victims(policy.name, rule, code.key_count, decision, code, frozenset(policy.signals()))


def belady(usable: int, window: int | None = None) -> Victims:
    """Furthest next use first, deepest among equals; among the first n + window free blocks if given."""
    rule = Rule(HEAP, 0, 0, 0, 0, 0) if window is None else Rule(SCAN, 0, min(window, usable), 0, 0, 0)
    label = "belady" if window is None else f"belady-{window}"
    return Victims(label, rule, 2, np.zeros(DECISION_WIDTH))


def stock() -> Victims:
    """The engine's own order."""
    return Victims("stock", Rule(PASS_THROUGH, 0, 0, 0, 0, 0), 1, np.zeros(DECISION_WIDTH))


def as_array(values: Any) -> NDArray[np.int64]:
    """Contiguous int64, as the kernels want it."""
    return np.ascontiguousarray(values, dtype=np.int64)
