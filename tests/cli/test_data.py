"""`simulate`, `headroom`, `trace` and `eval`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.check import load
from tanren_dsl.cli.options import examples
from tanren_dsl.cli.output import print_table
from tanren_dsl.sim.replay import simulate_stock
from tanren_dsl.trace.read import read_trace
from tests.cli.conftest import LRU, SMALL, Run, data, refused
from tests.public import MOONCAKE, public_trace


def test_simulate_prints_rows_for_every_policy_and_capacity(run: Run) -> None:
    found = data(run("simulate", "lru", "lfu", "--trace", SMALL, "--capacity", "1000,2000", "--json"))
    assert (found["mode"], found["engine"], found["trace"]) == ("replay", "vllm-0.19", SMALL)
    assert [(row["policy"], row["capacity"]) for row in found["results"]] == [
        ("lru", 1000), ("lfu", 1000), ("lru", 2000), ("lfu", 2000),
    ]  # fmt: skip
    stock = simulate_stock(read_trace(SMALL), 1000)
    first = found["results"][0]
    assert (first["hits"], first["evictions"], first["faults"]) == (stock.hits, stock.evictions, 0)
    assert first["hit_rate"] == stock.hits / stock.lookups


def test_simulate_names_its_mode_in_the_table(run: Run) -> None:
    result = run("simulate", "lru", "--trace", SMALL, "--capacity", "1000")
    assert result.stdout.startswith(f"replay mode, vllm-0.19, {SMALL}")
    assert "evictions" in result.stdout
    assert "replaying lru" in result.stderr


def test_a_narrow_terminal_loses_no_digit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("simulate", "lru", "--trace", SMALL, "--capacity", "1000").stdout
    monkeypatch.setenv("COLUMNS", "20")
    assert run("simulate", "lru", "--trace", SMALL, "--capacity", "1000").stdout == wide
    assert "\N{HORIZONTAL ELLIPSIS}" not in wide


def test_a_table_of_many_columns_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [f"column {number}" for number in range(100)]
    print_table("A title that is longer than its table", columns, [columns])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "A title that is longer than its table"
    assert all(lines[4].count(name) for name in columns)


def test_simulate_obeys_knobs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.tpl").write_text(
        "policy t : evict knob b : tokens = 1 order by 0 if depth > b else 1, last_use candidates all"
    )
    hits = [
        data(
            run("simulate", "t.tpl", "--trace", SMALL, "--capacity", "1000", "--json", "--knob", f"b={value}")
        )["results"][0]["hits"]
        for value in ("0", "1e9")
    ]
    assert hits[0] != hits[1]
    assert hits[1] == simulate_stock(read_trace(SMALL), 1000).hits


@pytest.mark.parametrize("command", [["simulate", "lru", "--trace"], ["headroom"]], ids=lambda c: c[0])
def test_bad_settings_and_traces_are_one_message(command: list[str], run: Run, broken_trace: Path) -> None:
    enough = ("--capacity", "1000")
    refused(run(*command, SMALL, *enough, "--engine", "vllm-9"), "unknown engine 'vllm-9'", "vllm-0.32")
    refused(run(*command, str(broken_trace), *enough), "broken.jsonl:3:", "expected one JSON object")
    refused(run(*command, "nosuch.jsonl", *enough), "nosuch.jsonl: the trace cannot be read")
    small = run(*command, SMALL, "--capacity", "1000,3")
    assert small.exit_code == 1
    assert small.stdout == ""
    assert "a capacity of 3 blocks is smaller than request" in small.stderr
    assert "hint: use --capacity" in small.stderr


def test_bad_lines_can_be_left_out(run: Run, broken_trace: Path) -> None:
    result = run("trace", "show", str(broken_trace), "--skip-bad", "--json")
    found = data(result)
    assert found["statistics"]["requests"] == 49
    assert any("skipped 1 bad lines: line 3" in note for note in found["notes"])
    assert "skipped 1 bad lines" in result.stderr


def test_simulate_refuses_what_it_cannot_run(run: Run, tmp_path: Path) -> None:
    capacity = ("--trace", SMALL, "--capacity", "1000")
    assert "is a schedule policy" in run("simulate", "sjf", *capacity).stderr
    (tmp_path / "w.tpl").write_text(
        "policy w : evict order by waiting / max_running + uses * kv_free * waiting / max_running"
    )
    refused(run("simulate", "w.tpl", *capacity), "replay mode does not provide `waiting`")


def test_headroom_bounds_stand_in_order(run: Run) -> None:
    found = data(run("headroom", SMALL, "--capacity", "1000,2000", "--json"))
    assert found["mode"] == "replay"
    for row in found["results"]:
        assert row["lru_hits"] <= row["belady_window_hits"] <= row["belady_hits"] <= row["infinite_hits"]
        assert row["infinite_hits"] <= row["lookups"]
    assert "no eviction policy gains more than" in found["verdict"]


def test_headroom_says_when_there_is_none(run: Run) -> None:
    result = run("headroom", SMALL, "--capacity", "1000000")
    assert "No eviction policy can gain anything over LRU" in result.stdout
    assert "replay mode" in result.stdout


def test_the_conversation_trace_gives_the_published_counts(run: Run) -> None:
    public_trace(MOONCAKE)  # skips where it is not
    found = data(run("simulate", "lru", "--trace", str(MOONCAKE), "--capacity", "10000", "--json"))
    assert found["results"][0]["hits"] == 61_046
    (row,) = data(run("headroom", str(MOONCAKE), "--capacity", "10000", "--json"))["results"]
    assert row["lru_hits"] == 61_046
    assert 15.4 < 100 * (row["belady_hits"] - row["lru_hits"]) / row["lookups"] < 15.6


def test_trace_generate_reads_back_the_same(run: Run, tmp_path: Path) -> None:
    result = run("trace", "generate", "-o", "made.jsonl", "--seed", "1", "--requests", "200")
    assert (result.exit_code, result.stdout) == (0, "")
    shown, made = (data(run("trace", "show", name, "--json")) for name in ("made.jsonl", SMALL))
    assert shown["statistics"] == made["statistics"]
    refused(run("trace", "generate", "-o", "no/where.jsonl"), "cannot write")
    assert [one.name for one in tmp_path.iterdir()] == ["made.jsonl"]


def test_trace_show_prints_a_table_and_notes(run: Run) -> None:
    result = run("trace", "show", SMALL)
    assert "infinite hit rate" in result.stdout
    assert "format: generated chat, seed 1" in result.stderr


@pytest.mark.parametrize("name", examples())
def test_eval_gives_the_same_by_every_backend_on_its_own_example(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text(run("eval", name, "--example").stdout)
    answers = [
        data(run("eval", name, "in.json", "--json", "--backend", backend))
        for backend in ("interp", "python", "numba")
    ]
    assert len({json.dumps({**answer, "backend": ""}) for answer in answers}) == 1
    assert not answers[0]["fault"]
    assert sorted(answers[0]["order"]) == [0, 1, 2]
    assert len(answers[0]["keys"][0]) == len(load(examples()[name]).order.keys)


def test_eval_prints_keys_and_order(run: Run) -> None:
    given = {"objects": [{"last_use": 5}, {"last_use": 3}]}
    result = run("eval", "lru", "-", stdin=json.dumps(given))
    assert "order: 1, 0" in result.stdout
    assert "5.0" in result.stdout


def test_eval_of_a_fault_keeps_the_engines_order(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f.tpl").write_text("policy f : evict order by -exp(uses) * exp(uses) * exp(uses)")
    given = json.dumps({"decision": {}, "objects": [{"uses": 1}, {"uses": 800}]})
    found = data(run("eval", "f.tpl", "-", "--json", stdin=given))
    assert (found["fault"], found["order"]) == (True, [0, 1])
    assert found["keys"][1] == ["-inf"]
    assert "fault: " in run("eval", "f.tpl", "-", stdin=given).stdout


def test_eval_of_no_objects(run: Run) -> None:
    found = data(run("eval", "lru", "-", "--json", stdin='{"objects": []}'))
    assert (found["keys"], found["order"], found["fault"]) == ([], [], False)


def test_eval_takes_preempt_by(run: Run, tmp_path: Path) -> None:
    (tmp_path / "s.tpl").write_text("policy s : schedule order by arrival preempt by wait")
    given = json.dumps({"decision": {"now": 10}, "objects": [{"arrival": 1}, {"arrival": 4}]})
    assert data(run("eval", "s.tpl", "-", "--json", stdin=given))["order"] == [0, 1]
    assert data(run("eval", "s.tpl", "-", "--json", "--preempt", stdin=given))["order"] == [1, 0]
    refused(run("eval", "lru", "-", "--preempt", stdin=given), "has no `preempt by`")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            '{"objects": [{"last_use": 5}, {}]}',
            ["object 1: signal `last_use` is missing", "hint: an instant"],
        ),
        ('{"objects": [{"last_use": "now"}]}', ["object 0: `last_use`: expected a finite number"]),
        ('{"objects": [{"last_use": NaN}]}', ["expected a finite number, found nan"]),
        (
            '{"objects": [{"last_use": 1' + 400 * "0" + "}]}",
            ["object 0: `last_use`: expected a finite number, found 1000"],
        ),
        ('{"objects": {}}', ['expected {"decision"']),
        ('{"objects": [3]}', ["object 0: expected signals by name, found int"]),
        ('{"objects": [\n{"last_use": }]}', ["in.json:2:14: expected JSON"]),
        ("", ["in.json:1:1: expected JSON"]),
    ],
)
def test_eval_names_what_is_wrong_with_its_input(
    given: str, words: list[str], run: Run, tmp_path: Path
) -> None:
    (tmp_path / "in.json").write_text(given)
    refused(run("eval", str(examples()["lru"]), "in.json"), "in.json", *words)


def test_eval_says_why_a_signal_is_needed_and_suspects_typing_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tpl").write_text("policy a : evict order by age / mean(age)")
    given = json.dumps({"decision": {"now": 9}, "objects": [{"last_us": 5}]})
    result = run("eval", "a.tpl", "-", stdin=given)
    assert result.exit_code == 1
    assert "`last_use` is missing, and a reads it (for `age`)" in result.stderr
    whole = json.dumps({"decision": {"now": 9}, "objects": [{"last_use": 5, "last_us": 5}]})
    assert "did you mean `last_use`?" in run("eval", "a.tpl", "-", stdin=whole).stderr


def test_json_numbers_are_finite_or_text() -> None:
    from tanren_dsl.cli.output import _plain

    assert _plain([math.inf, {"a": math.nan}, 1.5, np.float64(2).item()]) == ["inf", {"a": "nan"}, 1.5, 2.0]
    assert LRU.startswith("policy")
