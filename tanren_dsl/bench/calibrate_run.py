"""Run `calibrate_driver.py` in a vLLM environment and read its lines while they come."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Timer
from typing import Any

from tanren_dsl.bench.cores import pinned
from tanren_dsl.conform.vllm_env import tail_of
from tanren_dsl.errors import TanrenError

DRIVER = Path(__file__).with_name("calibrate_driver.py")
LIMIT_S = 3600.0


def run_driver(
    python: Path,
    spec: Path,
    say: Callable[[str], None],
    variables: Mapping[str, str],
    cores: str | None = None,
    limit_s: float = LIMIT_S,
) -> list[dict[str, Any]]:
    """The lines of a run, its progress told to `say` and left out; the last line is the end.

    Args:
        python: interpreter of an environment with vLLM.
        spec: the driver's specification, in a folder for this run: the engine's complaints and
            temporary files go there too.
        say: told what the driver is doing.
        variables: for the engine's process, on top of this one's.
        cores: list such as `0,1` to which the engine is bound; None: those of this process.
        limit_s: seconds after which it is stopped.

    Raises:
        TanrenError: the interpreter cannot be run, a core is not there, or the engine failed or
            took longer than `limit_s` seconds.
    """
    errors = spec.with_name("stderr.txt")
    with errors.open("wb") as stream, pinned(cores):  # the child is born on these cores
        ours = {
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
            "TMPDIR": str(spec.parent),  # what a killed engine leaves there goes with the folder
        }
        try:
            process = subprocess.Popen(
                [str(python), str(DRIVER), str(spec)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                env={**os.environ, **ours, **variables},
                encoding="utf-8",
                start_new_session=True,
            )
        except OSError as error:
            hint = "tanren-dsl vllm-env makes an environment with vLLM"
            raise TanrenError(f"cannot start {python}: {error.strerror}", hint=hint) from None
    late = Timer(limit_s, _kill, (process.pid,))
    late.start()
    try:
        lines = _read(process, say)
        status = process.wait()
    finally:
        over_time = not late.is_alive()
        late.cancel()
        _kill(process.pid)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if over_time:
        raise TanrenError(f"the engine ran longer than {limit_s:g} s and was stopped")
    last = lines[-1] if lines else {}
    if "error" in last:
        raise TanrenError(f"engine: {last['error']}")
    if status != 0 or not last.get("end"):
        said = errors.read_text(encoding="utf-8", errors="replace")
        raise TanrenError(f"the engine ended with status {status}\n{tail_of(said)}")
    return lines


def _read(process: subprocess.Popen[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    for text in process.stdout:
        try:
            line = json.loads(text)
        except ValueError:  # cut off where the process died
            break
        if "progress" in line:
            say(str(line["progress"]))
        else:
            lines.append(line)
    return lines


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
