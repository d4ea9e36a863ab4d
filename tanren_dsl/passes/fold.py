"""Constant folding: operators over literals become literals.

Values are computed by the published meaning, so nothing changes. Params are not
literals (the search moves them). A result that is not finite is left unfolded.
"""

from __future__ import annotations

import math

from tanren_dsl.interp import APPLY
from tanren_dsl.ir import Apply, Const, Node, Ordering, OrderingBuilder
from tanren_dsl.passes.rebuild import rebuild


def fold(ordering: Ordering) -> Ordering:
    """The ordering with operators over literals computed.

    >>> from tanren_dsl.ir import OrderingBuilder, Stage
    >>> from tanren_dsl.units import PLAIN
    >>> builder = OrderingBuilder()
    >>> two = builder.add(Const(2.0, PLAIN))
    >>> four = builder.add(Apply("mul", (two, two), PLAIN, Stage.CONST))
    >>> fold(builder.build([four])).nodes[0].value
    4.0
    """
    return rebuild(ordering, _rule)


def _rule(builder: OrderingBuilder, node: Node) -> int:
    if not isinstance(node, Apply):
        return builder.add(node)
    values: list[float] = []
    for arg in node.args:
        known = builder.node(arg)
        if not isinstance(known, Const):
            return builder.add(node)
        values.append(known.value)
    value = APPLY[node.op](*values)
    return builder.add(Const(value, node.type) if math.isfinite(value) else node)
