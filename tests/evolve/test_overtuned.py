"""A candidate that was tuned to its training window passes training, and the gate stops it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.evolve.loop import run_evolution
from tanren_dsl.evolve.problem import parse_problem
from tanren_dsl.evolve.store import MISSED, status_of
from tanren_dsl.sim.replay import simulate
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable

PROBLEM = """
name = "overtuned"
trace = "chat:3:600"
candidates = ["all"]

[windows]
train = [[0, 200]]
validation = [[200, 600]]

[capacities]
fractions = [0.25]

[search]
start = ["overtuned.tpl"]
seeds = false
population = 2
generations = 1
finalists = 1
complexity = 0.0

[racing]
on = false

[tuning]
every = 0

[limits]
nodes = 400

[gate]
score = 0.05
kept = 0.5
"""


def overtuned(train: RequestTable, capacity: int) -> str:
    """LRU that remembers which lengths of prompt paid off in one window: a list, not a rule."""
    lengths = np.unique(train.prompt_tokens // train.block_tokens + 1)
    kept: list[int] = []
    best = 0
    rng = np.random.default_rng(0)
    for length in rng.permutation(lengths):
        tried = simulate(train, loads(text_of([*kept, int(length)])), compile_ordering, capacity).hits
        if tried > best:
            kept, best = [*kept, int(length)], tried
    return text_of(kept)


def text_of(lengths: list[int]) -> str:
    named = " or ".join(f"floor(chain / block_size) == {length}" for length in lengths)
    return f"policy overtuned : evict order by 1 if {named} else 0, last_use candidates all"


def test_a_list_of_what_paid_off_in_training_is_stopped(tmp_path: Path) -> None:
    trace = read_trace("chat:3:600")
    train = trace.slice(0, 200)
    text = overtuned(train, int(np.ceil(0.25 * train.distinct_blocks)))
    (tmp_path / "overtuned.tpl").write_text(text, encoding="utf-8")
    problem = parse_problem(PROBLEM, "overtuned.toml", tmp_path)

    outcome = run_evolution(problem, 0, tmp_path / "run")
    assert "floor(chain / block_size) ==" in outcome.text
    assert outcome.train > problem.gate.score, "it passes what training asks"
    assert not outcome.reached
    assert status_of(outcome.folder) == MISSED
    missed = [check.name for check in outcome.checks if not check.passed]
    assert "kept" in missed

    lax = replace(problem, gate=replace(problem.gate, score=-100.0, kept=0.0, violations=9))
    assert run_evolution(lax, 0, tmp_path / "lax").reached, "nothing but the gate stops it"
