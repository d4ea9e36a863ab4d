from __future__ import annotations

import numpy as np
import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.blocks import (
    END_TOKEN,
    FIRST_TOKEN,
    EngineBlocks,
    engine_blocks,
    output_token_ids,
    prompt_token_ids,
)
from tanren_dsl.trace.generate import ChatShape, generate_chat
from tanren_dsl.trace.table import Ints, RequestTable, relabel

SMALL = ChatShape(
    system_prompts=2,
    system_median_tokens=90,
    message_median_tokens=20,
    output_median_tokens=30,
    document_median_tokens=200,
    most_prompt_tokens=900,
)


def by_tokens(table: RequestTable, block: int, outputs: Ints) -> tuple[list[int], list[int]]:
    """Hash ids and parents from the actual tokens: a dictionary of whole prefixes."""
    seen: dict[tuple[int, ...], int] = {}
    ids: list[int] = []
    parents: list[int] = []
    for request in range(len(table)):
        output = output_token_ids(request, int(outputs[request]))
        tokens = (*prompt_token_ids(table, request).tolist(), *output.tolist())
        before = -1
        for end in range(block, len(tokens) + 1, block):
            label = seen.setdefault(tokens[:end], len(seen))
            if label == len(parents):
                parents.append(before)
            ids.append(label)
            before = label
    return ids, parents


@pytest.mark.parametrize("trace_block", [16, 24, 64])
@pytest.mark.parametrize("block", [8, 16, 32, 48, 512])
def test_interning_agrees_with_the_tokens(trace_block: int, block: int) -> None:
    table = generate_chat(2, 60, block_tokens=trace_block, shape=SMALL)
    found = engine_blocks(table, block)
    ids, parents = by_tokens(table, block, table.output_tokens)
    assert found.hash_ids.tolist() == ids
    assert found.parent.tolist() == parents
    assert np.array_equal(np.diff(found.offsets), (table.prompt_tokens + table.output_tokens) // block)


def shared_trie(seed: int, block: int) -> RequestTable:
    """Chains over few ids, which stand behind several parents and end partial or full."""
    rng = np.random.default_rng(seed)
    chains = [rng.permutation(6)[: rng.integers(1, 6)] for _ in range(80)]
    counts = np.array([len(chain) for chain in chains])
    prompts = counts * block - rng.integers(0, block, 80)
    return RequestTable(
        name="trie",
        block_tokens=block,
        arrival_us=np.arange(80),
        prompt_tokens=prompts,
        output_tokens=rng.integers(0, 3 * block, 80),
        session=np.full(80, -1),
        offsets=np.concatenate(([0], np.cumsum(counts))),
        ids=relabel(np.concatenate(chains)),
    )


@pytest.mark.parametrize("block", [4, 16, 20, 32, 48])
@pytest.mark.parametrize("trace_block", [12, 16, 32])
def test_interning_agrees_on_blocks_with_several_parents(trace_block: int, block: int) -> None:
    table = shared_trie(trace_block, trace_block)
    table.check()
    found = engine_blocks(table, block)
    assert (found.hash_ids.tolist(), found.parent.tolist()) == by_tokens(table, block, table.output_tokens)


def test_equal_block_sizes_give_the_trace_back_without_partial_blocks(conversation: RequestTable) -> None:
    found = engine_blocks(conversation, 512, np.zeros(len(conversation), np.int64))
    full = np.repeat(conversation.prompt_tokens // 512, np.diff(conversation.offsets))
    place = np.arange(conversation.lookups) - np.repeat(
        conversation.offsets[:-1], np.diff(conversation.offsets)
    )
    assert np.array_equal(found.hash_ids, relabel(conversation.ids[place < full]))


def test_the_public_trace_in_blocks_of_16(conversation: RequestTable) -> None:
    found = engine_blocks(conversation, 16)
    assert len(found.hash_ids) == ((conversation.prompt_tokens + conversation.output_tokens) // 16).sum()
    assert_consistent(found)


def assert_consistent(blocks: EngineBlocks) -> None:
    """Dense ids in order of appearance, each behind its one parent."""
    before = np.empty_like(blocks.hash_ids)
    before[1:] = blocks.hash_ids[:-1]
    filled = np.diff(blocks.offsets) > 0
    before[blocks.offsets[:-1][filled]] = -1
    assert np.array_equal(blocks.parent[blocks.hash_ids], before)
    assert blocks.distinct == blocks.hash_ids.max() + 1
    assert (blocks.parent < np.arange(blocks.distinct)).all()


def test_blocks_with_output_belong_to_one_request() -> None:
    table = generate_chat(2, 200)
    found = engine_blocks(table, 16)
    assert_consistent(found)
    place = np.arange(len(found.hash_ids)) - np.repeat(found.offsets[:-1], np.diff(found.offsets))
    own = place >= np.repeat(table.prompt_tokens // 16, np.diff(found.offsets))
    assert (np.bincount(found.hash_ids)[found.hash_ids[own]] == 1).all()


def test_outputs_can_be_replaced() -> None:
    table = generate_chat(2, 20)
    none = engine_blocks(table, 16, np.zeros(20, np.int64))
    assert np.array_equal(np.diff(none.offsets), table.prompt_tokens // 16)
    assert (none.output_tokens == 0).all()


def test_degenerate_tables() -> None:
    table = generate_chat(2, 5)
    assert engine_blocks(table.head(0), 16).distinct == 0
    huge = engine_blocks(table, 10**9)
    assert (len(huge), huge.distinct, huge.offsets.tolist()) == (5, 0, [0] * 6)


@pytest.mark.parametrize(("block", "outputs"), [(0, [0, 0]), (16, [0]), (16, [0, -1])])
def test_impossible_arguments_are_refused(block: int, outputs: list[int]) -> None:
    with pytest.raises(TanrenError, match="expected"):
        engine_blocks(generate_chat(2, 2), block, np.array(outputs))


def test_too_many_blocks_are_refused() -> None:
    with pytest.raises(TanrenError, match="too many"):
        engine_blocks(generate_chat(2, 2), 1, np.array([2**31, 0]))


def test_tokens_are_fixed_and_in_range() -> None:
    table = generate_chat(2, 30)
    tokens = np.concatenate([prompt_token_ids(table, request) for request in range(30)])
    assert tokens.dtype == np.int32
    assert tokens.min() >= FIRST_TOKEN
    assert tokens.max() < END_TOKEN
    assert len(prompt_token_ids(table, 3)) == table.prompt_tokens[3]
    assert output_token_ids(3, 5).tolist() == output_token_ids(3, 9).tolist()[:5]
    assert output_token_ids(3, 64).tolist() != output_token_ids(4, 64).tolist()
    assert len(output_token_ids(0, 0)) == 0


def test_tokens_never_change() -> None:
    # recorded; a change would break every comparison with earlier runs
    table = generate_chat(0, 1)
    assert prompt_token_ids(table, 0)[:4].tolist() == [19515, 5339, 18276, 17424]
    assert output_token_ids(0, 4).tolist() == [29924, 9176, 2938, 17001]


def test_distinct_blocks_have_distinct_tokens(conversation: RequestTable) -> None:
    part = conversation.head(500)
    rows = [prompt_token_ids(part, request) for request in range(len(part))]
    full = np.concatenate([row[: len(row) // 16 * 16].reshape(-1, 16) for row in rows])
    ids = engine_blocks(part, 16, np.zeros(500, np.int64)).hash_ids
    _, by_content = np.unique(full, axis=0, return_inverse=True)
    # ids here stand behind one parent each, so content alone tells blocks apart
    assert np.array_equal(relabel(by_content.reshape(-1)), ids)


def test_tokens_spread_evenly() -> None:
    tokens = output_token_ids(1, 400_000)
    counts = np.bincount((tokens - FIRST_TOKEN) * 20 // (END_TOKEN - FIRST_TOKEN), minlength=20)
    assert np.abs(counts / 20_000 - 1).max() < 0.05
