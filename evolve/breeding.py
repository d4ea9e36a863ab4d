"""The individuals of a generation: the first, those of genetic programming, those of a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.candidate import Candidate, Score, from_text, from_tree
from tanren_dsl.evolve.generator import Generator, Tree
from tanren_dsl.evolve.operators import Offspring, fresh, seeded, vary
from tanren_dsl.evolve.population import Population
from tanren_dsl.evolve.primitives import Primitives
from tanren_dsl.evolve.problem import Problem

_TRIES = 8
"""Attempts at a text that was not seen before and that tells objects apart."""
MODEL, GIVEN = "model", "given:"
"""Operators of candidates that a language model wrote, and of policies that the problem names."""


@dataclass(frozen=True)
class Breeder:
    """Makes individuals; each has a random state of its own, from the seed, generation and place."""

    problem: Problem
    seed: int
    primitives: Primitives
    make: Generator

    def given(self) -> list[Candidate]:
        """The policies that the problem names."""
        return [
            from_text(text, self.primitives, GIVEN, name=name) for name, text in self.problem.start.items()
        ]

    def first(self, references: Sequence[Candidate]) -> list[Candidate]:
        """The first generation, which may be larger than the others.

        The classics, the policies that the problem names, every signal alone; then, for a third of a
        generation at least, changed classics and random trees.
        """
        search, born = self.problem.search, self.given()
        if search.seeds:
            born = [one for one in references if one.tree is not None] + born
        for tree in self.make.singles():
            born.append(from_tree(tree, self.primitives, self.seed, "signal", (), 0))
        born = list({one.key: one for one in reversed(born)}.values())[::-1]
        parents = [_judged(one.tree, 0.0) for one in born if one.tree is not None]
        size = max(search.population, len(born) + search.population // 3)
        return self._filled(0, born, parents, set(), size)

    def next(self, generation: int, population: Population, proposed: Sequence[Candidate]) -> list[Candidate]:
        """A later generation: what was proposed, the rest bred from the best so far."""
        parents = [
            _judged(one.tree, population.score(one, "train"))
            for one in population.survivors(self.problem.search.survivors)
            if one.tree is not None
        ]
        seen = set(population.known)
        return self._filled(generation, list(proposed), parents, seen, self.problem.search.population)

    def proposed(self, text: str, parents: tuple[str, ...], generation: int) -> Candidate | None:
        """The candidate of a text that a language model wrote."""
        try:
            return from_text(text, self.primitives, MODEL, parents, generation)
        except TanrenError:
            return None

    def _filled(
        self, generation: int, born: list[Candidate], parents: Sequence[Tree], seen: set[str], size: int
    ) -> list[Candidate]:
        """These, and new ones up to a size."""
        seen = seen | {one.key for one in born}
        for place in range(len(born), size):
            with seeded(self.seed, generation, place) as rng:
                for _ in range(_TRIES):
                    made = self._made(generation, place, parents, rng)
                    origin = tuple(parent.key for parent in made.parents)
                    one = from_tree(made.tree, self.primitives, self.seed, made.operator, origin, generation)
                    if one.key not in seen and one.orders:
                        break
            seen.add(one.key)
            born.append(one)
        return born

    def _made(self, generation: int, place: int, parents: Sequence[Tree], rng: Random) -> Offspring:
        """An individual; in the first generation by turns random, a changed classic, a known shape."""
        problem = self.problem
        if generation == 0:
            turn = place % 4
            if turn == 1 and parents:
                parents = [rng.choice(parents)]
            elif turn == 2:
                return Offspring(self.make.product(rng), "product", ())
            elif turn == 3:
                return Offspring(self.make.balance(rng), "balance", ())
            else:
                return Offspring(fresh(self.make, problem.limits, rng), "random", ())
        return vary(parents, self.make, problem.rates, problem.limits, problem.search.tournament, rng)


def _judged(tree: Tree, score: float) -> Tree:
    tree.fitness = Score((score,))
    return tree
