"""Reference pages made from the program itself: `python -m tanren_dsl.cli.reference FOLDER`.

`commands.md` is the help of every command, `signals.md` the tables of signals and rewrites.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from tanren_dsl.cli.app import COMMANDS, main
from tanren_dsl.cli.output import say
from tanren_dsl.files import write_whole

_MADE = "<!-- made by `make docs`; edit the program instead -->"


def pages() -> dict[str, str]:
    """Name and text of every page."""
    return {"commands.md": commands_page(), "signals.md": signals_page()}


def commands_page() -> str:
    """The help of every command and of the commands below it."""
    parts = [_MADE, "# Commands"]
    root = click.Context(main, info_name="tanren-dsl", terminal_width=100, max_content_width=100)
    for name in COMMANDS:
        command = main.get_command(root, name)
        assert command is not None
        for context in _contexts(command, name, root):
            parts.append(f"## {context.command_path}\n\n```\n{context.get_help()}\n```")
    return "\n\n".join(parts) + "\n"


def signals_page() -> str:
    """The signals of both kinds, and the rewrites of the normal form."""
    from tanren_dsl.passes.rewrites import REWRITES
    from tanren_dsl.signals import SIGNALS, Kind

    parts = [
        _MADE,
        "# Signals",
        "Times are whole microseconds. `python` provides to `eval` and the python target.",
    ]
    kinds: tuple[Kind, ...] = ("evict", "schedule")
    for kind in kinds:
        rows = [
            (f"`{row.name}`", row.scope, str(row.type), row.meaning, ", ".join(sorted(row.provided_by)))
            for row in SIGNALS
            if row.kind == kind
        ]
        parts += [f"## {kind}", _table(("name", "per", "type", "meaning", "provided by"), rows)]
    rewrites = [(row.name, row.place, f"`{row.before}`", f"`{row.after}`", row.why) for row in REWRITES]
    parts += ["# Normal form", "Every rewrite; the form after all of them is the meaning of a policy."]
    parts.append(_table(("rewrite", "where", "before", "after", "why the order stays"), rewrites))
    return "\n\n".join(parts) + "\n"


def _contexts(command: click.Command, name: str, parent: click.Context) -> Iterator[click.Context]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _contexts(found, below, context)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        write_whole(folder / name, text)
        say(f"{folder / name}: written")


if __name__ == "__main__":
    _write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
