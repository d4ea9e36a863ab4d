"""Order analysis: which data structure can serve an eviction policy. It never changes a victim."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias

from tanren_dsl.ir import Const, Fold, Node, Ordering, ParamRef, Policy, SignalRef, Stage
from tanren_dsl.printer import print_ordering
from tanren_dsl.signals import signals_of

Shape: TypeAlias = Literal["identity", "static", "dynamic"]

FIXED_SIGNALS = frozenset({"capacity", "block_size", "max_running", "token_budget"})
"""Per-decision signals that never change while an engine runs."""


@dataclass(frozen=True, slots=True)
class OrderAnalysis:
    """How the order behaves in time.

    Attributes:
        shape: `identity`: the engine's own queue is the order; `static`: the keys of a
            block do not change while it rests; `dynamic`: they may.
        reason: why, for people.
    """

    shape: Shape
    reason: str


def analyze(policy: Policy) -> OrderAnalysis:
    """The shape of an eviction policy's order.

    >>> from tanren_dsl.check import loads
    >>> analyze(loads("policy p : evict order by -age")).shape
    'identity'
    >>> analyze(loads("policy p : evict order by uses / mean(uses)")).reason
    '`mean(uses)` changes with every decision'
    """
    order = policy.order
    if len(order.keys) == 1:
        match order.nodes[order.keys[0]]:
            case SignalRef("last_use"):
                return OrderAnalysis("identity", "the sole key is `last_use`, the engine's own order")
            case Const(value) | ParamRef(_, value) if isfinite(value):
                return OrderAnalysis("identity", "every block has the same key: the engine's own order")
            case _:
                pass
    for index, node in sorted(enumerate(order.nodes), key=lambda pair: not isinstance(pair[1], Fold)):
        if why := _changes(policy, node):
            text = print_ordering(Ordering(order.nodes, (index,)))[0]
            return OrderAnalysis("dynamic", f"`{text}` {why}")
    return OrderAnalysis("static", "no key changes while a block rests")


def reads(policy: Policy) -> frozenset[str]:
    """Names of all signals that the policy reads, `age` and the like by their own name."""
    return frozenset(policy.signals())


def _changes(policy: Policy, node: Node) -> str | None:
    match node:
        case Fold():
            return "changes with every decision"
        case SignalRef(name, _, Stage.DECISION) if name not in FIXED_SIGNALS:
            return "changes with every decision"
        case SignalRef(name, _, Stage.OBJECT) if not signals_of(policy.kind)[name].rests:
            return "changes while a block rests"
        case _:
            return None
