"""Run a real engine beside a simulator and compare what they did, step by step.

`run_engine` starts the driver script in a vLLM environment and reads its events;
`compare` sets two lists of events against each other. Events are the driver's
lines: `{"step": k, "phase": "schedule" | "update", "t_us": t, ...}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tanren_dsl.errors import TanrenError

Event = dict[str, Any]

DRIVER = Path(__file__).with_name("engine_driver.py")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How the engine is set up. Sizes in blocks, sequences or tokens; `step_us` in microseconds."""

    block_size: int
    usable_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    step_us: int
    asynchronous: bool = False
    policy_file: Path | None = None
    enable_prefix_caching: bool = True
    log: bool = True
    profile: bool = False

    def as_json(self, tokens: Path) -> dict[str, Any]:
        """The driver's specification, for a request table stored at `tokens`."""
        return {
            "policy_file": None if self.policy_file is None else str(self.policy_file.resolve()),
            "tokens": str(tokens),
            "block_size": self.block_size,
            "usable_blocks": self.usable_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "async": self.asynchronous,
            "step_us": self.step_us,
            "enable_prefix_caching": self.enable_prefix_caching,
            "log": self.log,
            "profile": self.profile,
        }


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Requests with their tokens. Arrivals in whole microseconds, ascending; offsets have R + 1 places."""

    arrival_us: npt.NDArray[np.int64]
    prompt_offsets: npt.NDArray[np.int64]
    prompt_tokens: npt.NDArray[np.int32]
    output_offsets: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.arrival_us)

    def prompt(self, index: int) -> npt.NDArray[np.int32]:
        """Prompt tokens of one request."""
        return self.prompt_tokens[self.prompt_offsets[index] : self.prompt_offsets[index + 1]]

    def output(self, index: int) -> npt.NDArray[np.int32]:
        """Output tokens of one request."""
        return self.output_tokens[self.output_offsets[index] : self.output_offsets[index + 1]]

    def check(self, spec: EngineSpec) -> None:
        """Refuse a request that the engine would cut short or could never finish.

        Raises:
            TanrenError: names the first such request and the reason.
        """
        prompts, outputs = np.diff(self.prompt_offsets), np.diff(self.output_offsets)
        whole, room = prompts + outputs, spec.usable_blocks * spec.block_size
        rules = [
            (prompts < 1, "has no prompt"),
            (outputs < 1, "has no output"),
            (whole > spec.max_model_len, f"is longer than max_model_len {spec.max_model_len}"),
            (whole - 1 > room, f"never fits into {spec.usable_blocks} blocks of {spec.block_size} tokens"),
            (np.diff(self.arrival_us, prepend=0) < 0, "arrives before time 0 or before the one above it"),
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
        tokens, specification = Path(folder, "tokens.npz"), Path(folder, "spec.json")
        output, errors = Path(folder, "out.jsonl"), Path(folder, "stderr.txt")
        table.save(tokens)
        specification.write_text(json.dumps(spec.as_json(tokens)), encoding="utf-8")
        command = [str(python), str(DRIVER), str(specification), str(output)]
        status = _run(command, errors, limit_s, environment or {})
        lines = _read_lines(output)
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
                env={**os.environ, "PYTHONHASHSEED": "0", **environment},  # 0.19's first block hash needs it
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
