"""A diagnosis as one value: totals, what separates, patterns, the worst decisions; and its short text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tanren_dsl.diagnosis.features import Doubles, Features, in_units
from tanren_dsl.diagnosis.patterns import Pattern
from tanren_dsl.diagnosis.separation import CHANCE, Contrast, Mask, Separation
from tanren_dsl.signals import Kind

EXAMPLES = 3
"""Decisions that the short text shows, at most."""
SHOWN = 3
"""Features that the short text shows, at most."""
CONTRASTS = 4
"""Contrasts that the short text shows, at most."""
NEAR = 0.05
"""Medians that differ by at most this share of the larger one are not worth a contrast."""
WEAK = 0.1
"""A feature whose AUC is nearer to 0.5 than this separates nothing worth naming."""


@dataclass(frozen=True)
class Case:
    """One regretted decision.

    Attributes:
        decision: its index in the sample.
        regret: hits or seconds.
        text: one line for people.
        facts: what is known of it, by name, for JSON.
    """

    decision: int
    regret: float
    text: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Sample:
    """The n decisions that were judged, for pictures and further analysis.

    Attributes:
        features: [n, K].
        regret: [n] in hits or seconds; not above 0 is not regretted.
        right: [n] right decisions.
        at_s: [n] moments.
        series: further arrays by name, of lengths of their own.
    """

    features: Features
    regret: Doubles
    right: Mask
    at_s: Doubles
    series: Mapping[str, Doubles] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What a policy did worse than another one, decision by decision.

    Attributes:
        kind: of the policy.
        policy, against: names.
        mode, engine, trace: where it was measured.
        unit: of the regret: `hits` or `s`.
        totals: numbers by name.
        summary: what the totals say, in sentences.
        verdict: whether there is regret, and whether anything separates it, in words.
        separations: every feature, the best first.
        preferred: what the policy preferred to the regretted, in words that end in a verb.
        contrasts: the regretted beside that, at the same decisions, the clearest first.
        patterns: the first one the strongest.
        examples: a decision of each pattern.
        worst: decisions by regret, the worst first.
    """

    kind: Kind
    policy: str
    against: str
    mode: str
    engine: str
    trace: str
    unit: str
    totals: Mapping[str, float]
    summary: tuple[str, ...]
    verdict: str
    separations: tuple[Separation, ...]
    preferred: str
    contrasts: tuple[Contrast, ...]
    patterns: tuple[Pattern, ...]
    worst: tuple[Case, ...]
    examples: tuple[Case, ...]
    sample: Sample

    @property
    def regretted(self) -> int:
        """Decisions with regret."""
        return int((self.sample.regret > 0).sum())

    @property
    def right(self) -> int:
        """Decisions that were right."""
        return int(self.sample.right.sum())

    def as_json(self) -> dict[str, Any]:
        """Everything but the sample; times in seconds."""
        return {
            "kind": self.kind,
            "policy": self.policy,
            "against": self.against,
            "mode": self.mode,
            "engine": self.engine,
            "trace": self.trace,
            "regret_unit": self.unit,
            "totals": dict(self.totals),
            "summary": list(self.summary),
            "verdict": self.verdict,
            "decisions": {"regretted": self.regretted, "right": self.right},
            "separations": [_separation(one) for one in self.separations],
            "contrasts": [_contrast(one) for one in self.contrasts],
            "patterns": [_pattern(one, case) for one, case in zip(self.patterns, self.examples, strict=True)],
            "worst": [dict(case.facts) for case in self.worst],
        }


def as_text(diagnosis: Diagnosis, most: int = 2000) -> str:
    """The diagnosis in at most so many characters, for people and for a prompt.

    Totals come first, then the verdict, patterns, quartiles and example decisions; whole lines are left
    out from the end where there is no room. Names of files do not appear.
    """
    lines = [*diagnosis.summary, diagnosis.verdict]
    lines += [f"- {pattern_line(pattern)}" for pattern in diagnosis.patterns]
    clear = notable(diagnosis.contrasts)[:CONTRASTS]
    if clear:
        lines.append(f"{diagnosis.preferred}: {'; '.join(contrast_text(one) for one in clear)}.")
    strong = [one for one in strongest(diagnosis.separations) if one.strength >= WEAK][:SHOWN]
    blocks = [
        ("Quartiles, regretted against right decisions:", [separation_line(one) for one in strong]),
        ("Examples of regretted decisions:", [case.text for case in _shown_cases(diagnosis)]),
    ]
    for head, rows in blocks:
        lines += [f"{head}\n- {row}" if number == 0 else f"- {row}" for number, row in enumerate(rows)]
    return _within(lines, most)


def notable(found: Sequence[Contrast]) -> list[Contrast]:
    """The same order, without those that hardly differ, how often or by how much, and without repeats."""
    kept: dict[tuple[float, ...], Contrast] = {}
    for one in found:
        least = NEAR * max(abs(one.regretted), abs(one.preferred))
        if one.strength >= WEAK and abs(one.regretted - one.preferred) > least:
            kept.setdefault((one.regretted, one.preferred, one.lower), one)
    return list(kept.values())


def strongest(found: Sequence[Separation]) -> list[Separation]:
    """The same order, without features whose numbers are those of one before, as where nothing is cached."""
    kept: dict[tuple[object, ...], Separation] = {}
    for one in found:
        kept.setdefault((one.auc, one.regretted, one.right), one)
    return list(kept.values())


def pattern_line(pattern: Pattern) -> str:
    """A pattern as one line."""
    beside = f" (about {pattern.twin})" if pattern.twin else ""
    return (
        f"{pattern.text}{beside}: {100 * pattern.share:.0f} % of the regret ({100 * pattern.added:.0f} % "
        f"new) in {pattern.regretted:,} decisions, and {pattern.right:,} right ones: precision "
        f"{percent(pattern.precision)}, {pattern.lift:.1f} times that of all"
    )


def separation_line(one: Separation) -> str:
    """What a feature is in both groups, as one line."""
    show = one.feature.show
    return f"{one.feature.text}: {show(one.regretted)} against {show(one.right)} (AUC {one.auc:.2f})"


def contrast_text(one: Contrast) -> str:
    """What a signal was in the regretted and in what was preferred to it."""
    word, share = ("lower", one.lower) if one.lower >= CHANCE else ("higher", 1 - one.lower)
    show = one.feature.show
    return (
        f"{one.feature.text} {show(one.regretted)} against {show(one.preferred)} ({word} in "
        f"{100 * share:.0f} % of them)"
    )


def verdict_of(
    regret: Doubles,
    right: Mask,
    separations: tuple[Separation, ...],
    patterns: tuple[Pattern, ...],
    against: str,
) -> str:
    """Whether there is regret, and whether anything tells it apart, in words."""
    regretted = int((regret > 0).sum())
    if not regretted:
        return f"No regret: nothing was decided worse than {against} did."
    counts = f"{regretted:,} regretted decisions against {int(right.sum()):,} right ones"
    if not right.any():
        return f"{counts}: nothing to tell them apart from."
    share = regretted / (regretted + int(right.sum()))
    if patterns:
        return f"{counts} (a share of {percent(share)}). What the regretted ones have in common:"
    best = separations[0] if separations else None
    closest = "" if best is None else f"; the best feature, {best.feature.text}, has AUC {best.auc:.2f}"
    return f"{counts}. No pattern separates them{closest} (0.5 is chance)."


def percent(share: float) -> str:
    """A share, with two digits that count."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def top(regret: Doubles, most: int) -> list[int]:
    """Indices of the decisions with the most regret above 0, ties in their own order."""
    order = np.argsort(-regret, kind="stable")[:most]
    return [int(place) for place in order if regret[place] > 0]


def _shown_cases(diagnosis: Diagnosis) -> list[Case]:
    """An example of each pattern, then the worst, each once."""
    cases = {case.decision: case for case in (*diagnosis.examples, *diagnosis.worst)}
    return list(cases.values())[:EXAMPLES]


def _within(lines: list[str], most: int) -> str:
    text = ""
    for line in lines:
        longer = f"{text}\n{line}" if text else line
        if len(longer) > most:
            break
        text = longer
    return text or lines[0][: max(0, most)]


def _separation(one: Separation) -> dict[str, Any]:
    type_ = one.feature.type
    return {
        "feature": one.feature.text,
        "unit": str(type_),
        "auc": one.auc,
        "regretted_quartiles": [in_units(value, type_) for value in one.regretted],
        "right_quartiles": [in_units(value, type_) for value in one.right],
    }


def _contrast(one: Contrast) -> dict[str, Any]:
    type_ = one.feature.type
    return {
        "signal": one.feature.text,
        "unit": str(type_),
        "regretted_median": in_units(one.regretted, type_),
        "preferred_median": in_units(one.preferred, type_),
        "lower_share": one.lower,
    }


def _pattern(pattern: Pattern, example: Case) -> dict[str, Any]:
    return {
        "text": pattern.text,
        "conditions": [
            {
                "feature": one.feature.text,
                "operator": ">=" if one.above else "<=",
                "threshold": in_units(one.threshold, one.feature.type),
                "unit": str(one.feature.type),
                "about": one.twin or None,
            }
            for one in pattern.conditions
        ],
        "share": pattern.share,
        "added": pattern.added,
        "precision": pattern.precision,
        "lift": pattern.lift,
        "regretted": pattern.regretted,
        "right": pattern.right,
        "example": dict(example.facts),
    }
