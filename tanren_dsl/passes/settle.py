"""Split an ordering in two: what is known when a block begins to rest, and what moves.

Most of a policy's arithmetic depends only on signals that rest while the block rests in the
free queue. It can be done once, on release, and kept; a decision then computes the
remainder. Operations and their operands stay the same, so no bit changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tanren_dsl.ir import (
    Apply,
    Const,
    Fold,
    KnobRef,
    Node,
    Ordering,
    OrderingBuilder,
    ParamRef,
    Policy,
    SignalRef,
    Stage,
    arguments,
)
from tanren_dsl.passes.order import FIXED_SIGNALS
from tanren_dsl.signals import signals_of


@dataclass(frozen=True, slots=True)
class Split:
    """The two parts.

    Attributes:
        settled: its keys are the values kept on release, `kept` their names (a stored signal's own
            name, or `rest1`, `rest2`, ...).
        moving: the policy's keys over the kept values, which it reads as signals by name.
        filled: stored signals that may change while the block rests; `moving` reads them too.
    """

    settled: Ordering
    kept: tuple[str, ...]
    moving: Ordering
    filled: tuple[str, ...]


def split(policy: Policy, ordering: Ordering) -> Split:
    """Split an ordering of the policy.

    >>> from tanren_dsl.check import loads
    >>> policy = loads("policy p : evict order by log1p(uses) - age / mean(age)")
    >>> split(policy, policy.order).kept
    ('last_use', 'rest1')
    """
    table = signals_of(policy.kind)
    ordering = _rebuilt(ordering)
    nodes = ordering.nodes
    rests: list[bool] = []
    for node in nodes:
        rests.append(_rests(policy, node, rests))
    roots = set(ordering.keys)
    for node, still in zip(nodes, rests, strict=True):
        if not still:
            roots.update(arguments(node))
    edge = sorted(i for i in roots if rests[i] and nodes[i].stage == Stage.OBJECT)

    builder = OrderingBuilder()
    for node in nodes:
        builder.add(node)
    kept = {i: _name(nodes[i], place) for place, i in enumerate(edge, 1)}
    for node in nodes:  # an age moves, its instant rests
        base = table[node.name].since if isinstance(node, SignalRef) else None
        if base is not None and base not in kept.values():
            kept[builder.add(SignalRef(base, table[base].type, Stage.OBJECT))] = base
    kept = dict(sorted(kept.items(), key=lambda pair: pair[1]))
    read = Ordering(tuple(_read(node, kept.get(i)) for i, node in enumerate(nodes)), ordering.keys)
    moving = _rebuilt(read)
    filled = tuple(
        name
        for name in moving.signals()
        if name in table and not table[name].rests and table[name].since is None
        and table[name].scope == "object"
    )  # fmt: skip
    return Split(builder.build(tuple(kept)), tuple(kept.values()), moving, filled)


def _rests(policy: Policy, node: Node, rests: list[bool]) -> bool:
    match node:
        case Const() | ParamRef() | KnobRef():
            return True
        case SignalRef(name, _, Stage.OBJECT):
            return signals_of(policy.kind)[name].rests
        case SignalRef(name):
            return name in FIXED_SIGNALS
        case Fold():
            return False
        case _:
            return all(rests[arg] for arg in arguments(node))


def _name(node: Node, place: int) -> str:
    return node.name if isinstance(node, SignalRef) else f"rest{place}"


def _read(node: Node, name: str | None) -> Node:
    return node if name is None else SignalRef(name, node.type, Stage.OBJECT)


def _rebuilt(ordering: Ordering) -> Ordering:
    """The same keys without the nodes that they no longer need."""
    builder = OrderingBuilder()
    number: list[int] = []
    for node in ordering.nodes:
        match node:
            case Fold(arg=arg):
                number.append(builder.add(replace(node, arg=number[arg])))
            case Apply(args=args):
                number.append(builder.add(replace(node, args=tuple(number[arg] for arg in args))))
            case _:
                number.append(builder.add(node))
    return builder.build([number[key] for key in ordering.keys])
