"""Problem files: every error names its key."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.primitives import build_primitives
from tanren_dsl.evolve.problem import Problem, load_problem, parse_problem
from tanren_dsl.evolve.resolved import resolved_text
from tanren_dsl.evolve.windows import cut_windows
from tanren_dsl.trace.read import read_trace

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "wrong_problems.toml").read_text(encoding="utf-8"))
CONFIGS = Path(str(files("tanren_dsl.examples"))) / "configs"


@pytest.mark.parametrize("case", CASES["case"], ids=lambda case: case["says"][0][:50])
def test_an_error_names_the_key(case: dict[str, Any], tiny_text: str) -> None:
    text = tiny_text.replace(case["old"], case["new"]) if "old" in case else case["text"]
    assert text != tiny_text
    with pytest.raises(TanrenError) as caught:
        parse_problem(text, "tiny.toml")
    for words in ("tiny.toml", *case["says"]):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [("1024", "1" + 400 * "0"), ("1024", "1" + 5000 * "0"), ("[[0, 40], [40, 80]]", 3000 * "[")],
    ids=["beyond a double", "beyond a conversion", "deep"],
)
def test_numbers_and_nesting_beyond_python_are_one_short_message(old: str, new: str, tiny_text: str) -> None:
    with pytest.raises(TanrenError, match=r"tiny\.toml: ") as caught:
        parse_problem(tiny_text.replace(old, new), "tiny.toml")
    assert len(str(caught.value)) < 150


def test_a_knob_may_have_any_name_of_the_language(tiny_text: str) -> None:
    for name in ("__builtins__", "class", "ARG0"):
        problem = parse_problem(tiny_text.replace("knobs.budget", f"knobs.{name}"), "tiny.toml")
        assert build_primitives(problem.knobs).terminal(name) is not None


def test_a_mis_encoded_problem_is_named_with_its_line(tmp_path: Path) -> None:
    config = tmp_path / "p.toml"
    config.write_bytes(b'name = "p"\n# \xff\n')
    with pytest.raises(TanrenError, match=r"p\.toml:2: not UTF-8: byte 0xff"):
        load_problem(config)


def test_the_packaged_problems_are_valid() -> None:
    for path in sorted(set(CONFIGS.glob("*.toml")) - {CONFIGS / "score.toml"}):  # that one is no problem
        assert load_problem(path).name == path.stem


def test_what_was_resolved_is_the_same_problem(tiny: Problem) -> None:
    trace = read_trace(tiny.trace)
    again = parse_problem(resolved_text(tiny, 4, trace), "tiny.toml")
    for role in ("train", "validation"):
        cuts = [cut.requests(len(trace)) for cut in getattr(tiny, role)]
        assert [cut.requests(len(trace)) for cut in getattr(again, role)] == cuts
    for name in ("name", "trace", "engine", "capacities", "candidates", "knobs", "search", "limits", "rates"):
        assert getattr(again, name) == getattr(tiny, name)


def test_windows_share_no_request(tiny_text: str) -> None:
    problem = parse_problem(tiny_text.replace("[[0.5, 1.0]]", "[[0.4, 1.0]]"), "tiny.toml")
    with pytest.raises(TanrenError, match=r"train\[1\] and windows\.validation\[0\] share requests 64"):
        cut_windows(read_trace(problem.trace), problem.train, problem.validation, problem.capacities)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[40, 80]", "[40, 900]", r"windows\.train\[1\]: requests 40 to 900 are no window"),
        ("[1200]", "[3]", r"capacities: 3 blocks .* is smaller than a request"),
        ("[0.4]", "[0.0001]", r"capacities: 0\.01 % .* is smaller than a request"),
        ("[0.4]", "[0.4, 0.4000001]", r"capacities: 40 % stands there twice"),
        ("[40, 80]", "[0, 40]", r"windows: train 0 to 40 stands there twice"),
    ],
)
def test_windows_and_sizes_must_fit_the_trace(tiny_text: str, old: str, new: str, says: str) -> None:
    problem = parse_problem(tiny_text.replace(old, new), "tiny.toml")
    with pytest.raises(TanrenError, match=says):
        cut_windows(read_trace(problem.trace), problem.train, problem.validation, problem.capacities)


def test_a_trace_is_looked_for_beside_the_file(tmp_path: Path, tiny_text: str) -> None:
    (tmp_path / "mine.jsonl").write_text("{}\n", encoding="utf-8")
    config = tmp_path / "p.toml"
    config.write_text(tiny_text.replace("chat:3:160", "mine.jsonl"), encoding="utf-8")
    assert load_problem(config).trace == str(tmp_path / "mine.jsonl")
    with pytest.raises(TanrenError, match="cannot read"):
        load_problem(tmp_path / "absent.toml")
