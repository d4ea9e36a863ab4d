"""Compiling the emitted file's functions before the first request, and what else needs no state.

Copied, below the marker line, before `vllm_evictor.py`; above it stand stand-ins.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from tanren_dsl.backends.vllm_choice import pick
from tanren_dsl.backends.vllm_hashes import Hashes
from tanren_dsl.backends.vllm_kernels import all_unhashed, released, taken_back, unhashed, used, written
from tanren_dsl.backends.vllm_state import _DECISION, _TALLY, new_state, view
from tanren_dsl.kernels.decision import RATES, moving_mean

WRITES = USES_MATTER = NUMBERED = True
READS: frozenset[str] = frozenset()

# ======== runtime ========

_ID = attrgetter("block_id")


def ids_of(blocks: Any) -> Any:
    """The ids of these blocks, as the compiled functions want them."""
    return np.fromiter(map(_ID, blocks), np.uint32, len(blocks))


def warm_up(decision: Any) -> None:
    """Compile everything now, on a queue of three blocks; nothing compiles on the request path."""
    state = new_state(4)
    view(state, _DECISION, np.float64)[:] = decision
    if "hit_rate" in READS or "service_rate" in READS:
        moving_mean(view(state, _TALLY, np.float64), 4, 0.5, RATES)
    table = np.zeros((1, 1), np.int64)
    ids = np.arange(1, 4, dtype=np.uint32)
    if NUMBERED:
        hashes = Hashes(4, 3)
        hashes.wait([_Asking()], 1)
        hashes.wait([], 1)
        hashes.written(state, ids, _Asking(), 0)
        table = hashes.table
    if WRITES:
        written(state, ids, np.array((3.0, 0.0, 0.0, 2.0)), 1)
    released(state, ids[:2], 0.0, False)
    released(state, ids[2:], 0.0, True)
    pick(state, table, 1, 3, 4)
    pick(state, table, 1, 2, 4)
    if NUMBERED:
        hashes.evicted(state, ids, 1)
        hashes.forget()
    if USES_MATTER:
        used(state, ids[:1], 0.0, 0.0)
    taken_back(state, ids)
    unhashed(state, 1, False)
    all_unhashed(state, False)


class _Asking:
    """As much of a request as the warm-up needs."""

    request_id = "warm-up"
    block_hashes = (b"1", b"2", b"3")
    num_prompt_tokens = 3
