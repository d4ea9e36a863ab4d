"""What a run found, said without colour: rows of hits, the champion, and how it was chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from tanren_dsl.evolve.fitness import Count, Place
from tanren_dsl.evolve.windows import Role

Family: TypeAlias = Literal["engine", "classic", "champion", "bound"]


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one configuration; `points` is its gain in hit rate over LRU."""

    role: Role
    window: str
    size: str
    capacity: int
    policy: str
    family: Family
    hits: int
    lookups: int
    hit_rate: float
    points: float


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    Attributes:
        name: the champion's declared name.
        classic: the classic that the champion is, if it is one.
        train, validation: mean gains over LRU, in points of hit rate.
        selection: how the champion was selected.
        verdict: what that is worth.
        evaluated, rejected, failed: distinct candidates measured, with a fault, without a result.
        notes: what the trace's reader assumed and found.
    """

    name: str
    text: str
    path: Path
    folder: Path
    classic: str | None
    train: float
    validation: float
    selection: str
    verdict: str
    rows: tuple[Row, ...]
    evaluated: int
    rejected: int
    failed: int
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Everything, for printing as JSON."""
        found: dict[str, object] = asdict(self)
        found["path"], found["folder"] = str(self.path), str(self.folder)
        return found


def rows_of(policy: str, family: Family, counts: Sequence[Count], stock: Mapping[Place, Count]) -> list[Row]:
    """One row a configuration."""
    return [
        Row(
            count.role, count.window, count.label, count.capacity, policy, family, count.hits, count.lookups,
            count.hit_rate, 100.0 * (count.hit_rate - stock[count.place].hit_rate),
        )
        for count in counts
    ]  # fmt: skip


def verdict_of(
    name: str, classic: str | None, train: float, validation: float, rivals: Mapping[str, float]
) -> str:
    """What the champion is worth, in words.

    `classic` is the one that it is, or whose hits it has; `rivals` are the classics' mean gains on
    validation.
    """
    said = []
    if classic is not None:
        said.append(f"the champion hits exactly what the classic {classic} hits: nothing better was found")
    if validation > 0:
        said.append(
            f"{name} gains {validation:.2f} points of hit rate over LRU on validation ({train:.2f} on train)"
            ", the mean of windows and sizes"
        )
    else:
        said.append(
            f"no gain over LRU: {validation:.2f} points of hit rate on validation ({train:.2f} on train)"
        )
    if rivals and classic is None:
        best = max(rivals, key=lambda rival: (rivals[rival], rival))
        than = "more than" if validation > rivals[best] else "no more than"
        said.append(f"that is {than} the best classic there, {best} ({rivals[best]:.2f})")
    said.append("simulated: a real engine has not agreed yet")
    return "; ".join(said)
