"""Everything a run knows: candidates, what was measured of them, and who is better.

Measurements come from the executor or, in a run that goes on, from the store; nothing here can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tanren_dsl.evolve.candidate import Candidate
from tanren_dsl.evolve.executor import Executor, Job
from tanren_dsl.evolve.measures import Judge, Measure, Stage, behaviour, by_window, has_faults
from tanren_dsl.evolve.store import CandidateRow, Evaluation, Store
from tanren_dsl.evolve.windows import Role


@dataclass(frozen=True, slots=True)
class Step:
    """Where a run stands: policies measured of those expected, and the best mean gain on train."""

    phase: str
    done: int
    total: int
    best: float | None


Progress = Callable[[Step], None]


class Population:
    """Candidates and measurements of one run."""

    def __init__(self, judge: Judge, complexity: float, store: Store, progress: Progress, total: int) -> None:
        self.judge, self._complexity, self._store, self._progress = judge, complexity, store, progress
        self.known: dict[str, Candidate] = {}
        self.stopped: dict[str, str] = {}
        """Why a candidate was not measured in full."""
        self.done, self.total = 0, total
        # what an earlier process measured; not known here before it is asked for again
        self._stored = {(one.hash, one.role, one.stage): one for one in store.evaluations()}
        self._found: dict[tuple[str, Role, Stage], Evaluation] = {}

    def measure(
        self, candidates: Iterable[Candidate], role: Role, stage: Stage, executor: Executor, phase: str
    ) -> None:
        """Measure whatever of these was not measured; a policy is measured once."""
        jobs: dict[str, Job] = {}
        for one in candidates:
            self.known.setdefault(one.key, one)
            at = (one.key, role, stage)
            if at in self._found or one.key in jobs:
                continue
            if at in self._stored:
                self._found[at] = self._stored[at]
                self.done += stage == "full"
            else:
                jobs[one.key] = Job(one.key, one.text, role, stage)
        self.total = max(self.total, self.done + len(jobs) * (stage == "full"))
        best = self.best_gain()
        self._progress(Step(phase, self.done, self.total, best))
        for found in executor.run(list(jobs.values())):
            self._store.add_evaluation(found)
            self._found[found.hash, role, stage] = found
            if role == "train" and stage == "full":
                best = self.best_gain() if self._stands(found) else best
            self.done += stage == "full"
            self._progress(Step(phase, self.done, self.total, best))

    def measures(self, one: Candidate, role: Role, stage: Stage = "full") -> tuple[Measure, ...]:
        """What was measured of a candidate; none where nothing was, or it failed."""
        found = self._found.get((one.key, role, stage))
        return found.measures if found is not None else ()

    def is_good(self, one: Candidate, role: Role, stage: Stage = "full") -> bool:
        """Whether a candidate was measured there without a failure and without a fault."""
        found = self._found.get((one.key, role, stage))
        return found is not None and self._stands(found) and not self._reason(one)

    def gain(self, one: Candidate, role: Role) -> float:
        """Mean gain over the configurations of a role."""
        return self.judge.gain(self.measures(one, role))

    def points(self, one: Candidate, role: Role, stage: Stage = "full") -> float:
        """Mean score over the configurations of a role, complexity not priced."""
        return self.judge.score(self.measures(one, role, stage), stage)

    def score(self, one: Candidate, role: Role, stage: Stage = "full") -> float:
        """Mean score less the price of complexity."""
        return self.points(one, role, stage) - self._complexity * one.cost

    def windows(self, one: Candidate, role: Role) -> dict[str, float]:
        """Mean score in each window."""
        measures = self.measures(one, role)
        return by_window(measures, self.judge.worth(measures))

    def behaviour(self, one: Candidate, role: Role, stage: Stage = "full") -> tuple[str, ...]:
        """Marks: equal for candidates that decided the same in every configuration."""
        return behaviour(self.measures(one, role, stage))

    def ranked(self, role: Role, stage: Stage = "full") -> list[Candidate]:
        """Everything measured without a fault, best score first; ties to the simpler, then by key."""
        good = [one for one in self.known.values() if self.is_good(one, role, stage)]
        return sorted(good, key=lambda one: (-self.score(one, role, stage), one.cost, one.key))

    def distinct(self, role: Role = "train") -> list[Candidate]:
        """The best, of those that behave the same the first: one a behaviour."""
        found: dict[tuple[str, ...], Candidate] = {}
        for one in self.ranked(role):
            found.setdefault(self.behaviour(one, role), one)
        return list(found.values())

    def survivors(self, count: int) -> list[Candidate]:
        """The best distinct ones with a tree, no more than a few of a kind.

        Of candidates that differ in their constants only the best stays, and of those that read the same
        signals a few: else the first good idea fills the population, and another never gets a child.
        """
        found: list[Candidate] = []
        shapes: set[str] = set()
        readers: dict[frozenset[str], int] = {}
        for one in self.distinct():
            if one.tree is None or one.shape in shapes or readers.get(one.signals, 0) >= _SAME_SIGNALS:
                continue
            shapes.add(one.shape)
            readers[one.signals] = readers.get(one.signals, 0) + 1
            found.append(one)
        return found[:count]

    def front(self) -> list[Candidate]:
        """No other is both simpler and better on train: from the simplest to the best."""
        found: list[Candidate] = []
        rows = [(one.cost, -self.points(one, "train"), one.key, one) for one in self.distinct()]
        for *_, one in sorted(rows, key=lambda row: row[:3]):
            if not found or self.points(one, "train") > self.points(found[-1], "train"):
                found.append(one)
        return found

    def best_gain(self) -> float | None:
        """The best mean gain on train."""
        ranked = [one for one in self.known.values() if self.is_good(one, "train")]
        return max((self.gain(one, "train") for one in ranked), default=None)

    def rows(self, candidates: Iterable[Candidate]) -> list[CandidateRow]:
        """What the store keeps of candidates."""
        return [self._row(self.known[key]) for key in dict.fromkeys(one.key for one in candidates)]

    def counts(self) -> tuple[int, int, int, int]:
        """Distinct candidates measured in full on train, stopped early, with a fault, without a result."""
        found = [one for one in self._found.values() if one.role == "train" and one.hash in self.known]
        return (
            sum(one.stage == "full" for one in found),
            len(self.stopped),
            len({one.hash for one in found if has_faults(one.measures)}),
            len({one.hash for one in found if one.error is not None}),
        )

    def _row(self, one: Candidate) -> CandidateRow:
        wrong = self._reason(one)
        state, note = "scored", None
        if one.key in self.stopped:
            state, note = "stopped", self.stopped[one.key]
        if wrong is not None:
            state, note = wrong
        short = self.score(one, "train", "short") if self.is_good(one, "train", "short") else None
        scores = [self.score(one, role) if self.is_good(one, role) else None for role in _SCORED]
        return CandidateRow(
            one.key, one.text, one.parents, one.generation, one.operator, one.cost, state, note,
            short, *scores,
        )  # fmt: skip

    def _reason(self, one: Candidate) -> tuple[str, str] | None:
        """State and note of a candidate that is out of the race, else None."""
        for role, stage in _MEASURED:
            found = self._found.get((one.key, role, stage))
            if found is not None and found.error is not None:
                return "failed", found.error
            if found is not None and has_faults(found.measures):
                return "rejected", "a key that is not finite"
        return None

    def _stands(self, found: Evaluation) -> bool:
        return found.error is None and not has_faults(found.measures)


_SAME_SIGNALS = 3
"""Survivors that may read the same signals."""
_SCORED: Sequence[Role] = ("train", "validation")
_MEASURED: Sequence[tuple[Role, Stage]] = (("train", "short"), ("train", "full"), ("validation", "full"))
