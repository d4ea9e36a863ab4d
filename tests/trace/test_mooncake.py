from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.mooncake import read_mooncake, write_mooncake
from tanren_dsl.trace.statistics import infinite_hits
from tanren_dsl.trace.table import RequestTable

Write = Callable[..., Path]


def line(
    timestamp: object = 0, prompt: object = 600, output: object = 5, ids: object = (1, 2), **more: object
) -> str:
    ids = list(ids) if isinstance(ids, tuple) else ids
    row = {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": ids, **more}
    return json.dumps(row)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*lines: str, newline: str = "\n", end: str = "\n") -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_bytes((newline.join(lines) + end).encode())
        return path

    return write


def same(left: RequestTable, right: RequestTable) -> bool:
    columns = ("arrival_us", "prompt_tokens", "output_tokens", "session", "offsets", "ids")
    return left.block_tokens == right.block_tokens and all(
        np.array_equal(getattr(left, name), getattr(right, name)) for name in columns
    )


def test_the_public_trace_has_its_published_facts(conversation: RequestTable) -> None:
    conversation.check()
    assert len(conversation) == 12_031
    assert conversation.lookups == 288_500
    assert conversation.distinct_blocks == 182_790
    assert conversation.block_tokens == 512
    assert infinite_hits(conversation) == 105_710
    assert conversation.arrival_us[-1] == 3_536_999_000
    assert (conversation.session == -1).all()
    assert not any("prefix" in note or "skipped" in note for note in conversation.notes)


def test_a_trace_of_the_public_size_reads(write: Write) -> None:
    lines = [line(i, 512 * 24, 9, list(range(i * 24, i * 24 + 24))) for i in range(12_000)]
    path = write(*lines)
    assert read_mooncake(path).lookups == 288_000


def test_fields_are_read_and_ids_renumbered(write: Write) -> None:
    path = write(
        line(1000, 600, 5, (77, 3)),
        line(1001.5, 513, 0, (77, -8), model="x"),
        line(1002, 9, 1, (3000000000,)),
    )
    table = read_mooncake(path)
    table.check()
    assert table.name == "trace.jsonl"
    assert table.arrival_us.tolist() == [0, 1500, 2000]
    assert table.prompt_tokens.tolist() == [600, 513, 9]
    assert table.output_tokens.tolist() == [5, 0, 1]
    assert table.ids.tolist() == [0, 1, 0, 2, 3]
    assert "time unit: milliseconds" in table.notes


@pytest.mark.parametrize(
    ("newline", "end"), [("\r\n", "\r\n"), ("\n", ""), ("\n\n  \n", "\n\n\n"), ("\r\n", "")]
)
def test_line_ends_do_not_matter(write: Write, newline: str, end: str) -> None:
    lines = [line(0), line(7, 600, 3, (1, 4))]
    expected = read_mooncake(write(*lines))
    assert same(expected, read_mooncake(write(*lines, newline=newline, end=end)))


def test_gzip_and_byte_order_mark_are_accepted(write: Write, tmp_path: Path) -> None:
    plain = write(line(), line(4))
    packed = tmp_path / "any_name"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + plain.read_bytes()))
    assert same(read_mooncake(plain), read_mooncake(packed))


def test_sessions_are_numbered_and_missing_ones_are_unknown(write: Write) -> None:
    rows = [line(session_id="b"), line(session_id=7), line(), line(session_id="b"), line(session_id="")]
    assert read_mooncake(write(*rows)).session.tolist() == [0, 1, -1, 0, -1]


@pytest.mark.parametrize(
    ("block", "prompt", "ids"), [(16, 40, 3), (64, 1000, 16), (48, 1000, 21), (512, 600, 2)]
)
def test_block_size_is_detected(write: Write, block: int, prompt: int, ids: int) -> None:
    rows = [line(0, prompt, 1, list(range(ids))), line(1, block * 40, 1, list(range(100, 140)))]
    table = read_mooncake(write(*rows, line(2, block * 40 + 1, 1, list(range(200, 241)))))
    table.check()
    assert table.block_tokens == block
    assert any(f"block size: {block} tokens (detected" in note for note in table.notes)


def test_doubt_about_the_block_size_is_said(write: Write) -> None:
    table = read_mooncake(write(line(0, 10, 1, (1,))))
    assert table.block_tokens == 512
    assert "would fit as well" in " ".join(table.notes)


def test_block_size_can_be_told(write: Write) -> None:
    assert read_mooncake(write(line(0, 10, 1, (1,))), block_tokens=16).block_tokens == 16
    with pytest.raises(TanrenError, match="expected 38 hash_ids for input_length 600 at block 16, found 2"):
        read_mooncake(write(line()), block_tokens=16)
    with pytest.raises(TanrenError, match="found 0"):
        read_mooncake(write(line()), block_tokens=0)


def test_no_block_size_fits(write: Write) -> None:
    with pytest.raises(TanrenError, match=r"no block size fits.*600 with 2 ids on line 1"):
        read_mooncake(write(line(), line(0, 16, 1, (3, 4)), line(0, 5, 1, (5, 6, 7))))


BROKEN = [
    ("{", "expected one JSON object a line"),
    ("[1, 2]", "found list"),
    ("[" * 100_000, "nesting too big"),
    ('{"timestamp": ' + "9" * 5000 + "}", "too big"),
    ('{"timestamp": 1, "input_length": 5, "output_length": 5}', "missing field 'hash_ids'"),
    ('{"delay": 5, "input_length": 5, "output_length": 5, "hash_ids": [1]}', "delay instead of a timestamp"),
    (line(timestamp="0"), "timestamp: expected milliseconds, found str '0'"),
    (line(timestamp=float("nan")), "timestamp: expected milliseconds, found float nan"),
    (line(timestamp=True), "found bool True"),
    (line(timestamp=1e300), "timestamp: expected milliseconds"),
    (line(prompt=0), "input_length: expected a count of at least 1, found int 0"),
    (line(prompt=600.0), "found float 600.0"),
    (line(prompt=None), "found NoneType None"),
    (line(prompt=2**31), "input_length: expected"),
    (line(output=-1), "output_length: expected a count of at least 0, found int -1"),
    (line(ids="12"), "hash_ids: expected a list of whole numbers, found str '12'"),
    (line(ids=[]), r"found list \[\]"),
    (line(ids=[1, "a"]), "hash_ids: expected a list of whole numbers"),
    (line(ids=[4, 4]), "found 4 twice"),
    (line(ids=[1]), "expected 2 hash_ids for input_length 600 at block 512, found 1"),
    (line(timestamp=-5), "expected a timestamp of at least 0, found -5"),
    (line(session_id=[1]), "session_id: expected a name or a number"),
]


@pytest.mark.parametrize(("bad", "message"), BROKEN)
def test_a_broken_line_is_one_clear_error(write: Write, bad: str, message: str) -> None:
    path = write(line(), "", bad, line(9), line(10))
    with pytest.raises(TanrenError, match=message) as caught:
        read_mooncake(path)
    text = str(caught.value)
    assert f"{path}:3:" in text
    assert len(text.splitlines()) <= 4
    assert max(map(len, text.splitlines())) < 300


@pytest.mark.parametrize("bad", [bad for bad, _ in BROKEN])
def test_a_broken_line_can_be_skipped_and_is_counted(write: Write, bad: str) -> None:
    table = read_mooncake(write(line(), "", bad, line(9), line(10)), skip_bad=True)
    table.check()
    assert table.arrival_us.tolist() == [0, 9000, 10_000]
    assert [note for note in table.notes if note.startswith("skipped 1 bad lines: line 3: ")]


def test_the_first_of_several_bad_lines_is_reported_with_their_number(write: Write) -> None:
    path = write(line(5), line(4), "{", line(9, ids=[1]), line(9), line(9), line(9))
    with pytest.raises(TanrenError) as caught:
        read_mooncake(path)
    assert f"{path}:2:" in str(caught.value)
    assert "(2 more bad lines)" in str(caught.value)
    table = read_mooncake(path, skip_bad=True)
    assert len(table) == 4
    assert "skipped 3 bad lines: line 2" in table.notes[-1]


def test_nothing_good_is_an_error_even_when_skipping(write: Write) -> None:
    with pytest.raises(TanrenError, match="1 more bad lines"):
        read_mooncake(write("{", "["), skip_bad=True)


def test_an_error_points_at_the_field(write: Write) -> None:
    with pytest.raises(TanrenError) as caught:
        read_mooncake(write(line(), line(prompt=-3)))
    excerpt, carets = str(caught.value).splitlines()[1:3]
    assert excerpt[carets.index("^") : carets.rindex("^") + 1] == '"input_length"'


def test_a_file_cut_off_is_recognised(write: Write) -> None:
    with pytest.raises(TanrenError, match="the file may be incomplete"):
        read_mooncake(write(line(), line()[:30], end=""))


def test_a_block_behind_two_parents_is_noted_with_both_lines(write: Write) -> None:
    table = read_mooncake(write(line(ids=(1, 5)), "", line(ids=(2, 3)), line(ids=(2, 5))))
    note = next(note for note in table.notes if "not prefix-consistent" in note)
    assert "1 lookups" in note
    assert "id 5 on line 4, behind another block than on line 1" in note


def test_seconds_in_place_of_milliseconds_are_suspected(write: Write) -> None:
    rows = [line(i * 0.4) for i in range(200)]
    assert any("seconds rather than milliseconds" in note for note in read_mooncake(write(*rows)).notes)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
@pytest.mark.parametrize("block", [16, 48, 512])
def test_written_tables_are_read_back(tmp_path: Path, name: str, block: int) -> None:
    table = generate_chat(1, 200, block_tokens=block)
    write_mooncake(table, tmp_path / name)
    again = read_mooncake(tmp_path / name)
    assert same(table, again)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_writing_where_nothing_can_be_written_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match="cannot write"):
        write_mooncake(generate_chat(1, 3), tmp_path / "missing" / "trace.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TanrenError, match="cannot write"):
        write_mooncake(generate_chat(1, 3), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_public_trace_is_written_and_read_back(conversation: RequestTable, tmp_path: Path) -> None:
    write_mooncake(conversation, tmp_path / "copy.jsonl")
    assert same(conversation, read_mooncake(tmp_path / "copy.jsonl"))
