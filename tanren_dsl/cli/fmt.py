"""`tanren-dsl fmt`: the canonical form of policies, in place."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from tanren_dsl.cli.options import read_stdin
from tanren_dsl.cli.output import say
from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole
from tanren_dsl.source import Source


@click.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@click.option("--check", "only_check", is_flag=True, help="Write nothing; exit 1 if a file would change.")
@click.option("--diff", "show_diff", is_flag=True, help="Write nothing; print what would change.")
@click.pass_context
def fmt(ctx: click.Context, policies: tuple[str, ...], only_check: bool, show_diff: bool) -> None:
    """Write policies in their canonical form, comments kept.

    A POLICY is a file, or `-` to read standard input and write standard output.
    Files are replaced whole and keep their permissions; one that is canonical is not touched.

    \b
    Example:
      tanren-dsl fmt --check --diff policies/*.tpl
    """
    from tanren_dsl.parser import read_source

    is_wrong = would_change = False
    for name in policies:
        try:
            source = read_stdin() if name == "-" else read_source(name)
            text = _canonical(source)
            old = source.text if name == "-" else _exact(name)
        except TanrenError as error:
            click.echo(str(error), err=True)
            is_wrong = True
            continue
        changes = text != old
        would_change |= changes
        if show_diff:
            lines = difflib.unified_diff(_lines(old), _lines(text), source.name, f"{source.name} (canonical)")
            click.echo("".join(lines), nl=False)
        if only_check and changes:
            say(f"{source.name}: not in canonical form")
        if only_check or show_diff:
            continue
        if name == "-":
            click.echo(text, nl=False)
        elif changes:
            write_whole(Path(name), text, keep_mode=True)
            say(f"{name}: rewritten")
    if is_wrong or (only_check and would_change):
        ctx.exit(1)


def _canonical(source: Source) -> str:
    from tanren_dsl.parser import parse
    from tanren_dsl.printer import print_policy

    tree = parse(source)
    text = print_policy(tree)
    if parse(Source(source.name, text)) != tree:  # never write what means something else
        raise RuntimeError(f"the canonical form of {source.name} reads back differently")
    return text


def _exact(name: str) -> str:
    """The file with its byte order mark and line ends, which the canonical form does not have."""
    return Path(name).read_bytes().decode("utf-8")


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]
