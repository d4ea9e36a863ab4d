"""`tanren-dsl check`: errors and warnings of policies."""

from __future__ import annotations

import click

from tanren_dsl.cli.options import json_option, knob_option, load_each
from tanren_dsl.cli.output import print_json, warn
from tanren_dsl.errors import Diagnostic, TanrenError


@click.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@knob_option
@json_option
@click.pass_context
def check(
    ctx: click.Context, policies: tuple[str, ...], knobs: tuple[tuple[str, float], ...], as_json: bool
) -> None:
    """Check policies: syntax, units, and what looks like a mistake.

    A POLICY is a file, `-`, or the bare name of a packaged example. Warnings do not
    change the exit status; errors make it 1.

    \b
    Example:
      tanren-dsl check my.tpl other.tpl --knob budget=4096
    """
    from tanren_dsl.check import warnings

    rows: list[dict[str, object]] = []
    is_wrong = False
    for name, loaded in load_each(policies, knobs):
        if isinstance(loaded, TanrenError):
            is_wrong = True
            rows.extend(_row(name, "error", finding) for finding in loaded.diagnostics)
            if not as_json:
                click.echo(str(loaded), err=True)
            continue
        for finding in warnings(loaded.text):
            rows.append(_row(name, "warning", finding))
            if not as_json:
                warn(finding)
        if not as_json:
            click.echo(f"{name}: ok, {loaded.policy.kind} policy {loaded.policy.name}")
    if as_json:
        print_json(rows)
    if is_wrong:
        ctx.exit(1)


def _row(name: str, severity: str, finding: Diagnostic) -> dict[str, object]:
    span = finding.span
    line, col = (None, None) if span is None else span.source.line_col(span.start)
    return {
        "file": name if span is None else span.source.name,
        "line": line,
        "col": col,
        "severity": severity,
        "message": finding.message,
        "hint": finding.hint,
    }
