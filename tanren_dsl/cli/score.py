"""`tanren-dsl score`: schedule policies against first come, first served, simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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

if TYPE_CHECKING:  # these bring NumPy and Numba, which `--help` does not wait for
    from tanren_dsl.ir import Policy
    from tanren_dsl.scoring.results import Board
    from tanren_dsl.scoring.runs import Runs
    from tanren_dsl.scoring.settings import Settings

_RESTLESS = (
    "An idle mean is not left alone (- is shorter, + is longer): requests that arrive at one moment queue at "
    "any load, and the order decides."
)

_PICKED = (
    "The windows were picked by which classic wins them, so these p values flatter a policy that is like "
    "one: name windows in a --config for a test."
)

_F = TypeVar("_F", bound=Callable[..., Any])


def settings_options(function: _F) -> _F:
    """What decides a scoreboard; each option stands in place of the file's setting."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS: list[Callable[[Any], Any]] = [
    click.option(
        "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="C.toml",
        help="Settings: server, windows, loads, score; the packaged score.toml has them all.",
    ),
    click.option("--trace", "trace_name", metavar="TRACE", help="File, or chat.  [default: chat]"),
    click.option(
        "--profile", metavar="PROFILE",
        help="Latency profile, by name or file.  [default: gb10-llama-3.1-8b]",
    ),
    click.option(
        "--capacity", type=click.IntRange(1, 10_000_000),
        help="Usable blocks of 16 tokens.  [default: 40000, what a machine with about 80 GB for the KV "
        "cache holds of an 8B model, at 128 KiB a token]",
    ),
    click.option(
        "--requests", type=click.IntRange(1, 10_000_000),
        help="Requests of a window.  [default: 1500, or as many as fit]",
    ),
    click.option(
        "--isolate", is_flag=True, help="No caching, no shared prefix: the order of service alone counts."
    ),
    click.option("--no-guard", is_flag=True, help="Let a policy keep requests waiting for ever."),
]  # fmt: skip


@click.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@settings_options
@click.option("--plot", type=click.Path(path_type=Path), metavar="DIR", help="Write figures there, as PNG.")
@knob_option
@trace_reading_options
@json_option
def score(
    policies: tuple[str, ...], plot: Path | None, knobs: tuple[tuple[str, float], ...],
    skip_bad: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Score schedule policies against first come, first served (FCFS), simulated.

    Serves windows of a trace at several loads, in virtual time, and compares the time to first
    token (TTFT). For each configuration the score is 1 - mean/mean of FCFS, less a penalty that
    rises steeply from a p99 of 1.04 times FCFS's; the total is the sum. A load is a share of what
    FCFS can serve. Windows are picked by which classic wins them, unless the settings name them.
    An evict policy may be among the policies: then every arm uses it.

    \b
    Example:
      tanren-dsl score sjf aged_sjf my.tpl --trace requests.csv --no-guard
    """
    loaded = load_policies(policies, knobs)
    evict = single(loaded, "evict")
    ordering = [one.policy for one in loaded if one.policy.kind == "schedule"]
    if not ordering:
        raise TanrenError("expected a schedule policy, found none", hint="`simulate` compares evict policies")
    settings = settings_of(**options)
    if evict is not None and not settings.server.caching:
        raise TanrenError(f"{evict.name} evicts, but without caching nothing is kept: leave one of both out")
    if plot is not None:
        _check_plot(plot)

    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.scoring.arms import classic_arms, policy_arms
    from tanren_dsl.scoring.board import score_board

    classics = classic_arms(compile_ordering, settings)
    arms = policy_arms(ordering, compile_ordering, settings, classics)  # refuses before anything runs
    runs = runs_of(settings, skip_bad, evict)
    board = score_board(runs, arms, classics)
    if as_json:
        print_json(board.as_json())
    else:
        _print(board)
    if plot is not None:
        from tanren_dsl.scoring.plots import write_plots

        for path in write_plots(board, plot):
            say(f"figure: {path}")


def settings_of(
    config: Path | None, trace_name: str | None, profile: str | None, capacity: int | None,
    requests: int | None, isolate: bool, no_guard: bool, block_tokens: int | None,
) -> Settings:  # fmt: skip
    """The settings of a file, or the defaults, with what the command line says in their place."""
    from tanren_dsl.scoring.settings import Settings, load_settings

    given = {
        "trace": trace_name,
        "profile": profile,
        "capacity": capacity,
        "requests": requests,
        "block_tokens": block_tokens,
        "isolate": isolate or None,
        "guard": False if no_guard else None,
    }
    settings = Settings() if config is None else load_settings(config)
    return settings.changed(**{name: value for name, value in given.items() if value is not None})


def runs_of(settings: Settings, skip_bad: bool, evict: Policy | None = None) -> Runs:
    """Trace and profile of the settings; what is assumed and left out goes to standard error."""
    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.scoring.runs import Runs
    from tanren_dsl.sim.latency import read_latency

    latency = read_latency(settings.profile)
    trace = load_trace(settings.trace, settings.block_tokens, skip_bad)
    runs = Runs(trace, settings, latency=latency, evict=evict, compile_ordering=compile_ordering, say=say)
    for note in runs.notes:
        say(f"  {note}")
    say(f"latency: {latency.summary}")
    return runs


def title_of(runs: Runs) -> str:
    """Mode, engine, trace, server and latency profile, for the head of a table."""
    from tanren_dsl.sim.serving import MODE

    settings = runs.settings
    switches = ["isolated"] if settings.isolate else [] if settings.caching else ["no caching"]
    switches += [] if settings.guard else ["no guard"]
    return ", ".join(
        [
            f"{MODE} mode",
            settings.engine,
            runs.trace.name,
            f"{settings.capacity:,} blocks of {settings.block_size} tokens",
            f"{runs.latency.name} ({runs.latency.basis})",
            *switches,
        ]
    )


def _check_plot(folder: Path) -> None:
    """Refuse before minutes of serving what could not be drawn after them."""
    from tanren_dsl.scoring.plots import require_matplotlib

    require_matplotlib()
    if folder.exists() and not folder.is_dir():
        raise TanrenError(f"cannot write figures to {folder}: it is a file")


def _print(board: Board) -> None:
    settings = board.runs.settings
    found = [row.as_json() for row in board.rows]
    loads = ", ".join(f"{load:g}" for load in settings.loads)
    print_table(
        f"{title_of(board.runs)}\n{board.configurations} configurations: windows from requests "
        f"{', '.join(f'{start:,}' for start in board.starts)}; loads {loads}; {settings.repeats} repeats",
        [
            "policy", "total", "violations", "mean shorter", "wins", "p", "worst p99", "p99 wins", "p",
            "worst wait (s)", "mean queue", "hindsight w/t/l", "rescued", "preempted", "faults",
        ],
        [_row(row) for row in found],
    )  # fmt: skip
    print_table(
        f"idle: mean TTFT against FCFS at a load of {settings.idle:g}",
        ["policy", *(f"window {window}" for window in range(len(board.starts))), "within 1 %"],
        [
            [
                row["policy"],
                *(f"{100 * one['difference']:+.2f} %" for one in row["idle"]),
                "yes" if row["idle_holds"] else "NO",
            ]
            for row in found
        ],
    )
    notes = _notes(board, found)
    click.echo("\n".join(notes))


def _row(row: dict[str, Any]) -> list[str]:
    hindsight = row["hindsight"]
    return [
        row["policy"],
        f"{row['total']:+,.3f}",
        f"{row['violations']}",
        f"{100 * row['mean_gain']:+.1f} %",
        f"{row['mean_wins']} of {row['mean_wins'] + row['mean_losses']}",
        f"{row['p_mean']:.2g}",
        f"x {row['worst_p99_ratio']:,.2f}",
        f"{row['p99_wins']} of {row['p99_wins'] + row['p99_losses']}",
        f"{row['p_p99']:.2g}",
        f"{row['worst_wait_s']:,.1f}",
        f"{row['mean_queue']:,.1f}",
        f"{hindsight['wins']}/{hindsight['ties']}/{hindsight['losses']}",
        f"{row['rescued']:,}",
        f"{row['preemptions']:,}",
        f"{row['faults']:,}",
    ]


def _notes(board: Board, found: Sequence[dict[str, Any]]) -> list[str]:
    windows = len(board.starts)
    tests = [
        f"{row['policy']} {row['clustered_p_mean']:.2g}"
        for row in found[1:]
        if row["mean_wins"] + row["mean_losses"]
    ]
    restless = [] if all(row["idle_holds"] for row in found) else [_RESTLESS]
    return [
        *restless,
        "Of the TTFT; a violation is a p99 above 1.05 times FCFS's. Ties drop out of the sign tests.",
        f"Counting windows instead of configurations, p of the mean: {', '.join(tests) or 'none'}; "
        f"with {windows:,} windows it cannot be below {0.5**windows:.2g}.",
        *([] if board.runs.settings.starts else [_PICKED]),
        f"The best classic of each configuration, chosen in hindsight, totals {board.hindsight_total:+.3f}.",
        f"{found[-1]['policy']} knows every output beforehand: a yardstick, no policy and no proven optimum.",
        f"Times are simulated with {board.runs.latency.summary}.",
    ]
