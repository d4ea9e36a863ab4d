"""The command from end to end: against look-alikes of vLLM, and once against the real one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.bench import comparison as comparison_module
from tanren_dsl.bench import run as run_module
from tanren_dsl.bench.comparison import comparison
from tanren_dsl.bench.fleet import StartedFleet
from tanren_dsl.bench.knee import Sample
from tanren_dsl.bench.search import search_knee
from tanren_dsl.bench.store import Store
from tanren_dsl.bench.wish import Wish
from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.read import read_trace
from tests.bench.fake import FakeServer, running
from tests.cli.conftest import Run, data, refused, run
from tests.conform.test_engine_oracle import engine_python

__all__ = ["run"]

KEEP_HITS = "policy keep_hits : evict\ncandidates all\norder by 1 if uses > 0 else 0, last_use"
SMALL = (
    "--trace",
    "chat:1:12",
    "--tokens-per-id",
    "4",
    "--outputs",
    "3",
    "--arrivals",
    "even",
    "--rate",
    "200",
)


@pytest.fixture
def pair() -> Iterator[tuple[FakeServer, FakeServer]]:
    with running() as first, running() as second:
        yield first, second


def urls(servers: tuple[FakeServer, FakeServer]) -> list[str]:
    return [text for server in servers for text in ("--url", server.url)]


def test_results_have_the_agreed_form_and_every_request_is_kept(
    run: Run, pair: tuple[FakeServer, FakeServer], tmp_path: Path
) -> None:
    found = data(run("bench", "--aa", *urls(pair), *SMALL, "--out", "out", "--json"))
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == found
    (entry,) = found["results"]
    assert [arm["policy"] for arm in entry["arms"]] == ["default", "default-2"]
    for arm in entry["arms"]:
        assert {"ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "hit_rate", "errors", "faults"} <= set(arm)
        assert (arm["errors"], arm["faults"], arm["requests"]) == (0, None, 24)
        assert arm["hit_tokens"][0] == arm["hit_tokens"][1] > 0
    assert len(entry["interval"]) == 2
    assert (entry["config"]["rate"], entry["config"]["load"], entry["config"]["rounds"]) == (
        200.0,
        "rate-200",
        2,
    )
    files = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("requests.jsonl"))
    assert [str(path.parent) for path in files] == [
        f"own-blocks_rate-200/{arm}/round-{n}" for arm in ("default", "default-2") for n in (1, 2)
    ]
    lines = (tmp_path / "out" / files[0]).read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(12))
    for server in pair:
        assert len(server.seen) == 2 * (12 + 4)
        assert server.resets == 4
        assert {asked["prompt"][0] for asked in server.seen[:4]}.isdisjoint(
            {asked["prompt"][0] for asked in server.seen[4:16]}
        )


def test_the_table_names_arms_verdict_and_hits(run: Run, pair: tuple[FakeServer, FakeServer]) -> None:
    result = run("bench", "--policy", "default", *urls(pair), *SMALL, "--out", "out")
    assert result.exit_code == 0, result.stderr
    for words in (
        "p99 against default",
        "default-2: ",
        "noise floor",
        "hit tokens measured by round",
        "rate-200",
    ):
        assert words in result.stdout
    assert "own-blocks_rate-200, default-2, round 2 of 2: 12 requests" in result.stderr


def test_a_finished_round_is_not_run_again_and_more_rounds_may_follow(
    run: Run, pair: tuple[FakeServer, FakeServer]
) -> None:
    first = data(run("bench", "--aa", *urls(pair), *SMALL, "--out", "out", "--json"))
    sent = [len(server.seen) for server in pair]
    assert data(run("bench", "--aa", *urls(pair), *SMALL, "--out", "out", "--json")) == first
    assert [len(server.seen) for server in pair] == sent
    more = data(run("bench", "--aa", *urls(pair), *SMALL, "--rounds", "3", "--out", "out", "--json"))
    assert [len(server.seen) for server in pair] == [count + 16 for count in sent]
    assert more["results"][0]["arms"][0]["requests"] == 36


def test_other_settings_in_the_same_folder_are_refused(run: Run, pair: tuple[FakeServer, FakeServer]) -> None:
    data(run("bench", "--aa", *urls(pair), *SMALL, "--out", "out", "--json"))
    refused(
        run("bench", "--aa", *urls(pair), *SMALL, "--seed", "3", "--out", "out"), "other settings", "seed"
    )


def test_an_interrupt_keeps_the_rounds_that_are_finished(
    run: Run, pair: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, calls = run_module.replay, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:  # the third round: each has a warm-up and a measured part
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(run_module, "replay", interrupted)
    assert run("bench", "--aa", *urls(pair), *SMALL, "--out", "out").exit_code == 130
    assert len(list((tmp_path / "out").rglob("round.json"))) == 2
    monkeypatch.setattr(run_module, "replay", real)
    result = run("bench", "--aa", *urls(pair), *SMALL, "--out", "out")
    assert result.exit_code == 0
    assert result.stderr.count(": on disk") == 2


def test_serial_runs_are_alone_and_compared_with_a_prediction_where_the_engine_is_known(
    run: Run, pair: tuple[FakeServer, FakeServer]
) -> None:
    serial = ("--serial", "--warm-up", "1", "--capacity", "999")
    result = run("bench", "--aa", *urls(pair), *SMALL, *serial, "--out", "out")
    assert result.exit_code == 0, result.stderr
    assert [server.most_in_flight for server in pair] == [1, 1]
    assert "serial, 999 blocks" in result.stdout
    assert "predicted" not in result.stdout  # the look-alike has no version


def test_failed_requests_are_counted(run: Run, pair: tuple[FakeServer, FakeServer]) -> None:
    data(run("bench", "--aa", *urls(pair), *SMALL, "--out", "warm", "--json"))
    first = pair[1].seen[4]["prompt"][0]
    pair[1].faults[first] = "complain"
    (entry,) = data(run("bench", "--aa", *urls(pair), *SMALL, "--out", "out", "--json"))["results"]
    default, other = entry["arms"]
    assert default["errors"] == 0
    assert other["errors"] > 0
    assert other["first_error"] == "the engine is dead"
    assert entry["pairs"] == 12 - other["errors"] // 2


def test_wrong_wishes_are_refused_in_one_message(run: Run, pair: tuple[FakeServer, FakeServer]) -> None:
    refused(run("bench", *urls(pair)), "something to compare the default with", "--policy")
    refused(run("bench", "--aa"), "expected one kind of server", "--device cpu")
    refused(run("bench", "--aa", "--device", "cpu", *urls(pair)), "expected one kind of server")
    refused(run("bench", "--aa", "--url", pair[0].url), "an address for each of 2 arms, found 1")
    refused(
        run("bench", "--aa", *urls(pair), "--max-model-len", "99"),
        "longer than the server's max_model_len 99",
    )
    refused(
        run("bench", "--aa", "--url", "http://127.0.0.1:9", "--url", "http://127.0.0.1:9"), "does not answer"
    )
    refused(run("bench", "--aa", "--serve", "m"), "the Python of an environment with vLLM")
    refused(
        run("bench", "--aa", "--quick", "--rate", "1", "--rate", "2", *urls(pair)),
        "one rate and one capacity",
    )
    refused(run("knee"), "expected one kind of server")


@pytest.fixture
def looks_like_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that starts the look-alike as vLLM is started; the file that counts the starts."""
    entry = tmp_path / "site" / "vllm" / "entrypoints" / "openai"
    entry.mkdir(parents=True)
    (entry / "api_server.py").write_text(
        "import sys\nfrom tests.bench.fake import main\nmain(sys.argv[1:])\n"
    )
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), str(root)]))
    monkeypatch.setenv("FAKE_COUNT", str(tmp_path / "starts"))
    for module in ("serving", "cpu"):
        monkeypatch.setattr(f"tanren_dsl.bench.{module}.check_env", lambda *_: "0.0")
    return tmp_path / "starts"


def wish(**more: Any) -> Wish:
    return Wish(
        device="cpu", python=Path(sys.executable), requests=6, tokens_per_id=2, outputs=2, rates=(100.0,),
        arrivals="even", capacities=(200,), **more,
    )  # fmt: skip


def test_servers_are_started_one_at_a_time_shared_by_neighbours_and_report_faults(
    looks_like_vllm: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    policy = loads(KEEP_HITS)
    found = comparison(wish(), [policy], read_trace("chat:1:6"), tmp_path / "out").run(said.append)
    (entry,) = found["results"]
    assert looks_like_vllm.read_text().split() == ["stock", "policy", "stock"]  # A, B B, A
    assert [arm["faults"] for arm in entry["arms"]] == [0, 3]
    assert [arm["errors"] for arm in entry["arms"]] == [0, 0]
    assert entry["config"]["capacity"] == 200
    assert any("decides evictions: here" in line for line in said)
    logs = sorted(path.name for path in (tmp_path / "out" / "servers").glob("*.log"))
    assert logs == ["001-default.log", "002-keep_hits.log", "003-default.log"]


def test_servers_are_kept_up_if_asked_and_every_load_uses_the_same(
    looks_like_vllm: Path, tmp_path: Path
) -> None:
    asked = Wish(
        device="cpu", python=Path(sys.executable), requests=6, tokens_per_id=2, outputs=2,
        rates=(50.0, 100.0), arrivals="even", capacities=(200,), keep_up=True,
    )  # fmt: skip
    found = comparison(asked, [None], read_trace("chat:1:6"), tmp_path / "out").run(lambda _: None)
    assert looks_like_vllm.read_text().split() == ["stock", "stock"]
    assert [entry["config"]["rate"] for entry in found["results"]] == [50.0, 100.0]


def test_a_model_of_ones_own_is_served_with_its_sizes_and_arguments(
    looks_like_vllm: Path, tmp_path: Path
) -> None:
    model = tmp_path / "llama"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 300, "max_position_embeddings": 640}')
    asked = Wish(
        model=str(model), python=Path(sys.executable), requests=6, tokens_per_id=2, outputs=2,
        capacities=(30, 50), serve_args=("--enforce-eager",),
    )  # fmt: skip
    made = comparison(asked, [None, loads(KEEP_HITS)], read_trace("chat:1:6"), tmp_path / "out")
    serving = made.serving
    assert (serving.vocabulary, serving.max_model_len, serving.block_size) == (300, 480, 16)
    assert [arm.name for arm in made.plan.arms] == ["default", "default-2", "keep_hits"]
    arguments = serving.spec(50, Path("p.py")).arguments(1)
    assert arguments[arguments.index("--num-gpu-blocks-override") + 1] == "51"
    assert arguments[-1] == "--enforce-eager"
    assert "--num-gpu-blocks-override" not in serving.spec(None, None).arguments(1)
    assert not looks_like_vllm.exists()
    assert not (tmp_path / "out").exists()


def test_a_server_that_died_is_started_again(looks_like_vllm: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.open({})
    made = comparison(wish(), [None], read_trace("chat:1:6"), tmp_path / "out")
    fleet = StartedFleet(["default"], lambda *_: made.serving.spec(200, None), store, lambda _: None)
    (server, first), (same, again) = fleet.use(200, 0), fleet.use(200, 0)
    assert (server, first) == (same, again)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    while server.exit_status() is None:
        time.sleep(0.05)
    other, second = fleet.use(200, 0)
    assert other.is_healthy()
    fleet.close()
    assert (first, second) == ("001-default", "002-default")
    reports = [store.read_report(name) for name in (first, second)]
    assert [report is not None and report.exit_status for report in reports] == [-9, -15]
    assert looks_like_vllm.read_text().split() == ["stock", "stock"]


def test_a_quick_comparison_begins_no_round_that_would_be_late(
    looks_like_vllm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_module, "QUICK_S", 0.0)
    said: list[str] = []
    found = comparison(wish(quick=True), [None], read_trace("chat:1:6"), tmp_path / "out").run(said.append)
    assert said[-1] == "no time for round 2"
    assert found["results"][0]["config"]["rounds"] == 1
    assert looks_like_vllm.read_text().split() == ["stock", "stock"]


def test_the_knee_is_searched_with_the_default_and_measured_once_a_capacity(
    looks_like_vllm: Path, tmp_path: Path
) -> None:
    steps: list[tuple[int, Sample]] = []

    def search(largest: int, smallest: int | None = None) -> Any:
        return search_knee(
            wish(), read_trace("chat:1:6"), tmp_path / "out", lambda _: None,
            lambda blocks, sample: steps.append((blocks, sample)),
            largest=largest, smallest=smallest, resolution=0.5,
        )  # fmt: skip

    found = search(300, 200)
    assert sorted(found.knee.samples) == [200, 210, 300]
    assert [blocks for blocks, _ in steps] == [300, 210, 200][: len(steps)]
    starts = looks_like_vllm.read_text()
    assert set(starts.split()) == {"stock"}
    again = search(300, 200)
    assert again.as_json() == found.as_json()
    assert looks_like_vllm.read_text() == starts
    assert [row["capacity"] for row in found.as_json()["samples"]] == [300, 210, 200]
    with pytest.raises(TanrenError, match="the longest request has"):
        search(300, 1)


def test_a_policy_is_measured_on_real_vllm_and_hits_as_predicted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = engine_python("0.32.0")
    monkeypatch.setenv("TANREN_NO_NUMBA", "1")  # compiling takes longer than everything else here
    (tmp_path / "p.tpl").write_text(KEEP_HITS)
    found = data(
        run(
            "bench", "--device", "cpu", "--python", str(python), "--policy", "p.tpl", "--trace", "chat:2:30",
            "--tokens-per-id", "2", "--outputs", "4", "--capacity", "48", "--cap-prompt", "--serial",
            "--rounds", "1", "--out", "out", "--json",
        )
    )  # fmt: skip
    (entry,) = found["results"]
    default, policy = entry["arms"]
    for arm in (default, policy):
        assert (arm["errors"], arm["requests"]) == (0, 30)
        assert arm["hit_tokens"] == [arm["predicted_hit_tokens"]]
        assert arm["hit_tokens"][0] > 0
    assert entry["config"]["engine_version"] == "0.32.0"
    assert default["hit_tokens"] != policy["hit_tokens"]
    assert (default["faults"], policy["faults"], policy["notes"]) == (0, 0, [])
