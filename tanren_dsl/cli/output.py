"""How commands print: data to standard output, everything else to standard error; files whole."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import click

from tanren_dsl.errors import Diagnostic

_WIDEST = 10_000
"""More columns than any table of ours needs."""


def say(text: str) -> None:
    """A line of progress or advice on standard error."""
    click.echo(text, err=True)


def warn(finding: Diagnostic) -> None:
    """A warning on standard error, with its place."""
    click.echo(finding.render_as("warning"), err=True)


def print_json(value: object) -> None:
    """One JSON document on standard output; numbers that JSON lacks become text such as "nan"."""
    click.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output: the first column to the left, the others to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # as wide as its text wants: a narrow terminal may wrap a line, but no digit is left out
    console = Console(highlight=False, markup=False, emoji=False, width=_WIDEST)
    console.print(title, style="bold")
    console.print(table)


def percent(share: float) -> str:
    """A share as text."""
    return f"{100 * share:.2f} %"


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
