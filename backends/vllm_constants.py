"""What the emitted vLLM file knows of its policies: constants by which its runtime is cut to size."""

from __future__ import annotations

import hashlib

from tanren_dsl.ir import Policy
from tanren_dsl.passes.order import FIXED_SIGNALS, analyze
from tanren_dsl.passes.settle import split
from tanren_dsl.signals import REFRESHED, STORED, USED_AT, columns_for
from tanren_dsl.units import MICROSECONDS_PER_SECOND, Number

_BY_HASH = frozenset({"children", "ghost_uses", "waiting_refs"})
"""Signals that are counted by hash."""
_BY_USE = frozenset({"uses", "chain", "gap", "spaced_uses", USED_AT})
"""Columns that a hit changes."""
_OF_STEP = frozenset({"spaced_uses", "waiting_refs"})
"""Per-block signals that need something *as of this step*."""

NO_EVICT = """\
EVICTS = False
POLICY = POLICY_SHA256 = SHAPE = ""
KNOBS = ()
HEAP = False
Evictor = make_evicting_class = None"""
"""Constants of a file without an evict policy."""

NO_SCHEDULE = """\
SCHEDULES = False
LINE_POLICY = LINE_SHA256 = ""
LINE_KNOBS = ()
PREEMPT_KEYS = 0
Dispatcher = make_dispatching_class = None"""
"""Constants of a file without a schedule policy."""


def block_places(policy: Policy) -> dict[str, int]:
    """Columns of the file's two tables of blocks, by name: place in its table."""
    halves = split(policy, policy.order)
    books = [name for name in columns_for("evict", policy.signals()) if name not in halves.filled]
    places = {name: place for place, name in enumerate(books)}
    return places | {name: place for place, name in enumerate(halves.filled, len(halves.kept))}


def line_places(policy: Policy) -> dict[str, int]:
    """Columns of the file's table of requests, by name."""
    return {name: place for place, name in enumerate(columns_for("schedule", policy.signals()))}


def evict_constants(policy: Policy) -> str:
    """Text of the constants of an evict policy."""
    halves = split(policy, policy.order)
    columns = [name for name in columns_for("evict", policy.signals()) if name not in halves.filled]
    reads = frozenset(policy.signals())
    shape = analyze(policy).shape
    numbered = bool(_BY_HASH & reads)
    changing = bool(reads - FIXED_SIGNALS - set(STORED["evict"])) or not reads.isdisjoint(_OF_STEP)
    heap = shape != "dynamic"
    return "\n".join(
        (
            "EVICTS = True",
            f"POLICY = {policy.name!r}",
            f"POLICY_SHA256 = {_digest(policy)!r}",
            f"SHAPE = {shape!r}",
            f"HEAP = {heap}",
            f"AHEAD = {not heap and not numbered}",
            f"PERCENT = {policy.percent!r}",
            f"KEY_COUNT = {len(policy.order.keys)}",
            f"KNOBS = {_knobs(policy)!r}",
            f"READS = frozenset({sorted(reads)!r})",
            f"WRITES = {numbered or bool(set(columns) - {'last_use'})}",
            f"USES_MATTER = {bool(_BY_USE & set(columns))}",
            f"NUMBERED = {numbered}",
            f"AS_OF_STEP = {changing}",
            f"ROW_WIDTH = {max(1, len(columns))}",
            f"SETTLED = {len(halves.kept)}",
            f"SETTLED_WIDTH = {max(1, len(halves.kept) + len(halves.filled))}",
        )
    )


def schedule_constants(policy: Policy, *, guard: bool) -> str:
    """Text of the constants of a schedule policy."""
    reads = frozenset(policy.signals())
    return "\n".join(
        (
            "SCHEDULES = True",
            f"LINE_POLICY = {policy.name!r}",
            f"LINE_SHA256 = {_digest(policy)!r}",
            f"LINE_KNOBS = {_knobs(policy)!r}",
            f"LINE_READS = frozenset({sorted(reads)!r})",
            f"LINE_WIDTH = {max(1, len(line_places(policy)))}",
            f"ORDER_KEYS = {len(policy.order.keys)}",
            f"PREEMPT_KEYS = {0 if policy.preempt is None else len(policy.preempt.keys)}",
            f"REFRESHES = {not reads.isdisjoint(('cached_tokens', 'uncached_tokens'))}",
            f"REFRESHED = {REFRESHED}",
            f"EVERY_STEP = {'service_rate' in reads}",
            f"GUARD = {guard}",
        )
    )


def _digest(policy: Policy) -> str:
    return hashlib.sha256(policy.text.encode()).hexdigest()


def _knobs(policy: Policy) -> tuple[tuple[str, float, float], ...]:
    return tuple(
        (knob.name, MICROSECONDS_PER_SECOND**knob.type.unit.time, knob.default)
        for knob in policy.knobs
        if isinstance(knob.type, Number)
    )
