"""The scoreboard: every policy on every configuration, against first come, first served (FCFS).

Simulated, in serving mode; a gain here is a reason to measure, not a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence

from tanren_dsl.scoring.arms import Arm, oracle_arm
from tanren_dsl.scoring.formula import ratio, score, violates
from tanren_dsl.scoring.picker import pick, survey
from tanren_dsl.scoring.results import Board, Idle, Point, Row
from tanren_dsl.scoring.runs import Measured, Runs
from tanren_dsl.scoring.windows import Configuration, check_starts


def score_board(runs: Runs, policies: Sequence[Arm], classics: Sequence[Arm]) -> Board:
    """Run FCFS, the policies, the oracle and, for hindsight, the classics on every configuration.

    Args:
        runs: trace, server and settings.
        policies: arms with labels of their own, see `arms.policy_arms`.
        classics: arms to choose from in hindsight and to pick windows by, `arms.classic_arms`.

    Raises:
        TanrenError: windows do not fit the trace, or share requests.
    """
    settings = runs.settings
    if settings.starts:
        check_starts(runs.trace, settings.starts, settings)
        starts = settings.starts
    else:
        starts = pick(survey(runs, classics), settings.windows)
    grid = [
        runs.configuration(window, start, load, repeat)
        for window, start in enumerate(starts)
        for load in settings.loads
        for repeat in range(settings.repeats)
    ]
    quiet = [runs.configuration(window, start, settings.idle, 0) for window, start in enumerate(starts)]
    arms = [runs.base, *policies, oracle_arm()]
    runs.say(f"{len(grid)} configurations of {len(grid[0].table):,} requests")
    best = _hindsight(runs, classics, grid)
    rows = []
    for arm in arms:
        runs.say(f"serving by {arm.label}")
        rows.append(_row(runs, arm, grid, quiet, best))
    return Board(runs, tuple(starts), tuple(rows))


def _hindsight(runs: Runs, classics: Sequence[Arm], grid: Sequence[Configuration]) -> list[tuple[str, float]]:
    """The best classic of each configuration with its score; the first of equals, FCFS before all."""
    runs.say(f"serving by {len(classics)} classics, for the best in hindsight")
    best = []
    for at in grid:
        fcfs = runs.measure(runs.base, at)
        scores = [(arm.label, _score(runs, runs.measure(arm, at), fcfs)) for arm in classics]
        best.append(max([(runs.base.label, 0.0), *scores], key=lambda pair: pair[1]))
    return best


def _row(
    runs: Runs, arm: Arm, grid: Sequence[Configuration], quiet: Sequence[Configuration],
    best: Sequence[tuple[str, float]],
) -> Row:  # fmt: skip
    own = [runs.measure(arm, at) for at in grid]
    points = []
    for at, one, (name, points_of_best) in zip(grid, own, best, strict=True):
        fcfs = runs.measure(runs.base, at)
        points.append(
            Point(
                label=at.label,
                window=at.window,
                start=at.begin,
                load=at.load,
                repeat=at.repeat,
                rate=at.load * at.saturation,
                mean_s=one.mean_s,
                p99_s=one.p99_s,
                fcfs_mean_s=fcfs.mean_s,
                fcfs_p99_s=fcfs.p99_s,
                score=_score(runs, one, fcfs),
                violated=violates(one.p99_s, fcfs.p99_s),
                mean_queue=one.mean_queue,
                worst_wait_s=one.worst_wait_s,
                hindsight=name,
                hindsight_score=points_of_best,
            )
        )
    idle = []
    for at in quiet:
        mean_s, fcfs_mean_s = runs.measure(arm, at).mean_s, runs.measure(runs.base, at).mean_s
        idle.append(Idle(at.window, at.load, mean_s, fcfs_mean_s, ratio(mean_s, fcfs_mean_s) - 1.0))
    return Row(
        arm.label,
        arm.knows_work,
        tuple(points),
        tuple(idle),
        sum(one.preemptions for one in own),
        sum(one.rescued for one in own),
        sum(one.faults for one in own),
    )


def _score(runs: Runs, own: Measured, fcfs: Measured) -> float:
    settings = runs.settings
    return score(own.mean_s, own.p99_s, fcfs.mean_s, fcfs.p99_s, s=settings.s, k=settings.k)
