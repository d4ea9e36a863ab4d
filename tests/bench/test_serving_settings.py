"""How a server is started, what it counts, why it failed: everything that needs no vLLM."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tanren_dsl.bench import process
from tanren_dsl.bench.cpu import cache_folder, cpu_environment, cpu_spec
from tanren_dsl.bench.metrics import parse_metrics
from tanren_dsl.bench.process import ServeSpec
from tanren_dsl.bench.server import connect, serve
from tanren_dsl.errors import TanrenError

METRICS = """\
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a{b}"} 4096.0
vllm:prefix_cache_queries_total{engine="1",model_name="a{b}"} 4.0
vllm:prefix_cache_queries_created{engine="0",model_name="a{b}"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0"} 2.05e+03
vllm:external_prefix_cache_hits_total{engine="0"} 7.0
vllm:num_preemptions_total{engine="0"} 3.0
vllm:num_requests_running{engine="0"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0"} 100.0
vllm:generation_tokens_total{engine="0"} 20.0
"""


@pytest.fixture
def spec(tmp_path: Path) -> ServeSpec:
    return cpu_spec(Path(sys.executable), tmp_path, usable_blocks=200)


def test_metrics_are_summed_over_engines_and_told_apart_by_their_whole_name() -> None:
    metrics = parse_metrics(METRICS)
    assert (metrics.prefix_queries, metrics.prefix_hits, metrics.preemptions) == (4100, 2050, 3)
    assert (metrics.running, metrics.waiting) == (2, 1)
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (100, 20)


def test_the_hit_rate_is_that_between_two_readings() -> None:
    earlier = parse_metrics(METRICS)
    later = replace(
        earlier, prefix_queries=earlier.prefix_queries + 100, prefix_hits=earlier.prefix_hits + 25
    )
    assert later.hit_rate_since(earlier) == 0.25
    assert earlier.hit_rate_since(earlier) is None


def test_metrics_of_something_else_are_refused() -> None:
    with pytest.raises(TanrenError, match="/metrics has no vllm:prefix_cache_queries_total"):
        parse_metrics("python_info 1.0\n")


def test_a_policy_adds_one_flag_and_its_absence_leaves_stock_vllm(spec: ServeSpec) -> None:
    policy = replace(spec, policy_file=Path("p.py")).arguments(8000)
    at = policy.index("--scheduler-cls")
    assert policy[at + 1] == "tanren_policy.Scheduler"
    assert policy[:at] + policy[at + 2 :] == spec.arguments(8000)


def test_asynchronous_scheduling_is_left_to_vllm_unless_given(spec: ServeSpec) -> None:
    asked = [replace(spec, asynchronous=given).arguments(1) for given in (None, True, False)]
    flags = [[argument for argument in arguments if "async-" in argument] for arguments in asked]
    assert flags == [[], ["--async-scheduling"], ["--no-async-scheduling"]]


def test_the_cache_is_given_room_for_the_null_block(spec: ServeSpec) -> None:
    arguments = spec.arguments(1)
    assert arguments[arguments.index("--num-gpu-blocks-override") + 1] == "201"
    large = cpu_spec(spec.python, spec.model, usable_blocks=3 * 8192)
    assert (spec.environment["VLLM_CPU_KVCACHE_SPACE"], large.environment["VLLM_CPU_KVCACHE_SPACE"]) == (
        "1",
        "4",
    )


def test_texts_that_do_not_fit_the_blocks_are_refused() -> None:
    with pytest.raises(TanrenError, match="max_model_len 4096 does not fit 100 blocks of 32 tokens"):
        cpu_spec(Path(sys.executable), Path(), usable_blocks=100)


def test_cores_that_are_not_there_are_refused(spec: ServeSpec, tmp_path: Path) -> None:
    for cores in ("4095", "0-1", ""):
        with (
            pytest.raises(TanrenError, match=f"cores {cores!r} are not all there: this process may use"),
            serve(replace(spec, cores=cores), tmp_path / "log"),
        ):
            pass


def test_a_server_is_pinned_to_its_cores(spec: ServeSpec, tmp_path: Path) -> None:
    core = str(max(os.sched_getaffinity(0)))
    (tmp_path / "vllm" / "entrypoints" / "openai").mkdir(parents=True)
    (tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py").write_text(
        "import os\nprint(os.sched_getaffinity(0), os.environ['OMP_NUM_THREADS'])\n"
    )
    child = process.start(replace(spec, cores=core), 1, tmp_path / "log", tmp_path)
    assert child.wait(60) == 0
    assert (tmp_path / "log").read_text() == f"{{{core}}} 1\n"


def test_an_interpreter_or_a_policy_that_is_not_there_is_named(spec: ServeSpec, tmp_path: Path) -> None:
    for wrong in (replace(spec, python=tmp_path / "py"), replace(spec, policy_file=tmp_path / "py")):
        with pytest.raises(TanrenError, match=r"cannot start a server: .*py: No such file"):
            process.start(wrong, 1, tmp_path / "log", tmp_path)


def test_an_environment_without_vllm_fails_with_the_reason(spec: ServeSpec, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        pytest.raises(
            TanrenError, match=r"ended with status 1 before it was ready: .*No module named 'vllm'"
        ),
        serve(spec, log),
    ):
        pass
    assert log.exists()


def test_the_cause_of_a_failure_is_its_first_error_not_the_echo(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "(EngineCore pid=12) ERROR 11-30 08:08:55 [core.py:1108] ValueError: too few blocks\n"
        "(APIServer pid=11) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert "stopped: ValueError: too few blocks\n" in str(process.failure("stopped", log))
    log.write_text("usage: api_server.py\napi_server.py: error: unrecognized arguments: --nonsense\n")
    assert "stopped: api_server.py: error: unrecognized arguments" in str(process.failure("stopped", log))


def test_where_an_environment_is_kept() -> None:
    given = {"XDG_CACHE_HOME": "/cache"}
    assert cache_folder("0.32.0", given) == Path("/cache/tanren-dsl/vllm-0.32.0")
    assert cache_folder("0.32.0", given | {"TANREN_VLLM_CACHE": "/ci"}) == Path("/ci/.venv-vllm-0.32.0")
    assert cache_folder("0.32.0", {}) == Path("~/.cache/tanren-dsl/vllm-0.32.0").expanduser()


def test_a_version_whose_kernels_want_another_torch_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(TanrenError, match=r"cannot serve with torch 2\.13\.0 .* want 2\.10\.0") as refused:
        cpu_environment("0.19.1", tmp_path / "env")
    assert "--torch 2.10.0" in str(refused.value)
    assert not (tmp_path / "env").exists()


class Other(BaseHTTPRequestHandler):
    """A server that lists a model and knows nothing else, as one without development endpoints."""

    def do_GET(self) -> None:
        body = b'{"data": [{"id": "m"}]}' if self.path == "/v1/models" else METRICS.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def other() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_a_server_elsewhere_is_read_and_its_missing_reset_is_a_clear_error(other: str) -> None:
    server = connect(other)
    assert (server.url, server.model) == (other.rstrip("/"), "m")
    assert server.metrics().preemptions == 3
    assert server.policy_lines() == []
    assert server.exit_status() is None
    with pytest.raises(TanrenError, match=r"offers no /reset_prefix_cache\n  hint: .*VLLM_SERVER_DEV_MODE=1"):
        server.reset_prefix_cache()
    server.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "nonsense", "http://a b:1"])
def test_an_address_where_nothing_answers_is_refused(url: str) -> None:
    with pytest.raises(TanrenError, match=url):
        connect(url)
