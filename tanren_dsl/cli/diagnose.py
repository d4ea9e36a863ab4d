"""`tanren-dsl diagnose`: the worst decisions of a policy, and what they have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tanren_dsl.cli.options import (
    json_option,
    knob_option,
    load_policies,
    load_trace,
    trace_reading_options,
)
from tanren_dsl.cli.output import percent, print_json, print_table, say
from tanren_dsl.cli.score import runs_of, settings_of, title_of
from tanren_dsl.errors import TanrenError

if TYPE_CHECKING:  # these bring NumPy and Numba, which `--help` does not wait for
    from tanren_dsl.diagnosis.diagnosis import Case, Diagnosis
    from tanren_dsl.ir import Policy
    from tanren_dsl.scoring.runs import Runs

_ROWS = 12
"""Features in the table; JSON has all."""
_LRU, _BELADY, _FCFS = _SPECIAL = ("lru", "belady", "fcfs")
"""What needs no file to be held against: the engine's own orders, and the future."""
_REPLAY_ENGINE = "vllm-0.19"
_SCHEDULE_ONLY = ("config", "profile", "requests", "start", "load", "isolate", "no_guard")


@click.command()
@click.argument("policy")
@click.option(
    "--against",
    metavar="POLICY",
    help="What to hold it against: for an evict policy lru, any other one, or belady, who knows the future; "
    "for a schedule policy fcfs.  [default: lru or fcfs]",
)
@click.option("--trace", "trace_name", metavar="TRACE", help="File, or chat.  [default: chat]")
@click.option(
    "--capacity",
    type=click.IntRange(1, 10_000_000),
    help="Usable blocks of the cache: of the trace for an evict policy, which needs it, of 16 tokens for a "
    "schedule policy.",
)
@click.option(
    "--engine",
    metavar="ENGINE",
    help=f"Engine that is copied.  [default: {_REPLAY_ENGINE} to evict, vllm-0.32 to schedule]",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="C.toml",
    help="Schedule policy: settings of `score`.",
)
@click.option(
    "--profile",
    metavar="PROFILE",
    help="Schedule policy: latency profile, by name or file.  [default: gb10-llama-3.1-8b]",
)
@click.option(
    "--requests",
    type=click.IntRange(1, 10_000_000),
    help="Schedule policy: requests of the window.  [default: 1500, or as many as fit]",
)
@click.option(
    "--start",
    type=click.IntRange(0),
    help="Schedule policy: first request of the window.  [default: of the first window]",
)
@click.option(
    "--load",
    type=click.FloatRange(1e-3, 1e3),
    help="Schedule policy: share of what FCFS can serve.  [default: the highest of the settings]",
)
@click.option("--isolate", is_flag=True, help="Schedule policy: no caching, no shared prefix.")
@click.option("--no-guard", is_flag=True, help="Schedule policy: let it keep requests waiting for ever.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Write a figure there, as PNG.")
@click.option(
    "--short",
    type=click.IntRange(200, 100_000),
    metavar="N",
    help="Print at most so many characters: the text that a language model is given.",
)
@knob_option
@trace_reading_options
@json_option
def diagnose(
    policy: str, against: str | None, plot: Path | None, short: int | None,
    knobs: tuple[tuple[str, float], ...], skip_bad: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Find the worst decisions of a policy by regret, and what they have in common.

    For an evict policy: evictions whose blocks were wanted again and that cost hits which LRU has,
    in replay mode. For a schedule policy: requests that waited longer for their first token than
    first come, first served (FCFS) would have had them wait, in serving mode, and who overtook them.
    Regretted decisions are set beside the right ones, signal by signal, and grouped into patterns.

    \b
    Example:
      tanren-dsl diagnose slru --trace chat --capacity 4000
      tanren-dsl diagnose sjf --trace requests.csv --load 1.15 --plot figures
    """
    named = [policy] if against in (None, *_SPECIAL) else [policy, str(against)]
    loaded, *bases = [one.policy for one in load_policies(named, knobs)]
    if short is not None and as_json:
        raise click.UsageError("--short and --json are two forms of one output: give one of them.")
    if plot is not None:
        _check_plot(plot)
    if loaded.kind == "evict":
        title, found = _evictions(loaded, bases[0] if bases else against, skip_bad, options)
    else:
        title, found = _waits(loaded, against, skip_bad, options)
    if as_json:
        print_json(found.as_json())
    elif short is not None:
        from tanren_dsl.diagnosis.diagnosis import as_text

        click.echo(as_text(found, short))
    else:
        _print(title, found)
    if plot is not None:
        from tanren_dsl.diagnosis.plots import write_plot

        say(f"figure: {write_plot(found, plot)}")


def _evictions(
    policy: Policy, against: Policy | str | None, skip_bad: bool, options: dict[str, Any]
) -> tuple[str, Diagnosis]:
    """Diagnose an evict policy; the head of its tables, and what was found."""
    for name in _SCHEDULE_ONLY:
        if options[name] is not None and options[name] is not False:  # 0 is a request
            option = f"--{name.replace('_', '-')}"
            raise TanrenError(f"{option} is for schedule policies, but {policy.name} evicts")
    if options["capacity"] is None:
        raise TanrenError(
            f"{policy.name} evicts: expected a --capacity, found none",
            hint="--capacity 4000 is a cache of 4,000 blocks of the trace",
        )

    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.diagnosis.evictions import diagnose_evict
    from tanren_dsl.sim.profiles import profile_of
    from tanren_dsl.sim.replay import MODE, check_capacity
    from tanren_dsl.sim.rule import victims_of

    engine, capacity = options["engine"] or _REPLAY_ENGINE, options["capacity"]
    profile_of(engine)
    if against == _FCFS:
        raise TanrenError(f"{policy.name} evicts: expected an evict policy for --against, found {_FCFS}")
    base: Policy | Literal["belady"] | None = "belady" if against == _BELADY else None
    if against is not None and not isinstance(against, str):
        base = against
    for one in (policy, base):
        if one is not None and one != "belady":
            victims_of(one, compile_ordering, capacity, MODE)  # refuses before anything runs
    trace = load_trace(options["trace_name"] or "chat", options["block_tokens"], skip_bad)
    check_capacity(trace, capacity)
    name = against if isinstance(against, str) else _LRU if against is None else against.name
    say(f"replaying {policy.name} and {name} at {capacity:,} blocks")
    found = diagnose_evict(trace, policy, compile_ordering, capacity, engine=engine, against=base)
    title = (
        f"{MODE} mode, {engine}, {trace.name}: {len(trace):,} requests, {trace.block_tokens} tokens a block, "
        f"{capacity:,} blocks"
    )
    return title, found


def _waits(
    policy: Policy, against: str | None, skip_bad: bool, options: dict[str, Any]
) -> tuple[str, Diagnosis]:
    """Diagnose a schedule policy; the head of its tables, and what was found."""
    if against not in (None, _FCFS):
        raise TanrenError(
            f"{policy.name} schedules: expected fcfs for --against, found {against!r}",
            hint="`score` sets several schedule policies side by side",
        )
    names = ("config", "trace_name", "profile", "capacity", "requests", "isolate", "no_guard", "block_tokens")
    settings = settings_of(**{name: options[name] for name in names})
    if options["engine"] is not None:
        settings = settings.changed(engine=options["engine"])
    if options["load"] is not None:
        settings = settings.changed(loads=(options["load"],), idle=min(settings.idle, options["load"] / 2))

    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.diagnosis.waits import diagnose_schedule
    from tanren_dsl.sim.service import service_of

    service_of(policy, compile_ordering, guard=settings.guard)  # refuses before anything runs
    runs = runs_of(settings, skip_bad)
    start, load = _start(runs, options["start"]), max(settings.loads)
    window = runs.configuration(0, start, load, 0)
    say(f"serving {len(window.table):,} requests from request {start:,} at a load of {load:g}")
    found = diagnose_schedule(
        window.table, policy, compile_ordering, settings.server, runs.latency,
        guard=settings.guard, guard_seed_s=settings.guard_seed_s,
    )  # fmt: skip
    title = (
        f"{title_of(runs)}\n{len(window.table):,} requests from request {start:,} at a load of {load:g}: "
        f"{load * window.saturation:,.3g} requests per second"
    )
    return title, found


def _start(runs: Runs, start: int | None) -> int:
    """First request of the window: as asked, as the settings say, or that of the first window."""
    from tanren_dsl.scoring.windows import candidate_starts, window_length

    if start is None:
        starts = runs.settings.starts or candidate_starts(runs.trace, runs.settings)
        start = starts[0]
    length = window_length(runs.trace, runs.settings)
    if start + length > len(runs.trace):
        raise TanrenError(
            f"a window of {length:,} requests from request {start:,} ends with request "
            f"{start + length - 1:,}, but {runs.trace.name} has {len(runs.trace):,}",
            hint="give a lower --start, or fewer --requests",
        )
    return start


def _check_plot(folder: Path) -> None:
    from tanren_dsl.scoring.plots import require_matplotlib

    require_matplotlib()
    if folder.exists() and not folder.is_dir():
        raise TanrenError(f"cannot write figures to {folder}: it is a file")


def _print(title: str, found: Diagnosis) -> None:
    from tanren_dsl.diagnosis.diagnosis import contrast_text, notable, strongest

    click.echo(f"{title}\n")
    click.echo("\n".join([*found.summary, found.verdict]))
    if found.patterns:
        print_table(
            "\npatterns",
            ["regretted decisions with", "of the regret", "new", "regretted", "right", "precision", "times"],
            [
                [
                    f"{one.text}\n  about {one.twin}" if one.twin else one.text,
                    percent(one.share),
                    percent(one.added),
                    f"{one.regretted:,}",
                    f"{one.right:,}",
                    percent(one.precision),
                    f"x {one.lift:.1f}",
                ]
                for one in found.patterns
            ],
        )
    if notable(found.contrasts):
        click.echo(f"{found.preferred}:")
        click.echo("\n".join(f"  {contrast_text(one)}" for one in notable(found.contrasts)))
    rows = strongest(found.separations)[:_ROWS]
    if rows:
        print_table(
            "\nsignals: quartiles among regretted and right decisions; AUC 0.5 tells nothing",
            ["signal", "AUC", "regretted", "right"],
            [
                [
                    one.feature.text, f"{one.auc:.2f}", one.feature.show(one.regretted),
                    one.feature.show(one.right),
                ]
                for one in rows
            ],
        )  # fmt: skip
    listed = [*found.worst, *found.examples]
    if listed:
        _print_cases(found.kind, list({case.decision: case for case in listed}.values()))


def _print_cases(kind: str, cases: Sequence[Case]) -> None:
    if kind == "evict":
        print_table(
            "\nthe worst evictions, then an example of each pattern",
            [
                "request", "at (s)", "block", "age (s)", "lifetime (s)", "depth", "chain", "uses", "children",
                "wanted after (requests)", "(s)", "hits lost", "held instead", "of them wanted later",
            ],
            [_eviction(case.facts) for case in cases],
        )  # fmt: skip
        return
    print_table(
        "\nthe worst requests, then an example of each pattern; who arrived later and was admitted before",
        [
            "request", "arrived (s)", "prompt tokens", "TTFT (s)", "fcfs (s)", "waited (s)", "overtaken by",
            "their prompt tokens", "preempted", "the first of them", "the last of them",
        ],
        [_request(case.facts) for case in cases],
    )  # fmt: skip


def _eviction(one: Mapping[str, Any]) -> list[str]:
    signals = one["signals"]
    return [
        f"{one['request']:,}",
        f"{one['at_s']:,.1f}",
        f"{one['block']}",
        *(f"{signals[name]:,.1f}" for name in ("age", "lifetime")),
        *(f"{signals[name]:,.0f}" for name in ("depth", "chain", "uses", "children")),
        f"{one['requests_later']:,}",
        f"{one['seconds_later']:,.1f}",
        f"{one['hits_lost']:,}",
        f"{one['held_instead']:,}",
        f"{one['held_instead_wanted_again']:,}",
    ]


def _request(one: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['request']:,}",
        f"{one['arrival_s']:,.1f}",
        f"{one['prompt_tokens']:,}",
        *(f"{one[name]:,.2f}" for name in ("ttft_s", "base_ttft_s", "wait_s")),
        f"{one['overtakers']:,}",
        f"{one['overtaking_prompt_tokens']:,}",
        f"{one['preemptions']:,}",
        *(_overtaker(one[name]) for name in ("first_overtaker", "last_overtaker")),
    ]


def _overtaker(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    return (
        f"{one['request']:,}: {one['prompt_tokens']:,.0f} tokens, after {one['own_wait_s']:,.1f} s, "
        f"{one['waiting']:,.0f} waiting, {one['running']:,.0f} running, kv_free {one['kv_free']:.2f}"
    )
