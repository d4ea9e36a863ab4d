from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.blocks import engine_blocks
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.load import (
    compress,
    cut,
    factor_for_rate,
    fitting,
    shifted,
    unique_heads,
    without_empty,
)
from tanren_dsl.trace.statistics import infinite_hits, statistics
from tanren_dsl.trace.table import RequestTable, relabel

BLOCK = 8
SMALL = st.integers(1, 12)


@st.composite
def tables(draw: st.DrawFn, least: int = 0) -> RequestTable:
    """Requests that share the fronts of a few chains, with gaps of 0 to 5 s."""
    count = draw(st.integers(least, 30))
    lengths = st.lists(st.integers(1, 40), min_size=count, max_size=count)
    prompt = np.array(draw(lengths), np.int64)
    output = np.array(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), np.int64)
    gaps = draw(st.lists(st.integers(0, 5_000_000), min_size=count, max_size=count))
    chains = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    blocks = -(-prompt // BLOCK)
    ids = [100 * chain + place for chain, many in zip(chains, blocks, strict=True) for place in range(many)]
    arrival = np.cumsum(np.array(gaps, np.int64))
    return RequestTable(
        "drawn",
        BLOCK,
        arrival - arrival[:1].sum(),
        prompt,
        output,
        np.full(count, -1, np.int64),
        np.concatenate(([0], np.cumsum(blocks))).astype(np.int64),
        relabel(np.array(ids, np.int64)),
    )


def numbered(count: int) -> RequestTable:
    """Request r arrives at second r and has a prompt of r + 1 tokens, one block."""
    return RequestTable(
        "numbered",
        10_000,
        np.arange(count, dtype=np.int64) * 1_000_000,
        np.arange(1, count + 1, dtype=np.int64),
        np.ones(count, np.int64),
        np.full(count, -1, np.int64),
        np.arange(count + 1, dtype=np.int64),
        np.arange(count, dtype=np.int32),
    )


def span(table: RequestTable) -> tuple[int, int]:
    """First request of `numbered` in a part of it, and one past the last."""
    return int(table.prompt_tokens[0]) - 1, int(table.prompt_tokens[-1])


@given(tables(), st.floats(1e-3, 1e3))
def test_compressing_divides_times_and_nothing_else(table: RequestTable, factor: float) -> None:
    found = compress(table, factor)
    found.check()
    assert found.arrival_us.tolist() == [round(int(us) / factor) for us in table.arrival_us]
    assert found.ids is table.ids
    assert found.prompt_tokens is table.prompt_tokens
    assert found.notes[-1] == f"times divided by {factor!r}"


@given(tables(), st.floats(0.1, 10), st.floats(0.1, 10))
def test_a_larger_factor_never_makes_a_gap_longer(table: RequestTable, one: float, other: float) -> None:
    slow, fast = (compress(table, factor).arrival_us for factor in sorted((one, other)))
    assert (fast <= slow).all()
    assert np.array_equal(compress(table, 1.0).arrival_us, table.arrival_us)


@pytest.mark.parametrize("factor", [0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_factor_is_refused(factor: float) -> None:
    with pytest.raises(TanrenError, match="expected a factor of compression above 0"):
        compress(numbered(3), factor)


def test_a_factor_that_ends_the_clock_is_refused() -> None:
    with pytest.raises(TanrenError, match="outlast the clock"):
        compress(numbered(3), 1e-300)


@given(tables(least=2), st.floats(0.01, 1000))
def test_the_factor_for_a_rate_reaches_it(table: RequestTable, rate: float) -> None:
    assume(table.arrival_us[-1] > 0)
    factor = factor_for_rate(table, rate)
    span_us = len(table) / rate * 1e6
    assert compress(table, factor).arrival_us[-1] == pytest.approx(span_us, abs=0.51, rel=1e-9)


def test_no_factor_gives_a_rate_to_what_arrives_at_once() -> None:
    for table in (numbered(1), numbered(0)):
        with pytest.raises(TanrenError, match="arrive all at once"):
            factor_for_rate(table, 1.0)
    for rate in (0.0, math.nan, math.inf):
        with pytest.raises(TanrenError, match="expected a rate above 0"):
            factor_for_rate(numbered(3), rate)


@given(st.integers(0, 200), SMALL, SMALL)
def test_windows_are_whole_apart_and_spread_evenly(length: int, count: int, requests: int) -> None:
    table = numbered(length)
    if count * requests > length:
        with pytest.raises(TanrenError, match="do not fit"):
            cut(table, count, requests)
        return
    found = cut(table, count, requests)
    starts = [start for start, _ in found]
    assert [span(part) for _, part in found] == [(start, start + requests) for start in starts]
    assert found[-1][0] + requests <= length
    gaps = np.diff([*starts, length])
    assert gaps.min() >= requests
    assert gaps.max() - gaps.min() <= 1
    assert starts[0] == 0


@pytest.mark.parametrize(("count", "requests"), [(0, 1), (1, 0), (-1, -1)])
def test_no_window_is_no_cut(count: int, requests: int) -> None:
    with pytest.raises(TanrenError, match="at least 1 window of 1 request"):
        cut(numbered(5), count, requests)


def test_a_cut_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(TanrenError, match="windows of 3 requests fit"):
        cut(numbered(10), 3, 4)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 50))
def test_repeats_differ_and_stay_near_their_window(requests: int, repeats: int, start: int) -> None:
    assume(repeats == 1 or requests >= 2 * repeats)
    table = numbered(start + requests + requests // 2 + 1)
    begins = [span(shifted(table, start, requests, repeat, repeats))[0] for repeat in range(repeats)]
    assert begins[0] == start
    assert len(set(begins)) == repeats
    assert len(set(np.diff(begins).tolist())) <= 1
    assert begins[-1] + requests < start + 1.5 * requests + 1e-9 or repeats == 1


def test_a_repeat_past_the_end_or_like_another_is_refused() -> None:
    table = numbered(10)
    assert span(shifted(table, 0, 8, 1, 2)) == (2, 10)
    with pytest.raises(TanrenError, match="would end with request 10, but numbered has 10"):
        shifted(table, 1, 8, 1, 2)
    with pytest.raises(TanrenError, match="would all be the same"):
        shifted(table, 0, 3, 1, 2)
    for repeat, repeats in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(TanrenError, match="expected a repeat from 0"):
            shifted(table, 0, 8, repeat, repeats)
    with pytest.raises(TanrenError, match="window of at least 1 request"):
        shifted(table, -1, 8, 0, 1)


@given(tables())
def test_with_unique_heads_nothing_is_reused(table: RequestTable) -> None:
    found = unique_heads(table)
    found.check()
    assert infinite_hits(found) == 0
    assert found.offsets is table.offsets
    assert engine_blocks(found, 4).distinct == int(((table.prompt_tokens + table.output_tokens) // 4).sum())


@given(tables(least=1))
def test_requests_without_an_output_are_left_out_and_counted(table: RequestTable) -> None:
    empty = int((table.output_tokens == 0).sum())
    if empty == len(table):
        with pytest.raises(TanrenError, match="no request would be left"):
            without_empty(table)
        return
    found = without_empty(table)
    found.check()
    assert np.array_equal(found.output_tokens, table.output_tokens[table.output_tokens > 0])
    assert np.array_equal(np.diff(found.arrival_us), np.diff(table.arrival_us[table.output_tokens > 0]))
    note = f"left out {empty} of {len(table)} requests: they have no output token"
    assert found.notes == ((note,) if empty else ())


@given(tables(least=1), SMALL, SMALL, st.integers(1, 50))
def test_what_can_never_fit_is_left_out_and_counted(
    table: RequestTable, usable: int, size: int, longest: int
) -> None:
    def fits(request: int) -> bool:
        prompt, output = int(table.prompt_tokens[request]), int(table.output_tokens[request])
        return prompt + output <= longest and prompt + max(output, 1) - 1 <= usable * size

    kept = [request for request in range(len(table)) if fits(request)]
    if not kept:
        with pytest.raises(TanrenError, match="no request would be left"):
            fitting(table, usable, size, longest)
        return
    found = fitting(table, usable, size, longest)
    found.check()
    assert found.prompt_tokens.tolist() == table.prompt_tokens[kept].tolist()
    counted = sum(int(note.removeprefix("left out ").split()[0]) for note in found.notes)
    assert counted == len(table) - len(kept)


def test_the_last_token_needs_no_place() -> None:
    table = numbered(20)  # prompts of 1 to 20 tokens, outputs of 1
    assert len(fitting(table, 2, 8, 100)) == 16
    assert len(fitting(table, 9, 8, 16)) == 15
    assert fitting(table, 9, 8, 100) is table
    for numbers in ((0, 8, 9), (9, 0, 9), (9, 8, 0)):
        with pytest.raises(TanrenError, match="at least 1 usable block"):
            fitting(table, *numbers)


def test_what_is_left_out_does_not_break_what_is_shared() -> None:
    table = generate_chat(1, 300)
    found = without_empty(fitting(table, 100, 16, 1500))
    found.check()
    assert 0 < len(found) < 300
    assert infinite_hits(found) > 0
    assert "are longer than 1,500 tokens" in found.notes[-2] + found.notes[-1]


def test_the_public_trace_is_cut_shifted_and_compressed(azure_conversation: RequestTable) -> None:
    table = without_empty(fitting(azure_conversation, 1000, 16, 16_000))
    assert len(table) == 19_366
    windows = cut(table, 4, 2500)
    assert [start for start, _ in windows] == [0, 4841, 9683, 14_524]
    for rate in (10.0, 20.0):
        found = shifted(table, 14_524, 2000, 1, 2)
        faster = compress(found, factor_for_rate(found, rate))
        assert statistics(faster)["requests_per_s"] == pytest.approx(rate)
        assert faster.name == "azure_llm_2023_conv.csv[15024:17024]"
