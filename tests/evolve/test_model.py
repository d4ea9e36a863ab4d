"""A run with a language model: its policies compete, nothing is paid twice, and it can be replayed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.problem import parse_problem
from tests.evolve.conftest import SERVED, TINY, everything, rows
from tests.evolve.llm.scripted import Script, Step, chat, refusal, scripted

BODIES = {
    "evict": [
        "order by uses * 2 + log1p(spaced_uses), last_use",
        "param heat = 0.5 in [0, 2]\norder by log1p(uses) * heat - age / mean(age)",
        "knob budget : tokens = 1024\nlet deep = depth > budget\norder by 0 if deep else 1, last_use",
        "order by uses + 5 * age",
        "order by (chain / mean(chain)) ** 2 - uses",
    ],
    "schedule": [
        "order by prompt_tokens / mean(prompt_tokens) - 0.2 * (wait / mean(wait))",
        "order by wait + 5",
        "order by preemptions, prompt_tokens\npreempt by computed_tokens",
    ],
}


class Writer(Script):
    """Answers each prompt with one of a few policies, the same for the same prompt; one is ill-typed."""

    kind = "evict"
    delay_s = 0.0

    def step(self) -> Step:
        time.sleep(self.delay_s)
        text = json.dumps(self.bodies[-1]["messages"])
        number = int(hashlib.sha256(text.encode()).hexdigest(), 16)
        bodies = BODIES[self.kind]
        return chat(f"```tpl\npolicy idea : {self.kind}\n{bodies[number % len(bodies)]}\n```")


@pytest.fixture
def writer() -> Iterator[Writer]:
    with scripted(Writer()) as running:
        assert isinstance(running, Writer)
        yield running


def text_of(problem: str, url: str, caps: str = "") -> str:
    search = problem.replace("[search]", "[search]\nproposals = 3")
    return f"""{search}
[models]
dialect = "plain"
base_url = "{url}"
model = "m"
attempts = 2
longest_wait_s = 0.01
{caps}
"""


@pytest.mark.parametrize("kind", ["evict", "schedule"])
def test_what_a_model_writes_competes(kind: str, writer: Writer, tmp_path: Path) -> None:
    writer.kind = kind
    problem = parse_problem(text_of(TINY if kind == "evict" else SERVED, writer.url), "p.toml")
    outcome = run_evolution(problem, 1, tmp_path / "run")
    written = rows(
        outcome.folder, "select hash, text, parents, train from candidates where operator = 'model'"
    )
    assert written
    known = {row[0] for row in rows(outcome.folder, "select hash from candidates")}
    for _, text, parents, _ in written:
        assert "idea" in text
        assert set(json.loads(parents)) <= known
        assert json.loads(parents)
    assert any(train is not None for *_, train in written) or outcome.stopped
    assert outcome.model is not None
    assert f"{len(writer.bodies):,} calls" in outcome.model

    prompt = json.dumps(writer.bodies[-1]["messages"])
    assert "order by" in prompt
    assert "requests " in prompt, "scores by window"
    assert ("regret" in prompt) or ("hits" in prompt)


def test_a_killed_run_asks_nothing_twice(writer: Writer, tmp_path: Path) -> None:
    writer.delay_s = 0.02
    config = tmp_path / "p.toml"
    config.write_text(text_of(TINY, writer.url), encoding="utf-8")

    def run(out: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tanren_dsl", "evolve", str(config), "--out", str(out), *more]
        return subprocess.Popen(
            [*command, "--workers", "1", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    whole = tmp_path / "whole"
    process = run(whole)
    _, said = process.communicate()
    assert process.returncode == 0, said.decode()
    asked = len(writer.bodies)
    assert asked > 5

    rng = Random(0)
    for moment in sorted(rng.sample(range(1, asked), 3)):
        out = tmp_path / f"killed-{moment}"
        writer.bodies.clear()
        process = run(out)
        while len(writer.bodies) < moment and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        process = run(out, "--resume")
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()
        assert everything(out) == everything(whole)
        # one call may have been under way when the process died: its answer is lost, and it is counted
        assert asked <= len(writer.bodies) <= asked + 1


def test_a_run_is_replayed_without_a_server(tmp_path: Path) -> None:
    with scripted(Writer()) as running:
        problem = parse_problem(text_of(TINY, running.url), "p.toml")
        first = run_evolution(problem, 1, tmp_path / "run")
        before = everything(first.folder)
        calls = len(running.bodies)
    again = run_evolution(problem, 1, tmp_path / "run", resume=True, replay=True)
    assert again.text == first.text
    assert everything(again.folder) == before
    assert len(running.bodies) == calls

    for table in [
        row[0] for row in rows(first.folder, "select name from sqlite_master where type = 'table'")
    ]:
        if table not in before and table not in ("run", "ledger"):
            _clear(first.folder, table)
    with pytest.raises(TanrenError, match=r"g1\.p0"):
        run_evolution(problem, 1, tmp_path / "run", resume=True, replay=True)


def test_a_cap_stops_before_the_next_call_and_the_run_goes_on(writer: Writer, tmp_path: Path) -> None:
    problem = parse_problem(text_of(TINY, writer.url, "[models.caps]\ncalls = 2"), "p.toml")
    outcome = run_evolution(problem, 1, tmp_path / "run")
    assert len(writer.bodies) <= 2
    assert outcome.model is not None
    assert "no more was asked" in outcome.model
    (births,) = rows(outcome.folder, "select count(*) from births where generation = 2")
    assert births[0] >= problem.search.population, "genetic programming fills the places"


def test_a_server_that_fails_costs_no_run(tmp_path: Path) -> None:
    with scripted() as running:
        running.steps = [refusal(500, "out of order")]
        problem = parse_problem(text_of(TINY, running.url), "p.toml")
        outcome = run_evolution(problem, 1, tmp_path / "run")
    assert rows(outcome.folder, "select count(*) from candidates where operator = 'model'") == [(0,)]
    assert outcome.reached


def _clear(folder: Path, table: str) -> None:
    import sqlite3

    db: Any = sqlite3.connect(folder / "run.sqlite")
    with db:
        db.execute(f"delete from {table}")
    db.close()
