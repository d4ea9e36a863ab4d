"""`tanren-dsl evolve`: search for an eviction policy on a trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tanren_dsl.cli.options import json_option
from tanren_dsl.cli.output import print_json, print_table, say
from tanren_dsl.errors import TanrenError

if TYPE_CHECKING:  # these bring NumPy and DEAP, which `--help` does not wait for
    from tanren_dsl.evolve.loop import Step
    from tanren_dsl.evolve.outcome import Outcome


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CONFIG.toml")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same result."
)
@click.option("--out", type=click.Path(path_type=Path), help="Run folder.  [default: runs/CONFIG-SEED]")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that measure.  [default: processors]")
@click.option("--trace", "trace_name", metavar="TRACE", help="File, or chat, in place of the file's.")
@json_option
def evolve(
    config: Path, seed: int, out: Path | None, workers: int | None, trace_name: str | None, as_json: bool
) -> None:
    """Search for an eviction policy on a trace by typed genetic programming.

    CONFIG.toml says what is searched: trace, windows to train on and to validate on, cache
    sizes, budget. The run folder keeps every candidate with its parents and measurements, and
    the champion as a policy file. Replay mode: what is found is simulated.

    \b
    Example:
      tanren-dsl evolve demo.toml --seed 1 --out runs/first
    """
    from tanren_dsl.evolve.loop import run_evolution
    from tanren_dsl.evolve.problem import load_problem

    problem = load_problem(config)
    if trace_name is not None:
        problem = replace(problem, trace=trace_name)
    if not problem.trace.startswith("chat") and not Path(problem.trace).exists():
        raise TanrenError(
            f"{config}: there is no trace {problem.trace}", hint="pass its place with --trace PATH"
        )
    folder = out if out is not None else Path("runs") / f"{config.stem}-{seed}"
    with progress_bar() as progress:
        outcome = run_evolution(problem, seed, folder, workers or processors(), progress)
    for note in outcome.notes:
        say(f"trace: {note}")
    if as_json:
        print_json(outcome.as_json())
        return
    print_rows(outcome)
    click.echo(outcome.text)
    click.echo(f"selected: {outcome.selection}")
    click.echo(f"verdict: {outcome.verdict}")
    click.echo(f"champion: {outcome.path}")


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def progress_bar() -> Iterator[Callable[[Step], None]]:
    """A bar on standard error; where that is no terminal, a line for each phase."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    phases: list[str] = []

    def gained(step: Step) -> str:
        return "" if step.best is None else f"best on train {step.best:+.2f} points"

    if not console.is_terminal:

        def line(step: Step) -> None:
            if step.phase not in phases:
                phases.append(step.phase)
                count = f": {step.done} of {step.total} measured" if step.total else ""
                say(f"{step.phase}{count}  {gained(step)}".rstrip())

        yield line
        return
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, TextColumn("{task.fields[best]}"), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, best="")

        def show(step: Step) -> None:
            total = step.total or None
            bar.update(task, description=step.phase, completed=step.done, total=total, best=gained(step))

        yield show


def print_rows(outcome: Outcome) -> None:
    """A table for each role and window: every policy at every cache size."""
    places = dict.fromkeys((row.role, row.window) for row in outcome.rows)
    for role, window in places:
        rows = [row for row in outcome.rows if (row.role, row.window) == (role, window)]
        sizes = dict.fromkeys((row.size, row.capacity) for row in rows)
        heads = [name if name.endswith("blocks") else f"{name} ({blocks:,})" for name, blocks in sizes]
        lines = []
        for policy, family in dict.fromkeys((row.policy, row.family) for row in rows):
            own = {row.size: row for row in rows if row.policy == policy}
            cells = [f"{100 * own[name].hit_rate:.2f} %  {own[name].points:+6.2f}" for name, _ in sizes]
            lines.append([policy, family, *cells])
        print_table(f"{role}: {window} (hit rate and points over LRU)", ["policy", "", *heads], lines)
