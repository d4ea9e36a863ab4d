"""The normal form of an ordering: the form that is its meaning in every backend."""

from __future__ import annotations

from collections.abc import Sequence

from tanren_dsl.ir import Ordering, ParamDecl
from tanren_dsl.passes.fold import fold
from tanren_dsl.passes.keys import rewrite_keys
from tanren_dsl.passes.simplify import simplify


def normalize(ordering: Ordering, params: Sequence[ParamDecl]) -> Ordering:
    """Fold, simplify and rewrite keys until nothing changes; normalizing twice changes nothing.

    Every rewrite leaves fewer nodes or a simpler one, so the loop ends.

    >>> from tanren_dsl.check import loads
    >>> policy = loads("policy p : evict order by (now - last_use) * (1 - 2)")
    >>> policy.order.signals(), normalize(policy.order, policy.params) == policy.order
    (('last_use',), True)
    """
    while True:
        before = ordering
        ordering = rewrite_keys(simplify(fold(ordering)), params)
        if ordering == before:
            return ordering
