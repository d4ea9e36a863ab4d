"""The same requests in blocks of another size, for replay mode: only sizes that divide one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import Ints, RequestTable, relabel


def reblocked(table: RequestTable, block_tokens: int) -> RequestTable:
    """The table in blocks of `block_tokens` tokens.

    A smaller block is a part of a block of the trace, so two prompts that differ somewhere within
    one differ in all its parts: reuse is never invented. A larger block is a run of blocks from a
    multiple of its size on; since an id stands for its whole prefix, its last block names it.

    Raises:
        TanrenError: the size is neither a divisor nor a multiple of the trace's.

    >>> from tanren_dsl.trace.generate import generate_chat
    >>> table = generate_chat(0, 50)
    >>> reblocked(reblocked(table, 8), 16).ids.tolist() == table.ids.tolist()
    True
    """
    own = table.block_tokens
    if block_tokens < 1 or (own % block_tokens and block_tokens % own):
        raise TanrenError(
            f"{table.name}: expected a block size that divides {own} tokens or is a multiple, "
            f"found {block_tokens!r}"
        )
    counts = -(-table.prompt_tokens // block_tokens)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    if block_tokens <= own:
        parts = own // block_tokens
        ids = table.ids[np.repeat(table.offsets[:-1], counts) + place // parts].astype(np.int64)
        ids = ids * parts + place % parts
    else:
        ids = table.ids[_last_of_runs(table, counts, place, block_tokens // own)].astype(np.int64)
    return replace(
        table, block_tokens=block_tokens, offsets=offsets, ids=relabel(ids),
        notes=(*table.notes, f"blocks of {own} tokens made blocks of {block_tokens}"),
    )  # fmt: skip


def _last_of_runs(table: RequestTable, counts: Ints, place: Ints, length: int) -> Ints:
    """[L] the lookup at which each run of `length` blocks ends, or the request does."""
    ends = np.repeat(table.offsets[1:], counts) - 1
    begins = np.repeat(table.offsets[:-1], counts)
    return np.asarray(np.minimum(begins + (place + 1) * length - 1, ends), np.int64)
