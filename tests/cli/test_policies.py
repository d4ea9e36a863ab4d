"""`check`, `fmt` and `explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tanren_dsl.cli.options import examples
from tests.cli.conftest import LRU, Run, data, refused

UGLY = "policy mine:evict 'Mine.'\norder by (last_use)\n".replace("'", '"')
T_LRU = "policy t : evict knob budget : tokens = 2048 order by 0 if depth > budget else 1, last_use"


def test_a_right_policy_is_ok(run: Run, lru: Path) -> None:
    result = run("check", str(lru))
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{lru}: ok, evict policy mine\n", "")


def test_every_packaged_example_is_ok(run: Run) -> None:
    result = run("check", *examples())
    assert result.exit_code == 0
    assert result.stdout.count(": ok, ") == len(examples()) >= 10


def test_an_example_by_name_is_said_to_be_one(run: Run) -> None:
    assert "packaged example evict/lru.tpl" in run("check", "lru").stderr


def test_a_file_comes_before_an_example_of_its_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lru").write_text(LRU)
    result = run("check", "lru")
    assert "mine" in result.stdout
    assert result.stderr == ""


def test_an_error_has_file_line_caret_and_hint(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.tpl").write_text("policy bad : evict\norder by agee\n")
    text = refused(run("check", "bad.tpl"), "bad.tpl:2:10: error: ", "hint: did you mean `age`?")
    assert "\n                 ^^^^\n" in text


def test_a_warning_leaves_the_exit_status_alone(run: Run) -> None:
    result = run("check", "-", stdin="policy p : evict\norder by age\n")
    assert result.exit_code == 0
    assert "<stdin>:2:10: warning: " in result.stderr


def test_one_wrong_file_does_not_hide_the_others(run: Run, lru: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.tpl").write_text("policy bad : evict\n")
    result = run("check", "bad.tpl", str(lru))
    assert result.exit_code == 1
    assert "mine" in result.stdout


def test_check_json_lists_findings(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.tpl").write_text("policy bad : evict\norder by agee\n")
    result = run("check", "bad.tpl", "nosuch.tpl", "--json")
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)
    assert (first["file"], first["line"], first["col"], first["severity"]) == ("bad.tpl", 2, 10, "error")
    assert first["hint"] == "did you mean `age`?"
    assert (second["file"], second["line"]) == ("nosuch.tpl", None)
    assert run("check", "lru", "--json").stdout == "[]\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"policy \xff", ":1: not UTF-8"), (b"policy p\0", "NUL byte"),
     (None, "no such file")],
    ids=["empty", "mis-encoded", "binary", "missing"],
)  # fmt: skip
@pytest.mark.parametrize(
    "command",
    [["check"], ["fmt"], ["explain"], ["simulate", "--capacity", "500"],
     ["compile", "--target", "vllm", "-o", "out.py"], ["conform", "--engine", "vllm-0.19"]],
    ids=lambda command: command[0],
)  # fmt: skip
def test_an_unreadable_file_is_one_message(
    command: list[str], content: bytes | None, words: str, run: Run, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "p.tpl").write_bytes(content)
    refused(run(*command, "p.tpl"), "p.tpl", words)
    assert not (tmp_path / "out.py").exists()


def test_knobs_are_checked_by_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.tpl").write_text(T_LRU)
    refused(run("check", "t.tpl", "--knob", "budgt=1"), "no knob `budgt`", "did you mean `budget`?")
    explained = data(run("explain", "t.tpl", "--knob", "budget=7", "--json"))
    assert explained["knobs"] == [{"name": "budget", "unit": "tokens", "value": 7.0}]


def test_explain_shows_every_digit_of_a_knob(run: Run) -> None:
    assert "budget = 1048577   tokens" in run("explain", "-", "--knob", "budget=1048577", stdin=T_LRU).stdout


def test_a_knob_goes_to_the_policies_that_declare_it(run: Run) -> None:
    assert run("check", "lru", "t_lru", "--knob", "budget=7").exit_code == 0
    result = run("check", "lru", "t_lru", "--knob", "budgt=7")
    assert result.exit_code == 1
    assert result.stderr.count("has no knob `budgt`") == 2


def test_fmt_writes_the_canonical_form_and_keeps_the_mode(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.tpl"
    path.write_text(UGLY)
    path.chmod(0o640)
    result = run("fmt", "p.tpl")
    assert (result.exit_code, result.stdout) == (0, "")
    assert path.read_text() == LRU
    assert path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in tmp_path.iterdir()] == ["p.tpl"]


def test_fmt_leaves_canonical_files_alone(run: Run, lru: Path) -> None:
    before = lru.stat().st_mtime_ns
    result = run("fmt", str(lru))
    assert (result.exit_code, result.stderr) == (0, "")
    assert lru.stat().st_mtime_ns == before


def test_fmt_follows_a_link(run: Run, tmp_path: Path) -> None:
    (tmp_path / "real.tpl").write_text(UGLY)
    (tmp_path / "link.tpl").symlink_to("real.tpl")
    assert run("fmt", "link.tpl").exit_code == 0
    assert (tmp_path / "link.tpl").is_symlink()
    assert (tmp_path / "real.tpl").read_text() == LRU


def test_fmt_check_and_diff_write_nothing(run: Run, tmp_path: Path, lru: Path) -> None:
    path = tmp_path / "p.tpl"
    path.write_text(UGLY)
    assert run("fmt", "--check", "p.tpl").exit_code == 1
    assert run("fmt", "--check", str(lru)).exit_code == 0
    diff = run("fmt", "--diff", "p.tpl")
    assert diff.exit_code == 0
    assert "\n-order by (last_use)\n" in diff.stdout
    assert "\n+order by last_use\n" in diff.stdout
    assert path.read_text() == UGLY


def test_fmt_normalises_line_ends_and_byte_order_mark(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.tpl"
    path.write_bytes(b"\xef\xbb\xbf" + LRU.replace("\n", "\r\n").encode())
    assert run("fmt", "--check", "p.tpl").exit_code == 1
    assert run("fmt", "p.tpl").exit_code == 0
    assert path.read_bytes() == LRU.encode()


def test_fmt_is_a_filter(run: Run) -> None:
    result = run("fmt", "-", stdin=UGLY)
    assert (result.exit_code, result.stdout) == (0, LRU)
    refused(run("fmt", "-", stdin=b"\xff"), "<stdin>:1: not UTF-8")


def test_fmt_leaves_a_wrong_file_as_it_was(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.tpl").write_text("policy p : evict order by (")
    refused(run("fmt", "p.tpl"), "p.tpl:1:")
    assert (tmp_path / "p.tpl").read_text() == "policy p : evict order by ("


def test_explain_says_that_the_default_cuts_a_definition_short(run: Run) -> None:
    text = run("explain", "-", stdin="policy p : evict order by uses, last_use").stdout
    assert "default `candidates 10%` cuts this definition short" in text
    assert "admissions that used the block since it was written" in text
    assert "provided by engine, python, replay, vllm" in text
    for other in ("policy p : evict order by uses candidates all", "policy p : evict order by last_use"):
        assert "cuts this definition short" not in run("explain", "-", stdin=other).stdout


@pytest.mark.parametrize(
    ("text", "shape", "served"),
    [
        ("order by -age", "identity", "by the engine's own queue"),
        ("order by uses candidates all", "static", "by a heap"),
        ("order by uses", "static", "by scoring the considered blocks"),
        ("order by uses / mean(uses)", "dynamic", "by scoring the considered blocks"),
    ],
)
def test_explain_says_how_the_order_is_served(text: str, shape: str, served: str, run: Run) -> None:
    analysis = data(run("explain", "-", "--json", stdin=f"policy p : evict {text}"))["analysis"]
    assert analysis["shape"] == shape
    assert analysis["served"].startswith(served)


def test_explain_shows_the_normal_form_and_warnings(run: Run) -> None:
    text = "policy p : evict\nlet idle = 1\norder by 0 - age / capacity\n"
    facts = data(run("explain", "-", "--json", stdin=text))
    assert facts["order_by"] == ["last_use"]
    assert facts["warnings"][0]["line"] == 2
    shown = run("explain", "-", stdin=text).stdout
    assert "1. last_use\n" in shown
    assert "line 2: `idle` is never used" in shown


def test_explain_knows_schedule_policies(run: Run) -> None:
    text = "policy p : schedule order by wait / mean(wait) preempt by arrival"
    shown = run("explain", "-", stdin=text).stdout
    assert "Order of requests: the lowest is served first" in shown
    assert "Preempted" in shown
    assert data(run("explain", "-", "--json", stdin=text))["analysis"] is None
