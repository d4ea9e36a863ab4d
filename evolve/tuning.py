"""Constants of a tree, tuned together by CMA-ES (Hansen's `cma`), by asking and telling.

A constant moves on a logarithmic scale, so a step is a factor; it keeps its sign, and a literal 0
stays. Random numbers come from a seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import cma
import numpy as np

from tanren_dsl.evolve.generator import Tree, rounded
from tanren_dsl.evolve.primitives import Constant, Primitives

_LEAST, _MOST = 1e-3, 1e6


class Tuner:
    """One tree whose constants are moved."""

    def __init__(self, tree: Tree, primitives: Primitives, seed: int, population: int, sigma: float) -> None:
        self.tree, self._primitives = tree, primitives
        self._places = places_of(tree)
        self._asked: list[list[float]] = []
        rng = np.random.default_rng(seed)
        start = [math.log(min(max(float(tree[at].value), _LEAST), _MOST)) for at in self._places]
        self._search = cma.CMAEvolutionStrategy(
            # one dimension alone is not what it is made for: the second is not looked at
            start if len(start) > 1 else [*start, 0.0],
            sigma,
            {
                "bounds": [math.log(_LEAST), math.log(_MOST)],
                "popsize": population,
                "randn": lambda *shape: rng.standard_normal(shape),
                "seed": math.nan,  # the state above is the only one
                "verbose": -9,
                "verb_log": 0,
            },
        )

    def ask(self) -> list[Tree]:
        """The next trees to measure."""
        self._asked = [list(map(float, one)) for one in self._search.ask()]
        return [self._moved(values) for values in self._asked]

    def tell(self, scores: Sequence[float]) -> None:
        """The scores of the trees that were asked for, more is better; -inf where there is none."""
        worst = min((one for one in scores if math.isfinite(one)), default=0.0)
        losses = [-(one if math.isfinite(one) else worst - 1.0) for one in scores]
        self._search.tell(self._asked, losses)

    def _moved(self, values: Sequence[float]) -> Tree:
        changed = Tree(self.tree)
        for at, value in zip(self._places, values, strict=False):
            changed[at] = self._primitives.constant(rounded(math.exp(value)))
        return changed


def places_of(tree: Tree) -> list[int]:
    """Where the constants stand that can be tuned: all but the zeros."""
    return [place for place, node in enumerate(tree) if isinstance(node, Constant) and float(node.value) > 0]
