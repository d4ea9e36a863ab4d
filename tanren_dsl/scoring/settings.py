"""Everything that decides a scoreboard but the policies: one frozen value, or a TOML file of it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tanren_dsl.errors import TanrenError
from tanren_dsl.scoring.formula import PENALTY, SLACK
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.sim.service import GUARD_SEED_S
from tanren_dsl.sim.serving import Server

PROFILE = "gb10-llama-3.1-8b"
"""The latency profile of an 8B model on a small machine."""
CAPACITY = 40_000
"""Blocks of 16 tokens that such a machine has for an 8B model: 128 KiB a token, about 80 GB."""
MODEL_LEN = 131_072
"""Most tokens of a request that such a model takes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is served, by which server, how fast, in which windows, at which loads, and how it is judged.

    Attributes:
        trace: file, or an embedded trace by name.
        block_tokens: tokens of a trace block; None: as detected.
        profile: latency profile, by name or file.
        capacity: usable blocks of the cache.
        isolate: prefixes are not cached and no two requests share one: the order of service alone counts.
        requests: of a window; None: 1,500, or as many as fit a short trace.
        windows: how many.
        starts: first request of each window, counted without the requests that are left out; empty:
            `windows` of them are picked by which classic wins them.
        candidates: windows to pick from, at most.
        repeats: of each window, every one begun a little later.
        loads: arrivals as shares of the saturated throughput of FCFS.
        idle: the load at which a policy must leave the mean alone.
        guard: serve first what waits far longer than the mean.
        guard_seed_s: mean wait that the guard starts from.
        s, k: of the score, see `formula.py`.

    Raises:
        TanrenError: a value is out of range; the message names it as the file does.
    """

    trace: str = "chat"
    block_tokens: int | None = None
    profile: str = PROFILE
    engine: str = "vllm-0.32"
    capacity: int = CAPACITY
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = MODEL_LEN
    asynchronous: bool = True
    long_prefill_token_threshold: int = 0
    caching: bool = True
    isolate: bool = False
    requests: int | None = None
    windows: int = 4
    starts: tuple[int, ...] = ()
    candidates: int = 12
    repeats: int = 2
    loads: tuple[float, ...] = (0.95, 1.15)
    idle: float = 0.1
    guard: bool = True
    guard_seed_s: float = GUARD_SEED_S
    s: float = SLACK
    k: float = PENALTY

    def __post_init__(self) -> None:
        for name, (path, kind) in _FIELDS.items():
            value = getattr(self, name)
            if not (value is None and name in _MAY_BE_NONE) and not kind.holds(value):
                raise TanrenError(f"{path}: expected {kind.words}, found {_shown(value)}")
        if self.idle >= min(self.loads):
            raise TanrenError(f"load.idle: expected a share below all of load.shares, found {self.idle!r}")
        if self.starts and len(self.starts) != self.windows:
            raise TanrenError(
                f"windows.starts: expected {self.windows} of them, as windows.count says, "
                f"found {len(self.starts)}"
            )

    @property
    def server(self) -> Server:
        """The server; isolated, it caches nothing."""
        return Server(
            usable_blocks=self.capacity,
            engine=self.engine,
            block_size=self.block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            asynchronous=self.asynchronous,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            caching=self.caching and not self.isolate,
        )

    def changed(self, **values: Any) -> Settings:
        """The same settings but for these, checked."""
        return replace(self, **values)

    def as_json(self) -> dict[str, Any]:
        """Every value by its name."""
        return asdict(self)


@dataclass(frozen=True)
class _Kind:
    """What a value must be, in words and as a question."""

    words: str
    holds: Callable[[Any], bool]


def _whole(least: int, most: int = 10_000_000) -> _Kind:
    words = f"a whole number from {least:,} to {most:,}"
    return _Kind(words, lambda value: _is_whole(value) and least <= value <= most)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    """A finite number that a double can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 1 << 53


def _are_shares(value: object) -> bool:
    if not isinstance(value, tuple) or not 1 <= len(value) <= 20:
        return False
    return all(_is_share(one) for one in value) and len(set(map(float, value))) == len(value)


def _is_share(value: object) -> bool:
    return _is_number(value) and 1e-3 <= value <= 1e3  # type: ignore[operator]


def _are_starts(value: object) -> bool:
    return isinstance(value, tuple) and all(_is_whole(one) and one >= 0 for one in value)


_TEXT = _Kind("a text", lambda value: isinstance(value, str) and bool(value.strip()))
_TRUTH = _Kind("true or false", lambda value: isinstance(value, bool))
_ENGINE = _Kind(f"one of {', '.join(PROFILES)}", lambda value: isinstance(value, str) and value in PROFILES)

_FIELDS: dict[str, tuple[str, _Kind]] = {
    "trace": ("trace", _TEXT),
    "block_tokens": ("block_tokens", _whole(1)),
    "profile": ("profile", _TEXT),
    "engine": ("server.engine", _ENGINE),
    "capacity": ("server.capacity", _whole(1)),
    "block_size": ("server.block_size", _whole(1)),
    "max_num_seqs": ("server.max_num_seqs", _whole(1, 100_000)),
    "max_num_batched_tokens": ("server.max_num_batched_tokens", _whole(1)),
    "max_model_len": ("server.max_model_len", _whole(2)),
    "asynchronous": ("server.asynchronous", _TRUTH),
    "long_prefill_token_threshold": ("server.long_prefill_token_threshold", _whole(0)),
    "caching": ("server.caching", _TRUTH),
    "isolate": ("server.isolate", _TRUTH),
    "requests": ("windows.requests", _whole(1)),
    "windows": ("windows.count", _whole(1, 1_000)),
    "starts": ("windows.starts", _Kind("a list of request numbers", _are_starts)),
    "candidates": ("windows.candidates", _whole(1, 1_000)),
    "repeats": ("windows.repeats", _whole(1, 100)),
    "loads": ("load.shares", _Kind("1 to 20 shares from 0.001 to 1000, each once", _are_shares)),
    "idle": ("load.idle", _Kind("a share from 0.001 to 1000", _is_share)),
    "guard": ("guard.on", _TRUTH),
    "guard_seed_s": ("guard.seed_s", _Kind("seconds from 0", lambda v: _is_number(v) and v >= 0)),
    "s": ("score.s", _Kind("a number of at least 1", lambda v: _is_number(v) and v >= 1)),
    "k": ("score.k", _Kind("a number from 0 to 1e9", lambda v: _is_number(v) and 0 <= v <= 1e9)),
}
"""Where each setting stands in a file, and what it must be."""

_MAY_BE_NONE = ("block_tokens", "requests")
_DOUBLES = ("loads", "idle", "guard_seed_s", "s", "k")


def load_settings(path: str | Path) -> Settings:
    """Read a settings file; a relative trace or profile is looked for beside it, then in the current folder.

    Raises:
        TanrenError: names the file, the key, what was expected and what was found.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TanrenError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TanrenError(f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    found = parse_settings(text, str(path))
    places = {name: path.parent / getattr(found, name) for name in ("trace", "profile")}
    return found.changed(**{name: str(place) for name, place in places.items() if place.is_file()})


def parse_settings(text: str, place: str) -> Settings:
    """The settings of a text; `place` names it in errors. Unknown keys are refused."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TanrenError(f"{place}: not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise TanrenError(f"{place}: not TOML: a number or the nesting is too big") from None
    return settings_from(data, place)


def settings_from(data: Mapping[str, Any], place: str) -> Settings:
    """The settings of a parsed file; `place` names it in errors. Unknown keys are refused."""
    fields = {path: name for name, (path, _) in _FIELDS.items()}
    found: dict[str, Any] = {}
    for path, value in _flat(data, place):
        if path not in fields:
            close = get_close_matches(path, fields, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"known keys: {', '.join(fields)}"
            raise TanrenError(f"{place}: {path}: unknown key", hint=hint)
        found[fields[path]] = _frozen(value)
    if "starts" in found and "windows" not in found and isinstance(found["starts"], tuple):
        found["windows"] = max(1, len(found["starts"]))
    try:
        settings = Settings(**found)
    except TanrenError as error:
        raise TanrenError(f"{place}: {error.diagnostics[0].message}") from None
    return settings.changed(**{name: _as_doubles(getattr(settings, name)) for name in _DOUBLES})


def tables_of(settings: Settings, tables: Sequence[str]) -> dict[str, dict[str, Any]]:
    """These tables of a settings file, every key written out."""
    found: dict[str, dict[str, Any]] = {name: {} for name in tables}
    for name, (path, _) in _FIELDS.items():
        table, _, key = path.partition(".")
        value = getattr(settings, name)
        if table in found and value is not None:
            found[table][key] = list(value) if isinstance(value, tuple) else value
    return found


def _flat(data: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
    """Keys with their tables in front, and values; a table where none is known is an unknown key."""
    tables = {path.partition(".")[0] for path, _ in _FIELDS.values() if "." in path}
    found: list[tuple[str, Any]] = []
    for key, value in data.items():
        if key in tables and not isinstance(value, dict):
            raise TanrenError(f"{place}: {key}: expected a table, found {_shown(value)}")
        if key in tables:
            found += [(f"{key}.{name}", inner) for name, inner in value.items()]
        else:
            found.append((key, value))
    return found


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _as_doubles(value: Any) -> Any:
    return tuple(map(float, value)) if isinstance(value, tuple) else float(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
