"""Problems small enough to search within a test."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.evolve.problem import Problem, parse_problem

TINY = """
name = "tiny"
trace = "chat:3:160"
candidates = [10, "all"]

[windows]
train = [[0, 40], [40, 80]]
validation = [[0.5, 0.75]]
holdout = [[0.75, 1.0]]

[capacities]
blocks = [1200]
fractions = [0.4]

[search]
population = 12
survivors = 6
generations = 3
finalists = 3

[racing]
share = 0.6

[tuning]
every = 2
best = 1
steps = 2
population = 4

[gate]
score = -100.0
kept = 0.0
violations = 10

[knobs.budget]
unit = "tokens"
value = 1024
"""

SERVED = """
name = "served"
kind = "schedule"
mode = "serving"
trace = "chat:3:400"

[windows]
train = { within = [0.0, 0.5], count = 2, requests = 80 }
validation = [[200, 300]]
holdout = [[300, 400]]

[load]
shares = [0.9, 1.2]

[server]
capacity = 4000
max_num_seqs = 8

[search]
population = 10
survivors = 5
generations = 2
finalists = 3

[tuning]
every = 0

[gate]
score = -100000.0
kept = 0.0
violations = 100
"""


@pytest.fixture
def tiny_text() -> str:
    return TINY


@pytest.fixture
def tiny() -> Problem:
    return parse_problem(TINY, "tiny.toml", Path())


@pytest.fixture
def served() -> Problem:
    return parse_problem(SERVED, "served.toml", Path())


def rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    db = sqlite3.connect(folder / "run.sqlite")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What two runs that are the same must share."""
    return {
        "candidates": rows(folder, "select * from candidates order by hash"),
        "births": rows(folder, "select * from births order by generation, place"),
        "evaluations": rows(folder, "select * from evaluations order by hash, role, stage"),
        "champion": rows(folder, "select value from run where key in ('champion', 'verdict') order by key"),
    }
