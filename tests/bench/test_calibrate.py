"""Calibration: the fit on made-up steps, and a small real run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.bench.calibrate import (
    KINDS,
    PLAN,
    Floats,
    StepPoint,
    Wave,
    calibrate_cpu,
    errors_of,
    fit,
)
from tanren_dsl.bench.calibrate_run import run_driver
from tanren_dsl.cli.calibrate import _UNITS
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.latency import TERMS, latency_text, parse_latency
from tests.cli.conftest import Run, refused
from tests.cli.conftest import run as run
from tests.conform.environments import engine_python

TRUE = np.array([5000.0, 130.0, 47_000.0, 150.0, 520.0, 250.0])


def made_up(coefficients: Floats, count: int, noise: float = 0.0, seed: int = 0) -> list[StepPoint]:
    """Steps of all kinds whose times are these numbers' own, but for some relative noise."""
    random = np.random.default_rng(seed)
    points = []
    for number in range(count):
        kind = KINDS[number % 4]
        new = int(random.integers(1, 2048)) if kind in ("prefill", "mixed") else 0
        pairs = new * int(random.integers(0, 4096)) + new * (new + 1) // 2
        decodes = int(random.integers(1, 64)) if kind in ("decode", "mixed") else 0
        context = decodes * int(random.integers(1, 4096))
        terms = np.array([1, new, pairs / 1e6, decodes, context / 1e3, 0.0])
        time = coefficients[5] if kind == "empty" else float(terms @ coefficients)
        time *= 1 + noise * random.standard_normal()
        points.append(StepPoint(new + decodes, new, pairs, decodes, context, time))
    return points


def test_made_up_steps_are_of_every_kind() -> None:
    assert {point.kind for point in made_up(TRUE, 40)} == set(KINDS)


def test_the_fit_recovers_the_numbers_that_made_the_steps() -> None:
    coefficients, residuals = fit(made_up(TRUE, 60))
    assert coefficients == pytest.approx(TRUE, rel=1e-6)
    assert np.abs(residuals).max() < 1e-6


def test_noise_moves_the_fit_little_and_is_what_remains() -> None:
    points = made_up(TRUE, 400, noise=0.05)
    coefficients, residuals = fit(points)
    assert coefficients == pytest.approx(TRUE, rel=0.1)
    assert np.std(residuals) == pytest.approx(0.05, rel=0.3)
    errors = errors_of(points, coefficients)
    assert list(errors) == [*KINDS, "all"]
    assert errors["all"].points == 400
    assert 0.02 < errors["all"].median < 0.05 < errors["all"].p90 < 0.12


def test_a_term_that_costs_nothing_is_zero_not_negative() -> None:
    free = TRUE.copy()
    free[3] = 0.0
    coefficients, _ = fit(made_up(free, 200, noise=0.03))
    assert (coefficients >= 0).all()
    assert coefficients[3] < 20


def test_short_steps_weigh_as_much_as_long_ones() -> None:
    """One long step that is 20 % off must not pull the short ones along."""
    points = made_up(TRUE, 60)
    long = max(points, key=lambda point: point.step_us)
    points.append(
        StepPoint(
            long.tokens, long.prefill_tokens, long.pairs, long.decodes, long.context, long.step_us * 1.2
        )
    )
    coefficients, _ = fit(points)
    assert coefficients == pytest.approx(TRUE, rel=0.06)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], "at least 12 steps with tokens and one without, found 0 and 0"),
        (made_up(TRUE, 12), "found 9 and 3"),
        ([point for point in made_up(TRUE, 60) if point.tokens], "found 45 and 0"),
        ([point for point in made_up(TRUE, 90) if not point.decodes], "do not tell the terms"),
        ([point for point in made_up(TRUE, 90) if not point.prefill_tokens], "do not tell the terms"),
        ([StepPoint(1, 1, 1, 0, 0, 0.0)], "more than 0 microseconds"),
        ([*made_up(TRUE, 60), StepPoint(1, 1, 1, 0, 0, float("nan"))], "more than 0 microseconds"),
    ],
)
def test_a_fit_refuses_points_that_make_none(points: list[StepPoint], words: str) -> None:
    with pytest.raises(TanrenError, match=words):
        fit(points)


def test_equal_batches_make_no_fit() -> None:
    decode = [StepPoint(8, 0, 0, 8, 8 * 512, 6000.0)] * 10
    prefill = [StepPoint(512, 512, 131_328, 0, 0, 70_000.0)] * 10
    with pytest.raises(TanrenError, match="do not tell the terms of a latency apart"):
        fit([*decode, *prefill, StepPoint(0, 0, 0, 0, 0, 200.0)])


def test_the_plan_asks_for_what_an_engine_can_do() -> None:
    for scene in PLAN:
        there = 0
        for wave in scene:
            assert min(wave.budgets) > there
            assert max(wave.budgets) <= 2048
            there += wave.requests
        assert there <= 64


def test_the_command_names_every_term() -> None:
    assert tuple(_UNITS) == TERMS


def test_a_real_engine_is_measured_and_fitted() -> None:
    python, said = engine_python("0.32.0"), list[str]()
    plan = (
        (Wave(1, 128), Wave(3, 256, (2048,), 2), Wave(1, 600, (4 + 128, 4 + 16))),
        (Wave(2, 64), Wave(1, 700, (2 + 64, 2 + 200))),
    )
    found = calibrate_cpu(python, said.append, hidden=128, layers=1, rounds=1, plan=plan)
    assert said[0] == "vLLM 0.32.0 starts"
    assert said[-1] == "round 1 of 1, scene 2 of 2"
    points = found.measured.points
    assert {point.kind for point in points} == set(KINDS)
    # 1 prompt of 128; 1 decode beside three of 256; 1 beside chunks; the bounds hold
    first = points[0]
    assert (first.prefill_tokens, first.pairs, first.decodes) == (128, 128 * 129 // 2, 0)
    assert (points[1].decodes, points[1].context, points[1].prefill_tokens) == (1, 129, 0)
    assert (points[4].prefill_tokens, points[4].decodes, points[4].context) == (768, 1, 132)
    assert points[4].pairs == 3 * 256 * 257 // 2
    assert (points[7].tokens, points[7].prefill_tokens) == (132, 128)
    assert (points[8].tokens, points[8].prefill_tokens, points[8].pairs) == (20, 16, 16 * 128 + 136)
    assert found.measured.version == "0.32.0"
    latency = found.latency
    assert (latency.name, latency.basis) == ("cpu-llama-0m", "measured")
    assert latency.base_us + latency.prefill_us > 0
    assert latency.residual is not None
    assert parse_latency(latency_text(latency), "text") == latency
    assert found.as_json()["held_out"]["all"]["points"] == len(points) // 5


def test_what_an_engine_says_as_it_dies_is_told(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text("{")
    with pytest.raises(TanrenError, match="engine: JSONDecodeError"):
        run_driver(engine_python("0.32.0"), spec, lambda _: None, {})


def test_an_engine_that_dies_or_is_not_there_is_an_error(tmp_path: Path) -> None:
    spec, dead, slow = tmp_path / "spec.json", tmp_path / "dead", tmp_path / "slow"
    with pytest.raises(TanrenError, match=r"cannot start .*/none: No such file"):
        run_driver(tmp_path / "none", spec, lambda _: None, {})
    dead.write_text("#!/bin/sh\necho lost >&2\nexit 3\n")
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    dead.chmod(0o755)
    slow.chmod(0o755)
    with pytest.raises(TanrenError, match=r"ended with status 3\n  lost"):
        run_driver(dead, spec, lambda _: None, {})
    with pytest.raises(TanrenError, match=r"ran longer than 0\.2 s and was stopped"):
        run_driver(slow, spec, lambda _: None, {}, limit_s=0.2)
    with pytest.raises(TanrenError, match="cores '9999' are not all there"):
        run_driver(dead, spec, lambda _: None, {}, cores="9999")


def test_calibrate_refuses_by_name_before_it_measures(run: Run, tmp_path: Path) -> None:
    refused(
        run("calibrate", "--device", "cpu", "-o", "no/where.toml"), "no/where.toml: there is no such folder"
    )
    (tmp_path / "there").mkdir()
    refused(run("calibrate", "--device", "cpu", "-o", "there"), "cannot write there: it is a folder")
    refused(
        run("calibrate", "--device", "cpu", "--hidden", "100"),
        "--hidden must be a multiple of 128, found 100",
    )
    refused(run("calibrate", "--device", "cpu", "--python", "/no/python"), "/no/python does not exist")
    refused(run("calibrate", "--device", "cpu", "--vllm", "0.1"), "vLLM 0.1 is not known")
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing option '--device'"),
        (("--device", "gpu"), "'gpu' is not 'cpu'"),
        (("--device", "cpu", "--rounds", "0"), "'--rounds'"),
    ],
)
def test_calibrate_knows_wrong_usage(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run("calibrate", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
