"""Imports point one way, simulators and backends are strangers, files stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

LAYERS = (
    ("", "source", "units", "grammar", "examples"),
    ("errors",),
    ("signals", "ops", "files", "stats"),
    ("syntax", "ir"),
    (
        "kernels",
        "parser",
        "mistakes",
        "names",
        "rules",
        "values",
        "warn",
        "check",
        "printer",
        "passes",
        "interp",
    ),
    ("trace",),
    ("backends", "sim"),
    ("scoring",),
    ("diagnosis",),
    ("conform", "evolve"),
    ("bench",),
    ("cli", "__main__"),
)
"""A part may import what stands in its own row or above; `` is `tanren_dsl` itself."""

STRANGERS = {
    ("sim", "backends"),
    ("backends", "sim"),
    ("backends", "evolve"),
    ("scoring", "backends"),
    ("diagnosis", "backends"),
    ("conform", "backends"),
    ("conform", "evolve"),
    ("evolve", "conform"),
}
"""Parts that must not import each other, though their rows would allow it."""

LONGEST = 400


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package: `part/name.py` as in the wheel, and its file."""
    root = Path(str(import_module("tanren_dsl").__file__)).parent
    homes = {"": root}
    for part in ("backends", "evolve", "examples", "grammar"):
        homes[part] = Path(str(import_module(f"tanren_dsl.{part}").__file__)).parent
    for part, home in homes.items():
        for path in sorted(home.rglob("*.py")):
            if not part and path.relative_to(home).parts[0] in homes:
                continue  # in a wheel these lie below the root as well
            yield str(Path(part) / path.relative_to(home)), path


MODULES = dict(modules())


def part_of(name: str) -> str:
    first = Path(name).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and parts of our own package that a file imports, lazily too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module="tanren_dsl"):
                names = [f"tanren_dsl.{alias.name}" for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [module]
            case _:
                continue
        for name in names:
            if name == "tanren_dsl" or name.startswith("tanren_dsl."):
                part = name.split(".")[1] if "." in name else ""
                yield node.lineno, part if part in ROW else ""


ROW = {part: number for number, parts in enumerate(LAYERS) for part in parts}


def test_every_part_has_a_row() -> None:
    assert {part_of(name) for name in MODULES} <= set(ROW)


def test_all_parts_are_found() -> None:
    assert {"backends", "cli", "conform", "evolve", "grammar", "kernels", "passes", "sim", "trace"} <= {
        part_of(name) for name in MODULES
    }


@pytest.mark.parametrize("name", MODULES)
def test_imports_only_point_to_rows_above(name: str) -> None:
    own = part_of(name)
    wrong = [
        f"{name}:{line} imports {part}"
        for line, part in imported(MODULES[name])
        if ROW[part] > ROW[own] or (own, part) in STRANGERS
    ]
    assert not wrong


@pytest.mark.parametrize("name", MODULES)
def test_no_file_is_too_long(name: str) -> None:
    lines = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{name} has {lines} lines: split it by noun"


def test_only_the_command_line_prints() -> None:
    loud = [
        f"{name}:{node.lineno}"
        for name, path in MODULES.items()
        if part_of(name) != "cli"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not loud
