"""A real engine that stays: one driver process that serves many runs, so that vLLM is imported once."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tanren_dsl.conform.harness import (
    DRIVER,
    EngineRun,
    EngineSpec,
    TokenTable,
    engine_variables,
    read_run,
    write_job,
)
from tanren_dsl.errors import TanrenError


class Worker:
    """Runs of one environment, one after another; a context manager that ends its process.

    The process starts with the first run. One that dies or outstays its time is replaced
    with the next run.
    """

    def __init__(self, python: Path) -> None:
        self.python = python
        self._folder = tempfile.TemporaryDirectory(prefix="tanren-worker-")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its files."""
        self._stop()
        self._folder.cleanup()

    def run(
        self,
        spec: EngineSpec,
        table: TokenTable,
        limit_s: float = 600.0,
        environment: Mapping[str, str] | None = None,
        *,
        must_fit: bool = True,
    ) -> EngineRun:
        """Serve `table`, as `harness.run_engine` does.

        Args:
            spec: how the engine is set up.
            table: the requests.
            limit_s: wall-clock seconds after which the engine is stopped.
            environment: variables for this run only.
            must_fit: refuse requests that are larger than the memory.

        Raises:
            TanrenError: as `run_engine`; `StuckError` if requests remain that are never scheduled.
        """
        table.check(spec, must_fit=must_fit)
        job = write_job(Path(self._folder.name), spec, table, environment)
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = self._answer(process, limit_s)
        except BrokenPipeError:
            answer = ""
        except BaseException:
            self._stop()
            raise
        status = int(answer) if answer else process.wait()
        if not answer:
            self._stop()
        return read_run(status, job[1], self._errors)

    @property
    def _errors(self) -> Path:
        return Path(self._folder.name, "stderr.txt")

    def _answer(self, process: subprocess.Popen[str], limit_s: float) -> str:
        """The line that ends the run; empty if the process ended."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            if not ready.select(limit_s):
                raise TanrenError(f"the engine ran longer than {limit_s:g} s and was stopped")
        return process.stdout.readline().strip()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            try:
                with self._errors.open("wb") as errors:
                    self._process = subprocess.Popen(
                        [str(self.python), str(DRIVER), "--serve"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        env=engine_variables({}),
                        text=True,
                        start_new_session=True,
                    )
            except OSError as error:
                raise TanrenError(
                    f"cannot start {str(self.python)!r}: {error.strerror}",
                    hint="make vllm-env VLLM=0.19.1",
                ) from error
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
