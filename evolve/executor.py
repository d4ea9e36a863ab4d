"""Where candidates are measured: in this process, or in worker processes on this machine.

One seam: jobs go in, results come out in any order. A candidate whose worker dies counts
as failed, the worker is replaced, and the run goes on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from tanren_dsl.evolve.fitness import Bench, Count, measure
from tanren_dsl.evolve.windows import Role


@dataclass(frozen=True, slots=True)
class Job:
    """Measure a policy text in all configurations of a role."""

    key: str
    text: str
    role: Role


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of a job, or why there are none."""

    key: str
    counts: tuple[Count, ...]
    error: str | None = None


class Executor(Protocol):
    """Runs jobs; usable in a `with` statement."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """A result for every job, in the order of completion."""

    def close(self) -> None:
        """End what was started."""


class InProcess:
    """One job after the other, here."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """A result for every job, in the order given."""
        for job in jobs:
            yield _measured(self._bench, job)

    def close(self) -> None:
        """Nothing to end."""


class Workers:
    """Processes on this machine; each gets the windows once, when it starts."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self._context = multiprocessing.get_context("spawn")
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}
        self._room = max(1, count)

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """A result for every job, in the order of completion."""
        waiting = deque(jobs)
        while waiting or self._busy:
            while waiting and len(self._busy) < self._room:
                worker = self._idle.pop() if self._idle else _Worker(self._context, self._bench)
                worker.give(waiting.popleft())
                self._busy[worker.pipe] = worker
            for pipe in wait(list(self._busy)):
                assert isinstance(pipe, Connection)
                worker = self._busy.pop(pipe)
                result, alive = worker.take()
                if alive:
                    self._idle.append(worker)
                yield result

    def pids(self) -> list[int]:
        """Process ids of the workers, those without work first."""
        return [worker.pid for worker in (*self._idle, *self._busy.values())]

    def close(self) -> None:
        """End every worker, whatever it does."""
        for worker in [*self._idle, *self._busy.values()]:
            worker.end()
        self._idle.clear()
        self._busy.clear()


def make_executor(bench: Bench, workers: int) -> Executor:
    """In this process for one worker, else that many processes."""
    return InProcess(bench) if workers <= 1 else Workers(bench, workers)


class _Worker:
    def __init__(self, context: Any, bench: Bench) -> None:
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, bench), daemon=True)
        resource_tracker.ensure_running()  # its own start would let the signal through
        # held back while it starts, and in it for good: an interrupt is ours to handle
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        theirs.close()  # so that its death closes the pipe
        self._job: Job | None = None

    @property
    def pid(self) -> int:
        """The process id."""
        return int(self._process.pid)

    def give(self, job: Job) -> None:
        """Hand over a job; a worker that is gone shows when its result is taken."""
        self._job = job
        with contextlib.suppress(OSError):
            self.pipe.send(job)

    def take(self) -> tuple[Result, bool]:
        """The result, and whether the worker lives."""
        assert self._job is not None
        try:
            result = self.pipe.recv()
            assert isinstance(result, Result)
            return result, True
        except (EOFError, OSError):
            self._process.join()
            why = f"the worker process ended with code {self._process.exitcode}"
            self.pipe.close()
            return Result(self._job.key, (), why), False

    def end(self) -> None:
        """Stop the process."""
        self.pipe.close()
        self._process.terminate()
        self._process.join(5.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, bench: Bench) -> None:
    """Body of a worker."""
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_measured(bench, job))


def _measured(bench: Bench, job: Job) -> Result:
    try:
        return Result(job.key, measure(bench, job.text, job.role))
    except Exception as error:  # a candidate must never end a run
        return Result(job.key, (), f"{type(error).__name__}: {error}".splitlines()[0])
