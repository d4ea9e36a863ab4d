"""`diagnose`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tanren_dsl.scoring import plots
from tests.cli.conftest import LRU, SMALL, Run, data, refused
from tests.cli.test_score import PROFILE, SETTINGS

EVICT = ("diagnose", "mru.tpl", "--trace", SMALL, "--capacity", "1500")
SCHEDULE = ("diagnose", "sjf", "--config", "small.toml")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "mru.tpl").write_text("policy mru : evict order by age candidates all")
    (tmp_path / "mine.tpl").write_text(LRU)
    (tmp_path / "small.toml").write_text(SETTINGS)
    (tmp_path / "made-up.toml").write_text(PROFILE)


def test_evictions_as_tables(run: Run) -> None:
    result = run(*EVICT)
    assert result.exit_code == 0, result.stderr
    for words in (
        "replay mode, vllm-0.19, chat:1:200: 200 requests",
        "mru against lru",
        "regretted decisions against",
        "Headroom over mru: Belady",
        "the worst evictions",
        "AUC 0.5 tells nothing",
    ):
        assert words in result.stdout
    assert "replaying mru and lru at 1,500 blocks" in result.stderr


def test_evictions_as_json(run: Run) -> None:
    found = data(run(*EVICT, "--json"))
    assert (found["kind"], found["policy"], found["against"], found["mode"]) == (
        "evict",
        "mru",
        "lru",
        "replay",
    )
    totals = found["totals"]
    assert totals["hits"] - totals["base_hits"] == totals["hits_gained"] - totals["hits_lost"]
    assert found["worst"][0]["hits_lost"] >= found["worst"][-1]["hits_lost"] > 0
    assert {"age", "depth", "children", "hit_rate"} <= set(found["worst"][0]["signals"])
    assert all(0 <= one["auc"] <= 1 for one in found["separations"])


def test_the_same_policy_has_no_regret(run: Run) -> None:
    result = run("diagnose", "mine.tpl", "--trace", SMALL, "--capacity", "1500", "--against", "lru")
    assert "No regret: nothing was decided worse than lru did." in result.stdout
    result = run(*EVICT, "--against", "mru.tpl")
    assert "No regret: nothing was decided worse than mru did." in result.stdout


def test_other_bases_and_the_short_text(run: Run) -> None:
    found = data(run("diagnose", "mine.tpl", *EVICT[2:], "--against", "belady", "--json"))
    assert found["against"] == "belady"
    assert found["totals"]["hits_lost"] > 0
    assert found["totals"]["hits_gained"] - found["totals"]["hits_lost"] <= 0
    result = run(*EVICT, "--short", "700")
    assert 0 < len(result.stdout) <= 701
    assert result.stdout.startswith("mru against lru, replay mode")


def test_waits_as_tables(run: Run) -> None:
    result = run(*SCHEDULE, "--no-guard", "--load", "2.5")
    assert result.exit_code == 0, result.stderr
    for words in (
        "serving mode, vllm-0.32, chat:1:400",
        "50 requests from request 0 at a load of 2.5",
        "sjf against fcfs",
        "The p99 is made by",
        "the worst requests",
    ):
        assert words in result.stdout


def test_waits_as_json_with_options_in_place_of_the_file(run: Run) -> None:
    found = data(run(*SCHEDULE, "--start", "80", "--load", "1.3", "--engine", "vllm-0.19", "--json"))
    assert (found["kind"], found["against"], found["mode"]) == ("schedule", "fcfs", "serving")
    assert (found["engine"], found["trace"]) == ("vllm-0.19", "chat:1:400[80:130]")
    assert found["totals"]["requests"] == 50
    assert found["worst"][0]["regret_s"] > 0
    other = data(run(*SCHEDULE, "--start", "80", "--load", "0.1", "--engine", "vllm-0.19", "--json"))
    assert other["totals"]["base_mean_s"] < found["totals"]["base_mean_s"]


def test_a_schedule_policy_with_caching_off_and_the_fcfs_policy(run: Run) -> None:
    found = data(run("diagnose", "fcfs", *SCHEDULE[2:], "--isolate", "--against", "fcfs", "--json"))
    assert found["verdict"].startswith("No regret")
    assert (found["patterns"], found["worst"]) == ([], [])


def test_what_does_not_fit_is_one_message(run: Run) -> None:
    refused(run("diagnose", "mru.tpl"), "mru evicts: expected a --capacity, found none")
    refused(run(*EVICT, "--load", "1.2"), "--load is for schedule policies, but mru evicts")
    refused(run(*EVICT, "--no-guard"), "--no-guard is for schedule policies")
    refused(run(*EVICT, "--start", "0"), "--start is for schedule policies")
    refused(run(*EVICT, "--against", "fcfs"), "expected an evict policy for --against, found fcfs")
    refused(run(*EVICT, "--against", "sjf"), "sjf is a schedule policy")
    refused(run(*EVICT, "--against", "nosuch.tpl"), "nosuch.tpl")
    refused(run(*EVICT, "--engine", "nosuch"), "nosuch")
    refused(run(*EVICT[:-1], "2"), "capacity of 2 blocks is smaller than request")
    refused(run(*SCHEDULE, "--against", "lru"), "sjf schedules: expected fcfs for --against, found 'lru'")
    refused(run(*SCHEDULE, "--against", "aged_sjf"), "expected fcfs for --against")
    refused(run(*SCHEDULE, "--start", "380"), "a window of 50 requests from request 380", "has 400")
    refused(run(*SCHEDULE, "--profile", "nosuch"), "no latency profile 'nosuch'")
    refused(run(*SCHEDULE, "--engine", "nosuch"), "server.engine")
    refused(run(*EVICT, "--knob", "nosuch=1"), "no knob `nosuch`")


def test_wrong_usage_exits_with_2(run: Run) -> None:
    for arguments in ([], [*EVICT[1:], "--json", "--short", "500"], ["sjf", "--load", "0"]):
        result = run("diagnose", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")


def test_figures_are_written_where_asked(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (the extra `plot`)")
    for command, name in ((EVICT, "regretted_evictions.png"), (SCHEDULE, "regretted_waits.png")):
        result = run(*command, "--plot", "figures", "--json")
        assert result.exit_code == 0, result.stderr
        assert f"figure: figures/{name}" in result.stderr
        assert (tmp_path / "figures" / name).is_file()
    refused(run(*EVICT, "--plot", "mru.tpl"), "mru.tpl: it is a file")


def test_without_matplotlib_nothing_runs_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    result = run(*EVICT, "--plot", "figures")
    assert "tanren-dsl[plot]" in result.stderr
    assert "replaying" not in result.stderr
