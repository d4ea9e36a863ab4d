"""What arenas measure is what the simulators and the scoreboard say, in every configuration."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.measures import Judge, Measure, Place
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.replay_arena import Loss, ReplayArena
from tanren_dsl.evolve.serving_arena import ServingArena
from tanren_dsl.evolve.setup import prepare
from tanren_dsl.evolve.windows import SEARCHED, Cut, repeats_of
from tanren_dsl.scoring.arms import classic_arms
from tanren_dsl.scoring.board import score_board
from tanren_dsl.scoring.runs import Runs
from tanren_dsl.sim.replay import simulate, simulate_stock
from tanren_dsl.trace.read import read_trace

SLRU = "policy p : evict order by 1 if uses >= 2 else 0, last_use"


def classic(kind: str, name: str) -> str:
    return (files("tanren_dsl.examples") / kind / f"{name}.tpl").read_text(encoding="utf-8")


def test_replay_counts_are_the_simulators(tiny: Problem) -> None:
    ground = prepare(tiny)
    arena = ground.arena(SEARCHED, short=True)
    assert isinstance(arena, ReplayArena)
    policy = loads(SLRU)
    for role, stage in (("train", "full"), ("train", "short"), ("validation", "full")):
        places = arena.configurations[role, stage]  # type: ignore[index]
        measures = arena.measure(policy, role, stage)  # type: ignore[arg-type]
        base = arena.base(role, stage)  # type: ignore[arg-type]
        for at, own, lru in zip(places, measures, base, strict=True):
            assert own.figures[0] == simulate(at.table, policy, compile_ordering, at.capacity).hits
            assert lru.figures[0] == simulate_stock(at.table, at.capacity).hits
            gain = 100 * (own.figures[0] - lru.figures[0]) / own.figures[1]
            assert arena.worth(own, lru).gain == pytest.approx(gain)


def test_serving_figures_are_the_scoreboards(served: Problem) -> None:
    windows = {"train": served.windows["validation"]}
    arena = prepare(replace(served, windows=windows)).arena(("train",))  # type: ignore[arg-type]
    assert isinstance(arena, ServingArena)
    judge = Judge(arena, [("train", "full")])
    settings = replace(arena.settings, starts=(200,), windows=1, requests=repeats_of(200, 300, 2)[0][1] - 200)
    runs = Runs(read_trace("chat:3:400"), settings)
    arms = [arm for arm in classic_arms(compile_ordering, settings) if arm.label in ("sjf", "las")]
    board = score_board(runs, arms, classic_arms(compile_ordering, settings))
    for row in board.rows[1:-1]:
        measures = arena.measure(loads(classic("schedule", row.policy)), "train", "full")
        worth = judge.worth(measures)
        points = {(point.load, point.repeat): point for point in row.configs}
        assert len(points) == len(measures) == 4
        for one, found in zip(measures, worth, strict=True):
            load, _, repeat = one.place.label.removeprefix("load ").partition(", repeat ")
            point = points[float(load), int(repeat)]
            assert one.figures[:3] == (point.mean_s, point.p99_s, point.worst_wait_s)
            assert found.score == point.score
            assert found.violated == point.violated


@pytest.mark.parametrize("name", ["tiny", "served"])
def test_the_engines_own_order_scores_0_and_equal_policies_have_equal_marks(
    name: str, request: pytest.FixtureRequest
) -> None:
    problem: Problem = request.getfixturevalue(name)
    arena = prepare(problem).arena(SEARCHED)
    judge = Judge(arena, [(role, "full") for role in SEARCHED])
    own = "order by last_use" if problem.kind == "evict" else "order by arrival"
    other = "order by -age" if problem.kind == "evict" else "order by -wait"
    for role in SEARCHED:
        base = arena.base(role, "full")
        for body in (own, other):
            measures = arena.measure(loads(f"policy p : {problem.kind} {body}"), role, "full")
            assert [one.mark for one in measures] == [one.mark for one in base]
            assert judge.score(measures) == 0.0
            assert judge.violations(measures) == 0


def test_an_evict_policy_can_be_searched_by_its_times(served: Problem) -> None:
    assert served.settings is not None
    small = served.settings.changed(capacity=1200)
    problem = replace(served, kind="evict", candidates=(10.0, None), settings=small)
    arena = prepare(problem).arena(SEARCHED)
    assert arena.base_name == "LRU"
    judge = Judge(arena, [("train", "full")])
    assert judge.score(arena.measure(loads("policy p : evict order by last_use"), "train", "full")) == 0.0
    other = arena.measure(loads("policy p : evict order by age candidates all"), "train", "full")
    assert any(one.mark != base.mark for one, base in zip(other, arena.base("train", "full"), strict=True))


@pytest.mark.parametrize(
    ("hits", "gain", "score", "violated"),
    [(60, 1.0, 1.0, False), (49, -0.1, -0.1, False), (46, -0.4, -0.49, False), (40, -1.0, -3.25, True)],
)
def test_a_loss_costs_before_it_is_a_violation(hits: int, gain: float, score: float, violated: bool) -> None:
    arena = ReplayArena({}, "vllm-0.19", compile_ordering, Loss())
    place = Place("train", "w", "c")
    base = Measure(place, (50.0, 1000.0, 10.0), 0, "")
    found = arena.worth(Measure(place, (float(hits), 1000.0, 10.0), 0, ""), base)
    assert found.gain == pytest.approx(gain)
    assert found.score == pytest.approx(score)
    assert found.violated is violated


def test_repeats_lie_within_their_window() -> None:
    for start, stop, repeats in ((0, 100, 1), (10, 111, 2), (5, 50, 3), (0, 8, 2)):
        found = repeats_of(start, stop, repeats)
        assert len(set(found)) == repeats
        assert found[0][0] == start
        assert found[-1][1] <= stop
        assert len({end - begin for begin, end in found}) == 1
        assert np.all(np.diff([begin for begin, _ in found]) > 0)


def test_what_warms_the_cache_is_not_counted(tiny: Problem) -> None:
    warmed = prepare(replace(tiny, warm=30)).arena(("train",))
    cold = prepare(tiny).arena(("train",))
    assert isinstance(warmed, ReplayArena)
    assert isinstance(cold, ReplayArena)
    trace, policy = read_trace("chat:3:160"), loads(SLRU)
    rows = zip(warmed.configurations["train", "full"], cold.configurations["train", "full"], strict=True)
    for at, without in rows:
        begin = int(at.place.window.split()[1])
        assert at.warm == min(30, begin)
        assert (at.place, at.capacity) == (without.place, without.capacity)
        whole = trace.slice(begin - at.warm, begin + 40)
        hits = simulate(whole, policy, compile_ordering, at.capacity).hits_each
        assert warmed.hits_each(policy, at).tolist() == hits[at.warm :].tolist()
    measures = warmed.measure(policy, "train", "full")
    of_cold = cold.measure(policy, "train", "full")
    assert [one.figures[1] for one in measures] == [one.figures[1] for one in of_cold], "the same lookups"
    assert measures[-1].figures[0] > of_cold[-1].figures[0], "a warm cache hits more"


def test_the_hold_out_warms_nothing_that_is_searched(tiny: Problem) -> None:
    early = {**tiny.windows, "train": (Cut(50, 80),), "holdout": (Cut(0, 40),)}
    prepare(replace(tiny, windows=early, warm=10))  # type: ignore[arg-type]
    with pytest.raises(TanrenError, match=r"train\[0\] would be warmed by requests of windows\.holdout\[0\]"):
        prepare(replace(tiny, windows=early, warm=11))  # type: ignore[arg-type]
