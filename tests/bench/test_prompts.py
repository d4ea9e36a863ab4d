"""Prompts are exact: equal blocks, equal tokens; sizes scale; what is too long is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tanren_dsl.bench.prompts import Sizes, fitted, paced, prompts, warm_up_prompts
from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.blocks import FIRST_TOKEN, engine_blocks
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable

WIDE = Sizes(vocabulary=4096, max_model_len=100_000)


def table() -> RequestTable:
    """Three requests in blocks of 8 tokens: 20 tokens, 17 that share two blocks, 4 of their own."""
    made = RequestTable(
        name="t",
        block_tokens=8,
        arrival_us=np.array([0, 1_000_000, 4_000_000]),
        prompt_tokens=np.array([20, 17, 4]),
        output_tokens=np.array([5, 0, 50]),
        session=np.full(3, -1),
        offsets=np.array([0, 3, 6, 7]),
        ids=np.array([0, 1, 2, 0, 1, 3, 4], np.int32),
    )
    made.check()
    return made


def test_equal_ids_are_equal_tokens_and_others_differ() -> None:
    first, second, third = prompts(fitted(table(), WIDE), 4096)
    assert [len(first), len(second), len(third)] == [20, 17, 4]
    assert first[:16] == second[:16]
    assert first[:8] != first[8:16]
    assert first[:4] != third
    tokens = np.array(first + second + third)
    assert tokens.min() >= FIRST_TOKEN
    assert tokens.max() < 4096
    assert prompts(fitted(table(), WIDE), 4096) == [first, second, third]


def test_a_small_vocabulary_is_kept() -> None:
    chat = fitted(read_trace("chat:1:20"), replace(WIDE, vocabulary=64))
    tokens = np.concatenate([np.array(one) for one in prompts(chat, 64)])
    assert (tokens.min(), tokens.max()) == (FIRST_TOKEN, 63)


def test_a_smaller_block_scales_full_blocks_exactly_and_the_partial_one_in_proportion() -> None:
    scaled = fitted(table(), replace(WIDE, tokens_per_id=2))
    scaled.check()
    assert scaled.prompt_tokens.tolist() == [2 + 2 + 1, 2 + 2 + 1, 1]
    assert [len(one) for one in prompts(scaled, 4096)] == [5, 5, 1]
    larger = fitted(table(), replace(WIDE, tokens_per_id=16))
    larger.check()
    assert larger.prompt_tokens.tolist() == [16 + 16 + 8, 16 + 16 + 2, 8]


def test_scaling_keeps_the_reuse_that_the_engine_sees() -> None:
    trace = read_trace("chat:1:100")
    scaled = fitted(trace, replace(WIDE, tokens_per_id=4))
    scaled.check()
    blocks, small = engine_blocks(trace, 16), engine_blocks(scaled, 4)
    full = trace.prompt_tokens // 16
    assert (scaled.prompt_tokens // 4 >= full).all()
    for request in (3, 50, 99):
        old = blocks.hash_ids[blocks.offsets[request] : blocks.offsets[request] + full[request]]
        new = small.hash_ids[small.offsets[request] : small.offsets[request] + full[request]]
        assert len(old) == len(new)
    prompt = [tuple(one) for one in prompts(scaled, 4096)]
    pairs = [(a, b) for a in range(20) for b in range(a)]
    for a, b in pairs:
        ids_a, ids_b = (scaled.ids[scaled.offsets[r] : scaled.offsets[r + 1]] for r in (a, b))
        n = min(int(scaled.prompt_tokens[a]), int(scaled.prompt_tokens[b])) // 4
        shared = int(np.argmin(np.append(ids_a[:n] == ids_b[:n], False)))
        assert prompt[a][: 4 * shared] == prompt[b][: 4 * shared]
        assert prompt[a][: 4 * shared + 4] != prompt[b][: 4 * shared + 4]


def test_outputs_are_capped_and_at_least_one() -> None:
    assert fitted(table(), replace(WIDE, output_cap=16)).output_tokens.tolist() == [5, 1, 16]
    assert fitted(table(), WIDE).output_tokens.tolist() == [5, 1, 50]


def test_requests_that_are_too_long_are_counted_and_the_first_is_named() -> None:
    with pytest.raises(TanrenError, match=r"2 of 3 requests .* max_model_len 24: the first is request 1 "):
        fitted(table(), replace(WIDE, max_model_len=24))


def test_prompts_are_cut_only_if_asked() -> None:
    cut = fitted(table(), Sizes(4096, 16, output_cap=4, cap_prompt=True))
    cut.check()
    assert cut.prompt_tokens.tolist() == [12, 15, 4]
    whole = prompts(fitted(table(), WIDE), 4096)
    assert [a == b[: len(a)] for a, b in zip(prompts(cut, 4096), whole, strict=True)][:2] == [True, True]
    assert "2 prompts cut" in cut.notes[-1]
    with pytest.raises(TanrenError, match="longer than the server's"):
        fitted(table(), Sizes(4096, 16, cap_prompt=True))


def test_nothing_to_send_is_refused() -> None:
    with pytest.raises(TanrenError, match="no requests"):
        fitted(table().head(0), WIDE)
    with pytest.raises(TanrenError, match="found 0 and 4096"):
        fitted(table(), replace(WIDE, tokens_per_id=0))


def test_warm_up_prompts_are_unlike_the_traces() -> None:
    warm = warm_up_prompts(5, 8, 4096)
    traced = {tuple(one[:8]) for one in prompts(fitted(read_trace("chat:1:200"), WIDE), 4096)}
    assert len({tuple(one) for one in warm}) == 5
    assert not traced & {tuple(one) for one in warm}


def test_a_rate_stretches_the_traces_own_gaps_or_replaces_them() -> None:
    assert paced(table(), None, "trace", 0).arrival_us.tolist() == [0, 1_000_000, 4_000_000]
    assert paced(table(), 2.0, "trace", 0).arrival_us.tolist() == [0, 250_000, 1_000_000]
    assert paced(table(), 2.0, "even", 0).arrival_us.tolist() == [0, 500_000, 1_000_000]
    drawn = paced(table(), 2.0, "poisson", 0).arrival_us.tolist()
    assert drawn[0] == 0
    assert drawn == paced(table(), 2.0, "poisson", 0).arrival_us.tolist()
    assert drawn != paced(table(), 2.0, "poisson", 1).arrival_us.tolist()
    assert paced(table().head(1), 2.0, "trace", 0).arrival_us.tolist() == [0]
    for wrong in (0.0, float("nan")):
        with pytest.raises(TanrenError, match="cannot stretch"):
            paced(table(), wrong, "trace", 0)
