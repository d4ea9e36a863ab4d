"""Random trees of the typed set, within a height, from a random state that is passed in.

Unlike DEAP's generator it knows how high a type must at least reach: a type that has only
terminals, or none, is no error.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

from deap import gp

from tanren_dsl.evolve.primitives import Beside, Key, Node, Order, Primitives, Slot, Truth
from tanren_dsl.signals import signals_of
from tanren_dsl.units import BOOL, PLAIN, TIME, TOKENS, Number

_STOP = 0.35
"""Chance to end with a terminal before the height is used up."""
_STOPS: dict[Slot, float] = {Truth: 0.02, Beside: 0.7}
"""That chance for truth values, and for leaving to the engine who is pushed out."""
_CONSTANT = 0.2
"""Share of constants among plain terminals."""
_FALLING = 0.3
"""Share of keys that begin with a sign: the block with the most goes first."""


class Tree(gp.PrimitiveTree):  # type: ignore[misc]
    """A policy as a list of nodes in prefix order; a changed copy has neither fitness nor key."""

    fitness: Any = None
    key: str = ""


class Generator:
    """Makes subtrees of any type of a set."""

    def __init__(self, primitives: Primitives) -> None:
        self.primitives = primitives
        pset = primitives.pset
        self.slots: list[Slot] = list(dict.fromkeys([*pset.primitives, *pset.terminals, primitives.plain]))
        self.least: dict[Slot, float] = self._least_heights()

    def tree(self, rng: Random, height: int) -> Tree:
        """A whole policy of at most this height (at least 1)."""
        return Tree(self.subtree(rng, Order, max(1, height)))

    def subtree(self, rng: Random, slot: Slot, height: int) -> list[Node]:
        """Nodes in prefix order that fit a slot, no higher than `height` where the type allows it."""
        if slot is Key:
            slot = self._kind_of_key(rng)
            sign = self.primitives.writer("neg", [slot])
            if height > 1 and sign is not None and rng.random() < _FALLING:
                return [sign, *self.subtree(rng, slot, height - 1)]
        may_stop = bool(self._terminals(slot))
        stop = _STOPS.get(slot, _STOP)
        fitting = [node for node in self._branches(slot) if self._need(node) <= height]
        if may_stop and (not fitting or rng.random() < stop):
            return [self.terminal(rng, slot)]
        if not fitting:
            least = min(self._need(node) for node in self._branches(slot))
            fitting = [node for node in self._branches(slot) if self._need(node) == least]
        node = self._pick(rng, fitting)
        nodes = [node]
        for argument in node.args:
            nodes.extend(self.subtree(rng, argument, height - 1))
        return nodes

    def product(self, rng: Random) -> Tree:
        """A key of the greedy-dual family: a duration, by chance times a size and by a count.

        The block for which it is largest goes first, as in `-age * depth / (1 + uses)`.
        """
        made = self.primitives
        nodes = [self._signal(rng, TIME)]
        for op, chance in (("mul", 0.6), ("div", 0.6)):
            if rng.random() >= chance:
                continue
            other = [self._signal(rng, TOKENS)]
            if op == "div":
                other = [made.writer("add", [made.plain] * 2), made.constant(1.0), self._signal(rng, PLAIN)]
            nodes = [made.writer(op, [nodes[0].ret, other[0].ret]), *nodes, *other]
        return self._ordered(rng, [made.writer("neg", [nodes[0].ret]), *nodes])

    def balance(self, rng: Random) -> Tree:
        """A key that weighs two quantities, each relative to its mean over what is ordered.

        As in `prompt_tokens / mean(prompt_tokens) - 0.3 * (wait / mean(wait))`.
        """
        made = self.primitives
        rows = [
            row
            for row in signals_of(made.kind).values()
            if row.scope == "object" and row.relative and made.terminal(f"mean({row.name})") is not None
        ]
        parts = []
        for row in rng.sample(rows, 2):
            mean: Node = made.terminal(f"mean({row.name})")
            own: Node = made.terminal(row.name)
            parts.append([made.writer("div", [own.ret, mean.ret]), own, mean])
        plain = made.plain
        weighed = [made.writer("mul", [plain, plain]), self.constant(rng), *parts[1]]
        joint = made.writer(rng.choice(("add", "sub")), [plain, plain])
        return self._ordered(rng, [joint, *parts[0], *weighed])

    def singles(self) -> list[Tree]:
        """Every quantity of an object alone as the key, the lowest first and the highest first."""
        made, found = self.primitives, []
        for beside in self._terminals(Beside):
            for row in signals_of(made.kind).values():
                signal = made.terminal(row.name)
                if row.scope != "object" or signal is None or row.type == BOOL:
                    continue
                root = made.pset.mapping["order#1"]
                found.append(Tree([root, beside, signal]))
                sign = made.writer("neg", [signal.ret])
                if sign is not None:
                    found.append(Tree([root, beside, sign, signal]))
        return found

    def _ordered(self, rng: Random, key: list[Node]) -> Tree:
        """The policy of one key; who is pushed out is left to the engine."""
        return Tree([self.primitives.pset.mapping["order#1"], self.terminal(rng, Beside), *key])

    def terminal(self, rng: Random, slot: Slot) -> Node:
        """A signal, knob, aggregate or constant that fits a slot which has one."""
        if issubclass(self.primitives.plain, slot) and slot is not Key and rng.random() < _CONSTANT:
            return self.constant(rng)
        return self._pick(rng, self._terminals(slot))

    def constant(self, rng: Random) -> Node:
        """A plain literal: a small whole number, or one between 0.01 and 100."""
        if rng.random() < 0.3:
            return self.primitives.constant(float(rng.randrange(5)))
        return self.primitives.constant(rounded(10.0 ** rng.uniform(-2.0, 2.0)))

    def _signal(self, rng: Random, type_: Number) -> Node:
        """A signal of an object with this type."""
        rows = signals_of(self.primitives.kind).values()
        names = [row.name for row in rows if row.scope == "object" and row.type == type_]
        known = [node for name in names if (node := self.primitives.terminal(name)) is not None]
        return rng.choice(known)

    def _kind_of_key(self, rng: Random) -> Slot:
        kinds = [slot for slot in self.slots if issubclass(slot, Key) and slot is not Key]
        weights = [self._liking_of_key(slot) for slot in kinds]
        return rng.choices(kinds, weights)[0]

    def _liking_of_key(self, slot: Slot) -> float:
        """A kind of which no object has a signal seldom tells objects apart."""
        if slot is self.primitives.plain:
            return 4.0
        names = {row.name for row in signals_of(self.primitives.kind).values() if row.scope == "object"}
        return 1.0 if any(node.name in names for node in self._terminals(slot)) else 0.3

    def _pick(self, rng: Random, nodes: list[Node]) -> Node:
        return rng.choices(nodes, [self.primitives.weight[node.name] for node in nodes])[0]

    def _branches(self, slot: Slot) -> list[Node]:
        return list(self.primitives.pset.primitives.get(slot, ()))

    def _terminals(self, slot: Slot) -> list[Node]:
        return list(self.primitives.pset.terminals.get(slot, ()))

    def _need(self, node: Node) -> float:
        return 1 + max(self.least.get(argument, math.inf) for argument in node.args)

    def _least_heights(self) -> dict[Slot, float]:
        least = {slot: 0.0 if self._terminals(slot) else math.inf for slot in self.slots}
        least[self.primitives.plain] = 0.0
        self.least = least
        changed = True
        while changed:
            changed = False
            for slot in self.slots:
                for node in self._branches(slot):
                    if self._need(node) < least[slot]:
                        least[slot], changed = self._need(node), True
        return least


def rounded(value: float) -> float:
    """Three significant digits, so that texts stay readable.

    >>> rounded(0.0123456), rounded(98765.0)
    (0.0123, 98800.0)
    """
    return float(f"{value:.3g}")
