"""What the search tells a language model, and what it takes back: parents, scores, a diagnosis.

The model's own side (requests, answers, caps, the log of calls) is `evolve.llm`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tanren_dsl.check import loads
from tanren_dsl.diagnosis.diagnosis import as_text
from tanren_dsl.diagnosis.evictions import diagnose_evict
from tanren_dsl.diagnosis.waits import diagnose_schedule
from tanren_dsl.evolve.candidate import Candidate
from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.proposer import Ask, Parent, Proposer
from tanren_dsl.evolve.llm.settings import ModelSettings
from tanren_dsl.evolve.measures import Arena, Judge
from tanren_dsl.evolve.operators import seeded
from tanren_dsl.evolve.population import Population
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.replay_arena import ReplayArena
from tanren_dsl.evolve.serving_arena import ServingArena
from tanren_dsl.evolve.store import Store
from tanren_dsl.ir import Policy

_PARENTS = 2
_DIAGNOSIS_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Proposed:
    """A policy that the model wrote, and the candidates that it was shown."""

    text: str
    parents: tuple[str, ...]


class Muse:
    """Asks the model for policies."""

    def __init__(self, problem: Problem, seed: int, arena: Arena, judge: Judge, proposer: Proposer) -> None:
        self._problem, self._seed, self._arena, self._judge = problem, seed, arena, judge
        self._proposer = proposer
        self._diagnoses: dict[str, str] = {}

    def propose(self, generation: int, place: int, population: Population) -> Proposed | None:
        """A policy bred from the best so far, or None."""
        best = population.distinct()[: self._problem.search.survivors]
        if not best:
            return None
        with seeded(self._seed, generation, place, 7) as rng:
            # the better, the likelier: the square favours the first of the list
            rows = sorted({int(len(best) * rng.random() ** 2) for _ in range(_PARENTS)})
            seed = rng.randrange(1 << 31)
        parents = [best[row] for row in rows]
        ask = Ask(
            key=f"g{generation}.p{place}",
            kind=self._arena.kind,
            mode=self._arena.mode,
            objective=self._objective(),
            parents=tuple(_shown(one, population) for one in parents),
            knobs=self._problem.knobs,
            candidates=self._problem.candidates,
            diagnosis=self._diagnosis(parents[0], population),
            seed=seed,
        )
        answer = self._proposer.propose(ask)
        return None if answer.text is None else Proposed(answer.text, tuple(one.key for one in parents))

    def summary(self) -> str:
        """What was asked and spent, in words."""
        spent, why = self._proposer.spent, self._proposer.exhausted
        return f"{spent}" + (f"; no more was asked: {why}" if why else "")

    def close(self) -> None:
        """End the connection to the server."""
        self._proposer.close()

    def _objective(self) -> str:
        arena = self._arena
        if isinstance(arena, ReplayArena):
            return (
                "The score of a configuration (a window of requests at a cache size) is the gain in "
                f"prefix-cache hit rate over {arena.base_name}, in percentage points; losses cost extra. The "
                "mean over configurations counts, so a rule must be good in every window and at every size."
            )
        assert isinstance(arena, ServingArena)
        time = "time to first token" if arena.metric == "ttft" else "time to the last token"
        return (
            "The score of a configuration (a window of requests at a load) is the share by which the mean "
            f"{time} is shorter than under {arena.base_name}, less a steep penalty when the p99 exceeds "
            f"{arena.settings.s:g} times that of {arena.base_name}. The mean over configurations counts."
        )

    def _diagnosis(self, one: Candidate, population: Population) -> str:
        """Its worst decisions, in the training configuration with its lowest score."""
        if one.key not in self._diagnoses:
            measures = population.measures(one, "train")
            scores = [worth.score for worth in self._judge.worth(measures)]
            worst = scores.index(min(scores))
            self._diagnoses[one.key] = diagnosed(self._arena, loads(one.text), worst)
        return self._diagnoses[one.key]


def _shown(one: Candidate, population: Population) -> Parent:
    windows = population.windows(one, "train")
    return Parent(one.text, population.points(one, "train"), tuple(windows.items()))


def diagnosed(arena: Arena, policy: Policy, place: int) -> str:
    """The diagnosis of a policy in a training configuration, as text for the model."""
    if isinstance(arena, ReplayArena):
        at = arena.configurations["train", "full"][place]
        # beside the engine's own order that order has nothing to regret: then beside the optimum
        base = arena.base("train", "full")[place]
        same = arena.measure(policy, "train", "full")[place].mark == base.mark
        found = diagnose_evict(
            at.table, policy, arena.compile_ordering, at.capacity, engine=arena.engine,
            against="belady" if same else None,
        )  # fmt: skip
        return as_text(found, _DIAGNOSIS_CHARACTERS)
    assert isinstance(arena, ServingArena)
    if policy.kind != "schedule":
        return ""
    settings, here = arena.settings, arena.configurations["train", "full"][place]
    found = diagnose_schedule(
        here.table, policy, arena.compile_ordering, settings.server, arena.latency,
        guard=settings.guard, guard_seed_s=settings.guard_seed_s,
    )  # fmt: skip
    return as_text(found, _DIAGNOSIS_CHARACTERS)


def muse_of(
    problem: Problem, settings: ModelSettings, seed: int, arena: Arena, judge: Judge, store: Store, *,
    replay: bool,
) -> Muse:  # fmt: skip
    """The model that the problem names; says in the store which it is.

    Raises:
        TanrenError: its settings are wrong, or with `replay` nothing is stored.
    """
    log = CallLog(store.db)
    proposer = Proposer(settings, log, replay_only=replay)
    if not replay:
        store.note(model=proposer.probe())
    return Muse(problem, seed, arena, judge, proposer)
