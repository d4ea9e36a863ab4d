"""The form of results, the words of verdicts, and what a folder keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.bench.client import Record
from tanren_dsl.bench.results import Measured, results_of
from tanren_dsl.bench.store import Counted, Report, Round, Store
from tanren_dsl.errors import TanrenError

COUNTED = Counted(queried_tokens=1000.0, hit_tokens=250.0, preemptions=1.0, server="001-a", duration_s=2.0)


def measured(
    name: str,
    factor: float = 1.0,
    *,
    default: bool = False,
    rounds: int = 4,
    failed: int = 0,
    jitter: int = 0,
) -> Measured:
    rng = np.random.default_rng(0)
    size = np.exp(rng.normal(-3.0, 0.5, 60))
    noise = np.random.default_rng(jitter)
    made = []
    for _ in range(rounds):
        times = size * factor * np.exp(noise.normal(0, 0.05, 60)) if jitter else size * factor
        records = [
            Record(
                i,
                i / 10,
                i / 10 + 0.001,
                float(t),
                float(t) + 0.3,
                50,
                4,
                200,
                None if i >= failed else "broken",
            )
            for i, t in enumerate(times)
        ]
        made.append(Round(records, COUNTED))
    return Measured(name, default, made, 0)


def test_two_arms_give_one_entry_of_the_agreed_form() -> None:
    (entry,) = results_of({"rate": 2.0}, [measured("default", default=True), measured("p", 0.5)], seed=1)
    assert entry["config"] == {"rate": 2.0}
    default, arm = entry["arms"]
    assert (default["policy"], arm["policy"]) == ("default", "p")
    for name in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"):
        assert arm[name] == pytest.approx(default[name] / 2)
    assert (arm["hit_rate"], arm["errors"], arm["faults"], arm["preemptions"]) == (0.25, 0, 0, 4)
    assert arm["tpot_mean_ms"] == pytest.approx(100.0)
    assert arm["drift_p99_ms"] == pytest.approx(1.0)
    assert entry["delta_p99"] == pytest.approx(-50.0)
    assert entry["interval"] == pytest.approx([-50.0, -50.0])
    assert set(entry["deltas"]) == {
        "ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "tpot_mean", "e2e_mean",
    }  # fmt: skip
    assert entry["pairs"] == 60
    assert entry["noise_floor"] is None
    assert entry["verdict"].startswith("p99 TTFT is 50.0 % lower, [-50.0, -50.0] %")
    json.dumps(entry, allow_nan=False)


def test_an_interval_that_contains_0_is_no_difference() -> None:
    arms = [measured("default", default=True, jitter=1), measured("p", jitter=2)]
    (entry,) = results_of({}, arms, seed=1)
    assert entry["interval"][0] < 0 < entry["interval"][1]
    assert entry["verdict"].startswith("no difference seen in p99 TTFT")
    assert "no A/A comparison was made here" in entry["verdict"]


def test_equal_arms_differ_by_nothing_and_are_the_noise_floor_of_the_others() -> None:
    arms = [measured("default", default=True), measured("default-2", 1.04, default=True), measured("p", 1.03)]
    again, other = results_of({}, arms, seed=1)
    assert again["arms"][1]["policy"] == "default-2"
    assert other["noise_floor"]["ttft_p99"]["percent"] == pytest.approx(4.0)
    assert again["noise_floor"] == other["noise_floor"]
    assert set(again["noise_floor"]) >= {"ttft_mean", "ttft_p50", "ttft_p99"}
    assert "no difference seen" in other["verdict"]
    assert "within the noise of the default" in other["verdict"]
    assert again["verdict"] == "p99 TTFT is 4.0 % higher, [+4.0, +4.0] %"


def test_rounds_of_one_arm_that_differ_as_much_leave_no_difference() -> None:
    def drifting(name: str, factors: list[float], *, default: bool = False) -> Measured:
        rounds = [measured(name, factor, rounds=1).rounds[0] for factor in factors]
        return Measured(name, default, rounds, 0)

    arms = [drifting("default", [1.0, 1.3], default=True), drifting("p", [1.35, 1.6])]
    (entry,) = results_of({}, arms, seed=1)
    assert entry["interval"][0] > 0
    assert entry["round_noise"]["ttft_p99"] > entry["delta_p99"]
    assert "within what rounds of one arm differ" in entry["verdict"]
    steady = [drifting("default", [1.0, 1.01], default=True), drifting("p", [1.35, 1.36])]
    assert results_of({}, steady, seed=1)[0]["verdict"].startswith("p99 TTFT is 34.")
    (single,) = results_of({}, [drifting("default", [1.0], default=True), drifting("p", [1.2])], seed=1)
    assert single["round_noise"] is None
    assert single["verdict"].startswith("undecided: p99 TTFT is 20.0 % higher")


def test_failed_requests_leave_both_arms_and_are_said() -> None:
    arms = [measured("default", default=True), measured("p", failed=10, rounds=4)]
    (entry,) = results_of({}, arms, seed=1)
    assert entry["pairs"] == 50
    assert entry["arms"][1]["errors"] == 40
    assert entry["arms"][1]["first_error"] == "broken"
    assert "0 and 40 requests failed" in entry["verdict"]


def test_nothing_succeeded_gives_no_verdict_and_no_invented_number() -> None:
    (entry,) = results_of({}, [measured("default", default=True), measured("p", failed=60)], seed=1)
    assert (entry["delta_p99"], entry["interval"], entry["pairs"]) == (None, None, 0)
    assert entry["arms"][1]["ttft_p99_ms"] is None
    assert entry["verdict"].startswith("no verdict")


def test_caveats_name_few_rounds_a_late_client_and_a_policy_that_is_off() -> None:
    arm = measured("p", rounds=2)
    late = [
        Round([replace(r, sent_s=r.planned_s + 0.5) for r in one.records], one.counted) for one in arm.rounds
    ]
    arm = replace(arm, rounds=late, notes=("tanren: policy p is off",))
    (entry,) = results_of({}, [measured("default", default=True, rounds=2), arm], seed=1)
    assert "2 rounds show little" in entry["verdict"]
    assert "the client sent late (p: p99 500 ms)" in entry["verdict"]
    assert "p: tanren: policy p is off" in entry["verdict"]


def test_unknown_counters_are_null() -> None:
    arm = measured("p")
    gone = [
        Round(one.records, replace(COUNTED, hit_tokens=None, queried_tokens=None, preemptions=None))
        for one in arm.rounds
    ]
    (entry,) = results_of(
        {}, [measured("default", default=True), replace(arm, rounds=gone, faults=None)], seed=1
    )
    row = entry["arms"][1]
    assert (row["hit_rate"], row["preemptions"], row["faults"]) == (None, None, None)


def test_a_store_keeps_rounds_and_refuses_other_settings(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.open({"rate": 1, "rounds": 2})
    done = measured("p").rounds[0]
    assert not store.has_round("c", "p", 0)
    store.write_round("c", "p", 0, done)
    assert store.has_round("c", "p", 0)
    again = store.read_round("c", "p", 0)
    assert again.counted == COUNTED
    assert len(again.records) == 60
    assert [path.name for path in sorted((tmp_path / "out" / "c" / "p" / "round-1").iterdir())] == [
        "requests.jsonl", "round.json",
    ]  # fmt: skip
    Store(tmp_path / "out").open({"rate": 1, "rounds": 3})
    with pytest.raises(TanrenError, match=r"other settings: rate was 1, now 2"):
        Store(tmp_path / "out").open({"rate": 2, "rounds": 3})
    with pytest.raises(TanrenError, match=r"other settings: rounds was 3, now 2"):
        Store(tmp_path / "out").open({"rate": 1, "rounds": 2})
    (tmp_path / "out" / "c" / "p" / "round-1" / "requests.jsonl").write_text('{"index": 1')
    with pytest.raises(TanrenError, match="is damaged"):
        store.read_round("c", "p", 0)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(TanrenError, match="holds no comparison"):
        Store(tmp_path).open({})
    with pytest.raises(TanrenError, match="holds no comparison"):
        Store(tmp_path / "thesis.txt").open({})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_servers_are_numbered_and_their_reports_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    store.open({})
    first = store.new_server("default")
    store.server_log(first).write_text("")
    assert (first, store.new_server("p")) == ("001-default", "002-p")
    report = Report("default", None, 3, -9, ("tanren: a",))
    store.write_report(first, report)
    assert store.read_report(first) == report
    assert store.read_report("002-p") is None
