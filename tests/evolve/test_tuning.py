"""Constants are tuned together, by a state of their own, within their bounds."""

from __future__ import annotations

import math

import numpy as np

from tanren_dsl.check import loads
from tanren_dsl.evolve.candidate import from_text
from tanren_dsl.evolve.generator import Tree
from tanren_dsl.evolve.primitives import Constant, build_primitives
from tanren_dsl.evolve.translate import to_syntax
from tanren_dsl.evolve.tuning import Tuner, places_of
from tanren_dsl.printer import print_policy

PRIMITIVES = build_primitives()


def tree_of(body: str) -> Tree:
    tree = from_text(f"policy p : evict order by {body}", PRIMITIVES, "test").tree
    assert tree is not None
    return tree


def values_of(tree: Tree) -> list[float]:
    return [float(node.value) for node in tree if isinstance(node, Constant)]


def distance(tree: Tree) -> float:
    return -sum(
        (math.log(found / wanted)) ** 2 for found, wanted in zip(values_of(tree), (3.0, 40.0), strict=True)
    )


def test_two_constants_are_found() -> None:
    tuner = Tuner(tree_of("uses * 1 + log1p(spaced_uses) * 1"), PRIMITIVES, 1, 8, 0.5)
    best = -math.inf
    for _ in range(40):
        asked = tuner.ask()
        scores = [distance(tree) for tree in asked]
        best = max(best, *scores)
        tuner.tell(scores)
    assert best > -0.01


def test_the_same_seed_asks_the_same_whatever_the_global_state() -> None:
    asked = []
    for number in range(2):
        np.random.seed(number)
        tuner = Tuner(tree_of("uses * 2 + age / mean(age) * 5"), PRIMITIVES, 7, 4, 0.4)
        rounds = []
        for _ in range(3):
            trees = tuner.ask()
            rounds.append([values_of(tree) for tree in trees])
            tuner.tell([distance(tree) for tree in trees])
        asked.append(rounds)
    assert asked[0] == asked[1]


def test_one_constant_is_enough_and_zeros_stay() -> None:
    tree = tree_of("uses * 2, 0 if uses > 3 else 1")
    tuner = Tuner(tree, PRIMITIVES, 1, 4, 0.4)
    for made in tuner.ask():
        loads(print_policy(to_syntax(made, PRIMITIVES, "p")))
        assert [value for value in values_of(made) if not value] == [0.0]
    alone = Tuner(tree_of("uses * 2 - age / mean(age)"), PRIMITIVES, 1, 4, 0.4)
    alone.tell([distance_to_one(tree) for tree in alone.ask()])
    assert len(places_of(tree_of("last_use"))) == 0


def distance_to_one(tree: Tree) -> float:
    return -abs(math.log(values_of(tree)[0]))


def test_a_candidate_that_fails_is_the_worst() -> None:
    tuner = Tuner(tree_of("uses * 1 + log1p(spaced_uses) * 1"), PRIMITIVES, 1, 4, 0.5)
    tuner.ask()
    tuner.tell([-math.inf, -3.0, -math.inf, -1.0])
    tuner.ask()
    tuner.tell([-math.inf] * 4)
    assert len(tuner.ask()) == 4
