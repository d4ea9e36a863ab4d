"""Fit a latency profile to a real engine: measure designed batches, solve for the six numbers.

`measure` plays a plan of batches in a vLLM environment (`calibrate_driver.py`) and gives one point
for each step, the median over rounds. `fit` solves for the coefficients of `sim/latency.py`, no
matter where the points come from. `calibrate_cpu` does both for a small random model on the
processor and keeps a share of the points out of the fit, to say how wrong it is.

What is fitted is the engine's own step, with its Python: not tokenizing, not HTTP, and no waiting
between processes. A sum of terms is a plain model of a step (see `sim/latency.py`); on a CPU it is
worst for a few prefill tokens behind a long context.
"""

from __future__ import annotations

import json
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from tanren_dsl.bench.calibrate_run import run_driver
from tanren_dsl.bench.cpu import BLOCK_SIZE
from tanren_dsl.bench.model import POSITIONS, kv_bytes_per_token, make_model, parameters
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.latency import (
    ATTENTION,
    BASE,
    CONTEXT,
    DECODE,
    EMPTY,
    LATENCY_WIDTH,
    PREFILL,
    TERMS,
    Latency,
)

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]

KINDS = ("prefill", "decode", "mixed", "empty")
"""What a step holds: prefill tokens alone, decode sequences alone, both, nothing."""

HIDDEN = 512
LAYERS = 8
"""Sizes of the model that is measured unless told otherwise: 25.7 M parameters, six times those of
`bench`, so that the model and not the Python between steps takes most of the time."""

LEAST_POINTS = 12
"""Fewer steps with tokens do not make a fit of five numbers."""

_COUNTED = ("tokens", "prefill_tokens", "pairs", "decodes", "context")
_HOLD_OUT = 5  # every so-manieth point is kept out of the fit
_MAX_SEQS = 64
_MAX_TOKENS = 2048
_DIGITS = 5  # significant ones of a fitted number; the noise is far above them
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class StepPoint:
    """What a step did, as `sim/latency.py` counts it, and its measured microseconds."""

    tokens: int
    prefill_tokens: int
    pairs: int
    decodes: int
    context: int
    step_us: float

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        if self.tokens == 0:
            return "empty"
        if self.decodes == 0:
            return "prefill"
        return "mixed" if self.prefill_tokens else "decode"


@dataclass(frozen=True, slots=True)
class Wave:
    """Requests that arrive together: `budgets` bound the tokens of the steps until all are prefilled.

    Then follow `decodes` steps without a bound. A budget must exceed the requests that are there.
    """

    requests: int
    tokens: int
    budgets: tuple[int, ...] = (_MAX_TOKENS,)
    decodes: int = 3


Scene = tuple[Wave, ...]


def _doubling(tokens: int, most: int) -> Scene:
    """Decode batches of 1, 2, 4, ... requests; each wave's prefill runs beside the waves before it."""
    arrivals = [1, *(1 << power for power in range(most.bit_length() - 1))]
    return tuple(Wave(requests, tokens) for requests in arrivals)


def _chunks(tokens: int) -> Scene:
    """Prefill steps of so many tokens behind contexts of none, 2,048 and 4,096 tokens."""
    rest = (_MAX_TOKENS - tokens,) if tokens < _MAX_TOKENS else ()
    return (Wave(1, 2 * _MAX_TOKENS + tokens, (tokens, *rest)),)


PLAN: tuple[Scene, ...] = (
    *(_doubling(tokens, most) for tokens, most in ((128, 64), (512, 64), (1024, 16), (2048, 8), (4096, 4))),
    *(_chunks(tokens) for tokens in (64, 128, 256, 512, 1024, 2048)),
    (Wave(16, 128), Wave(2, 768, (16 + 64, 16 + 256))),
    (Wave(32, 64), Wave(4, 256, (32 + 64, 32 + 128, 32 + 512)), Wave(2, 512)),
    (Wave(4, 1024), Wave(1, 2048, (4 + 32, 4 + 512, 4 + 1024))),
)
"""Prefill of 64 to 2,048 tokens, decode batches of 1 to 64, contexts to 6,144 tokens, mixtures."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The points of a plan, in its order; `spread` is how much a step varied from round to round.

    Of each step: largest less smallest, as a share of the median; of those, the median.
    """

    points: list[StepPoint]
    version: str
    rounds: int
    spread: float


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of the fit on steps that were kept out of it: how many, median, 90th percentile."""

    points: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile, how it was measured, and its errors on held-out steps by kind and over all."""

    latency: Latency
    measured: Measured
    errors: Mapping[str, Error]

    def as_json(self) -> dict[str, Any]:
        """For `--json`: numbers as they are, errors as shares."""
        return {
            "name": self.latency.name,
            "basis": self.latency.basis,
            "source": self.latency.source,
            "residual": self.latency.residual,
            "microseconds": dict(zip(TERMS, self.latency.coefficients.tolist(), strict=True)),
            "held_out": {kind: asdict(error) for kind, error in self.errors.items()},
            "engine_version": self.measured.version,
            "points": len(self.measured.points),
            "rounds": self.measured.rounds,
            "spread": self.measured.spread,
        }


def fit(points: Sequence[StepPoint]) -> tuple[Floats, Floats]:
    """The six numbers that explain measured steps best, none below 0.

    Least squares of the *relative* error: a step of 5 ms counts as much as one of 500 ms. `empty`
    is the median of the empty steps, for they have nothing in common with the others.

    Returns:
        [6] coefficients as in `sim/latency.py`; [P] for each point, fitted time over measured, less 1.

    Raises:
        TanrenError: fewer than 12 steps with tokens, no empty one, a time that is not above 0, or
            steps that are too alike to tell the terms apart.
    """
    from scipy.optimize import nnls

    times = np.array([point.step_us for point in points], np.float64)
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise TanrenError("a step of a fit must take more than 0 microseconds")
    terms = _terms(points)
    busy = terms[:, EMPTY] == 0
    found = f"found {int(busy.sum())} and {int((~busy).sum())}"
    if busy.sum() < LEAST_POINTS or busy.all():
        raise TanrenError(
            f"a fit needs at least {LEAST_POINTS} steps with tokens and one without, {found}",
            hint="measure more batches",
        )
    columns = terms[busy][:, :EMPTY]
    scales = columns.max(axis=0)
    if (scales == 0).any() or np.linalg.matrix_rank(columns / np.where(scales == 0, 1, scales)) < EMPTY:
        raise TanrenError(
            "the steps do not tell the terms of a latency apart",
            hint="measure prefill and decode batches of several sizes, at several contexts",
        )
    weighted = columns / scales / times[busy, None]
    solution, _ = nnls(weighted, np.ones(len(weighted)))
    coefficients = np.zeros(LATENCY_WIDTH)
    coefficients[:EMPTY] = solution / scales
    coefficients[EMPTY] = np.median(times[~busy])
    return coefficients, terms @ coefficients / times - 1.0


def errors_of(points: Sequence[StepPoint], coefficients: Floats) -> dict[str, Error]:
    """Relative errors of given numbers on given steps: for each kind that is there, and for `all`."""
    times = np.array([point.step_us for point in points])
    off = np.abs(_terms(points) @ coefficients / times - 1.0)
    kinds = np.array([point.kind for point in points])
    groups = {kind: off[kinds == kind] for kind in KINDS} | {"all": off}
    return {
        kind: Error(len(group), float(np.median(group)), float(np.quantile(group, 0.9)))
        for kind, group in groups.items()
        if len(group)
    }


def calibrate_cpu(
    python: Path,
    say: Say,
    *,
    hidden: int = HIDDEN,
    layers: int = LAYERS,
    rounds: int = 3,
    cores: str | None = None,
    name: str | None = None,
    plan: Sequence[Scene] = PLAN,
) -> Calibration:
    """Measure vLLM's CPU build with a small random Llama, and fit. Takes some minutes.

    Args:
        python: of an environment in which vLLM serves on the processor.
        say: told what is being done.
        hidden: width of the model, as `make_model`.
        layers: of the model.
        rounds: times that the whole plan is measured.
        cores: list such as `0,1` to which the engine is bound; None: those of this process.
        name: of the profile; None: after the model.
        plan: batches to measure.

    Raises:
        TanrenError: the engine cannot be started or fails, or the points make no fit.
    """
    measured = measure(python, say, hidden, layers, rounds, cores, plan)
    held = measured.points[_HOLD_OUT - 1 :: _HOLD_OUT]
    rest = [point for place, point in enumerate(measured.points) if (place + 1) % _HOLD_OUT]
    coefficients = _rounded(fit(rest)[0])
    errors = errors_of(held, coefficients)
    threads = len(cores.split(",")) if cores else len(os.sched_getaffinity(0))
    size = parameters(hidden, layers)
    latency = Latency(
        name or f"cpu-llama-{size // 1_000_000}m",
        f"tanren-dsl calibrate --device cpu: vLLM {measured.version}, CPU build, {threads} "
        f"{platform.machine()} cores; a random Llama of {size / 1e6:.1f} M parameters (hidden {hidden}, "
        f"{layers} layers, float32); {len(measured.points)} steps, medians of {rounds} rounds",
        "measured",
        residual=_residual(errors),
        **{f"{term}_us": number for term, number in zip(TERMS, coefficients.tolist(), strict=True)},
    )
    return Calibration(latency, measured, errors)


def measure(
    python: Path, say: Say, hidden: int, layers: int, rounds: int, cores: str | None, plan: Sequence[Scene]
) -> Measured:
    """The points of a plan, each the median over rounds; arguments as `calibrate_cpu`.

    Raises:
        TanrenError: the engine cannot be started or fails.
    """
    blocks = max(POSITIONS // BLOCK_SIZE, *map(_blocks, plan))  # vLLM wants room for one longest text
    room = blocks * BLOCK_SIZE * kv_bytes_per_token(hidden, layers)
    with TemporaryDirectory(prefix="tanren-calibrate-") as folder:
        spec = {
            "model": str(make_model(Path(folder, "model"), hidden=hidden, layers=layers)),
            "dtype": "float32",
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks": blocks + 1,
            "max_model_len": POSITIONS,
            "max_num_seqs": _MAX_SEQS,
            "max_num_batched_tokens": _MAX_TOKENS,
            "seed": 0,
            "repeats": rounds,
            "plan": [[asdict(wave) for wave in scene] for scene in plan],
        }
        file = Path(folder, "spec.json")
        file.write_text(json.dumps(spec), encoding="utf-8")
        variables = {"VLLM_CPU_KVCACHE_SPACE": str(-(-room // _GIB))}
        lines = run_driver(python, file, say, variables, cores)
    return _medians(lines)


def _medians(lines: Sequence[Mapping[str, Any]]) -> Measured:
    """Lines of the driver, the same step of all rounds put together."""
    times: dict[tuple[int, int, StepPoint], list[float]] = defaultdict(list)
    for line in lines[:-1]:
        batch = StepPoint(**{name: line[name] for name in _COUNTED}, step_us=0.0)
        times[line["scene"], line["step"], batch].append(line["step_us"])
    places = sorted(times, key=lambda place: place[:2])
    points = [replace(place[2], step_us=float(np.median(times[place]))) for place in places]
    rounds = max((line["repeat"] + 1 for line in lines[:-1]), default=0)
    spreads = [float(np.ptp(found) / np.median(found)) for found in times.values()]
    return Measured(points, str(lines[-1]["version"]), rounds, float(np.median(spreads)))


def _terms(points: Sequence[StepPoint]) -> Floats:
    """[P, 6] what each coefficient is multiplied by."""
    terms = np.zeros((len(points), LATENCY_WIDTH))
    for row, point in zip(terms, points, strict=True):
        if point.tokens == 0:
            row[EMPTY] = 1.0
            continue
        row[BASE] = 1.0
        row[PREFILL] = point.prefill_tokens
        row[ATTENTION] = point.pairs / 1e6
        row[DECODE] = point.decodes
        row[CONTEXT] = point.context / 1e3
    return terms


def _blocks(scene: Scene) -> int:
    """Blocks that hold all requests of a scene, with room for what they say meanwhile."""
    steps = sum(wave.decodes + len(wave.budgets) * 2 for wave in scene)
    steps += sum(2 * wave.requests * wave.tokens * len(wave.budgets) // sum(wave.budgets) for wave in scene)
    return sum(wave.requests * -(-(wave.tokens + steps) // BLOCK_SIZE) for wave in scene)


def _rounded(numbers: Floats) -> Floats:
    return np.array([float(f"{number:.{_DIGITS}g}") for number in numbers])


def _residual(errors: Mapping[str, Error]) -> str:
    texts = [
        f"{kind} {100 * error.median:.1f} % / {100 * error.p90:.1f} %"
        for kind, error in sorted(errors.items(), key=lambda row: row[0] != "all")
    ]
    return f"relative error on held-out steps, median / p90: {', '.join(texts)}"
