"""Where candidates are measured: in this process, or in worker processes on this machine.

One seam: jobs go in, results come out in any order. A candidate whose worker dies, or takes far
longer than any policy should, counts as failed; the worker is replaced, and the run goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from tanren_dsl.check import loads
from tanren_dsl.evolve.measures import Arena, Stage
from tanren_dsl.evolve.store import Evaluation
from tanren_dsl.evolve.windows import Role

LIMIT_S = 900.0
"""Seconds after which a worker is given up: no policy of the language should need them."""


@dataclass(frozen=True, slots=True)
class Job:
    """Measure a policy text in all configurations of a role and stage."""

    key: str
    text: str
    role: Role
    stage: Stage = "full"


class Executor(Protocol):
    """Runs jobs; usable in a `with` statement."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        """A result for every job, in the order of completion."""

    def close(self) -> None:
        """End what was started."""


class InProcess:
    """One job after the other, here."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def run(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        """A result for every job, in the order given."""
        for job in jobs:
            yield _measured(self._arena, job)

    def close(self) -> None:
        """Nothing to end."""


class Workers:
    """Processes on this machine; each gets the windows once, when it starts."""

    def __init__(self, arena: Arena, count: int, limit_s: float = LIMIT_S) -> None:
        self._arena, self._limit_s = arena, limit_s
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}
        self._room = max(1, count)

    def run(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        """A result for every job, in the order of completion."""
        waiting = deque(jobs)
        while waiting or self._busy:
            while waiting and len(self._busy) < self._room:
                worker = self._idle.pop() if self._idle else _Worker(self._context, self._arena)
                worker.give(waiting.popleft())
                self._busy[worker.pipe] = worker
            for pipe in wait(list(self._busy), timeout=1.0):
                assert isinstance(pipe, Connection)
                worker = self._busy.pop(pipe)
                result, alive = worker.take()
                if alive:
                    self._idle.append(worker)
                yield result
            for worker in [one for one in self._busy.values() if one.busy_s > self._limit_s]:
                del self._busy[worker.pipe]
                yield worker.give_up(self._limit_s)

    def pids(self) -> list[int]:
        """Process ids of the workers, those without work first."""
        return [worker.pid for worker in (*self._idle, *self._busy.values())]

    def close(self) -> None:
        """End every worker, whatever it does."""
        for worker in [*self._idle, *self._busy.values()]:
            worker.end()
        self._idle.clear()
        self._busy.clear()


def make_executor(arena: Arena, workers: int) -> Executor:
    """In this process for one worker, else that many processes."""
    return InProcess(arena) if workers <= 1 else Workers(arena, workers)


class _Worker:
    def __init__(self, context: Any, arena: Arena) -> None:
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, arena), daemon=True)
        resource_tracker.ensure_running()  # its own start would let the signal through
        # held back while it starts, and in it for good: an interrupt is ours to handle
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()  # so that its death closes the pipe
        self._job: Job | None = None
        self._given = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds since its job was given."""
        return time.monotonic() - self._given

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._process.pid)

    def give(self, job: Job) -> None:
        """Hand over a job; a worker that is gone shows when its result is taken."""
        self._job, self._given = job, time.monotonic()
        with contextlib.suppress(OSError):
            self.pipe.send(job)

    def take(self) -> tuple[Evaluation, bool]:
        """The result, and whether the worker lives."""
        assert self._job is not None
        try:
            result = self.pipe.recv()
            assert isinstance(result, Evaluation)
            return result, True
        except (EOFError, OSError):
            self._process.join()
            why = f"the worker process ended with code {self._process.exitcode}"
            self.pipe.close()
            return _failed(self._job, why), False

    def give_up(self, limit_s: float) -> Evaluation:
        """End the process amid its job."""
        assert self._job is not None
        self.end()
        return _failed(self._job, f"it took longer than {limit_s:g} s")

    def end(self) -> None:
        """Stop the process."""
        self.pipe.close()
        self._process.terminate()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, arena: Arena) -> None:
    """Body of a worker."""
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_measured(arena, job))


def _measured(arena: Arena, job: Job) -> Evaluation:
    try:
        measures = arena.measure(loads(job.text), job.role, job.stage)
        return Evaluation(job.key, job.role, job.stage, measures)
    except Exception as error:  # a candidate must never end a run
        return _failed(job, f"{type(error).__name__}: {error}".splitlines()[0])


def _failed(job: Job, why: str) -> Evaluation:
    return Evaluation(job.key, job.role, job.stage, (), why)
