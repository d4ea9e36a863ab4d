"""The sealed result: a run's champion on requests that the search never saw.

Judged once. The look is written into the run's ledger before anything is measured; a further look
is numbered, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.candidate import classics, key_of
from tanren_dsl.evolve.intervals import Interval, intervals
from tanren_dsl.evolve.ledger import begin_look, end_look, looks_elsewhere
from tanren_dsl.evolve.measures import Judge, has_faults
from tanren_dsl.evolve.outcome import Row, hindsight_total, rows_of, total
from tanren_dsl.evolve.population import Progress, Step
from tanren_dsl.evolve.resolved import reopen
from tanren_dsl.evolve.setup import Ground
from tanren_dsl.evolve.store import REACHED, Store
from tanren_dsl.evolve.sweeps import Swept, sweep
from tanren_dsl.ir import Policy
from tanren_dsl.stats import clustered_sign_flip, sign_test

SEED = 20_260_101
"""Of the resampling."""


class SealedError(TanrenError):
    """The hold-out stays sealed: the run did not reach its gate."""


@dataclass(frozen=True)
class Verdict:
    """What a look at the hold-out showed.

    Attributes:
        look: its number; only the first was sealed.
        unit: of gains, scores and totals.
        total, gain: the champion's total score and mean gain over the configurations.
        wins, losses: configurations with a gain above and below 0; ties are neither.
        p, clustered_p: of the sign test over configurations, and over windows.
        violations: configurations with a tail beyond the limit.
        best_classic: the single classic with the best total, and that total.
        hindsight: total of the best classic of each configuration, chosen afterwards.
        intervals: of each setting, over its windows; 95 %.
        sweeps: the same champion at other block sizes and cache sizes.
        confirmed: there is no reason against it.
        reasons: why the gain is not confirmed.
        elsewhere: runs beside this one that looked at the same hold-out.
    """

    look: int
    policy: str
    mode: str
    unit: str
    base: str
    total: float
    gain: float
    wins: int
    losses: int
    p: float
    clustered_p: float
    violations: int
    best_classic: tuple[str, float]
    hindsight: float
    intervals: tuple[Interval, ...]
    sweeps: tuple[Swept, ...]
    confirmed: bool
    reasons: tuple[str, ...]
    rows: tuple[Row, ...]
    elsewhere: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything, for printing as JSON and for the ledger."""
        return asdict(self)


def adjudicate(folder: Path, progress: Progress) -> Verdict:
    """Judge a run's champion on its hold-out, and write the look into its ledger.

    Raises:
        SealedError: the run did not reach its gate.
        TanrenError: there is no run, no hold-out, or the champion's file was changed.
    """
    store = Store.open(folder)
    try:
        status = store.fact("status")
        if status != REACHED:
            raise SealedError(
                f"{folder}: the run is marked `{status}`: its hold-out stays sealed",
                hint="a hold-out is for a champion that passed its gate; evolve again, with another problem",
            )
        progress(Step("reading the trace", 0, 0, None))
        ground = reopen(store)
        if not ground.ranges.get("holdout"):
            raise TanrenError(f"{folder}: the problem names no hold-out", hint="add windows.holdout")
        champion = _champion(store)
        digest = ground.digest("holdout")
        number = begin_look(store, champion.name, digest)
        verdict = _judged(ground, champion, number, progress, looks_elsewhere(store, digest))
        end_look(store, number, verdict.as_json())
        return verdict
    finally:
        store.close()


def _champion(store: Store) -> Policy:
    name = store.fact("champion")
    path = store.folder / "champions" / f"{name}.tpl"
    try:
        policy = loads(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise TanrenError(f"cannot read {path}: {error.strerror or error}") from None
    if key_of(policy) != store.fact("champion_key"):
        raise TanrenError(f"{path} is not the champion that the run found: it was changed")
    return policy


def _judged(
    ground: Ground, champion: Policy, number: int, progress: Progress, elsewhere: Sequence[str]
) -> Verdict:
    progress(Step("compiling the simulator", 0, 0, None))
    arena = ground.arena(("holdout",))
    judge = Judge(arena, [("holdout", "full")])
    own = arena.measure(champion, "holdout", "full")
    if has_faults(own):
        raise TanrenError(f"{champion.name}: a key is not finite on the hold-out: it may not be deployed")
    rows = rows_of(f"stock ({arena.base_name})", "engine", arena.base("holdout", "full"), judge)
    known = classics(ground.primitives)
    for place, one in enumerate(known):
        progress(Step("classics on the hold-out", place, len(known), None))
        measures = arena.measure(loads(one.text), "holdout", "full")
        if not has_faults(measures):
            rows += rows_of(str(one.classic), "classic", measures, judge)
    rows += rows_of(champion.name, "champion", own, judge)
    for bound, measures in arena.bounds("holdout").items():
        rows += rows_of(bound, "bound", measures, judge)
    progress(Step("intervals", 0, 0, None))
    found = intervals(arena, champion, SEED)
    progress(Step("other block sizes and cache sizes", 0, 0, None))
    swept = sweep(ground, arena, champion)
    worth = judge.worth(own)
    gains = [one.gain for one in worth]
    windows = list(dict.fromkeys(one.place.window for one in own))
    wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    totals = {
        name: total(rows, "holdout", name)
        for name in dict.fromkeys(row.policy for row in rows if row.family == "classic")
    }
    best = max(totals, key=lambda name: (totals[name], name))
    score = math.fsum(one.score for one in worth)
    violations = sum(one.violated for one in worth)
    reasons = _reasons(score, violations, found, swept)
    return Verdict(
        look=number,
        policy=champion.name,
        mode=ground.problem.mode,
        unit=arena.unit,
        base=arena.base_name,
        total=score,
        gain=math.fsum(gains) / len(gains),
        wins=wins,
        losses=losses,
        p=sign_test(wins, losses),
        clustered_p=clustered_sign_flip(gains, [windows.index(one.place.window) for one in own]),
        violations=violations,
        best_classic=(best, totals[best]),
        hindsight=hindsight_total(rows, "holdout"),
        intervals=found,
        sweeps=swept,
        confirmed=not reasons,
        reasons=reasons,
        rows=tuple(rows),
        elsewhere=tuple(elsewhere),
    )


def _reasons(
    score: float, violations: int, found: Sequence[Interval], swept: Sequence[Swept]
) -> tuple[str, ...]:
    """Why the gain is not confirmed; nothing where it is."""
    said = []
    if not score > 0:
        said.append(f"the total is not above 0 but {score:+.4g}")
    if violations:
        said.append(f"the tail is beyond its limit in {violations} configurations")
    worse = [f"{one.setting} ({one.figure})" for one in found if one.main and one.high < 0]
    if worse:
        said.append(f"it is worse than the engine's own order at {', '.join(worse)}")
    lost = [
        f"blocks of {one.block_tokens} tokens, cache x {one.cache:g} ({one.score:+.3g})"
        for one in swept
        if one.score is not None and one.score < 0
    ]
    if lost:
        said.append(f"it scores below the engine's own order at other sizes: {', '.join(lost)}")
    better = [one for one in found if one.main and one.low > 0]
    if not better:
        said.append("no setting has a gain whose 95 % interval lies above 0")
    return tuple(said)
