from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.table import RequestTable, first_lookups, parent_lookups, relabel


@pytest.fixture
def table() -> RequestTable:
    """Three requests of 2, 3 and 1 blocks."""
    return RequestTable(
        name="three",
        block_tokens=16,
        arrival_us=np.array([0, 5, 9]),
        prompt_tokens=np.array([20, 48, 3]),
        output_tokens=np.array([4, 0, 7]),
        session=np.array([0, 0, -1]),
        offsets=np.array([0, 2, 5, 6]),
        ids=np.array([0, 1, 0, 2, 3, 4], np.int32),
    )


def test_counts(table: RequestTable) -> None:
    table.check()
    assert (len(table), table.lookups, table.distinct_blocks, table.longest()) == (3, 6, 5, 3)


def test_slice_starts_time_and_ids_anew(table: RequestTable) -> None:
    part = table.slice(1, 3)
    part.check()
    assert part.arrival_us.tolist() == [0, 4]
    assert part.ids.tolist() == [0, 1, 2, 3]
    assert part.offsets.tolist() == [0, 3, 4]
    assert part.session.tolist() == [0, -1]


def test_slices_keep_which_blocks_are_equal() -> None:
    table = generate_chat(3, 300)
    part = table.slice(100, 250)
    part.check()
    original = table.ids[table.offsets[100] : table.offsets[250]]
    assert np.array_equal(part.ids, relabel(original))
    assert len(np.unique(original)) == part.distinct_blocks


@pytest.mark.parametrize(("start", "stop", "rows"), [(0, 0, 0), (2, 1, 0), (-1, 99, 1), (5, 9, 0)])
def test_slice_bounds_are_those_of_python(table: RequestTable, start: int, stop: int, rows: int) -> None:
    part = table.slice(start, stop)
    part.check()
    assert len(part) == rows


def test_head(table: RequestTable) -> None:
    assert len(table.head(2)) == 2
    assert len(table.head(-1)) == 0
    assert len(table.head(99)) == 3


def test_empty_table_has_no_blocks(table: RequestTable) -> None:
    empty = table.head(0)
    assert (empty.lookups, empty.distinct_blocks, empty.longest()) == (0, 0, 0)
    assert len(empty.with_rate(2)) == 0
    assert len(empty.with_rate(2, seed=1)) == 0


def test_even_rate(table: RequestTable) -> None:
    again = table.with_rate(4)
    again.check()
    assert again.arrival_us.tolist() == [0, 250_000, 500_000]
    assert "evenly spaced" in again.notes[-1]


def test_poisson_rate_has_the_mean_and_the_seed() -> None:
    table = generate_chat(0, 4000)
    one, same, other = (table.with_rate(10, seed=seed) for seed in (5, 5, 6))
    one.check()
    assert np.array_equal(one.arrival_us, same.arrival_us)
    assert not np.array_equal(one.arrival_us, other.arrival_us)
    assert one.arrival_us[-1] / 1e6 == pytest.approx(400, rel=0.1)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e-300])
def test_impossible_rates_are_refused(table: RequestTable, rate: float) -> None:
    with pytest.raises(TanrenError):
        table.with_rate(rate)


def test_outputs_are_capped(table: RequestTable) -> None:
    assert table.with_outputs(5).output_tokens.tolist() == [4, 0, 5]
    with pytest.raises(TanrenError, match="found -1"):
        table.with_outputs(-1)


def test_relabel_numbers_by_first_appearance() -> None:
    assert relabel(np.array([9, 2, 9, 5, 2])).tolist() == [0, 1, 0, 2, 1]
    assert relabel(np.array([], np.int64)).tolist() == []


def test_first_and_parent_lookups(table: RequestTable) -> None:
    assert first_lookups(table).tolist() == [0, 1, 3, 4, 5]
    assert parent_lookups(table).tolist() == [-1, 0, -1, 0, 2, -1]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("arrival_us", [0, 9, 5], "request 2 arrives before"),
        ("arrival_us", [1, 5, 9], "must arrive at 0"),
        ("prompt_tokens", [20, 49, 3], "request 1 has not ceil"),
        ("prompt_tokens", [0, 48, 3], "request 0 has no prompt"),
        ("output_tokens", [0, 0, -2], "request 2 has a negative output"),
        ("session", [0, -2, 0], "request 1 has a session below -1"),
        ("session", [0, 0], "session must be int64 of shape"),
        ("offsets", [0, 2, 5, 7], "offsets must rise"),
    ],
)
def test_check_names_the_broken_promise(
    table: RequestTable, column: str, value: list[int], message: str
) -> None:
    with pytest.raises(TanrenError, match=message):
        replace(table, **{column: np.array(value)}).check()  # type: ignore[arg-type]


def test_check_sees_ids_that_repeat_skip_or_have_another_type(table: RequestTable) -> None:
    with pytest.raises(TanrenError, match="request 1 repeats a block"):
        replace(table, ids=np.array([0, 1, 0, 2, 2, 3], np.int32)).check()
    with pytest.raises(TanrenError, match="first appearance"):
        replace(table, ids=np.array([0, 2, 0, 1, 3, 4], np.int32)).check()
    with pytest.raises(TanrenError, match="flat int32"):
        replace(table, ids=table.ids.astype(np.int64)).check()
    with pytest.raises(TanrenError, match="block_tokens"):
        replace(table, block_tokens=0).check()
