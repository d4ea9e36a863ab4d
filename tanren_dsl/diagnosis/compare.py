"""Two replays side by side: every eviction of the first, and the hits that it lost against the second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tanren_dsl.diagnosis.features import Doubles
from tanren_dsl.diagnosis.recorder import (
    BLOCK_SIGNALS,
    DECISION,
    STORED_BLOCK,
    Ints,
    Moment,
    Recorder,
    resident,
)
from tanren_dsl.signals import signals_of
from tanren_dsl.sim.replay import Replay
from tanren_dsl.sim.rule import Victims
from tanren_dsl.trace.table import RequestTable

NEVER = -1
"""In place of the number of a request that does not come."""


@dataclass(frozen=True, eq=False)
class Evictions:
    """The n evictions of a replay, in order.

    Attributes:
        request: [n] number of the request that evicted.
        block: [n] hash ids.
        values: [n] every signal of replay mode by name, at the decision.
        means: [n] block signals, mean over the considered blocks.
        considered: [n] how many blocks those were.
        idle: [n] considered blocks that were kept and never wanted again.
        idle_means: [n] block signals, mean over those; nan where there were none.
        wanted: [n] number of the next request with the block; -1 for never.
        lost: [n] hits that requests lost whose prefix broke at it.
        missed: [n] the same hits, each counted at the eviction of the block itself, or of the last one
            before it where it is resident behind the break.
        held: [n] where hits were lost: blocks that the policy held then and the other did not; else 0.
        held_wanted: [n] those of them that were wanted again after that.
    """

    request: Ints
    block: Ints
    values: dict[str, Doubles]
    means: dict[str, Doubles]
    considered: Ints
    idle: Ints
    idle_means: dict[str, Doubles]
    wanted: Ints
    lost: Ints
    missed: Ints
    held: Ints
    held_wanted: Ints

    def __len__(self) -> int:
        return len(self.request)


@dataclass(frozen=True, eq=False)
class Compared:
    """A replay beside another: its evictions, and the hit blocks [R] of each request under both."""

    evictions: Evictions
    hits: Ints
    base_hits: Ints


def compare(
    table: RequestTable, capacity: int, victims: Victims, extra: int, base: Victims, engine: str
) -> Compared:
    """Both replays side by side, and every eviction of the first with the hits that it lost.

    `extra` is how many free blocks the first policy considers beyond those it needs.
    """
    own = Recorder(table, capacity, victims, extra, engine)
    other = Replay(table, capacity, base, engine)
    last_request = np.zeros(table.distinct_blocks, np.int64)
    last_request[table.ids] = np.repeat(np.arange(len(table)), np.diff(table.offsets))  # the last one stays
    evicted_as = np.full(table.distinct_blocks, NEVER, np.int64)
    parts: list[_Part] = []
    losses: list[tuple[int, int, int, int]] = []
    spread: list[tuple[Ints, Ints]] = []
    count = 0
    for r in range(len(table)):
        moment = own.step()
        other.run(r + 1)
        hits, base_hits = int(own.replay.hits_each[r]), int(other.hits_each[r])
        if base_hits > hits:
            start = table.offsets[r]
            stretch = evicted_as[table.ids[start + hits : start + base_hits]]
            only_own = resident(own.replay) & ~resident(other)
            again = int((only_own & (last_request > r)).sum())
            losses.append((int(stretch[0]), base_hits - hits, int(only_own.sum()), again))
            spread.append(_own_misses(stretch))
        evicted_as[table.ids[table.offsets[r] : table.offsets[r + 1]]] = NEVER
        if moment is not None:
            part = _part(moment, last_request)
            evicted_as[part.block] = count + np.arange(len(part.block))
            count += len(part.block)
            parts.append(part)
    found = _joined(parts, table)
    for place, lost, held, again in losses:
        found.lost[place], found.held[place], found.held_wanted[place] = lost, held, again
    for places, misses in spread:
        found.missed[places] = misses
    return Compared(found, own.replay.hits_each, other.hits_each)


def _own_misses(stretch: Ints) -> tuple[Ints, Ints]:
    """The lost hits of a request, spread over the evictions behind them.

    `stretch` names, for each block of the lost stretch, its eviction (-1: it is resident, out of reach).
    Each eviction gets its own block and the resident ones between it and the next.
    """
    at = np.flatnonzero(stretch != NEVER)
    return stretch[at], np.diff(np.append(at, len(stretch)))


@dataclass(frozen=True, eq=False)
class _Part:
    """The e evictions of one request: signals [e, S] of the victims, [S] means over two sets of blocks."""

    request: int
    block: Ints
    rows: Doubles
    mean: Doubles
    decision: Mapping[str, float]
    considered: int
    idle: int
    idle_mean: Doubles


def _part(moment: Moment, last_request: Ints) -> _Part:
    rows = moment.rows
    idle = last_request[moment.blocks] <= moment.request
    idle[moment.victims] = False
    return _Part(
        request=moment.request,
        block=moment.blocks[moment.victims],
        rows=rows[moment.victims],
        mean=_mean(rows),
        decision=moment.decision,
        considered=len(rows),
        idle=int(idle.sum()),
        idle_mean=_mean(rows[idle]),
    )


def _mean(rows: Doubles) -> Doubles:
    """[S] of [c, S]; nan where there are none."""
    return np.asarray(rows.sum(axis=0) / len(rows)) if len(rows) else np.full(rows.shape[1], np.nan)


def _joined(parts: list[_Part], table: RequestTable) -> Evictions:
    """The victims of all decisions in one table, nothing lost yet."""
    counts = np.array([len(part.block) for part in parts], np.int64)

    def each(values: list[float]) -> Doubles:
        return np.repeat(np.array(values, np.float64), counts)

    request = each([part.request for part in parts]).astype(np.int64)
    block = np.concatenate([part.block for part in parts] or [np.zeros(0, np.int64)])
    width = len(STORED_BLOCK)
    rows = np.concatenate([part.rows for part in parts] or [np.zeros((0, width))])
    mean, idle = (
        np.repeat(np.array(means).reshape(-1, width), counts, axis=0)
        for means in ([part.mean for part in parts], [part.idle_mean for part in parts])
    )
    decided = {name: each([part.decision[name] for part in parts]) for name in DECISION}
    nothing = np.zeros((4, len(request)), np.int64)
    return Evictions(
        request=request,
        block=block,
        values=_block_signals(rows, decided["now"]) | decided,
        means=_block_signals(mean, decided["now"]),
        considered=each([part.considered for part in parts]).astype(np.int64),
        idle=each([part.idle for part in parts]).astype(np.int64),
        idle_means=_block_signals(idle, decided["now"]),
        wanted=_wanted_again(table, request, block),
        lost=nothing[0],
        missed=nothing[1],
        held=nothing[2],
        held_wanted=nothing[3],
    )


def _block_signals(rows: Doubles, now: Doubles) -> dict[str, Doubles]:
    """[n] every block signal by name, from the stored ones [n, S]."""
    stored = dict(zip(STORED_BLOCK, rows.T, strict=True))
    since = {name: signals_of("evict")[name].since for name in BLOCK_SIGNALS}
    return {name: stored[name] if at is None else now - stored[at] for name, at in since.items()}


def _wanted_again(table: RequestTable, request: Ints, block: Ints) -> Ints:
    """[n] number of the next request after each that has the block, or -1."""
    width = len(table) + 1
    uses = np.sort(table.ids * np.int64(width) + np.repeat(np.arange(len(table)), np.diff(table.offsets)))
    at = np.searchsorted(uses, block * width + request + 1)
    found = np.append(uses, np.iinfo(np.int64).max)[at]
    return np.where(found // width == block, found % width, NEVER)
