"""The search finds a rule that is known to win; no classic does."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tanren_dsl.check import load, loads
from tanren_dsl.evolve.candidate import classics, key_of
from tanren_dsl.evolve.gate import Standing, judge
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.measures import Judge
from tanren_dsl.evolve.problem import Problem, load_problem
from tanren_dsl.evolve.setup import Ground, prepare
from tanren_dsl.evolve.store import REACHED, status_of
from tanren_dsl.evolve.windows import ROLES, SEARCHED
from tanren_dsl.trace.planted import generate_planted
from tanren_dsl.trace.read import read_trace

CONFIGS = Path(str(files("tanren_dsl.examples"))) / "configs"


@pytest.fixture(scope="module")
def planted() -> Problem:
    return load_problem(CONFIGS / "planted.toml")


@pytest.fixture(scope="module")
def ground(planted: Problem) -> Ground:
    return prepare(planted)


def test_the_planted_policy_hits_what_belady_hits(ground: Ground) -> None:
    policy = load(CONFIGS / "planted.tpl")
    arena = ground.arena(ROLES)
    for role in ROLES:
        bound = arena.bounds(role)["belady"]
        found = arena.measure(policy, role, "full")
        hits, most = sum(one.figures[0] for one in found), sum(one.figures[0] for one in bound)
        assert 0.995 * most < hits <= most


def test_the_planted_policy_is_no_classic_and_no_classic_passes_the_gate(
    planted: Problem, ground: Ground
) -> None:
    policy = load(CONFIGS / "planted.tpl")
    arena = ground.arena(SEARCHED)
    judging = Judge(arena, [(role, "full") for role in SEARCHED])
    goal = judging.gain(arena.measure(policy, "validation", "full"))
    marks = [one.mark for one in arena.measure(policy, "validation", "full")]
    known = classics(ground.primitives)
    assert len(known) >= 7
    for one in known:
        assert one.key != key_of(policy)
        measures = arena.measure(loads(one.text), "validation", "full")
        assert [m.mark for m in measures] != marks
        standing = Standing(
            train=judging.score(arena.measure(loads(one.text), "train", "full")),
            validation=judging.score(measures),
            gain=judging.gain(measures),
            violations=judging.violations(measures),
            best_classic=0.0,
            goal=goal,
        )
        passed = {check.name: check.passed for check in judge(planted.gate, standing)}
        assert not passed["as_good_as"], one.classic
        assert standing.gain < goal / 4


def test_the_planted_policy_itself_passes_the_gate(planted: Problem, ground: Ground) -> None:
    arena = ground.arena(SEARCHED)
    judging = Judge(arena, [(role, "full") for role in SEARCHED])
    policy = load(CONFIGS / "planted.tpl")
    found = {role: arena.measure(policy, role, "full") for role in SEARCHED}
    gain = judging.gain(found["validation"])
    standing = Standing(
        train=judging.score(found["train"]), validation=judging.score(found["validation"]), gain=gain,
        violations=judging.violations(found["validation"]), best_classic=0.0, goal=gain,
    )  # fmt: skip
    assert all(check.passed for check in judge(planted.gate, standing))


@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_found(seed: int, planted: Problem, tmp_path: Path) -> None:
    outcome = run_evolution(planted, seed, tmp_path / "run", 2)
    assert outcome.reached
    assert status_of(outcome.folder) == REACHED
    assert outcome.classic is None


def test_the_trace_is_valid_and_seeded() -> None:
    table = generate_planted(3, 500)
    table.check()
    assert len(table) == 500
    assert (table.ids == generate_planted(3, 500).ids).all()
    assert not (table.arrival_us == generate_planted(4, 500).arrival_us).all()
    assert read_trace("planted:3:500").arrival_us.tolist() == table.arrival_us.tolist()
