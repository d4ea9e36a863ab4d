"""`tanren-dsl demo`: the whole path once, from a trace to the file for vLLM."""

from __future__ import annotations

import shlex
import sys
from importlib.resources import as_file, files
from pathlib import Path

import click

from tanren_dsl.cli.evolve import DID_NOT_REACH, print_rows, processors, progress_bar
from tanren_dsl.cli.output import say
from tanren_dsl.files import write_whole

FILE = "tanren_policy.py"


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True, help="Run folder."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same result."
)
def demo(out: Path, seed: int) -> None:
    """See the whole path once: classics, a short search, the bound, the file for vLLM.

    Takes a minute or two on two cores and needs no network: the trace is generated, a
    stand-in and not a measurement. A run folder of an earlier demo is replaced. A search that does not
    reach its gate ends there, with 3.

    \b
    Example:
      tanren-dsl demo --out runs/demo
    """
    from tanren_dsl.backends.vllm import emit
    from tanren_dsl.check import loads
    from tanren_dsl.evolve.loop import run_evolution
    from tanren_dsl.evolve.problem import load_problem

    with as_file(files("tanren_dsl.examples") / "configs" / "demo.toml") as config:
        problem = load_problem(config)
    say("demo: the embedded chat trace; the first run compiles the simulator, which takes most of a minute")
    with progress_bar() as progress:
        outcome = run_evolution(problem, seed, out, processors(), progress, replace=_is_demo(out))
    print_rows(outcome.rows, outcome.unit)
    click.echo(f"The champion, {outcome.path}:\n")
    click.echo(outcome.text)
    click.echo(f"Selected: {outcome.selection}.")
    click.echo(f"Verdict: {outcome.verdict}.\n")
    if not outcome.reached:
        sys.exit(DID_NOT_REACH)
    path = outcome.folder / FILE
    write_whole(path, emit(loads(outcome.text, outcome.path.name)))
    click.echo(f"The file for vLLM: {path}")
    click.echo("The one flag:")
    folder = shlex.quote(str(path.parent))
    click.echo(f"  PYTHONPATH={folder} vllm serve MODEL --scheduler-cls {path.stem}.Scheduler")


def _is_demo(folder: Path) -> bool:
    """Whether an earlier demo's run is there, which may be replaced."""
    from tanren_dsl.evolve.store import DATABASE

    written = folder / "run.toml"
    if not written.is_file() or not (folder / DATABASE).is_file():
        return False
    return b'name = "demo"' in written.read_bytes().splitlines()
