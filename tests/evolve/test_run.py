"""Whole runs: the same at any number of workers, honest at the end, valid on disk."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tanren_dsl.check import load, loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.candidate import cost_of
from tanren_dsl.evolve.executor import InProcess, Job, Workers
from tanren_dsl.evolve.gate import Check
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.measures import Arena, Judge
from tanren_dsl.evolve.outcome import verdict_of
from tanren_dsl.evolve.population import Step
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.setup import prepare
from tanren_dsl.evolve.store import INTERRUPTED, MISSED, REACHED, Store, status_of
from tanren_dsl.evolve.windows import SEARCHED, Cut
from tanren_dsl.trace.mooncake import write_mooncake
from tanren_dsl.trace.read import read_trace
from tests.evolve.conftest import everything, rows

LRU = "policy lru : evict order by last_use"
FAULTY = "policy f : evict order by exp(uses + 700) * exp(uses + 700)"


def arena_of(problem: Problem) -> Arena:
    return prepare(problem).arena(SEARCHED, short=True)


@pytest.mark.parametrize("name", ["tiny", "served"])
def test_the_same_seed_gives_the_same_run_at_1_and_2_workers(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    problem: Problem = request.getfixturevalue(name)
    first = run_evolution(problem, 5, tmp_path / "one", 1)
    second = run_evolution(problem, 5, tmp_path / "two", 2)
    assert first.text == second.text
    assert first.rows == second.rows
    assert everything(first.folder) == everything(second.folder)


@pytest.mark.parametrize("name", ["tiny", "served"])
def test_a_run_says_what_it_found_and_leaves_a_valid_folder(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    problem: Problem = request.getfixturevalue(name)
    steps: list[Step] = []
    outcome = run_evolution(problem, 0, tmp_path / "run", 1, steps.append)
    champion = load(outcome.path)
    assert champion.name == outcome.name
    assert outcome.name.startswith("evolved_0_")
    assert champion.doc is not None
    assert "3 finalists" in champion.doc
    assert outcome.path.read_text(encoding="utf-8") == outcome.text
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert all(step.done <= step.total for step in steps)
    assert json.loads(json.dumps(outcome.as_json()))["verdict"] == outcome.verdict

    # what is printed of the champion is what the simulator says of its file
    arena = arena_of(problem)
    judge = Judge(arena, [(role, "full") for role in SEARCHED])
    printed = [row for row in outcome.rows if row.family == "champion"]
    measures = [one for role in SEARCHED for one in arena.measure(champion, role, "full")]
    assert [row.label for row in printed] == [one.place.label for one in measures]
    assert [tuple(row.figures.values()) for row in printed] == [one.figures for one in measures]
    assert [row.score for row in printed] == [one.score for one in judge.worth(measures)]
    for role in SEARCHED:
        found = [row.score for row in printed if row.role == role]
        assert outcome.totals[role] == pytest.approx(sum(found))
        assert getattr(outcome, role) == pytest.approx(sum(found) / len(found))

    assert status_of(outcome.folder) == REACHED
    assert rows(outcome.folder, "pragma integrity_check") == [("ok",)]
    assert rows(outcome.folder, "pragma foreign_key_check") == []
    (births,) = rows(outcome.folder, "select count(*), count(distinct generation) from births")
    assert births[0] >= problem.search.population * problem.search.generations
    assert births[1] == problem.search.generations
    known = {row[0] for row in rows(outcome.folder, "select hash from candidates")}
    for text, parents in rows(outcome.folder, "select text, parents from candidates"):
        loads(str(text))
        assert set(json.loads(str(parents))) <= known
    assert len({one.cost for one in outcome.front}) == len(outcome.front)
    assert [one.score for one in outcome.front] == sorted(one.score for one in outcome.front)
    assert not list(outcome.folder.rglob(".*"))


def test_belady_is_never_beaten(tiny: Problem, tmp_path: Path) -> None:
    outcome = run_evolution(tiny, 0, tmp_path / "run")
    bounds = {(row.role, row.window, row.label): row for row in outcome.rows if row.family == "bound"}
    for row in outcome.rows:
        assert row.figures["hits"] <= bounds[row.role, row.window, row.label].figures["hits"]


def test_a_run_that_misses_its_gate_did_not_reach(tiny: Problem, tmp_path: Path) -> None:
    outcome = run_evolution(replace(tiny, gate=replace(tiny.gate, score=99.0)), 0, tmp_path / "run")
    assert not outcome.reached
    assert status_of(outcome.folder) == MISSED
    assert outcome.verdict.startswith(
        "did not reach its gate; score: wanted a mean score on validation above"
    )


def test_a_folder_that_holds_something_is_not_overwritten(tiny: Problem, tmp_path: Path) -> None:
    Store.create(tmp_path / "run", "").close()
    with pytest.raises(TanrenError, match=r"run holds a run \(running\)[\s\S]*--resume"):
        run_evolution(tiny, 0, tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine", encoding="utf-8")
    for may_replace in (False, True):
        with pytest.raises(TanrenError, match="other is not empty"):
            run_evolution(tiny, 0, tmp_path / "other", replace=may_replace)
    Store.create(tmp_path / "run", "", replace=True).close()


def test_any_name_of_a_trace_gives_a_valid_champion(tiny: Problem, tmp_path: Path) -> None:
    path = tmp_path / 'two\nlines "quoted"\x1b\udcff.jsonl'
    write_mooncake(read_trace(tiny.trace), path)
    search = replace(tiny.search, generations=1, finalists=1)
    outcome = run_evolution(replace(tiny, trace=str(path), search=search), 1, tmp_path / "run")
    doc = str(load(outcome.path).doc)
    assert "two lines 'quoted'??.jsonl" in doc
    assert ("The classic" in doc) == (outcome.classic is not None)
    assert any(note.startswith("block size") for note in outcome.notes)


def test_windows_that_do_not_fit_are_named_with_the_file(tiny: Problem, tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match=r"tiny\.toml: windows\.train\[0\]: requests 0 to 900"):
        run_evolution(replace(tiny, windows={**tiny.windows, "train": (Cut(0, 900),)}), 0, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("tanren_dsl.evolve.store.sqlite3.connect", fail)
        with pytest.raises(TanrenError, match=r"cannot write .*run: database or disk is full"):
            Store.create(tmp_path / "run", "")
    assert list((tmp_path / "run").iterdir()) == []
    Store.create(tmp_path / "run", "").close()


def test_a_disk_that_fails_is_not_called_a_bug(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "run", "")
    db = sqlite3.connect(tmp_path / "run" / "run.sqlite")
    db.execute("drop table run")
    db.commit()
    db.close()
    with pytest.raises(TanrenError, match=r"cannot write .*run: no such table"):
        store.note(status=REACHED)
    store.close()


def test_an_interrupt_leaves_what_was_done(tiny: Problem, tmp_path: Path) -> None:
    def stop(step: Step) -> None:
        if step.phase == "generation 3 of 3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_evolution(tiny, 0, tmp_path / "run", 1, stop)
    assert status_of(tmp_path / "run") == INTERRUPTED
    assert rows(tmp_path / "run", "select max(generation) from births") == [(1,)]
    assert rows(tmp_path / "run", "select count(*) > 20 from evaluations") == [(1,)]
    assert rows(tmp_path / "run", "pragma integrity_check") == [("ok",)]


def test_a_worker_that_dies_costs_one_candidate(tiny: Problem) -> None:
    workers = Workers(arena_of(tiny), 1)
    try:
        (first,) = workers.run([Job("a", LRU, "train")])
        assert first.error is None
        os.kill(workers.pids()[0], signal.SIGKILL)
        results = {result.hash: result for result in workers.run([Job(k, LRU, "train") for k in "bc"])}
    finally:
        workers.close()
    assert [key for key, result in sorted(results.items()) if result.error is not None] == ["b"]
    assert "ended with code -9" in str(results["b"].error)
    assert results["c"].measures == first.measures


def test_a_worker_leaves_an_interrupt_to_its_parent(tiny: Problem) -> None:
    workers = Workers(arena_of(tiny), 1)
    try:
        list(workers.run([Job("a", LRU, "train")]))
        os.kill(workers.pids()[0], signal.SIGINT)
        (result,) = workers.run([Job("b", LRU, "train")])
    finally:
        workers.close()
    assert result.error is None
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_cannot_be_measured_is_a_failure_with_a_reason(tiny: Problem) -> None:
    (result,) = InProcess(arena_of(tiny)).run([Job("a", "policy p : evict order by speed", "train")])
    assert result.measures == ()
    assert "unknown name `speed`" in str(result.error)


def test_a_fault_ends_a_measurement(tiny: Problem) -> None:
    found = arena_of(tiny).measure(loads(FAULTY), "train", "full")
    assert found[-1].faults > 0
    assert all(one.faults == 0 for one in found[:-1])


def test_a_worker_that_hangs_is_given_up(tiny: Problem) -> None:
    workers = Workers(arena_of(tiny), 1, limit_s=0.0)
    try:
        results = list(workers.run([Job(key, LRU, "train") for key in "ab"]))
    finally:
        workers.close()
    assert [result.hash for result in results] == ["a", "b"]
    assert all(result.error is None or "it took longer than 0 s" in result.error for result in results)
    assert any(result.error for result in results)


def test_without_classics_or_survivors_a_run_still_ends(tiny: Problem, tmp_path: Path) -> None:
    search = replace(tiny.search, seeds=False, population=2, generations=2, finalists=1)
    outcome = run_evolution(replace(tiny, search=search), 1, tmp_path / "run")
    assert outcome.verdict


def test_complexity_is_priced_on_the_normal_form() -> None:
    assert cost_of(loads("policy p : evict order by --uses * 1 + 0")) == cost_of(
        loads("policy p : evict order by uses")
    )


def test_no_gain_is_said_in_words() -> None:
    passed = [Check("score", "anything", 0.0, True)]

    def said(classic: str | None, validation: float, rivals: dict[str, float]) -> str:
        scores = {"train": 3.0, "validation": validation}
        return verdict_of("e", classic, passed, scores, rivals, "LRU", "points")  # type: ignore[arg-type]

    assert "; no gain over LRU: -0.5 points on validation" in said(None, -0.5, {"lru": 0.0})
    assert "no more than the best classic there, slru" in said(None, 0.5, {"lru": 0.0, "slru": 1.0})
    assert "exactly as the classic slru" in said("slru", 0.5, {})
