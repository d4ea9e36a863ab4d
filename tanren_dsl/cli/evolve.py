"""`tanren-dsl evolve`: search for a policy on a trace."""

from __future__ import annotations

import os
import sys
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
    from tanren_dsl.evolve.outcome import Outcome, Row
    from tanren_dsl.evolve.population import Step
    from tanren_dsl.evolve.problem import Problem

DID_NOT_REACH = 3
"""Exit status of a run whose champion misses its gate, and of a result that is not confirmed."""


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="CONFIG.toml")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same result."
)
@click.option("--out", type=click.Path(path_type=Path), help="Run folder.  [default: runs/CONFIG-SEED]")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that measure.  [default: processors]")
@click.option("--trace", "trace_name", metavar="TRACE", help="File, or chat, in place of the file's.")
@click.option("--resume", is_flag=True, help="Go on with the run in the folder, if there is one.")
@click.option(
    "--replay", is_flag=True, help="With --resume: take the language model's answers from the folder only."
)
@json_option
def evolve(
    config: Path, seed: int, out: Path | None, workers: int | None, trace_name: str | None, resume: bool,
    replay: bool, as_json: bool,
) -> None:  # fmt: skip
    """Search for a policy on a trace: typed genetic programming, and a language model if you have one.

    CONFIG.toml says what is searched: kind of policy, trace, windows to train on, to validate on and
    to hold out, settings, gate, budget. The run folder keeps every candidate with its parents and
    measurements, and the champion as a policy file. Exits with 0 if the champion passes its gate,
    with 3 if not. What is found is simulated; `adjudicate` judges it on the hold-out.

    \b
    Example:
      tanren-dsl evolve demo.toml --seed 1 --out runs/first
    """
    from tanren_dsl.evolve.loop import run_evolution
    from tanren_dsl.evolve.problem import load_problem

    if replay and not resume:
        raise click.UsageError("--replay needs --resume: the answers are those of a run that was")
    problem = load_problem(config)
    if trace_name is not None:
        problem = with_trace(problem, trace_name)
    if not is_embedded(problem.trace) and not Path(problem.trace).exists():
        raise TanrenError(
            f"{config}: there is no trace {problem.trace}", hint="pass its place with --trace PATH"
        )
    folder = out if out is not None else Path("runs") / f"{config.stem}-{seed}"
    with progress_bar() as progress:
        outcome = run_evolution(
            problem, seed, folder, workers or processors(), progress, resume=resume, replay=replay
        )
    for note in outcome.notes:
        say(f"trace: {note}")
    if as_json:
        print_json(outcome.as_json())
    else:
        print_outcome(outcome)
    if not outcome.reached:
        sys.exit(DID_NOT_REACH)


def with_trace(problem: Problem, trace: str) -> Problem:
    """The problem on another trace."""
    settings = None if problem.settings is None else problem.settings.changed(trace=trace)
    return replace(problem, trace=trace, settings=settings)


def is_embedded(trace: str) -> bool:
    """Whether a trace is made and not read."""
    from tanren_dsl.trace.read import EMBEDDED

    return trace.split(":")[0] in EMBEDDED


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
        return "" if step.best is None else f"best gain on train {step.best:+.4g}"

    if not console.is_terminal:

        def line(step: Step) -> None:
            if step.phase not in phases:
                phases.append(step.phase)
                count = f": {step.done} of {step.total}" if step.total else ""
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


def print_outcome(outcome: Outcome) -> None:
    """Tables, the champion, the gate and the verdict."""
    print_rows(outcome.rows, outcome.unit)
    print_table(
        f"totals (sums of scores over configurations, {outcome.unit})",
        ["", "train", "validation"],
        [
            [outcome.name, *(f"{outcome.totals[role]:+.4g}" for role in ("train", "validation"))],
            [
                "best classic of each configuration, in hindsight",
                *(f"{outcome.hindsight[role]:+.4g}" for role in ("train", "validation")),
            ],
        ],
    )
    print_table(
        "simplest and best on train",
        ["complexity", "mean score", "order"],
        [[f"{one.cost:g}", f"{one.score:+.4g}", order_of(one.text)] for one in outcome.front],
    )
    click.echo(outcome.text)
    click.echo(f"selected: {outcome.selection}")
    if outcome.model is not None:
        click.echo(f"language model: {outcome.model}")
    for check in outcome.checks:
        mark = "passed" if check.passed else "MISSED"
        click.echo(f"gate, {check.name}: {mark}: wanted {check.wanted}, found {check.found:.4g}")
    click.echo(f"verdict: {outcome.verdict}")
    click.echo(f"champion: {outcome.path}")


def order_of(text: str) -> str:
    """The `order by` of a policy's canonical text and what follows, on one line."""
    return " ".join(text[text.index("order by") :].split())


def print_rows(rows: tuple[Row, ...], unit: str) -> None:
    """A table for each role and window: every policy in every configuration."""
    places = dict.fromkeys((row.role, row.window) for row in rows)
    for role, window in places:
        here = [row for row in rows if (row.role, row.window) == (role, window)]
        labels = list(dict.fromkeys(row.label for row in here))
        lines = []
        for policy, family in dict.fromkeys((row.policy, row.family) for row in here):
            own = {row.label: row for row in here if row.policy == policy}
            cells = [
                f"{own[name].shown}  {own[name].score:+.3f}{'!' if own[name].violated else ''}"
                for name in labels
            ]
            lines.append([policy, family, *cells])
        print_table(
            f"{role}: {window} (figure and score, {unit}; ! the tail is beyond its limit)",
            ["policy", "", *labels],
            lines,
        )
