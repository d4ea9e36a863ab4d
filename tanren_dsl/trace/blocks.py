"""The engine's view of a trace: hashes of full engine blocks over prompt and output, and token ids.

Token j of trace block X is a fixed function of (X, j), so two engine blocks are equal
exactly when the whole prefixes that end with them are: they lie at the same place of
the trie of block chains. Interning that trie gives every engine block a dense number
without making a token.

Tokens are drawn from 31,980 values, so distinct prefixes could collide: two chains that
part d tokens before the end of an engine block agree there with chance 31980 ** -d.
That is negligible while d is not a few tokens, as it is whenever trace and engine
block have a common divisor of 4 or more (below 1e-18 a pair).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import Ids, Ints, RequestTable

FIRST_TOKEN = 10
"""Least token id made; smaller ones are special tokens in many vocabularies."""
END_TOKEN = 31_990
"""One past the greatest token id made: below every common vocabulary size."""

_PROMPT_STREAM = 0x9D8C_4F31_7A25_E06B
_OUTPUT_STREAM = 0x3C6E_F372_FE94_F82A
_GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_MIX_1 = np.uint64(0xBF58_476D_1CE4_E5B9)
_MIX_2 = np.uint64(0x94D0_49BB_1331_11EB)
_MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True, eq=False)
class EngineBlocks:
    """Full blocks of R requests, H distinct hashes, in an engine's block size.

    Request r's blocks are `hash_ids[offsets[r] : offsets[r + 1]]`, front first:
    `(prompt + output) // block_size` of them. The first `prompt // block_size` hold
    prompt only and may be shared; the others hold output and are the request's own.
    An engine that stops before the last sampled token is computed never fills the
    block which that token would complete.
    """

    block_size: int
    """Tokens of an engine block."""
    offsets: Ints
    """[R + 1] where each request's blocks begin in `hash_ids`."""
    hash_ids: Ids
    """Dense numbers 0 .. H - 1 in order of first appearance."""
    parent: Ids
    """[H] the hash in front of each one, -1 for the first of a chain."""
    prompt_tokens: Ints
    """[R]"""
    output_tokens: Ints
    """[R]"""

    @property
    def distinct(self) -> int:
        """Number of distinct hashes H."""
        return len(self.parent)

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def engine_blocks(table: RequestTable, block_size: int, outputs: Ints | None = None) -> EngineBlocks:
    """Hash every full engine block of every request.

    Args:
        table: R requests.
        block_size: tokens of an engine block; any size against any trace block.
        outputs: [R] tokens generated per request; the table's own by default.

    Raises:
        TanrenError: a size or length is out of range, or the blocks are too many for 32 bits.
    """
    outputs = table.output_tokens if outputs is None else np.ascontiguousarray(outputs, np.int64)
    if block_size < 1:
        raise TanrenError(f"expected a block size of at least 1 token, found {block_size!r}")
    if outputs.shape != table.prompt_tokens.shape or (outputs < 0).any():
        raise TanrenError(f"expected {len(table)} output lengths of at least 0")
    counts = (table.prompt_tokens + outputs) // block_size
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    if offsets[-1] > _MOST_BLOCKS:
        raise TanrenError(
            f"{offsets[-1]} engine blocks of {block_size} tokens are too many",
            hint="use a larger block size or a window of the trace",
        )
    nodes, depths = _intern_chains(table.offsets, table.ids)
    hash_ids, parent = _hash_blocks(
        table.offsets, nodes, depths, table.block_tokens, table.prompt_tokens, offsets, block_size
    )
    return EngineBlocks(block_size, offsets, hash_ids, parent, table.prompt_tokens, outputs)


def prompt_token_ids(table: RequestTable, request: int, end: int = END_TOKEN) -> Ids:
    """[P] the prompt of one request: token j of block X is a fixed function of (X, j), below `end`."""
    ids = table.ids[table.offsets[request] : table.offsets[request + 1]].astype(np.uint64)
    places = np.arange(table.block_tokens, dtype=np.uint64)
    tokens = _tokens(_PROMPT_STREAM, ids[:, None], places[None, :], end)
    return tokens.reshape(-1)[: int(table.prompt_tokens[request])]


def output_token_ids(request_index: int, count: int, end: int = END_TOKEN) -> Ids:
    """[count] what one request generates, unlike any prompt and any other request; tokens below `end`."""
    request = np.array([request_index], np.uint64)
    return _tokens(_OUTPUT_STREAM, request, np.arange(count, dtype=np.uint64), end)


def _tokens(stream: int, key: NDArray[np.uint64], place: NDArray[np.uint64], end: int) -> Ids:
    """Token per (key, place), broadcast: splitmix64 twice, reduced to the range."""
    seeds = _splitmix(key ^ np.uint64(stream))
    spread = _splitmix(seeds + place * _GOLDEN)
    value = (spread >> np.uint64(11)) % np.uint64(end - FIRST_TOKEN)
    return (value + np.uint64(FIRST_TOKEN)).astype(np.int32)


def _splitmix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finaliser of splitmix64 (Steele, Lea, Flood 2014), elementwise; wraps at 64 bits."""
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))


def _chain_nodes(offsets: Any, ids: Any) -> Any:
    """Trie node of every lookup, and the depth (in trace blocks) of every node."""
    size = 16
    while size < 2 * len(ids):
        size *= 2
    mask = size - 1
    keys = np.full(size, -1, np.int64)
    values = np.empty(size, np.int32)
    nodes = np.empty(len(ids), np.int32)
    depths = np.empty(len(ids), np.int64)
    count = 0
    for request in range(len(offsets) - 1):
        parent: Any = -1
        for place in range(offsets[request], offsets[request + 1]):
            key = ((parent + 1) << 32) | np.int64(ids[place])
            mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
            slot = np.int64(mixed >> np.uint64(20)) & mask
            while keys[slot] != -1 and keys[slot] != key:
                slot = (slot + 1) & mask
            if keys[slot] == -1:
                keys[slot] = key
                values[slot] = count
                depths[count] = place - offsets[request]
                count += 1
            parent = np.int64(values[slot])
            nodes[place] = parent
    return nodes, depths[:count].copy()


def _label_blocks(
    offsets: Any, nodes: Any, depths: Any, trace_block: Any, prompts: Any, engine_offsets: Any, block: Any
) -> Any:
    """Hash number of every engine block, and the parent of every hash."""
    # engine blocks that end inside a node: a run of labels per node, from the first such block on
    base = np.empty(len(depths) + 1, np.int64)
    base[0] = 0
    for node in range(len(depths)):
        ends = (depths[node] + 1) * trace_block // block - depths[node] * trace_block // block
        base[node + 1] = base[node] + ends
    labels = np.full(base[-1], -1, np.int32)
    hash_ids = np.empty(engine_offsets[-1], np.int32)
    parent = np.empty(engine_offsets[-1], np.int32)
    count = 0
    for request in range(len(prompts)):
        before = -1
        shared = prompts[request] // block
        for index in range(engine_offsets[request + 1] - engine_offsets[request]):
            label: Any = -1
            slot = np.int64(-1)
            if index < shared:
                depth = ((index + 1) * block - 1) // trace_block
                node = nodes[offsets[request] + depth]
                slot = base[node] + index - depth * trace_block // block
                label = np.int64(labels[slot])
            if label < 0:
                label = count
                parent[label] = before
                count += 1
                if slot >= 0:
                    labels[slot] = label
            hash_ids[engine_offsets[request] + index] = label
            before = label
    return hash_ids, parent[:count].copy()


_intern_chains: Any = njit(cache=True)(_chain_nodes)
_hash_blocks: Any = njit(cache=True)(_label_blocks)
