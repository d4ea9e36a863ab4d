"""A problem small enough to search within a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tanren_dsl.evolve.problem import Problem, parse_problem

TINY = """
name = "tiny"
trace = "chat:3:160"
candidates = [10, "all"]

[windows]
train = [[0, 40], [40, 80]]
validation = [[0.5, 1.0]]

[capacities]
blocks = [1200]
fractions = [0.4]

[search]
population = 12
survivors = 6
generations = 3
finalists = 3

[knobs.budget]
unit = "tokens"
value = 1024
"""


@pytest.fixture
def tiny_text() -> str:
    return TINY


@pytest.fixture
def tiny() -> Problem:
    return parse_problem(TINY, "tiny.toml", Path())
