"""Real servers: they count, forget, obey a policy, lose their engine, and are stock without the flag."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tanren_dsl.backends.vllm import emit
from tanren_dsl.bench.cpu import BLOCK_SIZE, cpu_environment, cpu_spec
from tanren_dsl.bench.model import make_model
from tanren_dsl.bench.server import Server, ServeSpec, connect, serve
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tests.conform.test_engine_oracle import engine_python

KEEP_HITS = "policy keep_hits : evict\ncandidates all\norder by 1 if uses > 0 else 0, last_use"
GOES_WRONG = """\
    MOMENTS.append(n)
    if len(MOMENTS) > 3:
        time.sleep(0.05)
    keys[:] = math.nan
    return


MOMENTS = []


def meant(decision, rows, ids, n, keys, scratch):
"""
"""What `order` does instead: its keys are never finite, and after three calls it is slow."""
PROMPT_BLOCKS = 10
USABLE_BLOCKS = 32


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ServeSpec:
    python = engine_python("0.32.0")
    model = make_model(tmp_path_factory.mktemp("model"))
    return cpu_spec(python, model, USABLE_BLOCKS, max_model_len=1024, environment={"TANREN_NO_NUMBA": "1"})


@pytest.fixture(scope="module")
def server(spec: ServeSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the policy."""
    folder = tmp_path_factory.mktemp("policy")
    policy = folder / "any_name.py"
    policy.write_text(emit(loads(KEEP_HITS)))
    with serve(replace(spec, policy_file=policy), folder / "log") as server:
        yield server


def prompt(number: int) -> list[int]:
    """Ten blocks and one token that no other number shares."""
    return [1 + number, *range(200, 200 + PROMPT_BLOCKS * BLOCK_SIZE)]


def hit_blocks(server: Server, tokens: list[int]) -> float:
    """Complete a prompt; how many of its blocks were cached."""
    before = server.metrics()
    body = {"model": server.model, "prompt": tokens, "max_tokens": 8, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()
    after = server.metrics()
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["text"].split()[0].startswith("t")
    assert after.prefix_queries - before.prefix_queries == len(tokens)
    return (after.prefix_hits - before.prefix_hits) / BLOCK_SIZE


def hits_after_a_flood(server: Server) -> float:
    """Blocks of a prompt that are left when it was hit once and four others came that were not."""
    server.reset_prefix_cache()
    hits = [hit_blocks(server, prompt(number)) for number in (0, 0, 1, 2, 3, 4)]
    assert hits == [0, PROMPT_BLOCKS, 0, 0, 0, 0]
    return hit_blocks(server, prompt(0))


def engine_of(server: Server) -> int:
    """Process id of the engine, a child of the server's."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        parent = stat.read_text().rpartition(")")[2].split()[1]
        if int(parent) == server.pid and b"EngineCore" in stat.with_name("cmdline").read_bytes():
            return int(stat.parent.name)
    raise AssertionError("no engine")


def test_the_policy_of_the_file_is_in_charge(server: Server) -> None:
    (line,) = server.policy_lines()
    assert line.startswith("tanren: policy keep_hits (")
    assert "decides evictions" in line
    assert hits_after_a_flood(server) == PROMPT_BLOCKS


def test_a_reset_forgets_and_keeps_the_counters(server: Server) -> None:
    hit_blocks(server, prompt(5))
    before = server.metrics()
    server.reset_prefix_cache()
    assert server.metrics() == before
    assert hit_blocks(server, prompt(5)) == 0
    assert hit_blocks(server, prompt(5)) == PROMPT_BLOCKS


def test_a_server_is_used_by_its_address_alone(server: Server) -> None:
    elsewhere = connect(server.url + "/")
    assert elsewhere.model == server.model
    assert elsewhere.metrics() == server.metrics()
    elsewhere.reset_prefix_cache()
    assert hit_blocks(elsewhere, prompt(5)) == 0
    assert (elsewhere.policy_lines(), elsewhere.exit_status(), elsewhere.pid) == ([], None, None)
    elsewhere.close()
    assert server.is_healthy()


def test_a_server_whose_engine_is_killed_ends_and_another_without_the_flag_is_stock(
    server: Server, spec: ServeSpec, tmp_path: Path
) -> None:
    os.kill(engine_of(server), signal.SIGKILL)
    deadline = time.monotonic() + 120
    while server.exit_status() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert server.exit_status() is not None
    with pytest.raises(TanrenError, match="does not answer"):
        server.metrics()

    with serve(spec, tmp_path / "log") as stock:
        assert stock.policy_lines() == []
        assert hits_after_a_flood(stock) == 0
    assert stock.exit_status() == 0


def test_a_broken_policy_fails_no_request_and_says_so_once_each(spec: ServeSpec, tmp_path: Path) -> None:
    head = "def order(decision, rows, ids, n, keys, scratch):\n"
    text = emit(loads("policy wrong : evict\norder by uses - age / mean(age)"))
    assert text.count(head) == 1
    policy = tmp_path / "broken.py"
    policy.write_text(text.replace(head, f"{head}{GOES_WRONG}"))
    with serve(replace(spec, policy_file=policy), tmp_path / "log") as server:
        assert hits_after_a_flood(server) == 0
        assert hits_after_a_flood(server) == 0
        assert server.is_healthy()
        started, *told = server.policy_lines()
    assert "decides evictions" in started
    assert ["not finite" in line for line in told] == [True, False]
    assert "is off, vLLM's own order holds: 3 decisions over 20 ms" in told[1]


def test_a_schedule_policy_decides_who_is_next(spec: ServeSpec, tmp_path: Path) -> None:
    """One request runs at a time; while it does, a long prompt comes, and a short one right behind it."""
    policy = tmp_path / "short_first.py"
    policy.write_text(emit(None, loads("policy short_first : schedule order by prompt_tokens, arrival")))
    patient = {**spec.environment, "TANREN_GUARD_SEED_S": "1000"}  # nobody waits too long here
    one_by_one = replace(spec, policy_file=policy, max_num_seqs=1, environment=patient)
    with serve(one_by_one, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        first = answers(server, [prompt(0)[:40]], 900)
        next(first)  # it runs
        both = pool.submit(lambda: list(answers(server, [prompt(1), prompt(2)[:40]], 8)))
        assert len(list(first)) > 800
        assert list(dict.fromkeys(both.result())) == [1, 0]
        (line,) = server.policy_lines()
    assert "decides scheduling: who is admitted" in line


def answers(server: Server, prompts: list[list[int]], outputs: int) -> Iterator[int]:
    """Which of the prompts each streamed token answers."""
    body = {"model": server.model, "prompt": prompts, "max_tokens": outputs, "ignore_eos": True}
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))["choices"][0]["index"]


def test_an_environment_serves_if_its_torch_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    python = engine_python("0.19.1")
    monkeypatch.setenv("TANREN_VLLM_0_19_1", str(python))
    with pytest.raises(TanrenError, match=r"vLLM 0\.19\.1 cannot serve with torch 2\.13\.0"):
        cpu_environment("0.19.1")
    monkeypatch.setenv("TANREN_VLLM_0_32_0", str(engine_python("0.32.0")))
    assert cpu_environment("0.32.0") == engine_python("0.32.0")
