"""The typed form of a policy: flat, frozen, in evaluation order.

An `Ordering` is a list of nodes in which arguments are indices of earlier nodes;
equal nodes are the same node (building it shares common subexpressions). Every
node knows its type and its stage: constant, once per decision, once per object.
Backends walk the list from front to back and never recurse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tanren_dsl.signals import Kind
from tanren_dsl.units import Type


class Stage(IntEnum):
    """When a node is computed; a node's stage is the highest among its arguments."""

    CONST = 0
    DECISION = 1
    OBJECT = 2


@dataclass(frozen=True, slots=True)
class Const:
    """A literal or a folded constant."""

    value: float
    type: Type
    stage: Stage = Stage.CONST


@dataclass(frozen=True, slots=True)
class ParamRef:
    """A tunable constant, by its value; the name is kept for people."""

    name: str
    value: float
    type: Type
    stage: Stage = Stage.CONST


@dataclass(frozen=True, slots=True)
class KnobRef:
    """An operator's setting, read from the decision vector."""

    name: str
    type: Type
    stage: Stage = Stage.DECISION


@dataclass(frozen=True, slots=True)
class SignalRef:
    """A signal of the table."""

    name: str
    type: Type
    stage: Stage


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator (a name in `ops.OPS`, not an aggregate) over earlier nodes."""

    op: str
    args: tuple[int, ...]
    type: Type
    stage: Stage


@dataclass(frozen=True, slots=True)
class Fold:
    """An aggregate over the ordered objects of a per-object node; one value per decision."""

    op: str
    arg: int
    type: Type
    stage: Stage = Stage.DECISION


Node: TypeAlias = Const | ParamRef | KnobRef | SignalRef | Apply | Fold


@dataclass(frozen=True, slots=True)
class Ordering:
    """One to three numeric keys over shared nodes; lexicographic, ascending."""

    nodes: tuple[Node, ...]
    keys: tuple[int, ...]

    def signals(self) -> tuple[str, ...]:
        """Names of the signals read, in order of first appearance."""
        return tuple(dict.fromkeys(node.name for node in self.nodes if isinstance(node, SignalRef)))


@dataclass(frozen=True, slots=True)
class KnobDecl:
    """An operator's setting; `default` is in the unit's own scale (microseconds for time)."""

    name: str
    type: Type
    unit_text: str
    default: float
    written: float


@dataclass(frozen=True, slots=True)
class ParamDecl:
    """A tunable constant and its range."""

    name: str
    value: float
    low: float
    high: float
    log: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """A checked policy in its normal form: the meaning that every backend obeys.

    `percent` is the considered set (None: all); it is None and unused for `schedule`.
    """

    name: str
    kind: Kind
    doc: str | None
    params: tuple[ParamDecl, ...]
    knobs: tuple[KnobDecl, ...]
    order: Ordering
    preempt: Ordering | None
    percent: float | None
    text: str

    def signals(self) -> tuple[str, ...]:
        """Names of all signals read by `order by` and `preempt by`."""
        names = list(self.order.signals())
        if self.preempt is not None:
            names.extend(self.preempt.signals())
        return tuple(dict.fromkeys(names))


class OrderingBuilder:
    """Collects nodes; an equal node added twice gets the same index."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._index: dict[tuple[object, ...], int] = {}

    def add(self, node: Node) -> int:
        """Index of the node, which is appended unless an equal one is there."""
        key = _identity(node)
        found = self._index.get(key)
        if found is not None:
            return found
        self._nodes.append(node)
        self._index[key] = len(self._nodes) - 1
        return self._index[key]

    def node(self, index: int) -> Node:
        """The node at an index."""
        return self._nodes[index]

    def build(self, keys: Sequence[int]) -> Ordering:
        """The ordering of the nodes that the keys need, renumbered, dead ones dropped."""
        live: set[int] = set()
        stack = list(keys)
        while stack:
            index = stack.pop()
            if index not in live:
                live.add(index)
                stack.extend(arguments(self._nodes[index]))
        number = {old: new for new, old in enumerate(sorted(live))}
        nodes = tuple(_renumbered(self._nodes[old], number) for old in sorted(live))
        return Ordering(nodes, tuple(number[key] for key in keys))


def arguments(node: Node) -> tuple[int, ...]:
    """Indices of the nodes that a node reads."""
    match node:
        case Apply():
            return node.args
        case Fold():
            return (node.arg,)
        case _:
            return ()


def stage_of(nodes: Sequence[Node], args: Sequence[int]) -> Stage:
    """Stage of an operator over these arguments."""
    return max((nodes[arg].stage for arg in args), default=Stage.CONST)


def _identity(node: Node) -> tuple[object, ...]:
    if isinstance(node, Const):  # 0.0 and -0.0 compare equal and are not the same constant
        return (Const, node.value.hex(), node.type)
    return (node,)


def _renumbered(node: Node, number: dict[int, int]) -> Node:
    match node:
        case Apply(op, args, type_, stage):
            return Apply(op, tuple(number[arg] for arg in args), type_, stage)
        case Fold(op, arg, type_, stage):
            return Fold(op, number[arg], type_, stage)
        case _:
            return node
