"""The gate: what the champion must reach on validation, and in words what it did reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tanren_dsl.evolve.sections import Gate


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of the gate."""

    name: str
    wanted: str
    found: float
    passed: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a champion; mean scores and gains over the configurations of a role.

    Attributes:
        best_classic: the best single classic's mean score on validation.
        goal: mean gain on validation of the policy that it must equal, where the gate names one.
    """

    train: float
    validation: float
    gain: float
    violations: int
    best_classic: float
    goal: float | None = None


def judge(gate: Gate, standing: Standing) -> tuple[Check, ...]:
    """Every condition that the gate names, in order.

    >>> checks = judge(Gate(score=0.1), Standing(train=1.0, validation=0.2, gain=0.2, violations=0,
    ...                                          best_classic=0.5))
    >>> [(check.name, check.passed) for check in checks]
    [('score', True), ('kept', False), ('violations', True)]
    """
    return tuple(_checks(gate, standing))


def _checks(gate: Gate, standing: Standing) -> Iterator[Check]:
    found = standing.validation
    yield Check("score", f"a mean score on validation above {gate.score:g}", found, found > gate.score)
    if gate.kept:
        least = gate.kept * standing.train
        words = f"at least {gate.kept:g} of its mean score on train, {least:.4g}"
        yield Check("kept", words, found, found >= least)
    yield Check(
        "violations", f"at most {gate.violations} configurations with a tail beyond the limit",
        float(standing.violations), standing.violations <= gate.violations,
    )  # fmt: skip
    if gate.over_classic is not None:
        ahead = found - standing.best_classic
        words = f"more than {gate.over_classic:g} above the best classic's mean score there"
        yield Check("over_classic", words, ahead, ahead > gate.over_classic)
    if standing.goal is not None:
        words = f"a mean gain of at least {standing.goal:.6g}, that of the policy it must equal"
        yield Check("as_good_as", words, standing.gain, standing.gain >= standing.goal - 1e-12)
