"""From measured rounds to what is reported: numbers for each arm, differences, a verdict in words.

`results` holds an entry for each configuration and each arm other than the default, so with two
arms one for each configuration:

    {"config": {...}, "arms": [the default's, the other's], "delta_p99": percent, "interval": [low, high],
     "deltas": {...}, "round_noise": {...} or null, "noise_floor": {...} or null,
     "pairs": n, "verdict": text}

`delta_p99` is (arm / default - 1) * 100 of the p99 time to first token (TTFT), `interval` its 95 %
interval in the same unit; `deltas` holds the same for `ttft_mean`, `ttft_p50`, `ttft_p90`,
`ttft_p99`, `tpot_mean` and `e2e_mean`. They compare the requests that ended well in every round of
both arms (`pairs`); the numbers of an arm are those of all its requests that ended well, rounds
pooled. `round_noise` says, in percent, how far apart two arms may be by what rounds of one arm differ
(null with one round). The noise floor comes from an A/A comparison in the same configuration: a second
default arm's interval, and its bound that is further from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tanren_dsl.bench.store import Round
from tanren_dsl.stats import Difference, Doubles, complete, paired_bootstrap, round_noise, summary

MEASURES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ttft": ("ttft_s", ("mean", "p50", "p90", "p99")),
    "tpot": ("tpot_s", ("mean",)),
    "e2e": ("e2e_s", ("mean",)),
}
"""Each measure: the field of a record, and the statistics whose difference is reported."""

_FEW_ROUNDS = 4
_LATE_SHARE = 0.1


@dataclass(frozen=True)
class Measured:
    """All rounds of an arm in one configuration.

    `is_default` tells a second default arm (A/A). `faults` None is not known. `predicted_hit_tokens`
    are the simulator's for one round, None if nothing was predicted. `notes` are what its servers
    said when the policy stood aside or was switched off.
    """

    name: str
    is_default: bool
    rounds: Sequence[Round]
    faults: int | None
    predicted_hit_tokens: int | None = None
    notes: tuple[str, ...] = ()

    def values_ms(self, field: str) -> Doubles:
        """[rounds, requests] of a time in milliseconds, nan where the request failed or has none."""
        rows = [
            [
                np.nan if record.error is not None or (value := getattr(record, field)) is None else value
                for record in one.records
            ]
            for one in self.rounds
        ]
        return 1000.0 * np.array(rows, np.float64)

    @property
    def hit_tokens(self) -> list[float | None]:
        """Tokens found in the prefix cache, by round."""
        return [one.counted.hit_tokens for one in self.rounds]

    @property
    def hit_rate(self) -> float | None:
        """Share of the looked-up tokens that were found, all rounds together."""
        pairs = [(one.counted.hit_tokens, one.counted.queried_tokens) for one in self.rounds]
        known = [(hits, queries) for hits, queries in pairs if hits is not None and queries is not None]
        queries = sum(pair[1] for pair in known)
        return sum(pair[0] for pair in known) / queries if queries else None


def results_of(config: Mapping[str, Any], arms: Sequence[Measured], seed: int) -> list[dict[str, Any]]:
    """The entries of one configuration; the first arm is the default."""
    base = arms[0]
    deltas = [_deltas(base, arm, seed) for arm in arms[1:]]
    floor = next((found for arm, found in zip(arms[1:], deltas, strict=True) if arm.is_default), None)
    entries = []
    for arm, found in zip(arms[1:], deltas, strict=True):
        p99 = found.get("ttft_p99")
        old, _ = complete(base.values_ms("ttft_s"), arm.values_ms("ttft_s"))
        own_floor = None if arm.is_default else floor
        noise = _round_noise(base, arm)
        entries.append(
            {
                "config": dict(config),
                "arms": [arm_row(base), arm_row(arm)],
                "delta_p99": None if p99 is None else p99.percent,
                "interval": None if p99 is None else [p99.low, p99.high],
                "deltas": {name: _delta(one) for name, one in found.items()},
                "round_noise": noise,
                "noise_floor": None if floor is None else {name: _floor(one) for name, one in floor.items()},
                "pairs": old.shape[1],
                "verdict": _verdict(base, arm, found, noise, own_floor),
            }
        )
    return entries


def arm_row(arm: Measured) -> dict[str, Any]:
    """The numbers of one arm; times in milliseconds, drift is how late requests were sent."""
    values = {name: _all(arm.values_ms(field)) for name, (field, _) in MEASURES.items()}
    ttft = summary(values["ttft"])
    late = 1000.0 * np.array([r.sent_s - r.planned_s for one in arm.rounds for r in one.records])
    preemptions = [one.counted.preemptions for one in arm.rounds]
    return {
        "policy": arm.name,
        **{f"ttft_{name}_ms": value for name, value in ttft.items()},
        "tpot_mean_ms": summary(values["tpot"])["mean"],
        "e2e_mean_ms": summary(values["e2e"])["mean"],
        "hit_rate": arm.hit_rate,
        "hit_tokens": arm.hit_tokens,
        "predicted_hit_tokens": arm.predicted_hit_tokens,
        "preemptions": None if None in preemptions else sum(p for p in preemptions if p is not None),
        "requests": sum(len(one.records) for one in arm.rounds),
        "errors": sum(record.error is not None for one in arm.rounds for record in one.records),
        "first_error": next(
            (r.error for one in arm.rounds for r in one.records if r.error is not None), None
        ),
        "faults": arm.faults,
        "drift_p99_ms": summary(late)["p99"],
        "notes": list(arm.notes),
    }


def _deltas(base: Measured, arm: Measured, seed: int) -> dict[str, Difference]:
    found: dict[str, Difference] = {}
    for measure, (field, statistics) in MEASURES.items():
        old, new = complete(base.values_ms(field), arm.values_ms(field))
        if old.size == 0:
            continue
        neighbours = max(1, round(old.shape[1] ** (1 / 3)))
        differences = paired_bootstrap(old, new, seed=seed, neighbours=neighbours)
        found |= {f"{measure}_{name}": differences[name] for name in statistics}
    return found


def _round_noise(base: Measured, arm: Measured) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for measure, (field, statistics) in MEASURES.items():
        old, new = complete(base.values_ms(field), arm.values_ms(field))
        noise = round_noise(old, new) if old.size else None
        if noise is not None:
            found |= {f"{measure}_{name}": noise[name] for name in statistics}
    return found or None


def _verdict(
    base: Measured, arm: Measured, deltas: Mapping[str, Difference], noise: Mapping[str, float] | None,
    floor: Mapping[str, Difference] | None,
) -> str:  # fmt: skip
    p99 = deltas.get("ttft_p99")
    if p99 is None:
        return "no verdict: no request ended well in every round of both arms"
    within = f"[{p99.low:+.1f}, {p99.high:+.1f}] %"
    if p99.contains_zero:
        text = f"no difference seen in p99 TTFT: {p99.percent:+.1f} %, {within} contains 0"
    elif noise is not None and math.log1p(noise["ttft_p99"] / 100) >= abs(math.log1p(p99.percent / 100)):
        text = (
            f"no difference seen in p99 TTFT: {p99.percent:+.1f} % is within what rounds of one arm differ, "
            f"{noise['ttft_p99']:.1f} %"
        )
    elif floor is not None and abs(p99.percent) <= floor["ttft_p99"].reach:
        text = (
            f"no difference seen in p99 TTFT: {p99.percent:+.1f} % is within the noise of the default "
            f"against itself, {floor['ttft_p99'].reach:.1f} %"
        )
    else:
        word = "lower" if p99.percent < 0 else "higher"
        text = f"p99 TTFT is {abs(p99.percent):.1f} % {word}, {within}"
        if noise is None:
            text = f"undecided: {text}, but one round cannot tell this from a slow minute of the machine"
    return "; ".join([text, *_caveats(base, arm, floor)])


def _caveats(base: Measured, arm: Measured, floor: Mapping[str, Difference] | None) -> list[str]:
    """What a reader must know before believing the verdict."""
    found = []
    if not arm.is_default and floor is None:
        found.append("no A/A comparison was made here")
    if 1 < len(arm.rounds) < _FEW_ROUNDS:
        found.append(f"{len(arm.rounds)} rounds show little of what differs between rounds")
    failed = [sum(r.error is not None for one in a.rounds for r in one.records) for a in (base, arm)]
    if any(failed):
        found.append(f"{failed[0]} and {failed[1]} requests failed and are not in the times")
    for one in (base, arm):
        row = arm_row(one)
        late, typical = row["drift_p99_ms"], row["ttft_p50_ms"]
        if late is not None and typical is not None and late > _LATE_SHARE * typical:
            found.append(f"the client sent late ({one.name}: p99 {late:.0f} ms)")
            break
    found += [f"{arm.name}: {note}" for note in arm.notes]
    return found


def _delta(one: Difference) -> dict[str, Any]:
    return {"percent": one.percent, "interval": [one.low, one.high]}


def _floor(one: Difference) -> dict[str, Any]:
    return {"percent": one.reach, "interval": [one.low, one.high]}


def _all(values: Doubles) -> Doubles:
    return np.asarray(values[~np.isnan(values)], np.float64)
