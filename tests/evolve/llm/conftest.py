"""A scripted server, a database, a clock that sleeping moves, and an ask."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.evolve.llm.asking import Ask, Parent
from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.proposer import Proposer
from tanren_dsl.evolve.llm.settings import ModelSettings
from tanren_dsl.syntax import Knob
from tests.evolve.llm.scripted import Script, scripted

GOOD = "policy p : evict order by age"
"""Its canonical text is `CANONICAL`."""
CANONICAL = "policy p : evict\n\norder by age\n"
ILL_TYPED = "policy p : evict order by age + 5"

ASK = Ask(
    key="g3.p12",
    kind="evict",
    mode="replay",
    objective="Gain in hit rate over LRU, in points.",
    parents=(Parent("policy lru : evict\norder by last_use\n", 0.5, (("window 1, 400 blocks", 0.5),)),),
    knobs=(Knob("budget", "tokens", 2048.0),),
    candidates=(10.0, None),
    diagnosis="Blocks at a low depth come back soonest.",
    seed=7,
)


@dataclass
class Time:
    """A clock that only sleeping moves."""

    now: float = 1_800_000_000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def script() -> Iterator[Script]:
    with scripted() as running:
        yield running


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(tmp_path / "run.sqlite")
    yield db
    db.close()


@pytest.fixture
def settings(script: Script) -> ModelSettings:
    return ModelSettings(dialect="plain", base_url=script.url, model="m", needs_key=False, timeout_s=20.0)


@pytest.fixture
def time() -> Time:
    return Time()


Make = Callable[..., Proposer]


@pytest.fixture
def proposer(settings: ModelSettings, database: sqlite3.Connection, time: Time) -> Iterator[Make]:
    """Makes proposers on the one database, with these settings changed."""
    made: list[Proposer] = []

    def make(replay_only: bool = False, **changes: Any) -> Proposer:
        one = Proposer(
            replace(settings, **changes),
            CallLog(database),
            replay_only=replay_only,
            clock=time,
            sleep=time.sleep,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def rows(database: sqlite3.Connection, columns: str) -> list[tuple[Any, ...]]:
    """What the log holds of calls that count, in order."""
    return database.execute(f"select {columns} from calls where counted = 1 order by id").fetchall()
