"""Where each node of an ordering is computed: before, in a loop of aggregates, in the last loop.

Backends that write code share this; none of it changes a bit. An aggregate needs
every object, so the per-decision nodes above it come after its loop; such a step
is a wave. (The checker forbids aggregates in aggregates, so a policy has at most
one wave; hand-built orderings may have more.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tanren_dsl.ir import Fold, Ordering, Stage, arguments

RANKS = frozenset({"median", "p90"})
"""Aggregates that need all values at once, in the scratch array."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One pass over the objects.

    Attributes:
        nodes: per-object nodes to compute, in order.
        folds: running aggregates (`mean`, `lowest`, `highest`) of this pass.
        spill: the node whose values go to scratch, or None.
        ranks: aggregates taken from scratch after the pass.
    """

    nodes: tuple[int, ...]
    folds: tuple[int, ...]
    spill: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Wave:
    """Loops whose aggregates need nothing of each other, then the nodes that need them."""

    loops: tuple[Loop, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`before` (constants and per-decision nodes), the waves, the nodes of the last loop."""

    before: tuple[int, ...]
    waves: tuple[Wave, ...]
    last: tuple[int, ...]


def plan(ordering: Ordering) -> Plan:
    """The plan of an ordering."""
    nodes = ordering.nodes
    wave = _waves(ordering)
    fixed = [i for i, node in enumerate(nodes) if node.stage < Stage.OBJECT and not isinstance(node, Fold)]
    waves = tuple(
        Wave(_loops(ordering, wave, w), tuple(i for i in fixed if wave[i] == w))
        for w in range(1, max(wave, default=0) + 1)
    )
    before = tuple(i for i in fixed if wave[i] == 0)
    return Plan(before, waves, _needed(ordering, ordering.keys))


def _waves(ordering: Ordering) -> list[int]:
    wave: list[int] = []
    for node in ordering.nodes:
        highest = max((wave[arg] for arg in arguments(node)), default=0)
        wave.append(highest + 1 if isinstance(node, Fold) else highest)
    return wave


def _loops(ordering: Ordering, wave: list[int], number: int) -> tuple[Loop, ...]:
    folds: list[int] = []
    fold_args: list[int] = []
    ranks: dict[int, list[int]] = {}
    for i, node in enumerate(ordering.nodes):
        if not isinstance(node, Fold) or wave[i] != number:
            continue
        if node.op in RANKS:
            ranks.setdefault(node.arg, []).append(i)
        else:
            folds.append(i)
            fold_args.append(node.arg)
    spills = list(ranks.items()) if ranks else []
    if not spills:
        return (Loop(_needed(ordering, fold_args), tuple(folds), None, ()),)
    first, *others = spills
    return (
        Loop(_needed(ordering, [*fold_args, first[0]]), tuple(folds), first[0], tuple(first[1])),
        *(Loop(_needed(ordering, [arg]), (), arg, tuple(found)) for arg, found in others),
    )


def _needed(ordering: Ordering, roots: Iterable[int]) -> tuple[int, ...]:
    """Per-object nodes that the roots need, in order."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        index = stack.pop()
        if index not in found and ordering.nodes[index].stage == Stage.OBJECT:
            found.add(index)
            stack.extend(arguments(ordering.nodes[index]))
    return tuple(sorted(found))
