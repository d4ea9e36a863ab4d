from __future__ import annotations

from collections.abc import Sequence

import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.scoring.arms import classic_arms, policy_arms
from tanren_dsl.scoring.board import score_board
from tanren_dsl.scoring.results import Board
from tanren_dsl.scoring.runs import Runs
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.sim.latency import Latency
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable
from tests.public import AZURE, public_trace

LATENCY = Latency("test", "made up for tests", "estimate", 20_000.0, 80.0, 10_000.0, 400.0, 300.0, 200.0)
SMALL = Settings(requests=120, capacity=8000, max_num_seqs=16, candidates=6)


def board_of(settings: Settings, names: Sequence[str], trace: RequestTable | None = None) -> Board:
    """A scoreboard of packaged policies."""
    classics = classic_arms(compile_ordering, settings)
    chosen = [arm.policy for name in names for arm in classics if arm.label == name if arm.policy]
    assert len(chosen) == len(names)
    table = read_trace("chat:1:1000") if trace is None else trace
    runs = Runs(table, settings, latency=LATENCY)
    return score_board(runs, policy_arms(chosen, compile_ordering, settings, classics), classics)


@pytest.fixture(scope="session")
def azure() -> RequestTable:
    """The public Azure conversation trace of 2023."""
    return public_trace(AZURE)


@pytest.fixture(scope="session")
def small() -> Board:
    """A scoreboard of three policies on the generated trace, without the guard."""
    return board_of(SMALL.changed(guard=False), ["fcfs", "sjf", "aged_sjf"])
