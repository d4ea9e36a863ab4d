"""The problem file: what is searched, on which requests, under which settings, with what budget.

A TOML file becomes one frozen value. Every error names the key; an unknown key is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.settings import ModelSettings, read_models
from tanren_dsl.evolve.operators import Limits, Rates
from tanren_dsl.evolve.reader import Reader
from tanren_dsl.evolve.replay_arena import Loss
from tanren_dsl.evolve.sections import (
    Gate,
    Racing,
    Search,
    Tuning,
    read_candidates,
    read_gate,
    read_knobs,
    read_limits,
    read_loss,
    read_racing,
    read_rates,
    read_search,
    read_tuning,
)
from tanren_dsl.evolve.windows import ROLES, Capacities, Cut, Role, Spread, Windows
from tanren_dsl.scoring.settings import Settings, settings_from
from tanren_dsl.signals import Kind
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.syntax import Knob

MODES = ("replay", "serving")
_KINDS: tuple[Kind, ...] = ("evict", "schedule")
_OBJECTIVES = {"replay": ("hit_rate",), "serving": ("ttft", "e2e")}
_COMPLEXITY = {"replay": 0.01, "serving": 0.0005}
_OF_SERVING = ("profile", "server", "load", "guard", "score")
"""Tables and keys that are read as `score` reads them."""


@dataclass(frozen=True)
class Problem:
    """A whole problem file.

    Attributes:
        source: the file's name, for messages.
        kind: of the policies, `evict` or `schedule`.
        mode: `replay` (hits; evict policies only) or `serving` (times, in virtual time).
        objective: `hit_rate`, `ttft` or `e2e`.
        trace: path or name of an embedded trace.
        engine: of replay mode; serving mode has it in `settings`.
        windows: of each role.
        warm: requests before each window that fill the cache and are not counted; of replay mode.
        capacities: of replay mode.
        settings: of serving mode, else None.
        candidates: considered sets to choose from, in percent (None: all).
        start: texts of policies that open the first generation, by file name.
        models: the language model that proposes, if one does.
    """

    source: str
    name: str
    kind: Kind
    mode: str
    objective: str
    trace: str
    engine: str
    block_tokens: int | None
    windows: Mapping[Role, Windows]
    repeats: int
    warm: int
    capacities: Capacities
    settings: Settings | None
    loss: Loss
    candidates: tuple[float | None, ...]
    knobs: tuple[Knob, ...]
    search: Search
    racing: Racing
    tuning: Tuning
    gate: Gate
    limits: Limits
    rates: Rates
    models: ModelSettings | None
    start: Mapping[str, str] = field(default_factory=dict)


def load_problem(path: str | Path) -> Problem:
    """Read a problem file; relative files are looked for beside it, then in the current folder.

    Raises:
        TanrenError: names the file, the key, what was expected and what was found.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise TanrenError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TanrenError(f"{path}:{line}: not UTF-8: byte 0x{data[error.start]:02x}") from None
    return parse_problem(text, str(path), path.parent, path.stem)


def parse_problem(text: str, source: str, folder: Path = Path(), stem: str = "problem") -> Problem:
    """The problem of a text; `folder` is where relative files are looked for first."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TanrenError(f"{source}: not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise TanrenError(f"{source}: not TOML: a number or the nesting is too big") from None
    top = Reader(source, "", data)
    kind: Kind = "evict" if _one_of(top, "kind", _KINDS) == "evict" else "schedule"
    mode = _one_of(top, "mode", MODES if kind == "evict" else MODES[::-1])
    if kind == "schedule" and mode == "replay":
        raise top.error("mode", '"serving" for a schedule policy: replay has no queue', mode)
    windows = top.table("windows", required=True)
    given = [role for role in ROLES if _is_given(windows, role)]
    wanted: dict[Role, Windows] = {role: _windows(windows, role) for role in given}
    repeats = windows.whole("repeats", 1 if mode == "replay" else 2, least=1, most=100)
    warm = windows.whole("warm", 0) if mode == "replay" else 0
    windows.finish()
    trace = _located(top.text("trace"), folder)
    block_tokens = top.whole("block_tokens", least=1) if "block_tokens" in data else None
    search, gate = top.table("search"), top.table("gate")
    problem = Problem(
        source=source,
        name=top.text("name", stem),
        kind=kind,
        mode=mode,
        objective=_one_of(top, "objective", _OBJECTIVES[mode]),
        trace=trace,
        engine=_engine(top) if mode == "replay" else "",
        block_tokens=block_tokens,
        windows=wanted,
        repeats=repeats,
        warm=warm,
        capacities=_capacities(top) if mode == "replay" else Capacities(),
        settings=_settings(top, trace, block_tokens, repeats, folder) if mode == "serving" else None,
        loss=read_loss(top.table("score")) if mode == "replay" else Loss(),
        candidates=read_candidates(top) if kind == "evict" else (),
        knobs=read_knobs(top, kind),
        start=_start(search, folder, kind),
        search=read_search(search, _COMPLEXITY[mode]),
        racing=read_racing(top.table("racing")),
        tuning=read_tuning(top.table("tuning")),
        gate=read_gate(gate, _policy_file(gate, "as_good_as", folder, kind)),
        limits=read_limits(top.table("limits")),
        rates=read_rates(top.table("rates")),
        models=read_models(top.table("models")),
    )
    search.finish()
    top.finish()
    return problem


def _one_of(reader: Reader, key: str, values: tuple[str, ...]) -> str:
    """One of these; the first is the default."""
    found = reader.text(key, values[0])
    if found not in values:
        raise reader.error(key, f"one of {', '.join(values)}", found)
    return found


def _engine(top: Reader) -> str:
    engine = top.text("engine", "vllm-0.19")
    if engine not in PROFILES:
        raise top.error("engine", f"one of {', '.join(PROFILES)}", engine)
    return engine


def _capacities(top: Reader) -> Capacities:
    reader = top.table("capacities", required=True)
    sizes = Capacities(
        tuple(reader.each("blocks", lambda r, k: r.whole(k, least=1))),
        tuple(reader.each("fractions", lambda r, k: r.number(k, low=0.0, high=1.0, above=True))),
    )
    if not sizes.blocks and not sizes.fractions:
        raise TanrenError(f"{top.source}: capacities: expected `blocks` or `fractions`, found neither")
    reader.finish()
    return sizes


def _settings(top: Reader, trace: str, block_tokens: int | None, repeats: int, folder: Path) -> Settings:
    """The settings of serving mode, by the reader of the scoreboard's settings."""
    data: dict[str, Any] = {"trace": trace, "windows": {"repeats": repeats}}
    if block_tokens is not None:
        data["block_tokens"] = block_tokens
    for key in _OF_SERVING:
        value = top.take(key)
        if value is not None:
            data[key] = value
    settings = settings_from(data, top.source)
    beside = folder / settings.profile
    return settings.changed(profile=str(beside)) if beside.is_file() else settings


def _is_given(windows: Reader, role: Role) -> bool:
    """A hold-out may be missing: then there is nothing to adjudicate."""
    return role != "holdout" or role in windows.data


def _located(name: str, folder: Path) -> str:
    beside = folder / name
    return str(beside) if not Path(name).is_absolute() and beside.is_file() else name


def _windows(windows: Reader, role: Role) -> Windows:
    if isinstance(windows.data.get(role), dict):
        return _spread(windows.table(role), role)
    cuts = tuple(windows.each(role, _cut))
    if not cuts:
        raise windows.error(role, "at least one [start, stop]", windows.data.get(role, "nothing"))
    return cuts


def _spread(reader: Reader, role: Role) -> Spread:
    within = _cut(reader, "within")
    pick = reader.whole("pick", least=1, most=1_000) if "pick" in reader.data else None
    if pick is not None and role == "holdout":
        raise reader.error("pick", "no such key: not even classics are run on the hold-out", pick)
    spread = Spread(
        within, reader.whole("count", least=1, most=1_000), reader.whole("requests", least=1), pick
    )
    if pick is not None and pick > spread.count:
        raise reader.error("pick", f"at most the count of {spread.count}", pick)
    reader.finish()
    return spread


def _cut(reader: Reader, key: str) -> Cut:
    value = reader.take(key)
    wanted = "[start, stop], two request numbers or two shares such as [0.0, 0.5]"
    if not isinstance(value, list) or len(value) != 2 or any(isinstance(end, bool) for end in value):
        raise reader.error(key, wanted, value)
    start, stop = value
    if isinstance(start, int) and isinstance(stop, int):
        good = 0 <= start < stop
    else:
        good = isinstance(start, float) and isinstance(stop, float) and 0.0 <= start < stop <= 1.0
    if not good:
        raise reader.error(key, wanted, value)
    return Cut(start, stop)


def _start(search: Reader, folder: Path, kind: Kind) -> dict[str, str]:
    """Texts of the policies of `search.start`, by file name."""
    found: dict[str, str] = {}

    def one(reader: Reader, key: str) -> None:
        name = Path(reader.text(key)).name
        if name in found:
            raise reader.error(key, "a file name that is not there before", name)
        found[name] = _policy_file(reader, key, folder, kind) or ""

    for _ in search.each("start", one):
        pass
    return found


def _policy_file(reader: Reader, key: str, folder: Path, kind: Kind) -> str | None:
    """The text of a policy file; None where the key is missing."""
    if key not in reader.data:
        return None
    path = Path(_located(reader.text(key), folder))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise reader.error(key, "a policy file", f"{path}: {error}") from None
    policy = loads(text, str(path))
    if policy.kind != kind:
        raise reader.error(key, f"a policy of kind {kind}", policy.kind)
    return text
