"""Options that several commands share, and how their text becomes policies, traces and numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tanren_dsl.cli.output import say, warn
from tanren_dsl.errors import TanrenError
from tanren_dsl.source import Source

if TYPE_CHECKING:  # these bring NumPy, which `--help` does not wait for
    from tanren_dsl.ir import Policy
    from tanren_dsl.syntax import PolicyText
    from tanren_dsl.trace.table import RequestTable

_F = TypeVar("_F", bound=Callable[..., Any])

BLOCK_TOKENS = click.IntRange(1, 10_000_000)
"""Tokens of a block, as problem files limit them too."""


def _capacities(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    numbers = []
    for part in value.split(","):
        text = part.strip().replace("_", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 2**31):
            found = value if len(value) <= 60 else f"{value[:57]}..."
            raise click.BadParameter(f"expected blocks such as 1000,2000, found {found!r}", ctx, param)
        numbers.append(int(text))
    return list(dict.fromkeys(numbers))


def _settings(
    ctx: click.Context, param: click.Parameter, values: Sequence[str]
) -> tuple[tuple[str, float], ...]:
    found = []
    for value in values:
        name, _, text = value.partition("=")
        try:
            number = float(text)
        except ValueError:
            name = ""
        if not name.strip():
            raise click.BadParameter(f"expected NAME=NUMBER, found {value!r}", ctx, param)
        found.append((name.strip(), number))
    return tuple(found)


def knob_option(function: _F) -> _F:
    """`--knob NAME=VALUE`, any number of times."""
    return click.option(
        "--knob", "knobs", callback=_settings, multiple=True, metavar="NAME=VALUE",
        help="Set a knob, in seconds where time is meant; may be repeated.",
    )(function)  # fmt: skip


def json_option(function: _F) -> _F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")(
        function
    )


def engine_option(function: _F) -> _F:
    """`--engine NAME`, for replay mode."""
    return click.option(
        "--engine", default="vllm-0.19", show_default=True, metavar="ENGINE",
        help="Engine whose free order and victim rule are copied.",
    )(function)  # fmt: skip


def capacity_option(function: _F) -> _F:
    """`--capacity A,B`."""
    return click.option(
        "--capacity", "capacities", callback=_capacities, required=True, metavar="A,B,...",
        help="Usable blocks of the cache; several sizes are separated by commas.",
    )(function)  # fmt: skip


def trace_reading_options(function: _F) -> _F:
    """`--block-tokens` and `--skip-bad`."""
    block = click.option(
        "--block-tokens", type=BLOCK_TOKENS, help="Tokens of a trace block, if not as detected."
    )
    skip = click.option("--skip-bad", is_flag=True, help="Leave bad lines out, counted, instead of refusing.")
    return block(skip(function))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy with its text as read."""

    source: Source
    text: PolicyText
    policy: Policy


def load_each(
    names: Sequence[str], settings: Sequence[tuple[str, float]] = ()
) -> list[tuple[str, Loaded | TanrenError]]:
    """Each policy by path or by the bare name of a packaged example, checked, or what is wrong with it.

    A knob goes to each policy that declares it; one that nobody declares goes to everybody,
    whose checker refuses it by name.
    """
    from tanren_dsl.check import check
    from tanren_dsl.parser import parse
    from tanren_dsl.syntax import Knob

    if names.count("-") > 1:
        raise click.UsageError("Standard input (-) can be read once.")
    parsed: list[tuple[str, tuple[Source, PolicyText] | TanrenError]] = []
    knobs: dict[str, set[str]] = {}
    for name in names:
        try:
            source = read_policy(name)
            text = parse(source)
        except TanrenError as error:
            parsed.append((name, error))
            continue
        parsed.append((name, (source, text)))
        knobs[name] = {decl.name for decl in text.decls if isinstance(decl, Knob)}
    declared = set().union(*knobs.values())
    found: list[tuple[str, Loaded | TanrenError]] = []
    for name, one in parsed:
        if isinstance(one, TanrenError):
            found.append((name, one))
            continue
        source, text = one
        mine = {knob: value for knob, value in settings if knob in knobs[name] or knob not in declared}
        try:
            found.append((name, Loaded(source, text, check(text, source, mine))))
        except TanrenError as error:
            found.append((name, error))
    return found


def load_policies(
    names: Sequence[str], settings: Sequence[tuple[str, float]] = (), *, warns: bool = True
) -> list[Loaded]:
    """Checked policies, as `load_each`. Warnings go to standard error.

    Raises:
        TanrenError: with the findings of all policies.
    """
    from tanren_dsl.check import warnings

    outcomes = [outcome for _, outcome in load_each(names, settings)]
    wrong = [one.diagnostics for one in outcomes if isinstance(one, TanrenError)]
    if wrong:
        raise TanrenError.from_diagnostics(list(dict.fromkeys(row for rows in wrong for row in rows)))
    loaded = [one for one in outcomes if isinstance(one, Loaded)]
    for one in loaded if warns else ():
        for finding in warnings(one.text):
            warn(finding)
    return loaded


def load_policy(name: str, settings: Sequence[tuple[str, float]] = (), *, warns: bool = True) -> Loaded:
    """One policy, as `load_policies`."""
    return load_policies([name], settings, warns=warns)[0]


def read_policy(name: str) -> Source:
    """The text of a path, of standard input (`-`), or of a packaged example by its bare name."""
    from tanren_dsl.parser import read_source

    if name == "-":
        return read_stdin()
    if not Path(name).exists() and (example := examples().get(name)) is not None:
        say(f"{name}: no such file here, taking the packaged example {example.parent.name}/{example.name}")
        return read_source(example)
    try:
        return read_source(name)
    except TanrenError as error:
        if Path(name).exists() or error.diagnostics[0].hint is not None:
            raise
        known = ", ".join(examples())
        raise TanrenError(error.diagnostics[0].message, hint=f"packaged examples: {known}") from None


def read_stdin() -> Source:
    """Standard input as a policy's text.

    Raises:
        TanrenError: it is empty or not UTF-8.
    """
    from tanren_dsl.parser import source_of

    return source_of(sys.stdin.buffer.read(), "<stdin>")


def examples() -> dict[str, Path]:
    """Packaged policies by bare name; those of problem files are not among them."""
    root = Path(str(files("tanren_dsl.examples")))
    return {path.stem: path for kind in ("evict", "schedule") for path in sorted(root.glob(f"{kind}/*.tpl"))}


def load_trace(name: str, block_tokens: int | None = None, skip_bad: bool = False) -> RequestTable:
    """A trace; what its reader assumed goes to standard error."""
    from tanren_dsl.trace.read import read_trace

    table = read_trace(name, block_tokens=block_tokens, skip_bad=skip_bad)
    say(f"{table.name}: {len(table):,} requests, {table.lookups:,} block lookups")
    for note in table.notes:
        say(f"  {note}")
    return table


def single(loaded: Sequence[Loaded], kind: str) -> Policy | None:
    """The only policy of a kind, or None.

    Raises:
        TanrenError: there are several.
    """
    found = [one for one in loaded if one.policy.kind == kind]
    if len(found) > 1:
        names = ", ".join(one.source.name for one in found)
        raise TanrenError(f"expected at most one {kind} policy, found {len(found)}: {names}")
    return found[0].policy if found else None
