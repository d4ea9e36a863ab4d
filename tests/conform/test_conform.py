"""The emitted file in real vLLM, the simulator beside it: the same decisions, step by step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.conform import Setting, conform
from tanren_dsl.conform.worker import Worker
from tanren_dsl.errors import TanrenError
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.trace.read import read_trace
from tests.conform.environments import engine_python
from tests.sim.test_engine import POLICIES

BLOCK_SIZES = {"vllm-0.19": 16, "vllm-0.32": 32}


def setting(engine: str, **changes: object) -> Setting:
    values = {"block_size": BLOCK_SIZES[engine], "requests": 120, "outputs": 50, "rate": 20.0, **changes}
    return Setting(engine, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", list(PROFILES))
@pytest.mark.parametrize(
    ("name", "asynchronous", "identity"),
    [("lru", False, True), ("lru", True, False), ("slru", False, True), ("every signal", True, True)],
)
def test_the_emitted_file_decides_as_the_simulator(
    workers: Callable[[str], Worker], engine: str, name: str, asynchronous: bool, identity: bool
) -> None:
    policy = loads(f"policy p : evict {POLICIES[name]}")
    result = conform(
        [policy], read_trace("chat"), setting(engine, asynchronous=asynchronous, identity=identity),
        workers(engine), emit=emit, compile_ordering=compile_ordering,
    )  # fmt: skip
    assert result.first is None
    assert result.divergences == 0
    assert result.evictions > 1000
    assert result.faults == 0
    assert (result.decisions > 100) == (not (name == "lru" and identity))


@pytest.mark.parametrize(
    ("environment", "mode"),
    [({"TANREN_DISABLE": "1"}, "TANREN_DISABLE=1"), ({"TANREN_BUDGET_MS": "0"}, "off")],
)
def test_a_policy_that_does_not_run_is_no_conformance(environment: dict[str, str], mode: str) -> None:
    policy = loads("policy p : evict order by uses, last_use")
    with pytest.raises(TanrenError, match=mode):
        conform(
            [policy], read_trace("chat"), setting("vllm-0.32", requests=40), engine_python("0.32.0"),
            emit=emit, compile_ordering=compile_ordering, environment=environment,
        )  # fmt: skip


def test_the_file_runs_as_plain_python_too() -> None:
    policy = loads(f"policy p : evict {POLICIES['slru']}")
    result = conform(
        [policy], read_trace("chat"), setting("vllm-0.32", requests=40), engine_python("0.32.0"),
        emit=emit, compile_ordering=compile_ordering, environment={"TANREN_NO_NUMBA": "1"},
    )  # fmt: skip
    assert result.divergences == 0


def test_another_version_than_the_profile_is_refused() -> None:
    with pytest.raises(TanrenError, match=r"vLLM 0\.19\.1 is wanted"):
        conform(
            [], read_trace("chat"), setting("vllm-0.19"), engine_python("0.32.0"),
            emit=emit, compile_ordering=compile_ordering,
        )  # fmt: skip


def test_a_missing_environment_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match="make vllm-env"):
        conform(
            [], read_trace("chat"), setting("vllm-0.19"), tmp_path / "bin" / "python",
            emit=emit, compile_ordering=compile_ordering,
        )  # fmt: skip


@pytest.mark.parametrize("name", list(POLICIES))
def test_the_emitted_file_stands_alone(name: str, tmp_path: Path) -> None:
    text = emit(loads(f"policy p : evict {POLICIES[name]}"))
    assert "tanren_dsl" not in text.replace("tanren-dsl", "")
    file = tmp_path / "tanren_policy.py"
    file.write_text(text)
    code = "import json, tanren_policy as p; print(json.dumps([p.POLICY, p.status()['mode']]))"
    out = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(out.stdout) == ["p", "not started"]
