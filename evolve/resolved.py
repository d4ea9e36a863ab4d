"""The problem as it was run, as a TOML text that can be run again, and read back by later commands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tanren_dsl import __version__
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.settings import ModelSettings
from tanren_dsl.evolve.problem import Problem, load_problem
from tanren_dsl.evolve.setup import Ground, prepare
from tanren_dsl.evolve.store import Store
from tanren_dsl.scoring.settings import tables_of

GOAL = "goal.tpl"
"""In `start/` of a run folder, the policy that the gate names."""


def resolved_text(ground: Ground, seed: int) -> str:
    """A problem file with every default written out and windows as request numbers."""
    problem, trace = ground.problem, ground.trace
    place = Path(problem.trace)
    top: dict[str, object] = {
        "name": problem.name,
        "kind": problem.kind,
        "mode": problem.mode,
        "objective": problem.objective,
        "trace": str(place.resolve()) if place.is_file() else problem.trace,
    }
    if problem.block_tokens is not None:
        top["block_tokens"] = problem.block_tokens
    if problem.kind == "evict":
        top["candidates"] = ["all" if share is None else share for share in problem.candidates]
    tables: dict[str, Mapping[str, object]] = {
        "windows": {
            **{role: [list(window) for window in windows] for role, windows in ground.ranges.items()},
            "repeats": problem.repeats,
            **({"warm": problem.warm} if problem.mode == "replay" else {}),
        }
    }
    if problem.settings is None:
        top["engine"] = problem.engine
        sizes = asdict(problem.capacities)
        tables["capacities"] = {name: list(values) for name, values in sizes.items() if values}
        tables["score"] = asdict(problem.loss)
    else:
        profile = Path(problem.settings.profile)
        top["profile"] = str(profile.resolve()) if profile.is_file() else problem.settings.profile
        tables |= tables_of(problem.settings, ("server", "load", "guard", "score"))
    start = {"start": [f"start/{name}" for name in problem.start]} if problem.start else {}
    tables["search"] = {**asdict(problem.search), **start}
    tables["racing"] = asdict(problem.racing)
    tables["tuning"] = asdict(problem.tuning)
    gate = {name: value for name, value in asdict(problem.gate).items() if value is not None}
    if problem.gate.as_good_as is not None:
        gate["as_good_as"] = f"start/{GOAL}"
    tables["gate"] = gate
    tables["limits"] = asdict(problem.limits)
    tables["rates"] = asdict(problem.rates)
    if problem.models is not None:
        tables |= tables_of_models(problem.models)
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


def tables_of_models(settings: ModelSettings) -> dict[str, dict[str, object]]:
    """The tables `[models]` and `[models.caps]`."""
    found = {name: value for name, value in asdict(settings).items() if value is not None}
    caps = {name: value for name, value in found.pop("caps").items() if value is not None}
    if not found.pop("needs_key"):
        found["key"] = False
    return {"models": found, "models.caps": caps}


def files_of(problem: Problem) -> dict[str, str]:
    """Policies that a run folder keeps beside `run.toml`, by file name."""
    goal = problem.gate.as_good_as
    return {**problem.start, **({} if goal is None else {GOAL: goal})}


def fingerprint(problem: Problem) -> str:
    """What two runs must share to be the same run; the language model's settings may change."""
    return hashlib.sha256(repr(replace(problem, source="", models=None)).encode()).hexdigest()


def reopen(store: Store) -> Ground:
    """The ground of an earlier run, from its folder.

    Raises:
        TanrenError: the folder is not readable, or the trace has changed since.
    """
    ground = prepare(load_problem(store.folder / "run.toml"))
    if store.fact("trace") != ground.digest("train") or store.fact("holdout") != ground.digest("holdout"):
        raise TanrenError(f"{store.folder}: the trace {ground.problem.trace} has changed since the run began")
    return ground


def one_line(text: str) -> str:
    """A name for a comment or a description: one line of characters that can be printed.

    >>> one_line("two" + chr(10) + "lines" + chr(27))
    'two lines?'
    """
    return "".join(char if char.isprintable() else "?" for char in " ".join(text.split()))


def _pairs(table: Mapping[str, object]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's texts, numbers and truth values are TOML's, but for DEL
    return json.dumps(value).replace("\x7f", "\\u007f")
