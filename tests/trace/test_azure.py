from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.azure import _microseconds, read_azure
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.statistics import infinite_hits, statistics
from tanren_dsl.trace.table import RequestTable

Write = Callable[..., Path]
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def line(second: object = "46.6805900", prompt: object = 600, output: object = 44) -> str:
    return f"2023-11-16 18:15:{second},{prompt},{output}"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*lines: str, newline: str = "\r\n", end: str = "") -> Path:
        path = tmp_path / "azure.csv"
        path.write_bytes((newline.join((HEADER, *lines)) + end).encode())
        return path

    return write


def test_the_public_trace_has_its_published_facts(azure_conversation: RequestTable) -> None:
    azure_conversation.check()
    assert len(azure_conversation) == 19_366
    assert azure_conversation.prompt_tokens.max() == 14_050
    assert azure_conversation.prompt_tokens[[0, -1]].tolist() == [374, 197]
    assert azure_conversation.output_tokens[[0, -1]].tolist() == [44, 183]
    # 18:15:46.6805900, 18:15:50.9951690 and 19:14:08.4025270
    assert azure_conversation.arrival_us[[0, 1, -1]].tolist() == [0, 4_314_579, 3_501_721_937]
    assert azure_conversation.block_tokens == 512
    assert infinite_hits(azure_conversation) == 0
    assert statistics(azure_conversation)["requests_per_s"] == pytest.approx(5.53, abs=0.01)


def test_the_files_of_both_years_are_read(write: Write) -> None:
    old = read_trace(write(line(), line("47.0000000"), line("47.1234567")))
    old.check()
    assert old.arrival_us.tolist() == [0, 319_410, 442_866]
    path = write("2024-05-10 00:00:00.009930+00:00,600,5", "2024-05-10 00:00:01+00:00,1,0", newline="\n")
    new = read_trace(path)
    new.check()
    assert new.name == "azure.csv"
    assert new.arrival_us.tolist() == [0, 990_070]
    assert new.prompt_tokens.tolist() == [600, 1]
    assert new.output_tokens.tolist() == [5, 0]
    assert new.session.tolist() == [-1, -1]


def test_no_reuse_is_invented_and_the_notes_say_so(write: Write) -> None:
    table = read_azure(write(line(prompt=1024), line(prompt=1025), line(prompt=1)))
    assert np.diff(table.offsets).tolist() == [2, 3, 1]
    assert table.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert table.notes[0] == "format: Azure LLM CSV"
    assert "block size: 512 tokens (assumed)" in table.notes
    assert any("no reuse is invented" in note for note in table.notes)


def test_block_size_can_be_told(write: Write) -> None:
    table = read_trace(write(line(prompt=33)), block_tokens=16)
    table.check()
    assert (table.block_tokens, table.lookups) == (16, 3)
    assert "block size: 16 tokens (as told)" in table.notes
    with pytest.raises(TanrenError, match="block size of at least 1 token, found 0"):
        read_azure(write(line()), block_tokens=0)
    with pytest.raises(TanrenError, match="blocks of 1 tokens are too many"):
        read_azure(write(line(prompt=2**31 - 1), line()), block_tokens=1)


@pytest.mark.parametrize(
    ("newline", "end"), [("\r\n", "\r\n"), ("\n", ""), ("\n\n  \n", "\n\n\n"), ("\r\n", "")]
)
def test_line_ends_do_not_matter(write: Write, newline: str, end: str) -> None:
    table = read_trace(write(line(), line("50"), newline=newline, end=end))
    assert table.arrival_us.tolist() == [0, 3_319_410]
    assert table.prompt_tokens.tolist() == [600, 600]


BROKEN = [
    ("2023-11-16 18:15:50", "expected 3 fields, TIMESTAMP,ContextTokens,GeneratedTokens, found 1"),
    (line() + ",1", "found 4"),
    (HEADER, "TIMESTAMP: expected a date such as 2023-11-16 18:15:46.6805900, found 'TIMESTAMP'"),
    ("2023-11-31 18:15:50,1,1", "found '2023-11-31 18:15:50'"),
    ("2023-11-16 24:15:50,1,1", "TIMESTAMP: expected a date"),
    ("2023-11-16T18:15:50,1,1", "TIMESTAMP: expected a date"),
    ("2023-11-16 18:15:٤٦,1,1", "TIMESTAMP: expected a date"),
    ("1700158550," * 2 + "1", "found '1700158550'"),
    ("x" * 5000 + ",1,1", "found 'xxx"),
    (line("47", 0), "ContextTokens: expected a count of at least 1, found '0'"),
    (line("47", -1), "found '-1'"),
    (line("47", 2**31), "ContextTokens: expected"),
    (line("47", "9" * 5000), "ContextTokens: expected"),
    (line("47", "600.0"), "found '600.0'"),
    (line("47", "٦٠"), "ContextTokens: expected"),
    (line("47", 600, -1), "GeneratedTokens: expected a count of at least 0, found '-1'"),
    (line("47", 600, ""), "GeneratedTokens: expected a count of at least 0, found ''"),
    (line("46.6805800"), "timestamp of at least 2023-11-16 18:15:46.6805900, found .*46.6805800"),
]


@pytest.mark.parametrize(("bad", "message"), BROKEN)
def test_a_broken_line_is_one_clear_error(write: Write, bad: str, message: str) -> None:
    path = write(line(), "", bad, line("49"), line("50"))
    with pytest.raises(TanrenError, match=message) as caught:
        read_trace(path)
    text = str(caught.value)
    assert f"{path}:4:" in text
    assert len(text.splitlines()) <= 4
    assert max(map(len, text.splitlines())) < 300


@pytest.mark.parametrize("bad", [bad for bad, _ in BROKEN])
def test_a_broken_line_can_be_skipped_and_is_counted(write: Write, bad: str) -> None:
    table = read_trace(write(line(), "", bad, line("49"), line("50")), skip_bad=True)
    table.check()
    assert table.arrival_us.tolist() == [0, 2_319_410, 3_319_410]
    assert [note for note in table.notes if note.startswith("skipped 1 bad lines: line 4: ")]


def test_an_error_points_at_the_field(write: Write) -> None:
    with pytest.raises(TanrenError) as caught:
        read_azure(write(line(), line("47", 0)))
    excerpt, carets = str(caught.value).splitlines()[1:3]
    assert excerpt[carets.index("^") : carets.rindex("^") + 1] == "0"
    assert carets.index("^") == excerpt.index(",0,") + 1


def test_nothing_good_is_an_error_even_when_skipping(write: Write) -> None:
    with pytest.raises(TanrenError, match="1 more bad lines"):
        read_azure(write(line(prompt=0), line(prompt=0)), skip_bad=True)
    with pytest.raises(TanrenError, match="found the header alone"):
        read_azure(write(), skip_bad=True)


def test_a_file_cut_off_is_recognised(write: Write) -> None:
    with pytest.raises(TanrenError, match="the file may be incomplete"):
        read_azure(write(line(), "2023-11-16 18:1"))


def test_another_header_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text(f"\n{HEADER},NumImages\n")
    with pytest.raises(TanrenError, match=f"expected the header {HEADER}, found") as caught:
        read_azure(path)
    assert f"{path}:2:" in str(caught.value)


@given(
    st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29)),
    st.integers(-1439, 1439),
    st.integers(0, 9),
)
def test_times_are_exact(moment: datetime, offset_minutes: int, beyond: int) -> None:
    since = moment.replace(tzinfo=UTC) - datetime(1, 1, 1, tzinfo=UTC)
    expected = since // timedelta(microseconds=1)
    # isoformat leaves a zero fraction out, as the files of 2024 do
    assert _microseconds(moment.isoformat(" ")) == expected
    fraction = f"{moment.microsecond:06}{beyond}"
    assert _microseconds(f"{moment.isoformat(' ', 'seconds')}.{fraction}") == expected
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    assert _microseconds(zoned.isoformat(" ")) == expected - offset_minutes * 60_000_000
