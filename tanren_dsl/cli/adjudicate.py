"""`tanren-dsl adjudicate`: a run's champion on its sealed hold-out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tanren_dsl.cli.evolve import DID_NOT_REACH, print_rows, progress_bar
from tanren_dsl.cli.options import json_option
from tanren_dsl.cli.output import print_json, print_table

if TYPE_CHECKING:
    from tanren_dsl.evolve.adjudicate import Verdict
    from tanren_dsl.evolve.ledger import Look


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="RUN")
@click.option("--show", is_flag=True, help="Print the ledger; the hold-out is not looked at.")
@json_option
def adjudicate(run: Path, show: bool, as_json: bool) -> None:
    """Judge a run's champion on its hold-out, once.

    RUN is the folder of a run of `evolve` that reached its gate. The hold-out was sealed until now:
    the search never measured anything there. The look is written into the run's ledger before it is
    taken; any further look is numbered, and its result is no longer sealed. Prints totals, sign tests,
    bootstrap intervals, the classics and the bound beside it, and the same champion at other block sizes
    and cache sizes. Exits with 0 if the gain is confirmed, with 3 if it is not or the hold-out stays sealed.

    \b
    Example:
      tanren-dsl adjudicate runs/first
    """
    from tanren_dsl.evolve.adjudicate import SealedError
    from tanren_dsl.evolve.adjudicate import adjudicate as judge
    from tanren_dsl.evolve.ledger import looks
    from tanren_dsl.evolve.store import Store

    if show:
        store = Store.open(run, reads=True)
        try:
            _print_ledger(looks(store), as_json)
        finally:
            store.close()
        return
    try:
        with progress_bar() as progress:
            verdict = judge(run, progress)
    except SealedError as error:
        click.echo(str(error), err=True)
        sys.exit(DID_NOT_REACH)
    if as_json:
        print_json(verdict.as_json())
    else:
        _print(verdict)
    if not verdict.confirmed:
        sys.exit(DID_NOT_REACH)


def _print(verdict: Verdict) -> None:
    print_rows(verdict.rows, verdict.unit)
    print_table(
        f"95 % intervals of {verdict.policy} against {verdict.base}, above 0 is better (paired bootstrap "
        "over requests)",
        ["setting", "figure", "value", "from", "to"],
        [
            [one.setting, one.figure, f"{one.value:+.3f}", f"{one.low:+.3f}", f"{one.high:+.3f}"]
            for one in verdict.intervals
        ],
    )
    print_table(
        f"the same champion at other sizes (mean gain over {verdict.base} of that size, {verdict.unit})",
        ["block (tokens)", "cache", "gain", "score", "tails beyond the limit"],
        [
            [
                f"{one.block_tokens}",
                f"x {one.cache:g}",
                f"{one.gain:+.4g}" if one.gain is not None else one.note or "",
                f"{one.score:+.4g}" if one.score is not None else "",
                f"{one.violations}",
            ]
            for one in verdict.sweeps
        ],
    )
    count = verdict.wins + verdict.losses
    name, points = verdict.best_classic
    click.echo(
        f"total: {verdict.total:+.4g} {verdict.unit} over all configurations "
        f"(mean gain {verdict.gain:+.4g})\n"
        f"wins: {verdict.wins} of {count} configurations, p {verdict.p:.2g} (sign test); counting windows, "
        f"p {verdict.clustered_p:.2g}\n"
        f"tails beyond the limit: {verdict.violations}\n"
        f"best single classic: {name}, total {points:+.4g}; best classic of each configuration in hindsight: "
        f"{verdict.hindsight:+.4g}"
    )
    if verdict.look > 1:
        click.echo(f"look {verdict.look}: only the first look was sealed")
    else:
        click.echo("look 1: sealed until now")
    if verdict.elsewhere:
        others = ", ".join(verdict.elsewhere)
        click.echo(f"other runs looked at this hold-out too, and luck adds up: {others}")
    said = "confirmed on the hold-out" if verdict.confirmed else "NOT confirmed on the hold-out"
    why = f": {'; '.join(verdict.reasons)}" if verdict.reasons else ""
    click.echo(f"verdict: {said}{why}; simulated, in {verdict.mode} mode: a real engine has not agreed yet")


def _print_ledger(found: list[Look], as_json: bool) -> None:
    if as_json:
        print_json([{"look": one.number, "begun": one.begun, "policy": one.policy, "state": one.state,
                     "result": one.result} for one in found])  # fmt: skip
        return
    print_table(
        "looks at the hold-out",
        ["look", "begun (UTC)", "policy", "state", "total", "confirmed"],
        [
            [
                f"{one.number}",
                one.begun,
                one.policy,
                one.state,
                "" if one.result is None else f"{one.result['total']:+.4g}",
                "" if one.result is None else "yes" if one.result["confirmed"] else "no",
            ]
            for one in found
        ],
    )
