from __future__ import annotations

import numpy as np
import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.generate import ChatShape, generate_chat
from tanren_dsl.trace.statistics import infinite_hits, infinite_hits_each, statistics
from tanren_dsl.trace.table import RequestTable, first_lookups, parent_lookups


@pytest.fixture(scope="module")
def table() -> RequestTable:
    return generate_chat()


def blocks(table: RequestTable, request: int) -> list[int]:
    chain: list[int] = table.ids[table.offsets[request] : table.offsets[request + 1]].tolist()
    return chain


def test_the_table_keeps_its_promises(table: RequestTable) -> None:
    table.check()
    assert len(table) == 4000
    assert table.block_tokens == 16


def test_the_seed_alone_decides() -> None:
    one, same, other = (generate_chat(seed, 200) for seed in (4, 4, 5))
    assert np.array_equal(one.ids, same.ids)
    assert np.array_equal(one.arrival_us, same.arrival_us)
    assert not np.array_equal(one.prompt_tokens, other.prompt_tokens)


@pytest.mark.parametrize("block", [1, 16, 100, 512])
def test_blocks_are_prefix_consistent(block: int) -> None:
    table = generate_chat(1, 300, block_tokens=block)
    table.check()
    parents = parent_lookups(table)
    assert np.array_equal(parents, parents[first_lookups(table)[table.ids]])


def test_a_turn_extends_the_chain_of_the_turn_before(table: RequestTable) -> None:
    last: dict[int, int] = {}
    extended = 0
    for request in range(len(table)):
        session = int(table.session[request])
        if session in last:
            earlier = last[session]
            full = int(table.prompt_tokens[earlier]) // 16
            history = int(table.prompt_tokens[earlier] + table.output_tokens[earlier])
            assert table.prompt_tokens[request] > history
            assert blocks(table, request)[:full] == blocks(table, earlier)[:full]
            assert blocks(table, request)[full:][:1] != blocks(table, earlier)[full:][:1]
            assert table.arrival_us[request] > table.arrival_us[earlier]
            extended += 1
        last[session] = request
    assert extended > 1000


def test_a_partial_block_is_never_reused(table: RequestTable) -> None:
    partial = table.prompt_tokens % 16 != 0
    last = table.ids[table.offsets[1:] - 1][partial]
    assert (np.bincount(table.ids)[last] == 1).all()


def test_its_statistics_are_those_it_promises(table: RequestTable) -> None:
    found = statistics(table)
    assert 1500 <= found["prompt_tokens_mean"] <= 2500
    assert 100 <= found["output_tokens_mean"] <= 500
    assert 0.5 <= found["infinite_hit_rate"] <= 0.8
    assert found["requests"] == 4000
    assert found["requests_per_s"] == pytest.approx(2, rel=0.3)
    assert found["distinct_blocks"] == table.distinct_blocks
    assert 500 < found["sessions"] < 4000
    assert found["prompt_tokens_p50"] <= found["prompt_tokens_p90"] <= found["prompt_tokens_p99"] <= 16_384
    assert found["median_reuse_gap_s"] > 0


def test_long_documents_come_once(table: RequestTable) -> None:
    turns = np.bincount(table.session)
    hits = infinite_hits_each(table)
    cold = (turns[table.session] == 1) & (table.prompt_tokens > 3000) & (hits * 2 < np.diff(table.offsets))
    assert 0.03 < cold.mean() < 0.3


def test_infinite_hits_agree_with_a_plain_replay(table: RequestTable) -> None:
    part = table.slice(500, 900)
    seen: set[int] = set()
    hits = 0
    for request in range(len(part)):
        chain = blocks(part, request)
        hit = next((place for place, block in enumerate(chain) if block not in seen), len(chain))
        hits += hit
        seen.update(chain)
    assert infinite_hits(part) == hits


def test_statistics_of_one_and_of_no_request(table: RequestTable) -> None:
    assert statistics(table.head(1))["infinite_hit_rate"] == 0
    assert statistics(table.head(0))["requests"] == 0


def test_the_shape_can_be_changed() -> None:
    alone = generate_chat(0, 100, shape=ChatShape(job_share=1.0, job_documents_mean=1.0, system_prompts=1))
    alone.check()
    assert statistics(alone)["sessions"] == 100
    short = generate_chat(0, 100, shape=ChatShape(most_prompt_tokens=1000, job_share=0.0, turns_mean=50))
    short.check()


@pytest.mark.parametrize(
    "change",
    [
        {"job_share": 1.5},
        {"turns_mean": 0.5},
        {"sessions_per_s": 0.0},
        {"system_prompts": 0},
        {"arrival_cv": float("nan")},
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(TanrenError, match=next(iter(change))):
        ChatShape(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [(0, 0), (0, -1), (-1, 10), (0, 10**9)])
def test_impossible_numbers_are_refused(arguments: tuple[int, int]) -> None:
    with pytest.raises(TanrenError, match="expected"):
        generate_chat(*arguments)
