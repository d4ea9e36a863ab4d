"""The race: who goes on after the short stage, and that it changes speed, not what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tanren_dsl.evolve.breeding import Breeder
from tanren_dsl.evolve.candidate import Candidate, classics, from_text
from tanren_dsl.evolve.executor import InProcess
from tanren_dsl.evolve.generator import Generator
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.measures import Judge
from tanren_dsl.evolve.population import Population
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.racing import run_off
from tanren_dsl.evolve.sections import Racing
from tanren_dsl.evolve.setup import prepare
from tanren_dsl.evolve.store import Store
from tests.evolve.conftest import rows


def test_the_better_part_goes_on_and_twins_do_not(tiny: Problem, tmp_path: Path) -> None:
    ground = prepare(tiny)
    arena = ground.arena(("train",), short=True)
    judge = Judge(arena, [("train", "full"), ("train", "short")])
    executor = InProcess(arena)
    store = Store.create(tmp_path / "run", "")
    population = Population(judge, 0.01, store, lambda _: None, 0)
    known = classics(ground.primitives)
    population.measure(known, "train", "short", executor, "")
    heat = run_off(Racing(keep=0.01), known, population)
    assert set(heat.going) == set(known), "classics always go on"
    population.measure(known, "train", "full", executor, "")

    def candidate(body: str) -> Candidate:
        return from_text(f"policy p : evict order by {body}", ground.primitives, "test")

    twin = candidate("last_use, uses")  # decides as lru: no two blocks are released at one moment
    bad = candidate("-age * uses candidates all")
    good = candidate("uses, last_use")
    new = [twin, bad, good]
    population.measure(new, "train", "short", executor, "")
    ranked = sorted([bad, good], key=lambda one: -population.score(one, "train", "short"))
    heat = run_off(Racing(keep=0.5), new, population)
    lru = next(one for one in known if one.classic == "lru")
    assert heat.stopped[twin.key] == f"behaves as {lru.key[:8]} in the short stage"
    assert list(heat.going) == ranked[:1]
    assert heat.stopped[ranked[1].key] == "place 2 of 2 in the short stage"
    store.close()


def test_of_twins_the_simplest_is_looked_at(tiny: Problem, tmp_path: Path) -> None:
    ground = prepare(tiny)
    arena = ground.arena(("train",), short=True)
    judge = Judge(arena, [("train", "full"), ("train", "short")])
    store = Store.create(tmp_path / "run", "")
    population = Population(judge, 0.01, store, lambda _: None, 0)
    bodies = ("uses, last_use, chain", "uses, last_use")
    new = [from_text(f"policy p : evict order by {body}", ground.primitives, "test") for body in bodies]
    population.measure(new, "train", "short", InProcess(arena), "")
    assert population.behaviour(new[0], "train", "short") == population.behaviour(new[1], "train", "short")
    heat = run_off(Racing(keep=1.0), new, population)
    assert [one.key for one in heat.going] == [new[1].key]
    store.close()


def test_what_was_stopped_has_no_score_on_train(tiny: Problem, tmp_path: Path) -> None:
    outcome = run_evolution(tiny, 2, tmp_path / "run")
    stopped = rows(outcome.folder, "select short, train, note from candidates where state = 'stopped'")
    assert len(stopped) == outcome.stopped > 0
    assert all(train is None and note for _, train, note in stopped)


def test_without_a_race_everything_is_measured_in_full(tiny: Problem, tmp_path: Path) -> None:
    slow = replace(tiny, racing=replace(tiny.racing, on=False))
    outcome = run_evolution(slow, 2, tmp_path / "run")
    assert outcome.stopped == 0
    assert rows(outcome.folder, "select count(*) from evaluations where stage = 'short'") == [(0,)]
    assert rows(
        outcome.folder, "select count(*) from candidates where state = 'scored' and train is null"
    ) == [(0,)]


def test_survivors_are_few_of_a_kind(tiny: Problem, tmp_path: Path) -> None:
    ground = prepare(tiny)
    arena = ground.arena(("train",))
    judge = Judge(arena, [("train", "full")])
    store = Store.create(tmp_path / "run", "")
    population = Population(judge, 0.0, store, lambda _: None, 0)
    bodies = [f"uses * {number} + age / mean(age), last_use" for number in range(1, 6)]
    bodies += ["uses / (age / mean(age)), last_use", "uses - age / mean(age), last_use", "spaced_uses, age"]
    bodies += ["age / mean(age) - uses, last_use", "uses * (age / mean(age)), last_use"]
    made = [from_text(f"policy p : evict order by {body}", ground.primitives, "test") for body in bodies]
    population.measure(made, "train", "full", InProcess(arena), "")
    found = population.survivors(20)
    assert len({one.shape for one in found}) == len(found)
    readers = [one.signals for one in found]
    assert max(readers.count(signals) for signals in readers) <= 3
    assert len(found) < len(population.distinct())
    breeder = Breeder(tiny, 0, ground.primitives, Generator(ground.primitives))
    assert len(breeder.next(1, population, [])) == tiny.search.population
    store.close()
