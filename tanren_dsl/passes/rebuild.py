"""What every pass shares: rebuilding an ordering node by node, and making nodes. No pass itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tanren_dsl.ir import Apply, Fold, Node, Ordering, OrderingBuilder, stage_of
from tanren_dsl.units import Type

Rule: TypeAlias = Callable[[OrderingBuilder, Node], int]
"""Adds a node (its arguments are already new) or something equal in meaning; gives its index."""


def rebuild(ordering: Ordering, rule: Rule) -> Ordering:
    """The ordering with every node passed through a rule, arguments first."""
    builder = OrderingBuilder()
    number: list[int] = []
    for node in ordering.nodes:
        match node:
            case Apply(op, args, type_, _):
                new = [number[arg] for arg in args]
                node = Apply(op, tuple(new), type_, stage_of([builder.node(i) for i in new], range(len(new))))
            case Fold(op, arg, type_, stage):
                node = Fold(op, number[arg], type_, stage)
            case _:
                pass
        number.append(rule(builder, node))
    return builder.build([number[key] for key in ordering.keys])


def apply(builder: OrderingBuilder, op: str, args: Sequence[int], type_: Type) -> int:
    """Index of an operator over nodes of the builder; its stage follows from them."""
    stage = max(builder.node(arg).stage for arg in args)
    return builder.add(Apply(op, tuple(args), type_, stage))
