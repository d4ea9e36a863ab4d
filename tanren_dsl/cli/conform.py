"""`tanren-dsl conform`: the simulator against the real engine, decision by decision."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tanren_dsl.cli.options import (
    json_option,
    knob_option,
    load_policies,
    load_trace,
    single,
    trace_reading_options,
)
from tanren_dsl.cli.output import print_json, say
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.files import write_whole

if TYPE_CHECKING:
    from tanren_dsl.conform.conform import Conformance


class _Positive(click.FloatRange):
    """A number above 0 that is one: the range alone lets `nan` pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


_ABOVE_0 = _Positive(min=0, min_open=True, max=1e9)


@click.command()
@click.argument("policies", nargs=-1, metavar="[POLICY...]")
@click.option("--engine", required=True, metavar="ENGINE", help="vllm-0.19 or vllm-0.32.")
@click.option("--python", metavar="PYTHON", help="Interpreter with that vLLM; default: of `make vllm-env`.")
@click.option("--trace", "trace_name", default="chat", show_default=True, help="File, or chat.")
@click.option(
    "--capacity", type=click.IntRange(1), help="Usable blocks; default: few, so that they are evicted."
)
@click.option(
    "--block-size", type=click.IntRange(1), default=16, show_default=True, help="Tokens of a block."
)
@click.option("--rate", type=_ABOVE_0, help="Requests per second; default: as in the trace.")
@click.option("--outputs", type=click.IntRange(1), help="Cap on output tokens.")
@click.option("--requests", type=click.IntRange(1), help="Only the first so many.")
@click.option("--async", "asynchronous", is_flag=True, help="Asynchronous stepping (depth 2).")
@click.option("--step-ms", type=_ABOVE_0, default=20.0, show_default=True, help="Virtual time of a step.")
@click.option("--no-identity", is_flag=True, help="Score even where the engine's own queue is the order.")
@click.option("--log", "log_file", metavar="FILE", help="Write the engine's events as JSON lines.")
@knob_option
@trace_reading_options
@json_option
@click.pass_context
def conform(
    ctx: click.Context, policies: tuple[str, ...], engine: str, python: str | None, trace_name: str,
    capacity: int | None, block_size: int, rate: float | None, outputs: int | None, requests: int | None,
    asynchronous: bool, step_ms: float, no_identity: bool, log_file: str | None,
    knobs: tuple[tuple[str, float], ...], block_tokens: int | None, skip_bad: bool, as_json: bool,
) -> None:  # fmt: skip
    """Hold the simulator against a real engine, step by step (engine mode).

    The engine's own scheduler and block pool run without a model in virtual time, with the
    emitted file of the policy (none: its own order). Every hit, eviction, admission and
    preemption must be the same; the first difference is printed, and makes the exit status 1.

    \b
    Example:
      tanren-dsl conform t_lru --engine vllm-0.19 --requests 300 --rate 4 --outputs 64
    """
    loaded = load_policies(policies, knobs)
    evict, schedule = single(loaded, "evict"), single(loaded, "schedule")
    if schedule is not None:
        raise UnsupportedError(f"conform does not support schedule policies yet: {schedule.name}")

    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.backends.vllm import emit
    from tanren_dsl.conform.conform import Setting, log_text
    from tanren_dsl.conform.conform import conform as run
    from tanren_dsl.conform.vllm_env import check_env
    from tanren_dsl.sim.profiles import profile_of

    version = profile_of(engine).version
    interpreter = Path(python) if python is not None else _environment(version)
    check_env(interpreter, version)
    if log_file is not None and not Path(log_file).resolve().parent.is_dir():
        raise TanrenError(f"cannot write {log_file}: there is no such folder")
    if log_file is not None and Path(log_file).is_dir():
        raise TanrenError(f"cannot write {log_file}: it is a folder")
    trace = load_trace(trace_name, block_tokens, skip_bad)
    setting = Setting(
        engine=engine, capacity=capacity, block_size=block_size, rate=rate, outputs=outputs,
        requests=requests, asynchronous=asynchronous, step_ms=step_ms, identity=not no_identity,
    )  # fmt: skip
    say(f"running vLLM {version} and the simulator side by side")
    result = run(evict, trace, setting, interpreter, emit=emit, compile_ordering=compile_ordering)
    if log_file is not None:
        write_whole(log_file, log_text(result.events))
        say(f"{log_file}: {len(result.events):,} events")
    if as_json:
        print_json({**result.as_json(), "trace": trace.name})
    else:
        click.echo("\n".join(_text(result, trace.name)))
    if result.divergences:
        ctx.exit(1)


def _environment(version: str) -> Path:
    """The interpreter that the environment variable names, or where `make vllm-env` puts it."""
    named = os.environ.get("TANREN_VLLM_" + version.replace(".", "_"))
    return Path(named or f".venv-vllm-{version}/bin/python")


def _text(result: Conformance, trace: str) -> list[str]:
    facts = result.as_json()
    settings = {**facts["settings"], "trace": trace}
    lines = [f"engine mode, {facts['engine']} against vLLM {result.version}, policy {result.policy}"]
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None))
    lines.append(
        f"  {result.requests:,} requests, {result.steps:,} steps, {result.evictions:,} evictions, "
        f"{result.preemptions:,} preemptions, {result.hit_tokens:,} hit tokens"
    )
    if result.policy != "stock":
        lines.append(f"  {result.decisions:,} decisions by the policy in the file, {result.faults:,} faults")
    if result.divergences == 0:
        lines.append("identical: every step is the same")
    else:
        lines.append(f"DIFFERENT in {result.divergences:,} of the steps")
        lines.append(result.first or "")
    return lines
