"""Rewrites of keys that keep the order of objects, though not the keys' values.

What every object of a decision shares is dropped: strictly positive factors and
divisors, addends, whole keys. The list is `rewrites.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tanren_dsl.ir import Apply, Ordering, OrderingBuilder, ParamDecl, SignalRef, Stage
from tanren_dsl.passes.ranges import is_positive, ranges
from tanren_dsl.passes.rebuild import apply
from tanren_dsl.signals import SIGNALS
from tanren_dsl.units import Instant, Number

_SINCE_OF = {row.name: row.since for row in SIGNALS if row.since is not None}
_ROWS = {row.name: row for row in SIGNALS}


def rewrite_keys(ordering: Ordering, params: Sequence[ParamDecl]) -> Ordering:
    """The ordering with the simplest keys that order objects the same way.

    >>> from tanren_dsl.check import loads
    >>> loads("policy p : evict order by 0 - age / capacity, kv_free").order.signals()
    ('last_use',)
    """
    bounds = ranges(ordering.nodes, params)
    builder = OrderingBuilder()
    for node in ordering.nodes:
        builder.add(node)

    def is_factor(index: int) -> bool:
        return builder.node(index).stage < Stage.OBJECT and is_positive(bounds[index])

    keys = [_rewritten(builder, key, is_factor) for key in ordering.keys]
    varying = [key for key in keys if builder.node(key).stage == Stage.OBJECT]
    return builder.build(list(dict.fromkeys(varying or keys[:1])))


def _rewritten(builder: OrderingBuilder, key: int, is_factor: Callable[[int], bool]) -> int:
    """The core of a key, its sign on the outside, an elapsed time turned to its instant."""
    if builder.node(key).stage < Stage.OBJECT:
        return key
    inner, is_negative = key, False
    while True:
        step = _inner(builder, inner, is_factor)
        if step is None:
            break
        if step[1] and isinstance(builder.node(step[0]).type, Instant):
            break  # an instant has no sign
        inner, is_negative = step[0], is_negative != step[1]
    if not is_negative:
        return inner
    node = builder.node(inner)
    if isinstance(node.type, Instant):
        return key
    if isinstance(node, SignalRef) and node.name in _SINCE_OF:
        row = _ROWS[_SINCE_OF[node.name]]
        return builder.add(SignalRef(row.name, row.type, Stage.OBJECT))
    return apply(builder, "neg", (inner,), node.type)


def _inner(builder: OrderingBuilder, key: int, is_factor: Callable[[int], bool]) -> tuple[int, bool] | None:
    """The key less one thing that all objects share, and whether its sign flips."""
    node = builder.node(key)
    if not isinstance(node, Apply) or not isinstance(node.type, Number):
        return None
    if node.op == "neg":
        return node.args[0], True
    if node.op not in ("mul", "div", "add", "sub"):
        return None
    x, y = node.args
    if node.op == "mul" and is_factor(x):
        return y, False
    if node.op in ("mul", "div"):
        return (x, False) if is_factor(y) else None
    if builder.node(y).stage < Stage.OBJECT:
        return x, False
    if builder.node(x).stage < Stage.OBJECT:
        return y, node.op == "sub"
    return None
