from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.mooncake import write_mooncake
from tanren_dsl.trace.read import read_trace


def test_a_file_is_recognised_by_content(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    write_mooncake(generate_chat(2, 50), path)
    table = read_trace(str(path))
    assert len(table) == 50
    assert table.block_tokens == 16
    assert table.notes[0] == "format: Mooncake JSONL"


def test_a_broken_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    write_mooncake(generate_chat(2, 50), path)
    path.write_text("{oops\n" + path.read_text())
    assert len(read_trace(path, skip_bad=True)) == 50
    with pytest.raises(TanrenError, match="expected one JSON object") as caught:
        read_trace(path)
    assert f"{path}:1:2:" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "seed", "requests"), [("chat", 0, 4000), ("chat:7", 7, 4000), ("chat:7:30", 7, 30)]
)
def test_the_embedded_trace_has_names(name: str, seed: int, requests: int) -> None:
    table = read_trace(name)
    assert np.array_equal(table.ids, generate_chat(seed, requests).ids)


def test_the_embedded_trace_takes_a_block_size() -> None:
    assert read_trace("chat:0:10", block_tokens=32).block_tokens == 32
    with pytest.raises(TanrenError):
        read_trace("chat:0:10", block_tokens=0)


@pytest.mark.parametrize(
    "name", ["chat:", "chat:x", "chat:1:2:3", "chat:-1", "chat:1:0", "chat:٣", f"chat:{'9' * 99}"]
)
def test_misspelt_names_are_refused(name: str) -> None:
    with pytest.raises(TanrenError, match="expected"):
        read_trace(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found an empty file"),
        (b" \r\n\n", "found an empty file"),
        (b"\x00\x01\x02", "found binary data"),
        (b"PAR1\x00\x01", "a Parquet file"),
        (b'{"timestamp": 1}\n\xff\xfe', r"trace:2: expected UTF-8 text, found byte 0xff"),
        (b"\x1f\x8bnonsense", "gzip data is damaged"),
        (gzip.compress(b"words " * 99)[:-9], "gzip data is damaged"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "expected requests, found the header alone"),
        (b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", "found a first line"),
        (b"Timestamp,Model,Request tokens,Response tokens\n", "found a BurstGPT trace"),
        (b'[{"id": "a", "conversations": []}]', "found a ShareGPT conversation"),
        (
            b'{"chat_id": 1, "timestamp": 0.5, "input_length": 9, "output_length": 1, "hash_ids": [1]}',
            "Bailian",
        ),
        (b'{"prompt": "x"}\n', "JSON lines with the fields 'prompt'"),
        (b"[1, 2]", "a JSON list on the first line"),
        (b"hello\n", "found a first line 'hello'"),
    ],
)
def test_what_is_not_a_trace_is_one_clear_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TanrenError, match=message) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_an_unknown_format_says_what_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text("hello\n")
    with pytest.raises(TanrenError, match="readable: Mooncake JSONL, Azure LLM CSV; or the embedded"):
        read_trace(path)


def test_missing_files_and_folders_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(TanrenError, match="found a directory"):
        read_trace(tmp_path)
    with pytest.raises(TanrenError, match="empty name"):
        read_trace("")
    with pytest.raises(TanrenError, match="cannot be read"):
        read_trace("a\0b")
