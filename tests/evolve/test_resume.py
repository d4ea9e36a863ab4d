"""A run that is killed goes on as if nothing had happened: nothing lost, nothing measured twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.store import REACHED, RUNNING, Store, status_of
from tests.evolve.conftest import TINY, everything, rows


def started(config: Path, out: Path, workers: int, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tanren_dsl", "evolve", str(config), "--seed", "3", "--out", str(out)]
    return subprocess.Popen(
        [*command, "--workers", str(workers), "--json", *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def evaluated(out: Path) -> int:
    if not (out / "run.sqlite").exists():
        return -1
    return int(rows(out, "select count(*) from evaluations")[0][0])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_goes_on_to_the_same_end(workers: int, tmp_path: Path) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(TINY, encoding="utf-8")
    whole = tmp_path / "whole"
    process = started(config, whole, workers)
    process.communicate()
    assert process.returncode == 0
    expected, count = everything(whole), evaluated(whole)

    rng = Random(workers)
    for moment in sorted(rng.sample(range(count), 5)):
        out = tmp_path / f"killed-{moment}"
        process = started(config, out, workers)
        while evaluated(out) < moment and process.poll() is None:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.01)  # amid the next one, or at its writing
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        if process.returncode:
            assert status_of(out) == RUNNING
        kept = rows(out, "select rowid, hash, role, stage from evaluations order by rowid")
        assert len(kept) >= moment

        again = started(config, out, workers, "--resume")
        _, said = again.communicate()
        assert again.returncode == 0, said.decode()
        assert everything(out) == expected
        assert rows(out, "pragma integrity_check") == [("ok",)]
        assert status_of(out) == REACHED
        after = rows(out, "select rowid, hash, role, stage from evaluations order by rowid")
        assert after[: len(kept)] == kept, "what was measured is not written again"
        assert len(after) == count


def test_a_finished_run_resumed_says_the_same_without_measuring(tiny: Problem, tmp_path: Path) -> None:
    first = run_evolution(tiny, 3, tmp_path / "run")
    before = everything(first.folder)
    again = run_evolution(tiny, 3, tmp_path / "run", resume=True)
    assert again == first
    assert everything(again.folder) == before


def test_another_problem_seed_or_trace_is_refused(tiny: Problem, tmp_path: Path) -> None:
    run_evolution(replace(tiny, search=replace(tiny.search, generations=1)), 3, tmp_path / "run")
    changed = replace(tiny, search=replace(tiny.search, generations=1, complexity=0.02))
    for problem, seed in ((tiny, 3), (changed, 3), (replace(changed, search=tiny.search), 4)):
        with pytest.raises(TanrenError, match="holds a run of another problem or seed"):
            run_evolution(problem, seed, tmp_path / "run", resume=True)


def test_where_no_run_was_made_yet_one_begins(tiny: Problem, tmp_path: Path) -> None:
    small = replace(tiny, search=replace(tiny.search, generations=1))
    whole = run_evolution(small, 3, tmp_path / "whole")
    drafted = tmp_path / "drafted"  # as a kill between the files leaves it
    (drafted / "champions").mkdir(parents=True)
    (drafted / "run.toml").write_text("name", encoding="utf-8")
    (drafted / ".run.sqlite").write_bytes(b"")
    for out in (tmp_path / "nowhere", drafted):
        assert run_evolution(small, 3, out, resume=True).rows == whole.rows


def test_two_processes_do_not_share_a_folder(tiny: Problem, tmp_path: Path) -> None:
    small = replace(tiny, search=replace(tiny.search, generations=1))
    run_evolution(small, 3, tmp_path / "run")
    store = Store.open(tmp_path / "run")
    with pytest.raises(TanrenError, match="run: another process works there"):
        run_evolution(small, 3, tmp_path / "run", resume=True)
    Store.open(tmp_path / "run", reads=True).close()
    store.close()
    assert run_evolution(small, 3, tmp_path / "run", resume=True).reached


def test_a_trace_that_changed_is_refused(tiny: Problem, tmp_path: Path) -> None:
    from tanren_dsl.trace.mooncake import write_mooncake
    from tanren_dsl.trace.read import read_trace

    path = tmp_path / "trace.jsonl"
    write_mooncake(read_trace("chat:3:160"), path)
    problem = replace(tiny, trace=str(path), search=replace(tiny.search, generations=1))
    run_evolution(problem, 3, tmp_path / "run")
    write_mooncake(read_trace("chat:4:160"), path)
    with pytest.raises(TanrenError, match="has changed since the run began"):
        run_evolution(problem, 3, tmp_path / "run", resume=True)
