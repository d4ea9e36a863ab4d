"""A trace in which a known rule wins: for testing a search, and a stand-in for nothing.

Agents return to their prompts at a pace of their own, which the length of the prompt sets: after
`PACE_S_PER_TOKEN` seconds for each of its tokens. So of two blocks the one with the longer chain is
wanted later, and of two with equal chains the one that was used last. The rule that wins evicts the
longest chain first and, of equal ones, the youngest block: `order by -chain, age`, the opposite of
what recency says. Length alone, or age alone, loses much of the gain.
"""

from __future__ import annotations

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import RequestTable, relabel

PLANTED_REQUESTS = 3000
PLANTED_BLOCK = 16
PACE_S_PER_TOKEN = 0.5
"""Seconds to the next request, for each token of the prompt."""
_AGENTS = 60
_LENGTHS = (12, 18, 27, 40)
"""Blocks of a prompt: so few that length alone ranks few blocks."""
_JITTER = 0.02
"""Relative spread of the pace."""
_MOST_REQUESTS = 1_000_000


def generate_planted(seed: int, requests: int, *, block_tokens: int = PLANTED_BLOCK) -> RequestTable:
    """The first `requests` requests of the agents, in order of arrival.

    Raises:
        TanrenError: a number is out of range.
    """
    if not 1 <= requests <= _MOST_REQUESTS or block_tokens < 1 or seed < 0:
        raise TanrenError(
            f"expected 1 to {_MOST_REQUESTS} requests, block_tokens of at least 1 and a seed of at least 0, "
            f"found {requests!r}, {block_tokens!r} and {seed!r}"
        )
    rng = np.random.default_rng(seed)
    blocks = rng.choice(np.array(_LENGTHS, np.int64), _AGENTS)
    period_s = PACE_S_PER_TOKEN * blocks * block_tokens
    each = np.ceil(requests * (1 / period_s) / (1 / period_s).sum()).astype(np.int64) * 2 + 4
    agent = np.repeat(np.arange(_AGENTS), each)
    gaps = period_s[agent] * (1 + _JITTER * rng.standard_normal(len(agent)))
    first = np.repeat(np.cumsum(each) - each, each)
    gaps[np.arange(len(agent)) == first] *= rng.random(_AGENTS)  # they begin at a random part of their pace
    running = np.cumsum(gaps)
    moments = running - np.repeat(running[first[np.cumsum(each) - each]] - gaps[np.cumsum(each) - each], each)
    order = np.argsort(moments, kind="stable")[:requests]
    agent = agent[order]
    arrival_us = np.rint((moments[order] - moments[order[0]]) * 1e6).astype(np.int64)
    count = blocks[agent]
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(count)))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], count)
    ids = relabel(np.repeat(agent, count) * (max(_LENGTHS) + 1) + place)
    return RequestTable(
        name=f"planted:{seed}:{requests}",
        block_tokens=block_tokens,
        arrival_us=arrival_us,
        prompt_tokens=count * block_tokens,
        output_tokens=np.full(requests, 16, np.int64),
        session=relabel(agent).astype(np.int64),
        offsets=offsets,
        ids=ids,
        notes=(f"format: generated, with a planted rule, seed {seed}",),
    )
