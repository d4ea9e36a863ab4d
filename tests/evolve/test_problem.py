"""Problem files: every error names its key."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.primitives import build_primitives
from tanren_dsl.evolve.problem import Problem, load_problem, parse_problem
from tanren_dsl.evolve.resolved import files_of, resolved_text
from tanren_dsl.evolve.setup import prepare
from tanren_dsl.evolve.store import Store
from tanren_dsl.evolve.windows import SEARCHED

HERE = Path(__file__).parent
CASES = tomllib.loads((HERE / "wrong_problems.toml").read_text(encoding="utf-8"))
LRU = "policy mine : evict order by last_use"
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


@pytest.mark.parametrize("name", ["tiny", "served"])
def test_what_was_resolved_is_the_same_problem(name: str, request: pytest.FixtureRequest) -> None:
    problem: Problem = request.getfixturevalue(name)
    ground = prepare(problem)
    again = parse_problem(resolved_text(ground, 4), f"{name}.toml")
    assert prepare(again).ranges == ground.ranges
    for field in fields(problem):
        if field.name != "windows":
            assert getattr(again, field.name) == getattr(problem, field.name), field.name


def test_a_run_folder_holds_the_policies_that_its_problem_names(tmp_path: Path, tiny_text: str) -> None:
    (tmp_path / "mine.tpl").write_text(LRU, encoding="utf-8")
    text = tiny_text.replace("[search]", '[search]\nstart = ["mine.tpl"]').replace(
        "[gate]", '[gate]\nas_good_as = "mine.tpl"'
    )
    problem = parse_problem(text, "p.toml", tmp_path)
    assert problem.start == {"mine.tpl": LRU}
    assert problem.gate.as_good_as == LRU
    store = Store.create(tmp_path / "run", resolved_text(prepare(problem), 0), files=files_of(problem))
    store.close()
    again = load_problem(tmp_path / "run" / "run.toml")
    assert again.start == problem.start
    assert again.gate == problem.gate


def test_windows_share_no_request(tiny_text: str) -> None:
    problem = parse_problem(tiny_text.replace("[[0.5, 0.75]]", "[[0.4, 0.75]]"), "tiny.toml")
    with pytest.raises(TanrenError, match=r"train\[1\] and windows\.validation\[0\] share requests 64"):
        prepare(problem)
    problem = parse_problem(tiny_text.replace("[[0.75, 1.0]]", "[[0.7, 1.0]]"), "tiny.toml")
    with pytest.raises(TanrenError, match=r"validation\[0\] and windows\.holdout\[0\] share requests 112"):
        prepare(problem)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[40, 80]", "[40, 900]", r"windows\.train\[1\]: requests 40 to 900 are no window"),
        ("[1200]", "[3]", r"capacities: 3 blocks .* is smaller than a request"),
        ("[0.4]", "[0.0001]", r"capacities: 0\.01 % .* is smaller than a request"),
        ("[0.4]", "[0.4, 0.4000001]", r"capacities: 40 % stands there twice"),
        ("[40, 80]", "[0, 40]", r"windows: train 0 to 40 stands there twice"),
        (
            "[[0, 40], [40, 80]]",
            "{ within = [0, 80], count = 3, requests = 40 }",
            r"windows\.train: 3 windows of 40 requests do not fit requests 0 to 79",
        ),
        ("[[0, 40], [40, 80]]", "[[0, 2], [40, 80]]\nrepeats = 3", r"windows: 3 repeats do not fit"),
    ],
)
def test_windows_and_sizes_must_fit_the_trace(tiny_text: str, old: str, new: str, says: str) -> None:
    problem = parse_problem(tiny_text.replace(old, new), "tiny.toml")
    with pytest.raises(TanrenError, match=says):
        prepare(problem)


def test_windows_are_picked_by_which_classic_wins_them(tiny_text: str) -> None:
    text = tiny_text.replace(
        "[[0, 40], [40, 80]]", "{ within = [0.0, 0.5], count = 4, requests = 20, pick = 2 }"
    )
    said: list[str] = []
    ranges = prepare(parse_problem(text, "tiny.toml"), said.append).ranges
    assert len(said) == 4
    assert all("wins" in line for line in said)
    assert len(ranges["train"]) == 2
    assert set(ranges["train"]) <= {(0, 20), (20, 40), (40, 60), (60, 80)}


def test_nothing_of_the_hold_out_is_in_the_arena_of_a_search(tiny: Problem) -> None:
    arena = prepare(tiny).arena(SEARCHED, short=True)
    assert {role for role, _ in arena.configurations} == {"train", "validation"}
    last = [int(one.place.window.split(" to ")[1]) for row in arena.configurations.values() for one in row]
    assert max(last) < 120


def test_a_trace_is_looked_for_beside_the_file(tmp_path: Path, tiny_text: str) -> None:
    (tmp_path / "mine.jsonl").write_text("{}\n", encoding="utf-8")
    config = tmp_path / "p.toml"
    config.write_text(tiny_text.replace("chat:3:160", "mine.jsonl"), encoding="utf-8")
    assert load_problem(config).trace == str(tmp_path / "mine.jsonl")
    with pytest.raises(TanrenError, match="cannot read"):
        load_problem(tmp_path / "absent.toml")
