"""The search: generations of candidates, a race in each, a champion and a gate at the end.

The result depends on the problem and the seed alone, not on how many workers measure, how fast,
or how often the run was interrupted: every individual has a random state of its own, a generation
begins when the last is measured, and a run that goes on takes the same way again, with what was
measured and answered before taken from its folder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.breeding import Breeder
from tanren_dsl.evolve.candidate import Candidate, classics, cost_of, from_tree
from tanren_dsl.evolve.champion import crown
from tanren_dsl.evolve.executor import Executor, make_executor
from tanren_dsl.evolve.generator import Generator
from tanren_dsl.evolve.measures import Arena, Judge, Stage
from tanren_dsl.evolve.outcome import Outcome
from tanren_dsl.evolve.population import Population, Progress, Step
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.racing import run_off
from tanren_dsl.evolve.resolved import files_of, fingerprint, reopen, resolved_text
from tanren_dsl.evolve.setup import Ground, prepare
from tanren_dsl.evolve.store import FAILED, INTERRUPTED, MISSED, REACHED, RUNNING, Birth, Store, is_free
from tanren_dsl.evolve.tuning import Tuner, places_of
from tanren_dsl.evolve.windows import SEARCHED, Role

if TYPE_CHECKING:  # brings a client for HTTP, which only a run with a model waits for
    from tanren_dsl.evolve.proposing import Muse


def run_evolution(
    problem: Problem, seed: int, out: Path, workers: int = 1, progress: Progress | None = None, *,
    replace: bool = False, resume: bool = False, replay: bool = False,
) -> Outcome:  # fmt: skip
    """Search, and leave a run folder.

    Args:
        problem: what is searched.
        seed: at least 0; the same seed gives the same champion.
        out: the run folder; must be new or empty, or a run's with `replace` or `resume`.
        workers: processes that measure; 1 measures in this one.
        progress: told after every measurement.
        replace: whether an earlier run in `out` may be removed.
        resume: go on with the run in `out`, which must be of this problem and seed; begin it where none is.
        replay: take every answer of the language model from the folder, with no network.

    Raises:
        TanrenError: the problem, its trace or the folder is wrong.
    """
    progress = progress or _ignore
    progress(Step("reading the trace", 0, 0, None))
    if resume and not is_free(out):
        store = Store.open(out)
        try:
            ground = _same(store, problem, seed)
        except TanrenError:
            store.close()
            raise
    else:
        ground = prepare(problem, lambda text: progress(Step(text.strip(), 0, 0, None)))
        facts = {
            "seed": str(seed),
            "problem": fingerprint(problem),
            "trace": ground.digest("train"),
            "holdout": ground.digest("holdout"),
        }
        resolved = resolved_text(ground, seed)
        store = Store.create(out, resolved, files=files_of(problem), facts=facts, replace=replace)
    executor: Executor | None = None
    ending = FAILED
    try:
        store.note(status=RUNNING)
        progress(Step("compiling the simulator", 0, 0, None))
        arena = ground.arena(SEARCHED, short=problem.racing.on)
        # the base is measured before any worker starts: it finds the simulator compiled
        judge = Judge(arena, _stages(problem))
        executor = make_executor(arena, workers)
        run = _Run(ground, seed, arena, judge, store, progress, replay)
        try:
            outcome = run.to_the_end(executor)
        finally:
            run.close()
        ending = REACHED if outcome.reached else MISSED
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


def _stages(problem: Problem) -> list[tuple[Role, Stage]]:
    full: list[tuple[Role, Stage]] = [(role, "full") for role in SEARCHED]
    return [*full, ("train", "short")] if problem.racing.on else full


def _same(store: Store, problem: Problem, seed: int) -> Ground:
    """The ground of a run that goes on; refuses another problem, seed or trace."""
    if store.fact("seed") != str(seed) or store.fact("problem") != fingerprint(problem):
        raise TanrenError(
            f"{store.folder} holds a run of another problem or seed",
            hint=f"its own is {store.folder / 'run.toml'}; choose another folder with --out",
        )
    return reopen(store)


class _Run:
    def __init__(
        self, ground: Ground, seed: int, arena: Arena, judge: Judge, store: Store, progress: Progress,
        replay: bool,
    ) -> None:  # fmt: skip
        self.ground, self.seed, self.store, self.progress = ground, seed, store, progress
        problem = ground.problem
        self.problem, self.primitives = problem, ground.primitives
        search = problem.search
        self.population = Population(
            judge, search.complexity, store, progress, search.population * search.generations
        )
        self.breeder = Breeder(problem, seed, self.primitives, Generator(self.primitives))
        self.muse: Muse | None = None
        if problem.models is not None:
            from tanren_dsl.evolve.proposing import muse_of

            self.muse = muse_of(problem, problem.models, seed, arena, judge, store, replay=replay)
        self.races = problem.racing.on
        self.goals: dict[Role, float] = {}

    def to_the_end(self, executor: Executor) -> Outcome:
        """All generations, then the selection and the gate."""
        references = classics(self.primitives)
        search, population = self.problem.search, self.population
        for generation in range(search.generations):
            phase = f"generation {generation + 1} of {search.generations}"
            if generation == 0:
                born = self.breeder.first(references)
            else:
                born = self.breeder.next(generation, population, self._proposed(generation, phase))
            self._compare(born, generation, executor, phase)
            born += self._tuned(generation, executor, phase)
            births = [
                Birth(generation, place, one.key, one.operator, one.parents) for place, one in enumerate(born)
            ]
            self.store.record(population.rows(born), births)
            if self._is_there():
                break
        population.measure(references, "train", "full", executor, "classics on train")
        finalists = population.distinct()[: search.finalists]
        population.total = population.done + len(finalists) + len(references)
        population.measure(finalists, "validation", "full", executor, "validation")
        population.measure(references, "validation", "full", executor, "classics on validation")
        self.store.record(population.rows([*finalists, *references]), [])
        goal = self._goal("validation")
        spent = self.muse.summary() if self.muse is not None else None
        return crown(self.ground, self.seed, population, finalists, references, goal, self.store, spent)

    def close(self) -> None:
        """End the connection to a language model's server."""
        if self.muse is not None:
            self.muse.close()

    def _compare(self, born: Sequence[Candidate], generation: int, executor: Executor, phase: str) -> None:
        """Measure a generation: all in the short stage, where there is one, the better part in full."""
        population = self.population
        new = list({one.key: one for one in born if one.key not in population.known}.values())
        going: Sequence[Candidate] = new
        if self.races:
            population.measure(new, "train", "short", executor, f"{phase}, short stage")
            marks = {population.behaviour(one, "train", "short") for one in new}
            if generation == 0 and len(marks) < 2:
                self.races = False  # nothing is ever evicted or delayed there: it tells no one apart
            else:
                heat = run_off(self.problem.racing, new, population)
                population.stopped |= heat.stopped
                population.done += len(new) - len(heat.going)
                going = heat.going
        population.measure(going, "train", "full", executor, phase)

    def _proposed(self, generation: int, phase: str) -> list[Candidate]:
        """What the language model proposes; fewer, or nothing, where it fails or a cap is reached."""
        if self.muse is None:
            return []
        found: list[Candidate] = []
        for place in range(min(self.problem.search.proposals, self.problem.search.population)):
            self.progress(
                Step(f"{phase}, asking the model", self.population.done, self.population.total, None)
            )
            answer = self.muse.propose(generation, place, self.population)
            if answer is None:
                continue
            one = self.breeder.proposed(answer.text, answer.parents, generation)
            if one is not None and one.key not in {other.key for other in found}:
                found.append(one)
        return found

    def _tuned(self, generation: int, executor: Executor, phase: str) -> list[Candidate]:
        """The best with other constants, in the generations where that is due."""
        tuning, population = self.problem.tuning, self.population
        if not tuning.every or (generation + 1) % tuning.every:
            return []
        survivors = population.survivors(self.problem.search.survivors)
        rows = [one for one in survivors if one.tree is not None and places_of(one.tree)]
        chosen = rows[: tuning.best]
        tuners = [
            Tuner(one.tree, self.primitives, _number(self.seed, generation, place), tuning.population,
                  tuning.sigma)
            for place, one in enumerate(chosen) if one.tree is not None
        ]  # fmt: skip
        found: list[Candidate] = []
        population.total += len(tuners) * tuning.steps * tuning.population
        for _ in range(tuning.steps):
            asked = [
                [from_tree(tree, self.primitives, self.seed, "tuned", (one.key,), generation)
                 for tree in tuner.ask()]
                for one, tuner in zip(chosen, tuners, strict=True)
            ]  # fmt: skip
            everyone = [one for made in asked for one in made]
            population.measure(everyone, "train", "full", executor, f"{phase}, tuning constants")
            for tuner, made in zip(tuners, asked, strict=True):
                tuner.tell(
                    [
                        population.score(one, "train") if population.is_good(one, "train") else -math.inf
                        for one in made
                    ]
                )
            found += everyone
        return found

    def _is_there(self) -> bool:
        """Whether the best on train is as good as the policy that the gate names, and as simple."""
        text, goal, best = self.problem.gate.as_good_as, self._goal("train"), self.population.ranked("train")
        if text is None or goal is None or not best:
            return False
        price = self.problem.search.complexity * cost_of(loads(text))
        return self.population.score(best[0], "train") >= goal - price - 1e-12

    def _goal(self, role: Role) -> float | None:
        """Mean gain of the policy that the gate names."""
        text = self.problem.gate.as_good_as
        if text is None:
            return None
        if role not in self.goals:
            judge = self.population.judge
            self.goals[role] = judge.gain(judge.arena.measure(loads(text), role, "full"))
        return self.goals[role]


def _number(*parts: int) -> int:
    """A seed from numbers."""
    found = 0
    for part in parts:
        found = (found * 1_000_003 + part + 1) % (1 << 32)
    return found
