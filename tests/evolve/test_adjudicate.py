"""The hold-out is looked at once, by a champion that passed its gate, and every look is written down."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tanren_dsl.check import load
from tanren_dsl.cli.adjudicate import adjudicate as command
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.adjudicate import SealedError, adjudicate
from tanren_dsl.evolve.ledger import begin_look, looks
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.measures import Judge
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.evolve.resolved import reopen
from tanren_dsl.evolve.store import Store
from tests.evolve.conftest import rows


def silent(_: object) -> None:
    """Progress for nobody."""


def finished(problem: Problem, out: Path) -> Path:
    small = replace(problem, search=replace(problem.search, generations=1))
    assert run_evolution(small, 1, out).reached
    return out


@pytest.mark.parametrize("name", ["tiny", "served"])
def test_a_look_says_what_the_simulator_says_of_the_hold_out(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = finished(request.getfixturevalue(name), tmp_path / "run")
    verdict = adjudicate(folder, silent)
    store = Store.open(folder)
    ground = reopen(store)
    arena = ground.arena(("holdout",))
    champion = load(folder / "champions" / f"{verdict.policy}.tpl")
    judge = Judge(arena, [("holdout", "full")])
    measures = arena.measure(champion, "holdout", "full")
    assert verdict.total == pytest.approx(sum(one.score for one in judge.worth(measures)))
    assert verdict.gain == pytest.approx(judge.gain(measures))
    assert verdict.look == 1
    own = [row for row in verdict.rows if row.family == "champion"]
    assert [tuple(row.figures.values()) for row in own] == [one.figures for one in measures]
    assert {row.role for row in verdict.rows} == {"holdout"}
    for one in verdict.intervals:
        assert one.low <= one.value <= one.high
    here = [one for one in verdict.sweeps if one.cache == 1.0 and one.block_tokens == 16]
    assert [one.gain for one in here] == [pytest.approx(verdict.gain)]
    assert verdict.confirmed == (not verdict.reasons)
    (look,) = looks(store)
    assert look.result == json.loads(json.dumps(verdict.as_json()))
    store.close()


def test_a_second_look_is_numbered_and_says_so(tiny: Problem, tmp_path: Path) -> None:
    folder = finished(tiny, tmp_path / "run")
    runner = CliRunner()
    first = runner.invoke(command, [str(folder)])
    assert "look 1: sealed until now" in first.output
    assert first.exit_code == (0 if "verdict: confirmed" in first.output else 3)
    second = runner.invoke(command, [str(folder)])
    assert "look 2: only the first look was sealed" in second.output
    shown = runner.invoke(command, [str(folder), "--show", "--json"])
    assert [row["look"] for row in json.loads(shown.output)] == [1, 2]
    assert [row["state"] for row in json.loads(shown.output)] == ["done", "done"]


def test_a_look_that_did_not_end_counts(tiny: Problem, tmp_path: Path) -> None:
    folder = finished(tiny, tmp_path / "run")
    store = Store.open(folder)
    begin_look(store, "killed", "x")
    store.close()
    assert adjudicate(folder, silent).look == 2


def test_looks_of_other_runs_at_the_same_requests_are_said(tiny: Problem, tmp_path: Path) -> None:
    first = finished(tiny, tmp_path / "first")
    adjudicate(first, silent)
    second = finished(replace(tiny, name="other"), tmp_path / "second")
    assert adjudicate(second, silent).elsewhere == ("first (1)",)


def test_a_run_that_missed_its_gate_leaves_the_hold_out_sealed(tiny: Problem, tmp_path: Path) -> None:
    missed = replace(tiny, gate=replace(tiny.gate, score=99.0), search=replace(tiny.search, generations=1))
    run_evolution(missed, 1, tmp_path / "run")
    with pytest.raises(SealedError, match="marked `did not reach`: its hold-out stays sealed"):
        adjudicate(tmp_path / "run", silent)
    assert rows(tmp_path / "run", "select count(*) from ledger") == [(0,)]
    result = CliRunner().invoke(command, [str(tmp_path / "run")])
    assert result.exit_code == 3


def test_a_champion_that_was_changed_is_refused(tiny: Problem, tmp_path: Path) -> None:
    folder = finished(tiny, tmp_path / "run")
    (path,) = (folder / "champions").iterdir()
    path.write_text("policy p : evict order by gap + lifetime", encoding="utf-8")
    with pytest.raises(TanrenError, match="it was changed"):
        adjudicate(folder, silent)
    assert rows(folder, "select count(*) from ledger") == [(0,)]


def test_without_a_hold_out_there_is_nothing_to_judge(tiny: Problem, tmp_path: Path) -> None:
    windows = {role: cuts for role, cuts in tiny.windows.items() if role != "holdout"}
    folder = finished(replace(tiny, windows=windows), tmp_path / "run")
    with pytest.raises(TanrenError, match="names no hold-out"):
        adjudicate(folder, silent)


def test_the_search_never_reads_the_hold_out(tiny: Problem, tmp_path: Path) -> None:
    from tanren_dsl.trace.mooncake import write_mooncake
    from tanren_dsl.trace.read import read_trace

    trace = read_trace("chat:3:160")
    path = tmp_path / "trace.jsonl"
    texts = []
    for number, shift in enumerate((0, 1000)):
        outputs = trace.output_tokens.copy()
        arrival = trace.arrival_us.copy()
        outputs[120:] += shift
        arrival[120:] += np.arange(40) * shift
        write_mooncake(replace(trace, output_tokens=outputs, arrival_us=arrival), path)
        outcome = run_evolution(replace(tiny, trace=str(path)), 3, tmp_path / f"run-{number}")
        texts.append((outcome.text, outcome.rows, outcome.verdict))
    assert texts[0] == texts[1]
