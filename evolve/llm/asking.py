"""What a proposer is asked, without saying how."""

from __future__ import annotations

from dataclasses import dataclass

from tanren_dsl.signals import Kind
from tanren_dsl.syntax import Knob


@dataclass(frozen=True, slots=True)
class Parent:
    """A policy that was measured.

    Attributes:
        text: as it stands in the run.
        score: its total; more is better.
        scores: label of a configuration or window, and the score there.
    """

    text: str
    score: float
    scores: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """One policy is wanted.

    Attributes:
        key: unique and the same each time the run is made, such as `g3.p12`.
        mode: `replay` or `engine`; signals that it lacks are neither offered nor accepted.
        objective: what the score is, in a sentence or two.
        parents: best first, if there is an order.
        knobs: the operator's; they come back unchanged where used, and no others.
        candidates: considered sets that are allowed, in percent, None for `all` (evict).
        diagnosis: where the parents fail; may be empty.
        seed: of this ask, for the waits between attempts and, if settings say so, the server.
    """

    key: str
    kind: Kind
    mode: str
    objective: str
    parents: tuple[Parent, ...]
    knobs: tuple[Knob, ...]
    candidates: tuple[float | None, ...]
    diagnosis: str
    seed: int
