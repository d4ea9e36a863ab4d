"""The champion where it was not tuned: other block sizes and other cache sizes, on the hold-out.

A rule that holds at one size only is a rule about that size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.measures import Arena, Judge, has_faults
from tanren_dsl.evolve.replay_arena import ReplayArena, ReplayPlace
from tanren_dsl.evolve.serving_arena import ServingArena, resized
from tanren_dsl.evolve.setup import Ground
from tanren_dsl.ir import Policy
from tanren_dsl.trace.reblock import reblocked

FACTORS = (0.5, 1.0, 2.0)
"""Of block sizes and of cache sizes; at another block size the cache keeps its tokens."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Mean gain and score over the hold-out's configurations at one pair of sizes.

    Attributes:
        block_tokens: tokens of a block.
        cache: factor of the cache's tokens.
        gain, score: None where it could not be run.
        violations: configurations with a tail beyond the limit.
        note: why it could not be run.
    """

    block_tokens: int
    cache: float
    gain: float | None
    score: float | None
    violations: int = 0
    note: str | None = None


def sweep(ground: Ground, arena: ReplayArena | ServingArena, policy: Policy) -> tuple[Swept, ...]:
    """Every pair of block size and cache size."""
    if isinstance(arena, ReplayArena):
        own = ground.trace.block_tokens
    else:
        own = arena.settings.block_size
    sizes = [round(own * factor) for factor in FACTORS if own * factor >= 1 and own * factor % 1 == 0]
    return tuple(_swept(arena, policy, size, cache, size / own) for size in sizes for cache in FACTORS)


def _swept(
    arena: ReplayArena | ServingArena, policy: Policy, block_tokens: int, cache: float, factor: float
) -> Swept:
    try:
        changed: Arena
        if isinstance(arena, ReplayArena):
            changed = _replay(arena, block_tokens, cache / factor)
        else:
            blocks = max(1, round(arena.settings.capacity * cache / factor))
            changed = resized(arena, block_size=block_tokens, capacity=blocks)
        judge = Judge(changed, [("holdout", "full")])
        measures = changed.measure(policy, "holdout", "full")
        if has_faults(measures):
            return Swept(block_tokens, cache, None, None, note="a key is not finite")
        gain, score = judge.gain(measures), judge.score(measures)
        return Swept(block_tokens, cache, gain, score, judge.violations(measures))
    except TanrenError as error:
        return Swept(block_tokens, cache, None, None, note=error.diagnostics[0].message)


def _replay(arena: ReplayArena, block_tokens: int, capacity: float) -> ReplayArena:
    """The hold-out in blocks of another size, with this factor of blocks."""
    found: list[ReplayPlace] = []
    # what warms the cache is requests, whatever their blocks
    tables = {id(one.table): one.table for one in arena.configurations["holdout", "full"]}
    other = {key: reblocked(table, block_tokens) for key, table in tables.items()}
    for one in arena.configurations["holdout", "full"]:
        blocks = max(1, round(one.capacity * capacity))
        found.append(replace(one, table=other[id(one.table)], capacity=blocks))
    return replace(arena, configurations={("holdout", "full"): tuple(found)})
