"""Help, exit statuses, and what a user sees when something goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from tanren_dsl.cli import main
from tanren_dsl.cli.app import BROKEN_PIPE, COMMANDS
from tests.cli.conftest import SMALL, Run


def test_every_command_is_listed_with_its_line(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in ("check", "fmt", "explain", "eval", "simulate", "headroom", "compile", "conform", "evolve"):
        assert f"\n  {name} " in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, run: Run) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0, result.stderr
    assert f"tanren-dsl {name}" in result.stdout.split("Example", 1)[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_name_it_is_listed_under(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize(
    "arguments",
    [["nosuch"], ["check"], ["check", "--nosuch", "lru"], ["simulate", "lru"], ["eval", "lru"],
     ["simulate", "lru", "--capacity", "many"], ["simulate", "lru", "--capacity", "0"],
     ["simulate", "lru", "--capacity", "9" * 5000], ["simulate", "-", "-", "--capacity", "9"],
     ["eval", "-", "-"], ["trace", "show", "chat", "--block-tokens", "9" * 30],
     ["conform", "--engine", "vllm-0.19", "--step-ms", "nan"],
     ["conform", "--engine", "vllm-0.19", "--rate", "inf"],
     ["check", "lru", "--knob", "budget"], ["check", "lru", "--knob", "=3"],
     ["compile", "lru", "--target", "nosuch", "-o", "x.py"], ["trace", "nosuch"]],
    ids=lambda arguments: " ".join(arguments)[:60],
)  # fmt: skip
def test_wrong_usage_exits_with_2(arguments: list[str], run: Run) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr
    assert len(result.stderr) < 400


def test_a_failure_of_ours_is_one_line_that_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("not your fault\nsecond line")

    monkeypatch.setattr("tanren_dsl.trace.read.read_trace", fail)
    result = run("trace", "show", SMALL)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        "internal error: a bug in tanren-dsl, not in your input: ValueError: not your fault"
    )
    assert "Traceback" in run("--debug", "trace", "show", SMALL).stderr
    monkeypatch.setenv("TANREN_DEBUG", "1")
    assert "Traceback" in run("trace", "show", SMALL).stderr


def test_too_little_memory_is_no_bug(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("32 GiB")

    monkeypatch.setattr("tanren_dsl.sim.replay.simulate_stock", fail)
    result = run("headroom", SMALL, "--capacity", "1000")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("error: not enough memory: 32 GiB\n")


def test_an_interrupt_exits_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tanren_dsl.trace.read.read_trace", interrupt)
    result = run("trace", "show", SMALL)
    assert result.exit_code == 130
    assert result.stderr == "interrupted\n"


def test_a_reader_that_went_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-m", "tanren_dsl", "explain", "lru", "--json"],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(write)
    assert result.returncode == BROKEN_PIPE
    assert "Broken" not in result.stderr
    assert "Exception" not in result.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this machine")
def test_a_full_disk_is_one_message() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "tanren_dsl", "explain", "lru", "--json"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.splitlines()[1:] == ["error: [Errno 28] No space left on device"]
