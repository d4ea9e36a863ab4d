"""The scoreboard: FCFS is its zero, and every number follows from the runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import load, loads
from tanren_dsl.cli.options import examples
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.scoring.arms import BASE, ORACLE, classic_arms, oracle_arm, policy_arms
from tanren_dsl.scoring.board import score_board
from tanren_dsl.scoring.results import Board, Point, Row
from tanren_dsl.scoring.runs import Runs
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.scoring.windows import saturation
from tanren_dsl.sim.latency import constant
from tanren_dsl.sim.serving import Server, serve
from tanren_dsl.trace.generate import generate_chat
from tanren_dsl.trace.read import read_trace
from tanren_dsl.trace.table import RequestTable
from tests.scoring.conftest import LATENCY, SMALL, board_of

KEYS = {
    "policy", "total", "violations", "mean_wins", "p99_wins", "p_mean", "p_p99", "worst_wait_s", "configs",
    "clustered_p_mean", "rescued", "faults", "preemptions",
}  # fmt: skip
CONFIG_KEYS = {
    "label", "window", "load", "repeat", "mean_s", "p99_s", "fcfs_mean_s", "fcfs_p99_s", "score", "violated",
    "mean_queue", "hindsight", "hindsight_score",
}  # fmt: skip


def row_of(board: Board, name: str) -> Row:
    (found,) = [row for row in board.rows if row.policy == name]
    return found


def drawn(gains: list[float], tails: list[float], per_window: int = 4) -> Row:
    """A row with these gains of mean and p99 over FCFS's 1 s."""
    points = tuple(
        Point(
            "", number // per_window, 0, 1.0, 0, 1.0, 1.0 - gain, 1.0 - tail, 1.0, 1.0, gain, tail < -0.05,
            0.0, 0.0, BASE, 0.0,
        )
        for number, (gain, tail) in enumerate(zip(gains, tails, strict=True))
    )  # fmt: skip
    return Row("drawn", False, points, (), 0, 0, 0)


def test_the_row_of_fcfs_is_all_zero(small: Board) -> None:
    first = small.rows[0]
    assert first.policy == BASE
    row = first.as_json()
    for key in ("total", "violations", "mean_wins", "mean_losses", "p99_wins", "p99_losses", "mean_gain"):
        assert row[key] == 0, key
    assert (row["p_mean"], row["p_p99"], row["clustered_p_mean"]) == (1.0, 1.0, 1.0)
    assert {point.score for point in first.configs} == {0.0}
    assert {one.difference for one in first.idle} == {0.0}


def test_the_policy_fcfs_is_the_engines_own_queue(small: Board) -> None:
    policy, base = row_of(small, "fcfs (2)"), small.rows[0]
    assert policy.preemptions == 0
    assert policy.configs == base.configs
    assert policy.total == 0.0


def test_rows_are_fcfs_then_the_policies_then_the_oracle(small: Board) -> None:
    assert [row.policy for row in small.rows] == [BASE, "fcfs (2)", "sjf", "aged_sjf", ORACLE]
    assert [row.oracle for row in small.rows] == [False, False, False, False, True]


def test_results_have_their_keys(small: Board) -> None:
    found = small.as_json()
    assert found["mode"] == "serving"
    assert found["profile"]["name"] == "test"
    assert found["starts"] == list(small.starts)
    for row in found["results"]:
        assert set(row) >= KEYS
        assert len(row["configs"]) == 16
        assert len(row["idle"]) == 4
        for config in row["configs"]:
            assert set(config) >= CONFIG_KEYS


def test_configurations_are_windows_by_loads_by_repeats(small: Board) -> None:
    points = small.rows[1].configs
    assert [(p.window, p.load, p.repeat) for p in points] == [
        (window, load, repeat) for window in range(4) for load in (0.95, 1.15) for repeat in range(2)
    ]
    assert len({p.label for p in points}) == 16
    assert [p.start for p in points[:4]] == [small.starts[0], small.starts[0] + 30] * 2
    for one in small.runs.configuration(0, 100, 0.5, 0), small.runs.configuration(0, 100, 2.0, 1):
        rate = len(one.table) / int(one.table.arrival_us[-1]) * 1e6
        assert rate == pytest.approx(one.load * one.saturation, rel=1e-6)


def test_saturation_is_requests_over_the_time_to_the_last_end() -> None:
    table = read_trace("chat:1:40")
    table = replace(table, prompt_tokens=table.prompt_tokens, output_tokens=np.ones(40, np.int64))
    server = Server(10_000, max_num_seqs=4, max_num_batched_tokens=1_000_000, asynchronous=False)
    assert saturation(table, server, constant(50_000)) == 40 / (10 * 0.05)


def test_numbers_follow_from_the_runs(small: Board) -> None:
    sjf = row_of(small, "sjf")
    runs, settings = small.runs, small.runs.settings
    arm = next(arm for arm in classic_arms(compile_ordering, settings) if arm.label == "sjf")
    waits = []
    for point in sjf.configs:
        at = runs.configuration(point.window, small.starts[point.window], point.load, point.repeat)
        served = serve(at.table, settings.server, LATENCY, service=arm.service)
        assert point.mean_s == served.ttft_s.mean()
        assert point.p99_s == np.percentile(served.ttft_s, 99)
        assert point.mean_queue >= 0.0
        waits.append(served.wait_s.max())
    row = sjf.as_json()
    assert row["worst_wait_s"] == max(waits)
    assert row["total"] == math.fsum(point.score for point in sjf.configs)
    assert row["violations"] == sum(p.p99_s > 1.05 * p.fcfs_p99_s for p in sjf.configs)
    assert row["mean_wins"] == sum(p.mean_s < p.fcfs_mean_s for p in sjf.configs)
    assert row["mean_gain"] > 0


def test_the_best_in_hindsight_is_no_worse_than_any_classic(small: Board) -> None:
    for row in small.rows[:-1]:
        for point in row.configs:
            assert point.hindsight_score >= max(point.score, 0.0)
    hindsight = small.rows[0].as_json()["hindsight"]
    assert hindsight["wins"] == 0
    assert sum(hindsight.values()) == 16
    best = {point.hindsight for point in small.rows[0].configs}
    assert best <= {arm.label for arm in classic_arms(compile_ordering, SMALL)}
    assert small.hindsight_total >= max(0.0, *(row.total for row in small.rows[:-1]))


def test_sign_tests_drop_ties_and_stand_beside_the_clustered() -> None:
    row = drawn([0.1] * 15 + [-0.1], [0.1] * 13 + [-0.1] * 3).as_json()
    assert (row["mean_wins"], row["p99_wins"], row["violations"]) == (15, 13, 3)
    assert row["p_mean"] == pytest.approx(2.6e-4, rel=0.01)
    assert row["p_p99"] == pytest.approx(0.011, rel=0.05)
    assert row["clustered_p_mean"] == 1 / 16
    tied = drawn([0.1] * 6 + [-0.1] * 8 + [0.0] * 2, [0.0] * 16).as_json()
    assert (tied["mean_wins"], tied["mean_losses"]) == (6, 8)
    assert tied["p_mean"] == pytest.approx(0.79, rel=0.01)
    assert tied["p_p99"] == 1.0
    assert tied["hindsight"] == {"wins": 6, "ties": 2, "losses": 8}


@pytest.mark.parametrize("guard", [True, False], ids=["guard", "no guard"])
def test_an_idle_server_is_left_alone_by_every_classic(guard: bool) -> None:
    names = [arm.label for arm in classic_arms(compile_ordering, SMALL)]
    board = board_of(SMALL.changed(guard=guard, loads=(0.95,), repeats=1), names)
    for row in board.rows:
        assert row.idle_holds, (row.policy, row.idle)


def test_an_idle_server_is_left_alone_on_the_public_trace(azure: RequestTable) -> None:
    names = [arm.label for arm in classic_arms(compile_ordering, SMALL)]
    settings = Settings(requests=500, starts=(0, 6000, 12_000, 18_000), loads=(0.95,), repeats=1)
    board = board_of(settings, names, azure)
    for row in board.rows:
        assert row.idle_holds, (row.policy, row.idle)


def test_the_published_shape_holds_on_the_public_trace(azure: RequestTable) -> None:
    """Shortest job first shortens the mean and violates the tail; aged a little, it is safe and modest."""
    settings = Settings(starts=(0, 5800, 7700, 13_500), repeats=1, guard=False)
    text = "policy aged : schedule knob r : tokens/time = 3000 order by uncached_tokens - r * wait, arrival"
    classics = classic_arms(compile_ordering, settings)
    chosen = [load(examples()["sjf"]), loads(text)]
    arms = policy_arms(chosen, compile_ordering, settings, classics)
    board = score_board(Runs(azure, settings), arms, classics)
    sjf, slow = row_of(board, "sjf").as_json(), row_of(board, "aged").as_json()
    assert sjf["mean_gain"] > 0.1
    assert sjf["violations"] >= 3
    assert sjf["total"] < -10
    assert slow["violations"] == 0
    assert 0 < slow["mean_gain"] < sjf["mean_gain"]
    assert slow["total"] > 0


def test_a_moved_idle_mean_is_told() -> None:
    board = board_of(SMALL.changed(guard=False, idle=1.9, loads=(2.0,), repeats=1, windows=2), ["sjf"])
    row = row_of(board, "sjf").as_json()
    assert not row["idle_holds"]
    assert abs(row["idle_difference"]) == max(abs(one["difference"]) for one in row["idle"]) > 0.01


def test_the_same_board_comes_out_twice(small: Board) -> None:
    again = board_of(SMALL.changed(guard=False), ["fcfs", "sjf", "aged_sjf"])
    assert again.as_json() == small.as_json()


def test_a_classic_is_run_once() -> None:
    classics = classic_arms(compile_ordering, SMALL)
    sjf = next(arm for arm in classics if arm.label == "sjf")
    assert sjf.policy is not None
    first, second = policy_arms([sjf.policy, sjf.policy], compile_ordering, SMALL, classics)
    assert first is sjf
    assert (second.label, second.policy) == ("sjf (2)", sjf.policy)
    with pytest.raises(UnsupportedError, match="is an evict policy"):
        policy_arms([loads("policy p : evict order by last_use")], compile_ordering, SMALL)


def test_windows_by_hand_are_taken_as_they_are() -> None:
    settings = SMALL.changed(starts=(700, 0), windows=2, repeats=1, loads=(1.0,))
    board = board_of(settings, ["sjf"])
    assert board.starts == (700, 0)
    assert [point.start for point in board.rows[0].configs] == [700, 0]
    with pytest.raises(TanrenError, match="share some"):
        board_of(settings.changed(starts=(0, 60)), ["sjf"])


def test_isolated_nothing_is_cached() -> None:
    settings = SMALL.changed(isolate=True, windows=2, repeats=1, loads=(1.15,), guard=False)
    board = board_of(settings, ["longest_prefix_match", "shortest_uncached_prefill", "sjf"])
    assert row_of(board, "longest_prefix_match").configs == board.rows[0].configs
    assert row_of(board, "shortest_uncached_prefill").configs == row_of(board, "sjf").configs
    assert any("blocks made unique" in note for note in board.runs.notes)


def test_an_evict_policy_is_used_by_all_arms() -> None:
    settings = SMALL.changed(capacity=1100, windows=2, repeats=1, loads=(1.0,))
    policy = loads("policy mine : evict order by age candidates all")
    rows = []
    for evict in (None, policy):
        runs = Runs(
            read_trace("chat:1:1000"),
            settings,
            latency=LATENCY,
            evict=evict,
            compile_ordering=compile_ordering,
        )
        at = runs.configuration(0, 500, 1.0, 0)
        rows.append([runs.measure(arm, at).mean_s for arm in (runs.base, oracle_arm())])
    assert rows[0][0] != rows[1][0]
    assert rows[0][1] != rows[1][1]


def test_what_cannot_be_served_is_left_out_and_counted() -> None:
    trace = generate_chat(1, 1000)
    outputs = trace.output_tokens.copy()
    outputs[:7] = 0
    runs = Runs(replace(trace, output_tokens=outputs), SMALL.changed(capacity=300), latency=LATENCY)
    assert len(runs.trace) < 993
    assert "left out 7 of 1,000 requests: they have no output token" in runs.notes
    assert any("need more than 300 blocks of 16 tokens" in note for note in runs.notes)
    with pytest.raises(TanrenError, match="no request would be left"):
        Runs(trace, SMALL.changed(max_model_len=2), latency=LATENCY)


def test_the_oracle_orders_by_all_the_work_there_will_be() -> None:
    trace = generate_chat(3, 60)
    trace = replace(
        trace, arrival_us=np.zeros(60, np.int64), output_tokens=np.maximum(trace.output_tokens, 1)
    )
    arm = oracle_arm()
    server = Server(2000, max_num_seqs=1, asynchronous=False, caching=False)
    served = serve(trace, server, LATENCY, service=arm.service, priority=arm.priority(trace))
    work = (trace.prompt_tokens + trace.output_tokens)[np.argsort(served.end_us)]
    assert (np.diff(work) >= 0).all()
    fcfs = serve(trace, server, LATENCY)
    assert served.e2e_s.mean() < fcfs.e2e_s.mean()
