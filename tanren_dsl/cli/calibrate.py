"""`tanren-dsl calibrate`: a latency profile from a real engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tanren_dsl.cli.bench_options import COUNT
from tanren_dsl.cli.options import json_option
from tanren_dsl.cli.output import percent, print_json, print_table, say
from tanren_dsl.errors import TanrenError

if TYPE_CHECKING:
    from tanren_dsl.bench.calibrate import Calibration

_RESTLESS = 0.1
"""Share by which a step may vary between rounds before that is worth a word."""

_UNITS = {
    "base": "a step with tokens",
    "prefill": "a prefill token",
    "attention": "a million (query, key) pairs of prefill",
    "decode": "a decode sequence",
    "context": "a thousand tokens of context read",
    "empty": "a step without tokens",
}


@click.command()
@click.option("--device", type=click.Choice(["cpu"]), required=True, help="What the engine runs on.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the profile, TOML."
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PYTHON",
    help="Interpreter of an environment with vLLM; made if not given.",
)
@click.option("--vllm", default="0.32.0", show_default=True, metavar="VERSION", help="vLLM to measure.")
@click.option("--hidden", type=COUNT, default=512, show_default=True, help="Width of the random model.")
@click.option("--layers", type=COUNT, default=8, show_default=True, help="Layers of the random model.")
@click.option("--cores", metavar="A,B", help="Cores of the engine.  [default: all]")
@click.option("--rounds", type=COUNT, default=3, show_default=True, help="Times that every step is measured.")
@json_option
def calibrate(
    device: str, output: Path | None, python: Path | None, vllm: str, hidden: int, layers: int,
    cores: str | None, rounds: int, as_json: bool,
) -> None:  # fmt: skip
    """Fit a latency profile to a real engine, for simulations that tell times.

    Makes an engine with a small random model in one process, times its steps over batches of many
    shapes, and fits six numbers: what a step, a prefill token, attention, a decode sequence, its
    context and an empty step take. A fifth of the steps is kept out of the fit; the errors are on
    those. Leave the machine alone meanwhile: three minutes or so.

    \b
    Example:
      tanren-dsl calibrate --device cpu -o my-cpu.toml
    """
    from tanren_dsl.bench.calibrate import calibrate_cpu
    from tanren_dsl.bench.cpu import cpu_environment
    from tanren_dsl.conform.vllm_env import check_env
    from tanren_dsl.files import write_whole
    from tanren_dsl.sim.latency import latency_text

    assert device == "cpu"
    if output is not None:
        _check_place(output)
    if hidden % 128:
        raise TanrenError(f"--hidden must be a multiple of 128, found {hidden}")
    interpreter = python or cpu_environment(vllm)
    check_env(interpreter, None if python is not None else vllm)
    name = None if output is None else output.stem
    found = calibrate_cpu(
        interpreter, say, hidden=hidden, layers=layers, rounds=rounds, cores=cores, name=name
    )
    if found.measured.spread > _RESTLESS:
        say(
            f"warning: steps varied by {percent(found.measured.spread)} between rounds: something else "
            "uses this machine, and the times are too long"
        )
    if output is not None:
        write_whole(output, latency_text(found.latency))
        say(f"{output}: latency profile {found.latency.name}")
    if as_json:
        print_json(found.as_json())
    else:
        _print(found)
        if output is None:
            say("nothing was written: -o FILE keeps the profile")


def _check_place(output: Path) -> None:
    """Refuse before minutes of measuring what could not be written after them."""
    if output.is_dir():
        raise TanrenError(f"cannot write {output}: it is a folder")
    if not output.resolve().parent.is_dir():
        raise TanrenError(f"cannot write {output}: there is no such folder")


def _print(found: Calibration) -> None:
    latency = found.latency
    numbers = zip(_UNITS.items(), latency.coefficients.tolist(), strict=True)
    print_table(
        f"{latency.name} ({latency.basis}), vLLM {found.measured.version}",
        ["term", "microseconds", "of"],
        [[term, f"{number:,.1f}", unit] for (term, unit), number in numbers],
    )
    print_table(
        f"relative errors on held-out steps, of {len(found.measured.points):,} that were measured",
        ["kind of step", "steps", "median", "p90"],
        [
            [kind, f"{error.points:,}", percent(error.median), percent(error.p90)]
            for kind, error in found.errors.items()
        ],
    )
    click.echo(latency.source)
