"""Run a real engine beside a simulator and compare what they did, step by step.

`run_engine` starts the driver script in a vLLM environment and reads its events (for
many runs in one process: `worker.py`); `compare` sets two lists of events against each
other. Events are the driver's lines: `{"step": k, "phase": "schedule" | "update", ...}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.latency import Latency, constant

Event = dict[str, Any]

DRIVER = Path(__file__).with_name("engine_driver.py")
STUCK = 3
"""The driver's exit status when requests remain that are never scheduled."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How the engine is set up. Sizes in blocks, sequences or tokens; `step_us` in microseconds.

    A step takes `step_us` unless there is a latency profile.
    """

    block_size: int
    usable_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    step_us: int
    asynchronous: bool = False
    policy_file: Path | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    latency: Latency | None = None
    log: bool = True
    profile: bool = False

    def with_policy(self, file: Path) -> EngineSpec:
        """The same engine with an emitted file in it."""
        return replace(self, policy_file=file)

    def as_json(self, tokens: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The driver's specification, for a request table stored at `tokens`."""
        return {
            "environment": dict(environment or {}),
            "policy_file": None if self.policy_file is None else str(self.policy_file.resolve()),
            "tokens": str(tokens),
            "block_size": self.block_size,
            "usable_blocks": self.usable_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "async": self.asynchronous,
            "latency": (self.latency or constant(self.step_us)).coefficients.tolist(),
            "enable_prefix_caching": self.enable_prefix_caching,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "scheduler_reserve_full_isl": self.scheduler_reserve_full_isl,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "scheduling_policy": self.scheduling_policy,
            "log": self.log,
            "profile": self.profile,
        }


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Requests with their tokens. Times in whole microseconds; offsets have R + 1 places.

    Arrivals ascend. `abort_us` is when the client gives up, -1 for never; None: nobody does.
    `priority` is what clients ask for, lower is more urgent; None: 0.
    """

    arrival_us: npt.NDArray[np.int64]
    prompt_offsets: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int32]
    output_offsets: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int32]
    abort_us: npt.NDArray[np.int64] | None = None
    priority: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.arrival_us)

    def prompt(self, index: int) -> npt.NDArray[np.int32]:
        """Prompt tokens of one request."""
        return self.prompt_tokens[self.prompt_offsets[index] : self.prompt_offsets[index + 1]]

    def output(self, index: int) -> npt.NDArray[np.int32]:
        """Output tokens of one request."""
        return self.output_tokens[self.output_offsets[index] : self.output_offsets[index + 1]]

    @property
    def aborts(self) -> npt.NDArray[np.int64]:
        """[R] when each request is aborted, -1 for never."""
        return np.full(len(self), -1, np.int64) if self.abort_us is None else self.abort_us

    def check(self, spec: EngineSpec, *, must_fit: bool = True) -> None:
        """Refuse a request that the engine would cut short or could never finish.

        The engine takes a request that is larger than its memory: it and all behind it then
        wait for ever, unless clients give up (the server itself refuses such a
        `max_model_len` when it starts). So it is refused here, unless `must_fit` is off.

        Raises:
            TanrenError: names the first such request and the reason.
        """
        prompts, outputs = np.diff(self.prompt_offsets), np.diff(self.output_offsets)
        whole, room = prompts + outputs, spec.usable_blocks * spec.block_size
        aborts, memory = self.aborts, f"{spec.usable_blocks} blocks of {spec.block_size} tokens"
        rules = [
            (prompts < 1, "has no prompt"),
            (outputs < 1, "has no output"),
            (whole > spec.max_model_len, f"is longer than max_model_len {spec.max_model_len}"),
            ((whole - 1 > room) & must_fit, f"never fits into {memory}"),
            (np.diff(self.arrival_us, prepend=0) < 0, "arrives before time 0 or before the one above it"),
            ((aborts >= 0) & (aborts < self.arrival_us), "is aborted before it arrives"),
        ]
        for bad, reason in rules:
            if bad.any():
                index = int(bad.argmax())
                size = f"prompt {prompts[index]}, output {outputs[index]} tokens"
                raise TanrenError(f"request {index} ({size}) {reason}")

    def save(self, path: Path) -> None:
        """Write the driver's `.npz` file."""
        np.savez(
            path,
            arrival_us=self.arrival_us,
            abort_us=self.aborts,
            priority=np.zeros(len(self), np.int64) if self.priority is None else self.priority,
            prompt_offsets=self.prompt_offsets,
            prompt_tokens=self.prompt_tokens,
            output_offsets=self.output_offsets,
            output_lengths=np.diff(self.output_offsets),
            output_tokens=self.output_tokens,
        )


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What a run did (`events`, empty when not logged) and its totals (`summary`)."""

    events: list[Event]
    summary: dict[str, Any]


class StuckError(TanrenError):
    """Requests remained that the engine never schedules; `events` is what it did before."""

    def __init__(self, message: str, events: list[Event]) -> None:
        super().__init__(message)
        self.events = events


@dataclass(frozen=True, slots=True)
class Comparison:
    """Steps with an event on either side, how many differ, and the first difference as text."""

    steps: int
    divergences: int
    first: str | None


def run_engine(
    python: Path,
    spec: EngineSpec,
    table: TokenTable,
    limit_s: float = 600.0,
    environment: Mapping[str, str] | None = None,
) -> EngineRun:
    """Serve `table` with the real engine of `python`'s environment.

    Args:
        python: interpreter of an environment with vLLM.
        spec: how the engine is set up.
        table: the requests.
        limit_s: wall-clock seconds after which the engine is stopped.
        environment: variables for the engine process, on top of this one's.

    Raises:
        TanrenError: the table breaks a rule of `TokenTable.check`, the driver refused or
            failed, or it ran longer than `limit_s` seconds.
    """
    table.check(spec)
    with tempfile.TemporaryDirectory(prefix="tanren-engine-") as folder:
        job = write_job(Path(folder), spec, table)
        errors = Path(folder, "stderr.txt")
        status = _run([str(python), str(DRIVER), *job], errors, limit_s, environment or {})
        return read_run(status, job[1], errors)


def write_job(
    folder: Path, spec: EngineSpec, table: TokenTable, environment: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Lay out one run in a folder: the driver's two arguments."""
    tokens, specification, output = (folder / name for name in ("tokens.npz", "spec.json", "out.jsonl"))
    table.save(tokens)
    specification.write_text(json.dumps(spec.as_json(tokens, environment)), encoding="utf-8")
    output.unlink(missing_ok=True)
    return str(specification), str(output)


def read_run(status: int, output: str, errors: Path) -> EngineRun:
    """What the driver wrote, given its exit status.

    Raises:
        TanrenError: it failed; `StuckError` if requests remained.
    """
    lines = _read_lines(Path(output))
    if status == STUCK and lines and "error" in lines[-1]:
        raise StuckError(f"engine: {lines[-1]['error']}", lines[:-1])
    if status != 0 or not lines or not lines[-1].get("end"):
        raise _failure(status, lines, errors)
    return EngineRun(lines[:-1], lines[-1])


def compare(engine: Sequence[Event], simulated: Sequence[Event]) -> Comparison:
    """Set two event lists against each other by step and phase; key order does not matter."""
    ours, theirs = _by_step(simulated), _by_step(engine)
    places = sorted(ours.keys() | theirs.keys())
    different = [place for place in places if ours.get(place) != theirs.get(place)]
    first = None if not different else _describe(different[0], theirs, ours)
    return Comparison(len({step for step, _ in places}), len(different), first)


def _run(command: list[str], errors: Path, limit_s: float, environment: Mapping[str, str]) -> int:
    """The exit status; the whole process group is killed on a timeout or an interrupt."""
    try:
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=engine_variables(environment),
                start_new_session=True,
            )
    except OSError as error:
        raise TanrenError(
            f"cannot start {command[0]!r}: {error.strerror}", hint="make vllm-env VLLM=0.19.1"
        ) from error
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise TanrenError(f"the engine ran longer than {limit_s:g} s and was stopped") from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def engine_variables(extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of an engine process; 0.19's first block hash needs the seed."""
    return {**os.environ, "PYTHONHASHSEED": "0", **extra}


def _read_lines(path: Path) -> list[Event]:
    if not path.exists():
        return []
    lines: list[Event] = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:  # cut off where the process died
            break
    return lines


def _failure(status: int, lines: list[Event], errors: Path) -> TanrenError:
    if lines and "error" in lines[-1]:
        return TanrenError(f"engine: {lines[-1]['error']}")
    tail = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
    return TanrenError("\n".join([f"the engine ended with status {status} and no summary", *tail]))


def _by_step(events: Sequence[Event]) -> dict[tuple[int, int], Event]:
    phases = ("schedule", "update")
    return {(event["step"], phases.index(event["phase"])): event for event in events}


def _describe(
    place: tuple[int, int], engine: dict[tuple[int, int], Event], simulated: dict[tuple[int, int], Event]
) -> str:
    step, phase = place
    theirs, ours = engine.get(place, {}), simulated.get(place, {})
    lines = [f"first difference at step {step}, {('schedule', 'update')[phase]}:"]
    for key in sorted((theirs.keys() | ours.keys()) - {"step", "phase"}):
        if theirs.get(key) != ours.get(key):
            lines.append(f"  {key}: engine {_short(theirs.get(key))}, simulated {_short(ours.get(key))}")
    return "\n".join(lines)


def _short(value: object) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."
