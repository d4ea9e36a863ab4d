"""What a run found, said without colour: rows of every configuration, the champion, how it was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tanren_dsl.evolve.gate import Check
from tanren_dsl.evolve.measures import Judge, Measure
from tanren_dsl.evolve.windows import Role

Family: TypeAlias = Literal["engine", "classic", "champion", "bound"]


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one configuration.

    Attributes:
        shown: its figures for people.
        figures: by name, with units in the names.
        gain, score: against the engine's own order, in the arena's unit.
        violated: the tail is beyond its limit.
    """

    role: Role
    window: str
    label: str
    policy: str
    family: Family
    shown: str
    figures: Mapping[str, float]
    gain: float
    score: float
    violated: bool


@dataclass(frozen=True, slots=True)
class Simple:
    """A point of the Pareto front of size and score on training."""

    cost: float
    score: float
    text: str


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        name: the champion's declared name.
        classic: the classic that the champion is, if it is one.
        reached: whether the gate was passed.
        checks: the gate, condition by condition.
        train, validation: the champion's mean scores, in `unit`.
        totals: the champion's sums over the configurations of a role.
        hindsight: the same of the best classic of each configuration, chosen afterwards.
        selection: how the champion was selected.
        verdict: what that is worth.
        measured, stopped, rejected, failed: distinct candidates measured in full, stopped early, with a
            fault, without a result.
        front: the simplest and the best, and what no other beats in both.
        model: what the language model was asked and what it cost; None where there is none.
        notes: what the trace's reader assumed and found.
    """

    name: str
    text: str
    path: Path
    folder: Path
    unit: str
    classic: str | None
    reached: bool
    checks: tuple[Check, ...]
    train: float
    validation: float
    totals: Mapping[str, float]
    hindsight: Mapping[str, float]
    selection: str
    verdict: str
    rows: tuple[Row, ...]
    measured: int
    stopped: int
    rejected: int
    failed: int
    front: tuple[Simple, ...]
    model: str | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Everything, for printing as JSON."""
        found: dict[str, object] = asdict(self)
        found["path"], found["folder"] = str(self.path), str(self.folder)
        return found


def rows_of(policy: str, family: Family, measures: Sequence[Measure], judge: Judge) -> list[Row]:
    """One row a configuration."""
    return [
        Row(
            one.place.role, one.place.window, one.place.label, policy, family, judge.arena.shown(one),
            dict(zip(judge.arena.heads, one.figures, strict=True)), worth.gain, worth.score, worth.violated,
        )
        for one, worth in zip(measures, judge.worth(measures), strict=True)
    ]  # fmt: skip


def total(rows: Sequence[Row], role: Role, policy: str) -> float:
    """One policy's total over the configurations of a role."""
    return math.fsum(row.score for row in rows if row.role == role and row.policy == policy)


def hindsight_total(rows: Sequence[Row], role: Role) -> float:
    """The total of the best classic of each configuration, chosen afterwards: nothing to deploy.

    The engine's own order is among them, with a score of 0.
    """
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        if row.role == role and row.family in ("classic", "engine"):
            at = row.window, row.label
            best[at] = max(best.get(at, 0.0), row.score)
    return math.fsum(best.values())


def verdict_of(
    name: str,
    classic: str | None,
    checks: Sequence[Check],
    scores: Mapping[Role, float],
    rivals: Mapping[str, float],
    base: str,
    unit: str,
) -> str:
    """What the champion is worth, in words.

    Args:
        name: of the champion.
        classic: the one that it is, or that decides the same everywhere.
        checks: of the gate.
        scores: its mean scores on train and validation.
        rivals: the classics' mean scores on validation.
        base: the engine's own order.
        unit: of scores.
    """
    train, validation = scores["train"], scores["validation"]
    missed = [check for check in checks if not check.passed]
    said = ["reached its gate" if not missed else "did not reach its gate"]
    said += [f"{check.name}: wanted {check.wanted}, found {check.found:.4g}" for check in missed]
    if classic is not None:
        said.append(f"the champion decides exactly as the classic {classic}: nothing better was found")
    if validation > 0:
        said.append(
            f"{name} scores {validation:+.4g} {unit} over {base} on validation ({train:+.4g} on train), "
            "the mean over configurations"
        )
    else:
        said.append(f"no gain over {base}: {validation:+.4g} {unit} on validation ({train:+.4g} on train)")
    if rivals and classic is None:
        best = max(rivals, key=lambda rival: (rivals[rival], rival))
        than = "more than" if validation > rivals[best] else "no more than"
        said.append(f"that is {than} the best classic there, {best} ({rivals[best]:+.4g})")
    said.append("simulated: neither the hold-out nor a real engine has agreed yet")
    return "; ".join(said)
