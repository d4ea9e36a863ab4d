"""Whole runs: the same at any number of workers, honest at the end, valid on disk."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import load, loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.executor import InProcess, Job, Workers
from tanren_dsl.evolve.fitness import Bench, cost_of, measure
from tanren_dsl.evolve.loop import Step, run_evolution
from tanren_dsl.evolve.outcome import verdict_of
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.store import FINISHED, INTERRUPTED, Store, status_of
from tanren_dsl.evolve.windows import Cut, cut_windows
from tanren_dsl.sim.replay import simulate, simulate_stock
from tanren_dsl.trace.mooncake import write_mooncake
from tanren_dsl.trace.read import read_trace

LRU = "policy lru : evict order by last_use"
FAULTY = "policy f : evict order by exp(uses + 700) * exp(uses + 700)"


def bench_of(problem: Problem) -> Bench:
    trace = read_trace(problem.trace)
    windows = cut_windows(trace, problem.train, problem.validation, problem.capacities)
    return Bench(windows, problem.engine)


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(folder / "run.sqlite")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def test_the_same_seed_gives_the_same_run_at_1_and_2_workers(tiny: Problem, tmp_path: Path) -> None:
    first = run_evolution(tiny, 5, tmp_path / "one", 1)
    second = run_evolution(tiny, 5, tmp_path / "two", 2)
    assert first.text == second.text
    assert first.rows == second.rows
    query = "select * from candidates order by hash"
    assert rows(first.folder, query) == rows(second.folder, query)
    query = "select * from births order by generation, place"
    assert rows(first.folder, query) == rows(second.folder, query)


def test_a_run_says_what_it_found_and_leaves_a_valid_folder(tiny: Problem, tmp_path: Path) -> None:
    steps: list[Step] = []
    outcome = run_evolution(tiny, 0, tmp_path / "run", 1, steps.append)
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
    windows = {(window.role, window.label): window for window in bench_of(tiny).windows}
    champions = [row for row in outcome.rows if row.family == "champion"]
    assert len(champions) == 3 * 2
    for row in champions:
        table = windows[row.role, row.window].table
        assert simulate(table, champion, compile_ordering, row.capacity).hits == row.hits
        stock = simulate_stock(table, row.capacity).hit_rate
        assert row.points == pytest.approx(100 * (row.hit_rate - stock))
    for row in outcome.rows:
        bound = next(
            other for other in outcome.rows
            if other.family == "bound" and (other.window, other.size) == (row.window, row.size)
        )  # fmt: skip
        assert row.hits <= bound.hits

    assert status_of(outcome.folder) == FINISHED
    assert rows(outcome.folder, "pragma integrity_check") == [("ok",)]
    assert rows(outcome.folder, "pragma foreign_key_check") == []
    (births,) = rows(outcome.folder, "select count(*), count(distinct generation) from births")
    assert births == (tiny.search.population * tiny.search.generations, tiny.search.generations)
    known = {row[0] for row in rows(outcome.folder, "select hash from candidates")}
    for text, parents in rows(outcome.folder, "select text, parents from candidates"):
        loads(str(text))
        assert set(json.loads(str(parents))) <= known
    judged = rows(outcome.folder, "select count(*) from candidates where validation is not null")
    assert judged[0][0] <= tiny.search.finalists + 7 + 10  # finalists, and the classics beside them
    assert not list(outcome.folder.rglob(".*"))


def test_a_folder_that_holds_something_is_not_overwritten(tiny: Problem, tmp_path: Path) -> None:
    Store.create(tmp_path / "run", "").close()
    with pytest.raises(TanrenError, match=r"run holds a run \(running\)"):
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
        run_evolution(replace(tiny, train=(Cut(0, 900),)), 0, tmp_path / "run")
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
        store.note(status=FINISHED)
    store.close()


def test_an_interrupt_leaves_what_was_done(tiny: Problem, tmp_path: Path) -> None:
    def stop(step: Step) -> None:
        if step.phase == "generation 3 of 3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_evolution(tiny, 0, tmp_path / "run", 1, stop)
    assert status_of(tmp_path / "run") == INTERRUPTED
    assert rows(tmp_path / "run", "select max(generation) from births") == [(1,)]
    assert rows(tmp_path / "run", "pragma integrity_check") == [("ok",)]


def test_a_worker_that_dies_costs_one_candidate(tiny: Problem) -> None:
    workers = Workers(bench_of(tiny), 1)
    try:
        (first,) = workers.run([Job("a", LRU, "train")])
        assert first.error is None
        os.kill(workers.pids()[0], signal.SIGKILL)
        results = {result.key: result for result in workers.run([Job(k, LRU, "train") for k in "bc"])}
    finally:
        workers.close()
    assert [key for key, result in sorted(results.items()) if result.error is not None] == ["b"]
    assert "ended with code -9" in str(results["b"].error)
    assert results["c"].counts == first.counts


def test_a_worker_leaves_an_interrupt_to_its_parent(tiny: Problem) -> None:
    workers = Workers(bench_of(tiny), 1)
    try:
        list(workers.run([Job("a", LRU, "train")]))
        os.kill(workers.pids()[0], signal.SIGINT)
        (result,) = workers.run([Job("b", LRU, "train")])
    finally:
        workers.close()
    assert result.error is None
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_cannot_be_measured_is_a_failure_with_a_reason(tiny: Problem) -> None:
    (result,) = InProcess(bench_of(tiny)).run([Job("a", "policy p : evict order by speed", "train")])
    assert result.counts == ()
    assert "unknown name `speed`" in str(result.error)


def test_a_fault_ends_a_measurement(tiny: Problem) -> None:
    counts = measure(bench_of(tiny), FAULTY, "train")
    assert counts[-1].faults > 0
    assert all(count.faults == 0 for count in counts[:-1])


def test_without_classics_or_survivors_a_run_still_ends(tiny: Problem, tmp_path: Path) -> None:
    search = replace(tiny.search, seeds=False, population=2, generations=2, finalists=1)
    outcome = run_evolution(replace(tiny, search=search), 1, tmp_path / "run")
    assert outcome.verdict


def test_complexity_is_priced_on_the_normal_form() -> None:
    assert cost_of(loads("policy p : evict order by --uses * 1 + 0")) == cost_of(
        loads("policy p : evict order by uses")
    )


def test_no_gain_is_said_in_words() -> None:
    assert verdict_of("e", None, 3.0, -0.5, {"lru": 0.0}).startswith("no gain over LRU")
    assert "no more than the best classic there, slru" in verdict_of(
        "e", None, 3.0, 0.5, {"lru": 0.0, "slru": 1.0}
    )
    assert "the classic slru" in verdict_of("e", "slru", 3.0, 0.5, {})
