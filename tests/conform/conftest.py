"""Real engines for the tests: one process a version serves them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tanren_dsl.conform.worker import Worker
from tanren_dsl.sim.profiles import PROFILES
from tests.conform.environments import engine_python


@pytest.fixture(scope="session")
def workers() -> Iterator[Callable[[str], Worker]]:
    """The worker of a profile; skips without that environment."""
    made: dict[str, Worker] = {}

    def worker(engine: str) -> Worker:
        if engine not in made:
            made[engine] = Worker(engine_python(PROFILES[engine].version))
        return made[engine]

    yield worker
    for one in made.values():
        one.close()
