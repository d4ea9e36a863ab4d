"""Small traces whose diagnosis is known by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tanren_dsl.trace.table import RequestTable, relabel

SECOND = 1_000_000


def table_of(
    chains: Sequence[Sequence[int]],
    arrival_s: Sequence[float] | None = None,
    prompts: Sequence[int] | None = None,
    block_tokens: int = 4,
) -> RequestTable:
    """Requests of these blocks, one a second and of full blocks unless said otherwise."""
    lengths = np.array([len(chain) for chain in chains], np.int64)
    seconds = np.arange(len(chains)) if arrival_s is None else np.array(arrival_s)
    return RequestTable(
        name="by hand",
        block_tokens=block_tokens,
        arrival_us=np.rint(seconds * SECOND).astype(np.int64),
        prompt_tokens=lengths * block_tokens if prompts is None else np.array(prompts, np.int64),
        output_tokens=np.ones(len(chains), np.int64),
        session=np.full(len(chains), -1, np.int64),
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))).astype(np.int64),
        ids=relabel(np.array([block for chain in chains for block in chain], np.int64)),
    )
