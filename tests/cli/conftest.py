from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner, Result

from tanren_dsl.cli import main
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.mooncake import write_mooncake

Run: TypeAlias = Callable[..., Result]
SMALL = "chat:1:200"
"""A trace of 200 requests, the longest of a few hundred blocks."""

LRU = 'policy mine : evict\n"Mine."\n\norder by last_use\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin)

    return call


@pytest.fixture
def lru(tmp_path: Path) -> Path:
    """A canonical policy file."""
    path = tmp_path / "mine.tpl"
    path.write_text(LRU)
    return path


@pytest.fixture
def broken_trace(tmp_path: Path) -> Path:
    """A trace whose third line is cut."""
    path = tmp_path / "broken.jsonl"
    write_mooncake(generate_chat(1, 50), path)
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2][:20] + "\n"
    path.write_text("".join(lines))
    return path


def data(result: Result) -> Any:
    """The JSON that a successful command printed, alone on standard output."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(result: Result, *words: str) -> str:
    """The one message of a command that refused its input: exit 1, nothing on standard output."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "internal error" not in result.stderr
    assert result.stderr.count("error: ") == 1
    for word in words:
        assert word in result.stderr
    return result.stderr
