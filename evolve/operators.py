"""Variation: typed crossover, mutations of subtrees, points and constants, within fixed limits.

Every operator takes trees that fit the set and gives one that fits it: a subtree is put
only into a slot that takes its type. Random numbers come from the state that is passed in;
DEAP's own operators use Python's global one, so `seeded` gives each individual a state of
its own, whoever computes it and in whatever order.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from deap import gp, tools

from tanren_dsl.evolve.generator import Generator, Tree, rounded
from tanren_dsl.evolve.primitives import Constant, Key, Node, Order, Slot

_T = TypeVar("_T")
_NEW_HEIGHT = 3
_WRAPS = 0.5
"""Share of subtree mutations that keep the subtree and put an operator around it."""
_TRIES = 8
_LEAST, _MOST = 1e-3, 1e6


@dataclass(frozen=True, slots=True)
class Limits:
    """What no tree may exceed: nodes, and height in edges."""

    nodes: int = 40
    height: int = 8

    def hold(self, tree: Tree) -> bool:
        """Whether a tree is within both."""
        return len(tree) <= self.nodes and tree.height <= self.height


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of the ways to make an individual; they are scaled to add up to 1."""

    crossover: float = 0.35
    subtree: float = 0.25
    point: float = 0.1
    constant: float = 0.1
    shrink: float = 0.05
    keys: float = 0.1
    random: float = 0.05


@dataclass(frozen=True, slots=True)
class Offspring:
    """A new tree, the operator that made it, and the trees that it came from."""

    tree: Tree
    operator: str
    parents: tuple[Tree, ...]


@contextmanager
def seeded(*parts: int) -> Iterator[Random]:
    """A random state of its own, from numbers such as seed, generation and index.

    Python's global state follows the same seed inside, and is as before outside.

    >>> with seeded(1, 2, 3) as rng:
    ...     first = rng.random()
    >>> with seeded(1, 2, 3) as rng:
    ...     rng.random() == first
    True
    """
    digest = hashlib.sha256(",".join(map(str, parts)).encode()).digest()
    before = random.getstate()
    random.seed(digest)
    try:
        yield Random(digest)
    finally:
        random.setstate(before)


def vary(
    parents: Sequence[Tree], make: Generator, rates: Rates, limits: Limits, tournament: int, rng: Random
) -> Offspring:
    """One individual from parents with a fitness (or from nothing), within the limits.

    Call it inside `seeded`, since the tournament is DEAP's.
    """
    ways = ("crossover", "subtree", "point", "constant", "shrink", "keys", "random")
    way = rng.choices(ways, [getattr(rates, name) for name in ways])[0]
    if way == "random" or not parents:
        return Offspring(fresh(make, limits, rng), "random", ())
    if way == "crossover":
        first, second = tools.selTournament(list(parents), 2, tournament)
        made = _within(limits, lambda: crossover(first, second, rng))
        return Offspring(made or Tree(first), way, (first, second))
    (parent,) = tools.selTournament(list(parents), 1, tournament)
    made = _within(limits, lambda: _MUTATIONS[way](parent, make, rng))
    return Offspring(made or Tree(parent), way, (parent,))


def fresh(make: Generator, limits: Limits, rng: Random) -> Tree:
    """A random tree of a random small height."""
    height = rng.randint(2, max(2, min(limits.height, 4)))
    return _within(limits, lambda: make.tree(rng, height)) or make.tree(rng, 1)


def crossover(first: Tree, second: Tree, rng: Random) -> Tree:
    """The first tree with one subtree replaced by one of the second that fits its place."""
    slots = slots_of(first)
    places = [
        (place, donors)
        for place in range(1, len(first))
        if (donors := [at for at in range(1, len(second)) if issubclass(second[at].ret, slots[place])])
    ]
    place, donors = _inner_first(places, [first[place].arity for place, _ in places], rng)
    donor = _inner_first(donors, [second[at].arity for at in donors], rng)
    return _replaced(first, place, second[second.searchSubtree(donor)])


def mutate_subtree(tree: Tree, make: Generator, rng: Random) -> Tree:
    """A random subtree in the place of another, or another wrapped into a new operator."""
    places = range(1, len(tree))
    place = _inner_first(list(places), [tree[at].arity for at in places], rng)
    slot = slots_of(tree)[place]
    if rng.random() < _WRAPS:
        wrapped = _wrapped(tree, place, slot, make, rng)
        if wrapped is not None:
            return wrapped
    return _replaced(tree, place, make.subtree(rng, slot, rng.randint(0, _NEW_HEIGHT)))


def mutate_point(tree: Tree, make: Generator, rng: Random) -> Tree:
    """One node replaced by another that takes the same arguments and fits the same place."""
    place = rng.randrange(1, len(tree))
    node, slot = tree[place], slots_of(tree)[place]
    if node.arity == 0:
        return _replaced(tree, place, [make.terminal(rng, node.ret if slot is Key else slot)])
    rivals = [other for other in make.primitives.pset.primitives[slot] if other.args == node.args]
    changed = Tree(tree)
    changed[place] = rng.choice(rivals)
    return changed


def mutate_constant(tree: Tree, make: Generator, rng: Random) -> Tree:
    """Every constant moved a little or, where there is none, one subtree replaced."""
    places = [place for place, node in enumerate(tree) if isinstance(node, Constant)]
    if not places:
        return mutate_subtree(tree, make, rng)
    changed = Tree(tree)
    for place in places:
        moved = (float(tree[place].value) or 0.1) * 2.0 ** rng.gauss(0.0, 0.7)
        changed[place] = make.primitives.constant(rounded(min(max(moved, _LEAST), _MOST)))
    return changed


def mutate_shrink(tree: Tree, make: Generator, rng: Random) -> Tree:  # noqa: ARG001
    """One operator replaced by one of its arguments (DEAP's, on the global state)."""
    (shrunk,) = gp.mutShrink(Tree(tree))
    return Tree(shrunk)


def mutate_keys(tree: Tree, make: Generator, rng: Random) -> Tree:
    """A key more, a key less, or the keys in another order."""
    places = argument_places(tree, 0)
    beside, keys = list(tree[places[0]]), [list(tree[place]) for place in places[1:]]
    if len(keys) == 1 or (len(keys) < 3 and rng.random() < 0.5):
        keys.insert(rng.randint(0, len(keys)), make.subtree(rng, Key, rng.randint(0, _NEW_HEIGHT)))
    elif rng.random() < 0.7:
        keys.pop(rng.randrange(len(keys)))
    else:
        rng.shuffle(keys)
    root = make.primitives.pset.mapping[f"order#{len(keys)}"]
    return Tree([root, *beside, *(node for key in keys for node in key)])


def slots_of(tree: Tree) -> list[Slot]:
    """The type that the place of each node takes."""
    found: list[Slot] = []
    waiting: list[Slot] = [Order]
    for node in tree:
        found.append(waiting.pop())
        if node.arity:
            waiting.extend(reversed(node.args))
    return found


def argument_places(tree: Tree, place: int) -> list[slice]:
    """Where each argument of a node stands."""
    found, at = [], place + 1
    for _ in range(tree[place].arity):
        found.append(tree.searchSubtree(at))
        at = found[-1].stop
    return found


def _wrapped(tree: Tree, place: int, slot: Slot, make: Generator, rng: Random) -> Tree | None:
    kept = tree[tree.searchSubtree(place)]
    fits = [
        (node, at)
        for node in make.primitives.pset.primitives[slot]
        for at, argument in enumerate(node.args)
        if issubclass(kept[0].ret, argument)
    ]
    if not fits:
        return None
    weights = [make.primitives.weight[node.name] for node, _ in fits]
    node, at = rng.choices(fits, weights)[0]
    parts = [kept if i == at else make.subtree(rng, argument, 1) for i, argument in enumerate(node.args)]
    return _replaced(tree, place, [node, *(inner for part in parts for inner in part)])


def _replaced(tree: Tree, place: int, nodes: Sequence[Node]) -> Tree:
    changed = Tree(tree)
    changed[changed.searchSubtree(place)] = list(nodes)
    return changed


def _inner_first(places: Sequence[_T], arities: Sequence[int], rng: Random) -> _T:
    return rng.choices(places, [2.0 if arity else 1.0 for arity in arities])[0]


def _within(limits: Limits, make: Callable[[], Tree]) -> Tree | None:
    for _ in range(_TRIES):
        made = make()
        if limits.hold(made):
            return made
    return None


_MUTATIONS: dict[str, Callable[[Tree, Generator, Random], Tree]] = {
    "subtree": mutate_subtree,
    "point": mutate_point,
    "constant": mutate_constant,
    "shrink": mutate_shrink,
    "keys": mutate_keys,
}
