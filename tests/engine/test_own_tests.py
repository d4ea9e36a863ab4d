"""vLLM's own tests end with our file active as they do without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.passes.order import analyze
from tanren_dsl.signals import STORED, VLLM, signals_of
from tests.conform.environments import engine_python
from tests.engine.one_run import Ran, run
from tests.engine.own_tests import PLAIN_PYTHON, POLICIES, account, differences, faults, run_all, table
from tests.engine.vllm_tests import prepare

BROKEN = """

def _broken(*_):
    raise RuntimeError("broken on purpose")


Evictor.choose = _broken
"""


def folder_of(version: str) -> Path:
    """Their tests of that version, or a skipped test."""
    python = engine_python(version)
    try:
        return prepare(version, python)
    except TanrenError as error:
        pytest.skip(f"vLLM's own tests cannot be fetched: {error}")


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
def test_their_tests_end_with_our_file_as_without(version: str) -> None:
    folder_of(version)
    runs, wrong = run_all(engine_python(version), "quick", jobs=3)
    print(table(runs), *(account(ran) for ran in runs[1:]), *wrong, sep="\n")
    assert not wrong
    assert sum(outcome["outcome"] == "passed" for outcome in runs[0].outcomes.values()) > 100


def test_a_policy_that_its_guard_switches_off_is_told(tmp_path: Path) -> None:
    version = "0.19.1"
    text = emit(loads(POLICIES["lru"])) + BROKEN
    files = ["tests/v1/core/test_prefix_caching.py::test_evict"]
    ran = run(folder_of(version), engine_python(version), files, "broken", text, tmp_path, PLAIN_PYTHON)
    assert {outcome["outcome"] for outcome in ran.outcomes.values()} == {"passed"}
    told = faults(ran)
    assert any("is off, vLLM's own order holds: RuntimeError: broken on purpose" in line for line in told)
    assert "broken: decisions: none" in told


def test_every_test_that_ends_otherwise_is_told() -> None:
    same = {"outcome": "failed", "where": "t.py:3", "message": "ValueError at 0x1"}
    there = {"outcome": "passed", "where": "", "message": ""}
    plain = Ran("plain", {"a": there, "b": there, "c": same, "d": same}, 0.0)
    moved = {"outcome": "failed", "where": "t.py:9", "message": "KeyError"}
    lru = Ran("lru", {"b": same, "c": same | {"message": "ValueError at 0x2"}, "d": moved, "e": there}, 0.0)
    assert differences(plain, plain) == []
    assert differences(plain, lru) == [
        "a: passed without, not run with lru",
        "b: passed without, failed t.py:3 ValueError at 0x1 with lru",
        "d: failed t.py:3 ValueError at 0x1 without, failed t.py:9 KeyError with lru",
        "e: not run without, passed with lru",
    ]


def test_a_policy_that_was_not_there_is_told() -> None:
    def ran(wrong: list[str], **counts: int) -> Ran:
        return Ran("lru", {}, 0.0, {"counts": counts, "aside": {}, "files": {}, "wrong": wrong})

    assert faults(ran([], attached=2, decisions=5)) == []
    assert faults(ran([], attached=2, decisions=5, faults=1)) == [
        "lru: 1 decisions fell back on vLLM's order"
    ]
    assert faults(ran(["t: is off"])) == [
        "lru: t: is off",
        "lru: attached: none",
        "lru: decisions: none",
    ]


def test_the_second_policy_reads_everything_and_takes_no_shortcut() -> None:
    assert analyze(loads(POLICIES["lru"])).shape == "identity"
    policy = loads(POLICIES["every signal"])
    read = set(policy.signals())
    assert analyze(policy).shape == "dynamic"
    provided = {name for name, row in signals_of("evict").items() if VLLM in row.provided_by}
    assert provided - read == {"now"}
    assert set(STORED["evict"]) <= read
