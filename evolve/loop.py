"""The search: classics and random trees first, then generations; a champion at the end.

The result depends on the problem and the seed alone, not on how many workers measure, or
how fast: every individual has a random state of its own, and a generation begins when the
last is measured in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.candidate import Candidate, Score, champion_text, classics, from_tree
from tanren_dsl.evolve.executor import Executor, Job, make_executor
from tanren_dsl.evolve.fitness import Bench, Count, has_faults, mean_gain, measure_belady, measure_stock
from tanren_dsl.evolve.generator import Generator, Tree
from tanren_dsl.evolve.operators import Offspring, fresh, seeded, vary
from tanren_dsl.evolve.outcome import Outcome, Row, rows_of, verdict_of
from tanren_dsl.evolve.primitives import build_primitives
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.resolved import one_line, resolved_text
from tanren_dsl.evolve.store import FINISHED, INTERRUPTED, Birth, CandidateRow, Store
from tanren_dsl.evolve.windows import ROLES, Role, cut_windows
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable

_TRIES = 4
"""Attempts at a text that was not seen before."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where a run stands: measurements done of those expected, and the best gain on train."""

    phase: str
    done: int
    total: int
    best: float | None


Progress = Callable[[Step], None]


def run_evolution(
    problem: Problem, seed: int, out: Path, workers: int = 1, progress: Progress | None = None, *,
    replace: bool = False,
) -> Outcome:  # fmt: skip
    """Search, and leave a run folder.

    Args:
        problem: what is searched.
        seed: at least 0; the same seed gives the same champion.
        out: the run folder; must be new or empty, or a run's with `replace`.
        workers: processes that measure; 1 measures in this one.
        progress: told after every measurement.
        replace: whether an earlier run in `out` may be removed.

    Raises:
        TanrenError: the problem, its trace or the folder is wrong.
    """
    trace = read_trace(problem.trace, block_tokens=problem.block_tokens)
    try:
        windows = cut_windows(trace, problem.train, problem.validation, problem.capacities)
    except TanrenError as error:
        first = error.diagnostics[0]
        raise TanrenError(f"{problem.source}: {first.message}", hint=first.hint) from None
    bench = Bench(windows, problem.engine)
    store = Store.create(out, resolved_text(problem, seed, trace), replace=replace)
    executor: Executor | None = None
    ending = "failed"
    try:
        run = _Run(problem, seed, bench, store, progress or _ignore)
        executor = make_executor(bench, workers)
        outcome = run.to_the_end(executor, trace)
        ending = FINISHED
        return outcome
    except KeyboardInterrupt:
        ending = INTERRUPTED
        raise
    finally:
        if executor is not None:
            executor.close()
        store.note(status=ending)
        store.close()


def _ignore(step: Step) -> None:
    """Progress for nobody."""


def _judged(tree: Tree, score: float) -> Tree:
    tree.fitness = Score((score,))
    return tree


class _Run:
    def __init__(self, problem: Problem, seed: int, bench: Bench, store: Store, progress: Progress) -> None:
        self.problem, self.seed, self.bench, self.store, self.progress = problem, seed, bench, store, progress
        progress(Step("compiling the simulator", 0, 0, None))
        # before any worker starts: it finds the simulator compiled
        self.stock = {count.place: count for role in ROLES for count in measure_stock(bench, role)}
        self.primitives = build_primitives(problem.knobs, problem.candidates)
        self.make = Generator(self.primitives)
        self.known: dict[str, Candidate] = {}
        self.counts: dict[Role, dict[str, tuple[Count, ...]]] = {role: {} for role in ROLES}
        self.failed: dict[str, str] = {}
        self.done = 0
        self.total = problem.search.population * problem.search.generations  # grows by what comes after

    def to_the_end(self, executor: Executor, trace: RequestTable) -> Outcome:
        """All generations, then the selection."""
        references = classics(self.primitives)
        generations = self.problem.search.generations
        for generation in range(generations):
            born = self._generation(generation, references)
            self._measure("train", born, executor, f"generation {generation + 1} of {generations}")
            births = [
                Birth(generation, place, one.key, one.operator, one.parents) for place, one in enumerate(born)
            ]
            self._record(born, births)
        self._measure("train", references, executor, "classics on train")
        finalists = self._finalists()
        self.total = self.done + len(finalists) + len(references)
        self._measure("validation", finalists, executor, "validation")
        self._measure("validation", references, executor, "classics on validation")
        self._record([*finalists, *references], [])
        return self._outcome(finalists, references, trace)

    def _generation(self, generation: int, references: Sequence[Candidate]) -> list[Candidate]:
        search, born = self.problem.search, list[Candidate]()
        if generation == 0 and search.seeds:
            born = [one for one in references if one.tree is not None]
        parents = self._parents() if generation else [_judged(one.tree, 0.0) for one in born if one.tree]
        seen = {one.key for one in born}
        for place in range(len(born), search.population):
            with seeded(self.seed, generation, place) as rng:
                for _ in range(_TRIES):
                    made = self._made(generation, place, parents, rng)
                    origin = tuple(parent.key for parent in made.parents)
                    one = from_tree(made.tree, self.primitives, self.seed, made.operator, origin, generation)
                    if one.key not in self.known and one.key not in seen:
                        break
            seen.add(one.key)
            born.append(one)
        return born

    def _made(self, generation: int, place: int, parents: Sequence[Tree], rng: Random) -> Offspring:
        """An individual; in the first generation by turns random, a changed classic, a product."""
        problem = self.problem
        if generation == 0:
            turn = place % 3
            if turn == 1 and parents:
                parents = [rng.choice(parents)]
            elif turn == 2:
                return Offspring(self.make.product(rng), "product", ())
            else:
                return Offspring(fresh(self.make, problem.limits, rng), "random", ())
        return vary(parents, self.make, problem.rates, problem.limits, problem.search.tournament, rng)

    def _parents(self) -> list[Tree]:
        """The best distinct trees so far, with their fitness, best first."""
        best = [(one.tree, self._score("train", one)) for one in self._distinct() if one.tree is not None]
        return [_judged(tree, score) for tree, score in best[: self.problem.search.survivors]]

    def _measure(self, role: Role, candidates: Iterable[Candidate], executor: Executor, phase: str) -> None:
        """Measure whatever of these was not measured; a policy is measured once."""
        jobs: dict[str, Job] = {}
        repeated = 0
        for one in candidates:
            self.known.setdefault(one.key, one)
            if one.key in jobs or one.key in self.counts[role] or one.key in self.failed:
                repeated += 1
            else:
                jobs[one.key] = Job(one.key, one.text, role)
        self.done += repeated
        self.total = max(self.total, self.done + len(jobs))
        best = self._best_gain()
        self.progress(Step(phase, self.done, self.total, best))
        for result in executor.run(list(jobs.values())):
            if result.error is not None:
                self.failed[result.key] = result.error
            else:
                self.counts[role][result.key] = result.counts
                if role == "train" and not has_faults(result.counts):
                    gain = mean_gain(result.counts, self.stock)
                    best = gain if best is None else max(best, gain)
            self.done += 1
            self.progress(Step(phase, self.done, self.total, best))

    def _record(self, candidates: Iterable[Candidate], births: Sequence[Birth]) -> None:
        distinct = {one.key: self.known[one.key] for one in candidates}
        self.store.record(
            [self._row(one) for one in distinct.values()],
            births,
            {key: [c for role in ROLES for c in self.counts[role].get(key, ())] for key in distinct},
        )

    def _row(self, one: Candidate) -> CandidateRow:
        scores = {role: self._score(role, one) if self._is_good(role, one) else None for role in ROLES}
        found = [self.counts[role][one.key] for role in ROLES if one.key in self.counts[role]]
        state, note = "scored", None
        if any(map(has_faults, found)):
            state, note = "rejected", "a key that is not finite"
        if one.key in self.failed:
            state, note = "failed", self.failed[one.key]
        return CandidateRow(
            one.key, one.text, one.parents, one.generation, one.operator, one.cost, state, note,
            scores["train"], scores["validation"],
        )  # fmt: skip

    def _is_good(self, role: Role, one: Candidate) -> bool:
        counts = self.counts[role].get(one.key)
        return counts is not None and not has_faults(counts) and one.key not in self.failed

    def _gain(self, role: Role, one: Candidate) -> float:
        return mean_gain(self.counts[role][one.key], self.stock)

    def _score(self, role: Role, one: Candidate) -> float:
        return self._gain(role, one) - self.problem.search.complexity * one.cost

    def _ranked(self, role: Role) -> list[Candidate]:
        """Everything measured without a fault, best score first; ties to the simpler, then by key."""
        good = [one for one in self.known.values() if self._is_good(role, one)]
        return sorted(good, key=lambda one: (-self._score(role, one), one.cost, one.key))

    def _distinct(self) -> list[Candidate]:
        """The best on train, of those with the same hits everywhere the first: one a behaviour."""
        found: dict[tuple[int, ...], Candidate] = {}
        for one in self._ranked("train"):
            found.setdefault(self._hits(one, "train"), one)
        return list(found.values())

    def _hits(self, one: Candidate, *roles: Role) -> tuple[int, ...]:
        return tuple(c.hits for role in roles or ROLES for c in self.counts[role].get(one.key, ()))

    def _best_gain(self) -> float | None:
        return max((self._gain("train", one) for one in self._ranked("train")), default=None)

    def _finalists(self) -> list[Candidate]:
        return self._distinct()[: self.problem.search.finalists]

    def _outcome(
        self, finalists: Sequence[Candidate], references: Sequence[Candidate], trace: RequestTable
    ) -> Outcome:
        chosen = {one.key for one in finalists}
        judged = [one for one in self._ranked("validation") if one.key in chosen]
        # without a finalist that stands, the engine's own order: the first of the classics that does
        judged = judged or [one for one in self._ranked("validation") if one.classic == "lru"]
        champion = judged[0]
        name = f"evolved_{self.seed}_{champion.key[:8]}"
        train, validation = self._gain("train", champion), self._gain("validation", champion)
        measured = len(self.counts["train"])
        rejected = sum(has_faults(counts) for counts in self.counts["train"].values())
        selection = (
            f"best score on validation among the {len(finalists)} best on train (of those with equal hits "
            f"one), of {measured} policies measured (seed {self.seed}); the score is the mean gain over LRU "
            f"in points less {self.problem.search.complexity:g} a unit of complexity; since validation "
            "chose, its figure leans to the good side"
        )
        origin = f"The classic {champion.classic}" if champion.classic else "Found by genetic programming"
        doc = (
            f"{origin}: on {one_line(trace.name)}, seed {self.seed}, best of {len(finalists)} finalists on "
            f"validation, {measured} policies tried; {validation:+.2f} points over LRU there, {train:+.2f} "
            "on train, simulated."
        ).replace('"', "'")
        text = champion_text(champion, name, doc)
        rivals = {
            str(one.classic): self._gain("validation", one)
            for one in references
            if self._is_good("validation", one)
        }
        twin = next((str(one.classic) for one in references if self._hits(one) == self._hits(champion)), None)
        verdict = verdict_of(name, champion.classic or twin, train, validation, rivals)
        path = self.store.champion(name, text)
        self.store.note(
            champion=name, selection=selection, verdict=verdict, train=train, validation=validation
        )
        return Outcome(
            name, text, path, self.store.folder, champion.classic, train, validation, selection, verdict,
            tuple(self._rows(name, champion, references)), measured, rejected, len(self.failed), trace.notes,
        )  # fmt: skip

    def _rows(self, name: str, champion: Candidate, references: Sequence[Candidate]) -> list[Row]:
        rows: list[Row] = []
        for role in ROLES:
            stock = [count for count in self.stock.values() if count.role == role]
            rows += rows_of("stock (LRU)", "engine", stock, self.stock)
            for one in references:
                if self._is_good(role, one):
                    rows += rows_of(str(one.classic), "classic", self.counts[role][one.key], self.stock)
            rows += rows_of(name, "champion", self.counts[role][champion.key], self.stock)
            rows += rows_of("belady", "bound", measure_belady(self.bench, role), self.stock)
        return rows
