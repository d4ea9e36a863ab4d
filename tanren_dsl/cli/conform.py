"""`tanren-dsl conform`: the simulator against the real engine, decision by decision."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
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
from tanren_dsl.cli.output import print_json, print_table, say
from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole

if TYPE_CHECKING:
    from tanren_dsl.conform.conform import Conformance
    from tanren_dsl.ir import Policy


class _Positive(click.FloatRange):
    """A number above 0 that is one: the range alone lets `nan` pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


def _drawn(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> tuple[tuple[int, int], ...]:
    found = []
    for value in values:
        kind, *numbers = value.split(":")
        if kind != "random" or not 1 <= len(numbers) <= 2 or not all(map(_is_count, numbers)):
            raise click.BadParameter(f"expected random:N or random:N:SEED, found {value!r}", ctx, param)
        found.append((int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else 0))
    return tuple(found)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


_ABOVE_0 = _Positive(min=0, min_open=True, max=1e9)


@click.command()
@click.argument("policies", nargs=-1, metavar="[POLICY...]")
@click.option(
    "--policies",
    "drawn",
    callback=_drawn,
    multiple=True,
    metavar="random:N[:SEED]",
    help="So many random policies as well, as the search draws them; may be repeated.",
)
@click.option(
    "--engine",
    "engines",
    required=True,
    multiple=True,
    metavar="ENGINE",
    help="vllm-0.19 or vllm-0.32; may be repeated: the engines run side by side.",
)
@click.option("--python", metavar="PYTHON", help="Interpreter with that vLLM; default: of `make vllm-env`.")
@click.option("--trace", "trace_name", default="chat", show_default=True, help="File, or chat.")
@click.option(
    "--capacity",
    "capacities",
    type=click.IntRange(1),
    multiple=True,
    help="Usable blocks; may be repeated. Default: few, so that they are evicted.",
)
@click.option(
    "--block-size", type=click.IntRange(1), default=16, show_default=True, help="Tokens of a block."
)
@click.option("--rate", type=_ABOVE_0, help="Requests per second; default: as in the trace.")
@click.option("--outputs", type=click.IntRange(1), help="Cap on output tokens.")
@click.option("--requests", type=click.IntRange(1), help="Only the first so many.")
@click.option(
    "--aborts",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of requests whose client gives up.",
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Leave out the first so many requests.",
)
@click.option("--load", type=_ABOVE_0, help="Let the trace's time run so many times as fast.")
@click.option(
    "--scheduling",
    type=click.Choice(("fcfs", "priority")),
    default="fcfs",
    show_default=True,
    help="The engine's own scheduling policy; with priority, requests get random ones.",
)
@click.option("--no-cache", is_flag=True, help="Without prefix caching.")
@click.option(
    "--long-prefill",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Most tokens of one prefill in a step (long_prefill_token_threshold); 0 for no limit.",
)
@click.option("--profile", metavar="PROFILE", help="Latency profile by which steps take time; see `score`.")
@click.option("--no-guard", is_flag=True, help="Schedule policies without their starvation guard.")
@click.option("--together", is_flag=True, help="One evict and one schedule policy in one file, in one run.")
@click.option("--async", "asynchronous", is_flag=True, help="Asynchronous stepping (depth 2).")
@click.option("--step-ms", type=_ABOVE_0, default=20.0, show_default=True, help="Virtual time of a step.")
@click.option(
    "--max-tokens",
    type=click.IntRange(64),
    default=2048,
    show_default=True,
    help="Most tokens a step computes.",
)
@click.option("--no-identity", is_flag=True, help="Score even where the engine's own queue is the order.")
@click.option("--log", "log_file", metavar="FILE", help="Write the engine's events as JSON lines (one run).")
@knob_option
@trace_reading_options
@json_option
@click.pass_context
def conform(
    ctx: click.Context, policies: tuple[str, ...], drawn: tuple[tuple[int, int], ...],
    engines: tuple[str, ...], python: str | None, trace_name: str, capacities: tuple[int, ...],
    block_size: int, rate: float | None, outputs: int | None, requests: int | None, aborts: float,
    skip: int, load: float | None, scheduling: str, no_cache: bool, long_prefill: int, profile: str | None,
    no_guard: bool, together: bool, asynchronous: bool, step_ms: float, max_tokens: int, no_identity: bool,
    log_file: str | None,
    knobs: tuple[tuple[str, float], ...], block_tokens: int | None, skip_bad: bool, as_json: bool,
) -> None:  # fmt: skip
    """Hold the simulator against a real engine, step by step (engine mode).

    The engine's own scheduler and block pool run without a model in virtual time, with the
    emitted file of the policy (none: its own order). Every hit, eviction, admission,
    preemption and finish must be the same; the first difference is printed, and makes the
    exit status 1. Each policy, for evictions or for scheduling, runs at each capacity on each
    engine.

    \b
    Examples:
      tanren-dsl conform t_lru --engine vllm-0.19 --requests 300 --rate 4 --outputs 64
      tanren-dsl conform slru sjf --together --engine vllm-0.32 --requests 300 --rate 8
    """
    chosen = _chosen(policies, drawn, knobs, together)
    if scheduling != "fcfs" and any(one.kind == "schedule" for group in chosen for one in group):
        raise click.UsageError("--scheduling priority and a schedule policy exclude each other.")
    if no_cache and any(one.kind == "evict" for group in chosen for one in group):
        raise click.UsageError("--no-cache leaves an evict policy nothing to decide.")
    engines = tuple(dict.fromkeys(engines))
    if python is not None and len(engines) > 1:
        raise click.UsageError("--python names one interpreter: give one --engine with it.")
    if log_file is not None and len(chosen) * max(1, len(capacities)) * len(engines) > 1:
        raise click.UsageError("--log is for one run: one policy, one capacity, one engine.")

    from tanren_dsl.cli.conform_runs import Job, run_all
    from tanren_dsl.conform.conform import Setting, log_text
    from tanren_dsl.conform.vllm_env import check_env
    from tanren_dsl.sim.latency import read_latency
    from tanren_dsl.sim.profiles import profile_of

    latency = None if profile is None else read_latency(profile)
    interpreters = {}
    for engine in engines:
        version = profile_of(engine).version
        interpreters[engine] = Path(python) if python is not None else _environment(version)
        check_env(interpreters[engine], version)
    if log_file is not None and not Path(log_file).resolve().parent.is_dir():
        raise TanrenError(f"cannot write {log_file}: there is no such folder")
    if log_file is not None and Path(log_file).is_dir():
        raise TanrenError(f"cannot write {log_file}: it is a folder")
    trace = load_trace(trace_name, block_tokens, skip_bad)
    jobs = [
        Job(group, Setting(
            engine=engine, capacity=capacity, block_size=block_size, rate=rate, outputs=outputs,
            requests=requests, asynchronous=asynchronous, step_ms=step_ms, max_num_batched_tokens=max_tokens,
            identity=not no_identity, aborts=aborts, skip=skip, load=load, scheduling=scheduling,
            caching=not no_cache, long_prefill_token_threshold=long_prefill, latency=latency,
            guard=not no_guard,
        ))
        for group in chosen for capacity in capacities or (None,) for engine in engines
    ]  # fmt: skip
    versions = ", ".join(profile_of(engine).version for engine in engines)
    say(f"running vLLM {versions} and the simulator side by side")
    results = run_all(jobs, trace, interpreters, say if len(jobs) > 1 else None)
    if log_file is not None:
        write_whole(log_file, log_text(results[0].events))
        say(f"{log_file}: {len(results[0].events):,} events")
    if as_json:
        print_json([{**result.as_json(), "trace": trace.name} for result in results])
    elif len(results) == 1:
        click.echo("\n".join(_text(results[0], trace.name)))
    else:
        _print_runs(results, trace.name)
    if any(result.divergences for result in results):
        ctx.exit(1)


def _chosen(
    names: Sequence[str], drawn: Sequence[tuple[int, int]], knobs: Sequence[tuple[str, float]],
    together: bool,
) -> list[tuple[Policy, ...]]:  # fmt: skip
    """A run each for the named policies, then for the drawn ones; the engine's own order if there is none."""
    loaded = load_policies(names, knobs)
    if together:
        pair = (single(loaded, "evict"), single(loaded, "schedule"))
        if None in pair or drawn:
            raise click.UsageError("--together takes one evict and one schedule policy.")
        return [tuple(policy for policy in pair if policy is not None)]
    chosen = [(one.policy,) for one in loaded]
    for count, seed in drawn:
        from tanren_dsl.cli.conform_runs import random_policies

        chosen.extend((policy,) for policy in random_policies(count, seed))
    return [*chosen] or [()]


def _environment(version: str) -> Path:
    """The interpreter that the environment variable names, or where `make vllm-env` puts it."""
    named = os.environ.get("TANREN_VLLM_" + version.replace(".", "_"))
    return Path(named or f".venv-vllm-{version}/bin/python")


def _text(result: Conformance, trace: str) -> list[str]:
    facts = result.as_json()
    lines = [f"engine mode, {facts['engine']} against vLLM {result.version}, policy {result.policy}"]
    lines.append(f"  {_settings({**facts['settings'], 'trace': trace})}")
    lines.append(
        f"  {result.requests:,} requests, {result.steps:,} steps, {result.evictions:,} evictions, "
        f"{result.preemptions:,} preemptions, {result.aborts:,} aborts, {result.hit_tokens:,} hit tokens"
    )
    if result.decisions or result.faults:
        lines.append(f"  {result.decisions:,} decisions by the evict policy, {result.faults:,} faults")
    if result.orderings:
        lines.append(
            f"  {result.orderings:,} orderings by the schedule policy, {result.order_faults:,} faults, "
            f"{result.rescued:,} requests served first by the guard"
        )
    return lines + _verdict(result)


def _verdict(result: Conformance) -> list[str]:
    if result.divergences == 0:
        return ["identical: every step is the same"]
    return [f"DIFFERENT in {result.divergences:,} of the steps", result.first or ""]


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)


def _print_runs(results: Sequence[Conformance], trace: str) -> None:
    """A line a run, then the first difference of each run that has one."""
    shared = {**results[0].as_json()["settings"], "capacity": None, "trace": trace}
    columns = ("policy", "engine", "blocks", "steps", "evictions", "preempted", "aborted", "hit tokens",
               "decisions", "orderings", "faults", "divergences")  # fmt: skip
    rows = []
    for result in results:
        numbers = (
            result.steps, result.evictions, result.preemptions, result.aborts, result.hit_tokens,
            result.decisions, result.orderings, result.faults + result.order_faults, result.divergences,
        )  # fmt: skip
        row = [result.policy, result.version, f"{result.setting.capacity:,}"]
        rows.append(row + [f"{number:,}" for number in numbers])
    print_table(f"engine mode, {_settings(shared)}", columns, rows)
    for result in results:
        if result.divergences:
            click.echo(f"{result.policy} on {result.version}, {result.setting.capacity:,} blocks:")
            click.echo("\n".join(_verdict(result)))
    same = sum(result.divergences == 0 for result in results)
    click.echo(f"{same} of {len(results)} runs identical in every step")
