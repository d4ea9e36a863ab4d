"""The prompt is made from the tables, is bounded, and says nothing that it should not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tanren_dsl.evolve.llm.asking import Ask, Parent
from tanren_dsl.evolve.llm.judge import judge
from tanren_dsl.evolve.llm.prompt import example_of, first_messages, repair_messages
from tanren_dsl.ops import OPS
from tanren_dsl.signals import Kind, signals_of
from tests.evolve.llm.conftest import ASK

SIZE = 24_000


def prompt(ask: Ask, size: int = SIZE) -> str:
    system, user = first_messages(ask, size)
    assert (system["role"], user["role"]) == ("system", "user")
    return f"{system['content']}\n\n{user['content']}"


KINDS: list[tuple[Kind, str]] = [("evict", "replay"), ("evict", "engine"), ("schedule", "engine")]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_exactly_the_signals_of_kind_and_mode_are_offered(kind: Kind, mode: str) -> None:
    text = prompt(replace(ASK, kind=kind, mode=mode, parents=()))
    for row in signals_of(kind).values():
        line = f"- `{row.name}` ({row.type}): {row.meaning}"
        assert (line in text) == (mode in row.provided_by)
    other: Kind = "schedule" if kind == "evict" else "evict"
    assert not [
        name for name in signals_of(other) if name not in signals_of(kind) and f"- `{name}` (" in text
    ]


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_every_operator_stands_there_with_its_meaning(kind: Kind, mode: str) -> None:
    text = prompt(replace(ASK, kind=kind, mode=mode))
    assert [op.name for op in OPS if f"`: {op.meaning}" not in text] == []
    assert "`a if c else b`" in text
    assert "`clip(x, low, high)`" in text


@pytest.mark.parametrize(("kind", "mode"), KINDS)
@pytest.mark.parametrize("candidates", [(10.0, None), (None,), (1.0,)])
def test_the_example_would_be_accepted(kind: Kind, mode: str, candidates: tuple[float | None, ...]) -> None:
    ask = replace(ASK, kind=kind, mode=mode, candidates=candidates)
    assert judge(example_of(ask), ask).wrong is None


def test_it_shows_parents_scores_knobs_and_the_diagnosis() -> None:
    text = prompt(ASK)
    for part in (
        "PARENT 1, score 0.5000 (more is better)\n- window 1, 400 blocks: 0.5000",
        "policy lru : evict\n\norder by last_use",
        "knob budget : tokens = 2048",
        "`candidates 10%`, `candidates all`",
        "Blocks at a low depth come back soonest.",
        "Gain in hit rate over LRU, in points.",
    ):
        assert part in text


def test_it_names_no_path_and_no_comment() -> None:
    parent = Parent("policy a : evict\n# see /home/me/notes\norder by age", 1.0, (("/data/x/t.jsonl", 1.0),))
    ask = replace(
        ASK,
        parents=(parent,),
        objective="Hits on /work/traces/chat.jsonl, in tokens/time or 1/time.",
        diagnosis=r"See ~/runs/demo-1/run.sqlite and C:\runs\x; depth/chain is low.",
    )
    text = prompt(ask)
    for part in ("/home", "/data", "/work", "~/runs", "C:\\runs", "notes", ".sqlite"):
        assert part not in text
    assert "tokens/time or 1/time" in text
    assert "depth/chain is low" in text


def test_its_size_is_bounded_and_the_best_parents_stay() -> None:
    parents = tuple(
        Parent(f'policy p{n} : evict\n"{"x" * 3000}"\norder by age', float(n), (("w", 0.0),) * 500)
        for n in range(50)
    )
    ask = replace(ASK, parents=parents, objective="o" * 10**5, diagnosis="d" * 10**6)
    text = prompt(ask)
    assert len(text) <= SIZE + 2
    assert "policy p0 " in text
    assert "policy p20 " not in text
    assert "and 476 more" in text
    assert text.endswith("Answer with the policy alone, no other words.")


def test_the_smallest_prompt_holds_the_language_and_the_task() -> None:
    text = prompt(replace(ASK, mode="engine", objective="o" * 5000, diagnosis="fact " * 2000), 12_000)
    assert 11_000 < len(text) <= 12_002
    assert "fact [...]" in text
    assert "PARENT 1" in text
    assert text.endswith("Answer with the policy alone, no other words.")


def test_a_repair_is_bounded_too() -> None:
    first = first_messages(ASK, SIZE)
    messages = repair_messages(first, "x" * 10**6, "y" * 10**6)
    assert messages[:2] == first
    assert sum(len(message["content"]) for message in messages[2:]) < 10_000


def test_the_same_ask_has_the_same_prompt() -> None:
    assert first_messages(ASK, SIZE) == first_messages(replace(ASK, key="other", seed=9), SIZE)
