"""`compile`, `conform` and `vllm-env`."""

from __future__ import annotations

import ast
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.cli.conform_runs import random_policies
from tanren_dsl.cli.options import examples
from tanren_dsl.conform.conform import Conformance, Setting
from tests.cli.conftest import LRU, SMALL, Run, data, refused
from tests.conform.environments import engine_python


def test_compile_for_vllm_writes_one_file_and_prints_the_flag(run: Run, tmp_path: Path) -> None:
    result = run("compile", "t_lru", "--target", "vllm", "-o", "tanren_policy.py", "--knob", "budget=77")
    assert (result.exit_code, result.stdout) == (0, "--scheduler-cls tanren_policy.Scheduler\n")
    assert f"PYTHONPATH={tmp_path}" in result.stderr
    text = (tmp_path / "tanren_policy.py").read_text()
    ast.parse(text)
    assert "77.0" in text
    assert [one.name for one in tmp_path.iterdir()] == ["tanren_policy.py"]


def test_compile_for_python_gives_the_keys_that_eval_gives(run: Run, tmp_path: Path) -> None:
    given = json.loads(run("eval", "t_lru", "--example").stdout)
    (tmp_path / "in.json").write_text(json.dumps(given))
    text = run("compile", "t_lru", "--target", "python", "-o", "-").stdout
    names: dict[str, Any] = {}
    exec(compile(text, "<emitted>", "exec"), names)
    keys = names["keys"](given["decision"], given["objects"])
    assert [list(row) for row in keys] == data(run("eval", "t_lru", "in.json", "--json"))["keys"]


def test_compile_json_echoes_what_was_written(run: Run) -> None:
    found = data(run("compile", "lru", "--target", "vllm", "-o", "p.py", "--json"))
    assert found == {
        "target": "vllm", "file": "p.py", "policies": ["lru"], "flag": "--scheduler-cls p.Scheduler",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("policies", "target", "output", "words"),
    [
        (["lru"], "sglang", "p.py", "target sglang is not supported yet"),
        (["lru"], "lmcache", "p.py", "target lmcache is not supported yet"),
        (["fcfs", "sjf"], "vllm", "p.py", "expected at most one schedule policy, found 2"),
        (["lru", "lfu"], "vllm", "p.py", "at most one evict policy, found 2"),
        (["lru", "lfu"], "python", "p.py", "one policy a file, found 2"),
        (["lru"], "vllm", "my-policy.py", "is no module name"),
        (["lru"], "vllm", "class.py", "is no module name"),
        (["lru"], "vllm", "vllm.py", "would hide the module vllm"),
        (["lru"], "vllm", "json.py", "would hide the module json"),
        (["lru"], "vllm", "no/where.py", "cannot write no/where.py: No such file"),
    ],
)
def test_compile_refuses_by_name_and_writes_nothing(
    policies: list[str], target: str, output: str, words: str, run: Run, tmp_path: Path
) -> None:
    paths = [str(examples()[name]) for name in policies]
    result = run("compile", *paths, "--target", target, "-o", output)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_compile_leaves_an_older_file_when_it_fails(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text("old")
    assert run("compile", "sjf", "fcfs", "--target", "vllm", "-o", "p.py").exit_code == 1
    assert (tmp_path / "p.py").read_text() == "old"


def test_compile_never_writes_over_the_policy(run: Run, lru: Path) -> None:
    refused(
        run("compile", str(lru), "--target", "python", "-o", "./mine.tpl"), "mine.tpl is the policy itself"
    )
    assert lru.read_text() == LRU


def test_compile_writes_to_a_pipe_and_leaves_it(run: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_text)
        assert run("compile", "lru", "--target", "python", "-o", "pipe").exit_code == 0
        ast.parse(read.result(timeout=10))
    assert (tmp_path / "pipe").is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_compile_puts_both_kinds_into_one_file_and_leaves_the_guard_out(run: Run, tmp_path: Path) -> None:
    assert run("compile", "slru", "sjf", "--target", "vllm", "-o", "p.py", "--no-guard").exit_code == 0
    text = (tmp_path / "p.py").read_text()
    assert "eviction policy `slru` and the scheduling policy `sjf`" in text
    assert "\nGUARD = False\n" in text
    assert run("compile", "sjf", "--target", "vllm", "-o", "p.py").exit_code == 0
    text = (tmp_path / "p.py").read_text()
    assert "\nGUARD = True\n" in text
    assert "EVICTS = False" in text
    assert "class Evictor" not in text
    wrong = run("compile", "lru", "--target", "vllm", "-o", "p.py", "--no-guard")
    assert (wrong.exit_code, "for schedule policies" in wrong.stderr) == (2, True)


def test_the_line_to_paste_is_quoted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    result = run("compile", "lru", "--target", "vllm", "-o", "a b/p.py")
    assert f"PYTHONPATH='{tmp_path}/a b' vllm serve" in result.stderr


def test_conform_without_an_environment_says_how_to_make_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANREN_VLLM_0_19_1", raising=False)
    refused(run("conform", "--engine", "vllm-0.19"), "no vLLM environment", "make vllm-env VLLM=0.19.1")
    refused(run("conform", "--engine", "vllm-0.19", "--python", "/no/python"), "/no/python does not exist")
    monkeypatch.delenv("TANREN_VLLM_0_32_0", raising=False)
    refused(run("conform", "--engine", "vllm-0.32"), "no vLLM environment", "make vllm-env VLLM=0.32.0")


def test_conform_refuses_by_name(run: Run) -> None:
    refused(run("conform", "--engine", "vllm-9"), "unknown engine 'vllm-9'")
    twice = [str(examples()[name]) for name in ("lru", "lfu", "sjf")]
    refused(
        run("conform", *twice, "--together", "--engine", "vllm-0.19"), "at most one evict policy, found 2"
    )
    refused(run("conform", "--engine", "vllm-0.19", "--profile", "none"), "no latency profile 'none'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policies", "random:x"), "expected random:N"),
        (("--policies", "random:3:4:5"), "expected random:N"),
        (("--policies", "drawn:3"), "expected random:N"),
        (("--capacity", "9", "--capacity", "8", "--log", "x"), "--log is for one run"),
        (("--engine", "vllm-0.32", "--python", "python"), "--python names one interpreter"),
        (("lru", "--together"), "--together takes one evict and one schedule policy"),
        (("lru", "--no-cache"), "leaves an evict policy nothing to decide"),
        (("sjf", "--scheduling", "priority"), "exclude each other"),
        (("--load", "0"), "--load"),
    ],
)
def test_conform_knows_wrong_usage(run: Run, arguments: tuple[str, ...], words: str) -> None:
    result = run("conform", "--engine", "vllm-0.19", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_random_policies_are_different_and_the_same_every_time() -> None:
    drawn = random_policies(12, 3)
    assert [one.text for one in drawn] == [one.text for one in random_policies(12, 3)]
    assert len({one.text for one in drawn}) == 12
    assert [one.text for one in drawn] != [one.text for one in random_policies(12, 4)]
    assert len({len(one.order.keys) for one in drawn}) > 1


def test_conform_runs_every_policy_at_every_capacity(run: Run) -> None:
    python = str(engine_python("0.32.0"))
    short = ("--trace", SMALL, "--requests", "60", "--rate", "20", "--outputs", "30", "--block-size", "32")
    many = ("--policies", "random:1:7", "--capacity", "400", "--capacity", "500", "--aborts", "1")
    result = run("conform", "lru", *many, "--engine", "vllm-0.32", "--python", python, *short, "--json")
    found = data(result)
    assert [(one["policy"], one["settings"]["capacity"]) for one in found] == [
        ("lru", 400), ("lru", 500), ("random_7_0", 400), ("random_7_0", 500)
    ]  # fmt: skip
    assert {one["divergences"] for one in found} == {0}
    assert all(one["evictions"] > 0 and one["aborts"] > 0 for one in found)
    assert "4/4 random_7_0 on 0.32.0, 500 blocks" in result.stderr


def test_conform_refuses_a_folder_for_its_log(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tanren_dsl.conform.vllm_env.check_env", lambda *_: "0.19.1")
    (tmp_path / "there").mkdir()
    refused(run("conform", "--engine", "vllm-0.19", "--log", "there"), "cannot write there: it is a folder")
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_conform_finds_no_difference(run: Run, tmp_path: Path) -> None:
    python = str(engine_python("0.32.0"))
    short = ("--trace", SMALL, "--requests", "40", "--rate", "4", "--outputs", "8", "--log", "events.jsonl")
    (found,) = data(run("conform", "t_lru", "--engine", "vllm-0.32", "--python", python, *short, "--json"))
    assert (found["divergences"], found["first"], found["version"]) == (0, None, "0.32.0")
    assert found["requests"] == found["settings"]["requests"] == 40
    assert found["evictions"] > 0
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step"] == 0


def test_a_difference_is_printed_and_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def differ(*_: object, **__: object) -> list[Conformance]:
        setting = Setting("vllm-0.19", 90)
        return [Conformance("stock", setting, "0.19.1", 4, 9, 2, 0, 0, 64, 0, 0, 0, 0, 0, 3, "here", [])]

    monkeypatch.setattr("tanren_dsl.conform.vllm_env.check_env", lambda *_: "0.19.1")
    monkeypatch.setattr("tanren_dsl.cli.conform_runs.run_all", differ)
    result = run("conform", "--engine", "vllm-0.19", "--trace", SMALL)
    assert result.exit_code == 1
    assert "capacity 90" in result.stdout
    assert result.stdout.endswith("DIFFERENT in 3 of the steps\nhere\n")
    (found,) = json.loads(run("conform", "--engine", "vllm-0.19", "--trace", SMALL, "--json").stdout)
    assert (found["divergences"], found["first"], found["engine"]) == (3, "here", "vllm-0.19")


def test_vllm_env_refuses_an_unknown_version(run: Run, tmp_path: Path) -> None:
    refused(run("vllm-env", "0.1", "there"), "vLLM 0.1 is not known", "0.19.1")
    refused(run("vllm-env", "0.19.1", "/dev/null/there"), "cannot make /dev/null/there: Not a directory")
    assert list(tmp_path.iterdir()) == []
