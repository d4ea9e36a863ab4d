"""Which processor cores the client and the engine use, so that neither takes time from the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tanren_dsl.errors import TanrenError


def split_cores(client: str | None, engine: str | None) -> tuple[str | None, str | None]:
    """Cores of the client and of the engine, as lists such as `0` and `1,2,3`; None is not pinned.

    What is not given is chosen: the first core for the client, the others for the engine. With a
    single core nothing is pinned.

    Raises:
        TanrenError: a core is not there.
    """
    ours = sorted(os.sched_getaffinity(0))
    for cores in (client, engine):
        if cores is not None:
            _numbers(cores)
    if len(ours) < 2 and client is None and engine is None:
        return None, None
    taken = _numbers(engine) if engine is not None else set()
    if client is None:
        client = _first([core for core in ours if core not in taken])
    if engine is None:
        engine = _joined([core for core in ours if client is None or core not in _numbers(client)])
    return client, engine


@contextmanager
def pinned(cores: str | None) -> Iterator[None]:
    """Keep the calling thread on these cores for a while."""
    before = os.sched_getaffinity(0)
    if cores is not None:
        os.sched_setaffinity(0, _numbers(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _numbers(cores: str) -> set[int]:
    ours = os.sched_getaffinity(0)
    parts = cores.split(",")
    if not all(part.isascii() and part.isdecimal() and int(part) in ours for part in parts):
        raise TanrenError(
            f"cores {cores!r} are not all there", hint=f"this process may use {_joined(sorted(ours))}"
        )
    return {int(part) for part in parts}


def _first(cores: list[int]) -> str | None:
    return str(cores[0]) if cores else None


def _joined(cores: list[int]) -> str | None:
    return ",".join(map(str, cores)) or None
