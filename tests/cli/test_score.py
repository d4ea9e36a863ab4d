"""`score` and `windows`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.scoring import plots
from tests.cli.conftest import LRU, Run, data, refused

SETTINGS = """
trace = "chat:1:400"
profile = "made-up.toml"
[server]
capacity = 4000
max_num_seqs = 16
[windows]
requests = 50
count = 3
candidates = 5
"""

PROFILE = """
name = "made-up"
source = "nobody measured it"
basis = "estimate"
[microseconds]
base = 20000.0
prefill = 80.0
attention = 10000.0
decode = 400.0
context = 300.0
empty = 200.0
"""

EVICT_TOO = "policy other : evict order by age"


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Settings of a small scoreboard, with a latency profile beside them."""
    (tmp_path / "small.toml").write_text(SETTINGS)
    (tmp_path / "made-up.toml").write_text(PROFILE)
    return "small.toml"


def row_of(found: Any, name: str) -> Any:
    (row,) = [row for row in found["results"] if row["policy"] == name]
    return row


def test_score_prints_json_of_every_policy(run: Run, config: str) -> None:
    found = data(run("score", "sjf", "aged_sjf", "--config", config, "--no-guard", "--json"))
    assert (found["mode"], found["engine"], found["trace"]) == ("serving", "vllm-0.32", "chat:1:400")
    assert found["profile"] == {"name": "made-up", "basis": "estimate", "residual": None}
    assert [row["policy"] for row in found["results"]] == ["fcfs", "sjf", "aged_sjf", "shortest_work_oracle"]
    fcfs = found["results"][0]
    assert (fcfs["total"], fcfs["violations"], fcfs["mean_wins"], fcfs["p_mean"]) == (0.0, 0, 0, 1.0)
    sjf = row_of(found, "sjf")
    assert len(sjf["configs"]) == 12
    assert sjf["mean_wins"] + sjf["mean_losses"] > 0
    assert set(sjf["configs"][0]) >= {
        "label",
        "window",
        "load",
        "repeat",
        "mean_s",
        "p99_s",
        "score",
        "violated",
    }
    assert len(found["starts"]) == 3
    assert found["settings"]["guard"] is False


def test_score_prints_a_table_and_the_idle_rows(run: Run, config: str) -> None:
    result = run("score", "sjf", "--config", config)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("serving mode, vllm-0.32, chat:1:400, 4,000 blocks of 16 tokens, made-up")
    for words in (
        "violations",
        "worst wait (s)",
        "hindsight",
        "idle: mean TTFT",
        "load of 0.1",
        "within 1 %",
    ):
        assert words in result.stdout
    assert "chosen in hindsight" in result.stdout
    assert "cannot be below 0.12" in result.stdout
    assert "made-up (estimate; not held against an engine)" in result.stdout
    for words in ("9 classics on 5 windows", "12 configurations of 50 requests", "serving by sjf"):
        assert words in result.stderr


def test_a_knob_and_the_guard_change_what_a_policy_does(run: Run, config: str) -> None:
    loud = ("score", "aged_sjf", "--config", config, "--json")
    rows = [
        row_of(data(run(*loud, *more)), "aged_sjf")["configs"]
        for more in ((), ("--knob", "rate=1"), ("--knob", "rate=1000000"))
    ]
    assert rows[0] != rows[1] != rows[2]
    refused(run(*loud, "--knob", "rat=1"), "no knob `rat`")


def test_options_stand_in_place_of_the_file(run: Run, config: str) -> None:
    found = data(
        run(
            "score", "sjf", "--config", config, "--trace", "chat:2:300", "--capacity", "5000",
            "--requests", "30", "--isolate", "--json",
        )
    )  # fmt: skip
    assert found["trace"] == "chat:2:300"
    changed = {"capacity": 5000, "requests": 30, "isolate": True, "max_num_seqs": 16, "guard": True}
    assert changed.items() <= found["settings"].items()
    assert any("blocks made unique" in note for note in found["notes"])


def test_an_evict_policy_serves_all_arms(run: Run, config: str, tmp_path: Path) -> None:
    (tmp_path / "mine.tpl").write_text(LRU)
    (tmp_path / "other.tpl").write_text(EVICT_TOO)
    loud = ("score", "sjf", "--config", config, "--capacity", "1200")
    found = data(run(*loud, "mine.tpl", "--json"))
    assert found["evict"] == "mine"
    own, other = (data(run(*loud, *more, "--json"))["results"] for more in ((), ("other.tpl",)))
    assert own == found["results"]  # least recently used is what the engine does
    assert own[0]["configs"] != other[0]["configs"]
    refused(run(*loud, "mine.tpl", "other.tpl"), "at most one evict policy, found 2")
    refused(run(*loud, "mine.tpl", "--isolate"), "mine evicts, but without caching nothing is kept")
    refused(run("score", "mine.tpl", "--config", config), "expected a schedule policy, found none")


def test_what_is_left_out_is_said(run: Run, config: str) -> None:
    result = run("score", "sjf", "--config", config, "--capacity", "400", "--requests", "30")
    assert result.exit_code == 0, result.stderr
    assert "need more than 400 blocks of 16 tokens" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[load]\nshares = [0.0]", "load.shares: expected 1 to 20 shares"),
        ("[load]\nshares = [nan]", "load.shares"),
        ("[load]\nshares = [-1]", "load.shares"),
        ("[windows]\nrequest = 3", "did you mean `windows.requests`?"),
        ("trace = 'nosuch.csv'", "nosuch.csv: the trace cannot be read"),
        ("profile = 'nosuch'", "no latency profile 'nosuch'"),
        ("trace = 'chat:1:12'", "12 requests are too few for 4 windows"),
        ("trace = 'chat:1:400'\n[windows]\nrequests = 300", "do not fit"),
        ("trace = 'chat:1:400'\n[windows]\nrequests = 30\nstarts = [0, 10]", "share some"),
    ],
)
def test_wrong_settings_are_one_message(text: str, words: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    result = run("score", "sjf", "--config", "wrong.toml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert "internal error" not in result.stderr


def test_wrong_usage_exits_with_2(run: Run) -> None:
    for arguments in (
        ["score"],
        ["score", "sjf", "--capacity", "0"],
        ["score", "sjf", "--config", "nosuch.toml"],
    ):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")


def test_figures_are_written_where_asked(run: Run, config: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")
    result = run("score", "sjf", "--config", config, "--plot", "figures", "--json")
    json.loads(result.stdout)
    assert "figure: figures/gain_by_load.png" in result.stderr
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert written == ["gain_by_load.png", "ttft_against_fcfs.png"]
    refused(run("score", "sjf", "--config", config, "--plot", config), "small.toml: it is a file")


def test_without_matplotlib_nothing_runs_first(
    run: Run, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    result = run("score", "sjf", "--config", config, "--plot", "figures")
    assert "tanren-dsl[plot]" in result.stderr
    assert "serving by" not in result.stderr


def test_help_says_what_the_capacity_is_of(run: Run) -> None:
    for command in ("score", "windows"):
        text = " ".join(run(command, "--help").stdout.split())
        assert "40000, what a machine with about 80 GB" in text
        assert "gb10-llama-3.1-8b" in text


def test_windows_names_the_winner_of_each_window(run: Run, config: str) -> None:
    found = data(run("windows", "--config", config, "--no-guard", "--json"))
    assert [row["start"] for row in found["results"]] == [0, 80, 160, 240, 320]
    assert sum(row["picked"] for row in found["results"]) == 3
    assert found["picked"] == [row["start"] for row in found["results"] if row["picked"]]
    for row in found["results"]:
        assert row["score"] == max(row["scores"].values()) >= row["scores"]["fcfs"] == 0.0
    scored = data(run("score", "sjf", "--config", config, "--no-guard", "--json"))
    assert scored["starts"] == found["picked"]


def test_windows_prints_a_table(run: Run, config: str) -> None:
    result = run("windows", "--config", config)
    assert result.exit_code == 0, result.stderr
    assert "5 windows of 50 requests, scores summed over loads 0.95, 1.15" in result.stdout
    assert result.stdout.count("picked") == 3
    assert "won by" in result.stdout
