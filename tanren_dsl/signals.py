"""The signal table: everything a policy may read about blocks, requests and the engine.

One row a signal. The checker, the backends, the simulators, the search's
primitive set, the prompts and the reference page are generated from these rows;
adding a signal to the language means adding a row here.

Where a row says *as of this step*, the value is frozen at the top of the engine's
`schedule()` (in replay mode: when a request begins). Times are whole microseconds
since the start, held in doubles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

from tanren_dsl.units import BOOL, INSTANT, PLAIN, REQUESTS, TIME, TOKENS, Number, Type, Unit

Kind: TypeAlias = Literal["evict", "schedule"]
Scope: TypeAlias = Literal["object", "decision"]

REPLAY = "replay"
ENGINE = "engine"
VLLM = "vllm"
PYTHON = "python"

GAP_WINDOW = 1024
"""Hits over which `mean_gap` averages: a plain mean at first, then a moving one."""
HIT_RATE_WINDOW = 256
"""Admissions over which `hit_rate` averages, likewise."""
RATE_WINDOW = 64
"""Steps over which `service_rate` averages, likewise."""
GUARD_TIMES = 20
"""A request that waits so many times the mean wait at admission (at least the seed) is served first."""
GUARD_WINDOW = 256
"""Admissions over which that mean averages, likewise; the seed stands as the first of them."""
REFRESHED = 32
"""Waiting requests, in queue order, whose `cached_tokens` is looked up anew in each step."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One row: a name, its kind of policy, its type, its exact meaning, who provides it.

    Attributes:
        scope: `object` (a value per block or request) or `decision` (one per decision).
        provided_by: modes and targets that provide it; any other refuses it by name.
        rests: the value of an object cannot change while the object rests in its queue.
        positive: the value is strictly positive, always.
        since: for `age`-like signals, the instant that is subtracted from `now`.
        relative: how to write a scale-free form of it, shown in hints.
    """

    name: str
    kind: Kind
    scope: Scope
    type: Type
    meaning: str
    provided_by: frozenset[str]
    rests: bool = False
    positive: bool = False
    since: str | None = None
    relative: str = ""


_EVICT_ALL = frozenset({REPLAY, ENGINE, VLLM, PYTHON})
_EVICT_ENGINE = frozenset({ENGINE, VLLM, PYTHON})
_SCHEDULE_ALL = frozenset({ENGINE, VLLM, PYTHON})
_CHECKED_ONLY = frozenset({PYTHON})
_RATE = Number(Unit(tokens=1, time=-1))


def _block(
    name: str, type_: Type, meaning: str, *, rests: bool = True, since: str | None = None,
    provided_by: frozenset[str] = _EVICT_ALL,
) -> Signal:  # fmt: skip
    relative = f"{name} / mean({name})" if isinstance(type_, Number) and not type_.unit.is_plain else ""
    return Signal(name, "evict", "object", type_, meaning, provided_by, rests, False, since, relative)


def _request(name: str, type_: Type, meaning: str, *, rests: bool = True, since: str | None = None) -> Signal:
    relative = f"{name} / mean({name})" if isinstance(type_, Number) and not type_.unit.is_plain else ""
    return Signal(name, "schedule", "object", type_, meaning, _SCHEDULE_ALL, rests, False, since, relative)


def _decision(
    name: str, type_: Type, meaning: str, relative: str, *, positive: bool = False,
    evict: frozenset[str] = _EVICT_ENGINE, schedule: frozenset[str] = _SCHEDULE_ALL,
) -> tuple[Signal, Signal]:  # fmt: skip
    written = relative.replace("depth", "prompt_tokens").replace("age /", "wait /")
    return (
        Signal(name, "evict", "decision", type_, meaning, evict, False, positive, None, relative),
        Signal(name, "schedule", "decision", type_, meaning, schedule, False, positive, None, written),
    )


BLOCK_SIGNALS: tuple[Signal, ...] = (
    _block(
        "last_use",
        INSTANT,
        "when the block was last released: its last reference dropped and it entered the free queue",
    ),
    _block(
        "created",
        INSTANT,
        "when the block was written: its hash was set; for a block without a hash, its last_use",
    ),
    _block("age", TIME, "now - last_use", since="last_use", rests=False),
    _block("lifetime", TIME, "now - created", since="created", rests=False),
    _block(
        "gap",
        TIME,
        "time between the last two uses of the block, its writing being the first; 0 before its first hit",
    ),
    _block("depth", TOKENS, "tokens of the prompt that stand before the block"),
    _block("chain", TOKENS, "tokens of the longest prompt that wrote or hit the block"),
    _block("uses", PLAIN, "admissions that used the block since it was written; a resume counts"),
    _block(
        "spaced_uses",
        PLAIN,
        "uses at least mean_gap after the last counted one (the writing stands as the first mark)",
    ),
    _block(
        "ghost_uses",
        PLAIN,
        "uses that the same hash had collected, over its earlier stays, when it was evicted, if that was "
        "among the last N evictions at the time of writing (N = usable blocks); else 0",
    ),
    _block(
        "children",
        PLAIN,
        "blocks in the cache, free or in use, whose parent hash is this block's hash",
        rests=False,
    ),
    _block("generated", BOOL, "the block holds tokens that its writer generated, not only prompt"),
    _block(
        "waiting_refs",
        REQUESTS,
        "waiting requests, preempted ones too, as of this step, whose prompt's full blocks (prompt_tokens // "
        "block_size of them) include the block's hash",
        rests=False,
        provided_by=_EVICT_ENGINE,
    ),
)

REQUEST_SIGNALS: tuple[Signal, ...] = (
    _request("arrival", INSTANT, "when the request arrived"),
    _request("wait", TIME, "now - arrival", since="arrival", rests=False),
    _request("prompt_tokens", TOKENS, "tokens of the prompt"),
    _request(
        "cached_tokens",
        TOKENS,
        "tokens of the longest cached prefix, looked up when the request is queued and, each step, for the "
        f"first {REFRESHED} in queue order; 0 with prefix caching off",
        rests=False,
    ),
    _request("uncached_tokens", TOKENS, "prompt_tokens and output_tokens less cached_tokens", rests=False),
    _request("computed_tokens", TOKENS, "tokens whose KV is computed now; 0 while waiting"),
    _request("output_tokens", TOKENS, "tokens generated so far"),
    _request(
        "max_tokens",
        TOKENS,
        "the declared cap on output; one constant where a trace declares none, never the true length",
    ),
    _request(
        "attained_tokens",
        TOKENS,
        "all tokens computed for the request so far, across preemptions; what was cached is not counted",
    ),
    _request("preemptions", PLAIN, "how often the request was preempted"),
    _request("user_priority", PLAIN, "the priority given by the client; lower is more urgent"),
    _request("resumed", BOOL, "the request was preempted and waits to resume"),
)

DECISION_SIGNALS: tuple[Signal, ...] = tuple(
    row
    for rows in (
        _decision("now", INSTANT, "as of this step; at a release, of that update", "", evict=_EVICT_ALL),
        _decision("waiting", REQUESTS, "requests waiting, as of this step", "waiting / max_running"),
        _decision("running", REQUESTS, "requests running, as of this step", "running / max_running"),
        _decision(
            "max_running", REQUESTS, "most requests that may run at once (max_num_seqs)",
            "waiting / max_running", positive=True,
        ),
        _decision(
            "kv_free", PLAIN, "free share of the usable blocks, 0 to 1, as of this step", "kv_free",
            evict=_EVICT_ALL,
        ),
        _decision(
            "capacity", TOKENS, "usable blocks times the block size", "depth / capacity", positive=True,
            evict=_EVICT_ALL,
        ),
        _decision(
            "token_budget", TOKENS, "most tokens a step may compute (max_num_batched_tokens)",
            "depth / token_budget", positive=True,
        ),
        _decision(
            "block_size", TOKENS, "tokens in a block", "depth / block_size", positive=True, evict=_EVICT_ALL
        ),
        _decision(
            "hit_rate", PLAIN,
            "mean over admissions of hit blocks / blocks looked up, plain over the first "
            f"{HIT_RATE_WINDOW}, then moving by 1/{HIT_RATE_WINDOW}; as of this step", "hit_rate",
            evict=_EVICT_ALL,
        ),
        _decision(
            "mean_gap", TIME,
            f"mean over hits of the time since the block's last use, plain over the first {GAP_WINDOW}, then "
            f"moving by 1/{GAP_WINDOW}; as of this step", "age / mean_gap", evict=_EVICT_ALL,
            schedule=_CHECKED_ONLY,
        ),
        _decision("oldest_wait", TIME, "longest wait among waiting requests, as of this step; 0 if none",
                  "oldest_wait / mean_gap"),
        _decision(
            "service_rate", _RATE,
            "mean over steps that took time of tokens scheduled / step time, plain over the first "
            f"{RATE_WINDOW}, then moving by 1/{RATE_WINDOW}; as of this step",
            "service_rate * mean_gap / capacity",
        ),
    )
    for row in rows
)  # fmt: skip

SIGNALS: tuple[Signal, ...] = BLOCK_SIGNALS + REQUEST_SIGNALS + DECISION_SIGNALS
"""Every row; a per-decision signal has one row for each kind."""

_BY_KIND: dict[Kind, dict[str, Signal]] = {
    "evict": {row.name: row for row in SIGNALS if row.kind == "evict"},
    "schedule": {row.name: row for row in SIGNALS if row.kind == "schedule"},
}

STORED: dict[Kind, tuple[str, ...]] = {
    "evict": tuple(row.name for row in BLOCK_SIGNALS if row.since is None),
    "schedule": tuple(row.name for row in REQUEST_SIGNALS if row.since is None),
}
"""Per-object signals that are stored; `age`-like ones are computed from them."""

DECISION_ORDER: tuple[str, ...] = tuple(row.name for row in DECISION_SIGNALS if row.kind == "evict")
"""Per-decision signals in the order of the decision vector; knobs follow behind them."""

USED_AT, MARK = "(used at)", "(mark)"
"""Helper columns of a block row, not signals: its last use, and its last counted spaced use."""

_KEPT_FOR: dict[str, tuple[str, ...]] = {
    "created": ("last_use",),
    "gap": (USED_AT,),
    "mean_gap": (USED_AT,),
    "spaced_uses": (USED_AT, MARK, "created", "last_use"),
    "ghost_uses": ("uses",),
    "uncached_tokens": ("cached_tokens",),
}
"""Further columns without which a signal cannot be kept up to date."""

_FIRST = ("last_use", "uses", "depth", "chain", "gap", "spaced_uses", USED_AT, MARK)
_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "evict": _FIRST + tuple(name for name in STORED["evict"] if name not in _FIRST),
    "schedule": STORED["schedule"],
}
"""Columns of an object row. What a hit touches and policies read most fills the first 64 bytes."""

ROW_WIDTH = 16
"""Doubles in one row of an object table; those behind the columns are padding."""


def signals_of(kind: Kind) -> dict[str, Signal]:
    """The rows a policy of this kind may read, by name."""
    return _BY_KIND[kind]


def column_of(kind: Kind, name: str) -> int:
    """Index of a stored per-object signal, or of a helper column, in an object row."""
    return _COLUMNS[kind].index(name)


def columns_for(kind: Kind, names: Iterable[str]) -> tuple[str, ...]:
    """Columns of an object row that must be kept so that these signals can be read, in table order."""
    rows = signals_of(kind)
    own = {rows[name].since or name for name in names if rows[name].scope == "object"}
    kept = own | {column for name in own.union(names) for column in _KEPT_FOR.get(name, ())}
    return tuple(column for column in _COLUMNS[kind] if column in kept)


def decision_index(name: str) -> int:
    """Index of a per-decision signal in the decision vector."""
    return DECISION_ORDER.index(name)


def suggest(kind: Kind, name: str) -> str | None:
    """The signal of this kind with the closest name, if one is close."""
    close = get_close_matches(name, list(_BY_KIND[kind]), n=1, cutoff=0.6)
    return close[0] if close else None
