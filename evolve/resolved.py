"""The problem as it was run, as a TOML text that can be run again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from tanren_dsl import __version__
from tanren_dsl.evolve.problem import Problem
from tanren_dsl.trace.table import RequestTable


def resolved_text(problem: Problem, seed: int, trace: RequestTable) -> str:
    """A problem file with every default written out and windows as request numbers."""
    top: dict[str, object] = {"name": problem.name, "trace": problem.trace, "engine": problem.engine}
    if problem.block_tokens is not None:
        top["block_tokens"] = problem.block_tokens
    top["candidates"] = ["all" if share is None else share for share in problem.candidates]
    tables: dict[str, Mapping[str, object]] = {
        "windows": {
            role: [list(cut.requests(len(trace))) for cut in cuts]
            for role, cuts in (("train", problem.train), ("validation", problem.validation))
        },
        "capacities": {name: list(values) for name, values in asdict(problem.capacities).items() if values},
        "search": asdict(problem.search),
        "limits": asdict(problem.limits),
        "rates": asdict(problem.rates),
    }
    tables |= {f"knobs.{knob.name}": {"unit": knob.unit, "value": knob.value} for knob in problem.knobs}
    lines = [
        f"# Made by tanren-dsl {__version__} from {one_line(problem.source)}, with --seed {seed}",
        f"# Trace: {one_line(trace.name)}, {len(trace)} requests, {trace.lookups} block lookups, "
        f"{trace.distinct_blocks} distinct blocks of {trace.block_tokens} tokens",
        *_pairs(top),
    ]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_pairs(table)]
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """A name for a comment or a description: one line of characters that can be printed.

    >>> one_line("two" + chr(10) + "lines" + chr(27))
    'two lines?'
    """
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _pairs(table: Mapping[str, object]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's texts, numbers and truth values are TOML's, but for DEL
    return json.dumps(value).replace("\x7f", "\\u007f")
