"""What a model may answer, and what becomes of it: a policy, a repair, or a reason."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from tanren_dsl.evolve.llm.reply import Reply, find_policy
from tanren_dsl.signals import Kind
from tests.evolve.llm.conftest import ASK, CANONICAL, GOOD, ILL_TYPED, Make, rows
from tests.evolve.llm.scripted import Script, chat

DOUBLE = (
    f"First try:\n```\npolicy a : evict order by uses\n```\nBetter:\n```tpl\n{GOOD}\n```\nBest:\n```\nno\n```"
)


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"\n\n  {GOOD}\n",
        f"```tpl\n{GOOD}\n```",
        f"Here it is:\n\n```python\n{GOOD}\n```\n\nIt evicts old blocks.",
        f"~~~~\n{GOOD}\n~~~~",
        f"```\n{GOOD}",
        f"<think>\n```\npolicy x : evict order by uses\n```\n</think>\n{GOOD}",
        f"policy thought : evict order by uses?\n</think>\n\n{GOOD}",
        f"[THINK]hm[/THINK]{GOOD}",
        f"<|channel|>analysis<|message|>policy x : evict<|end|><|channel|>final<|message|>{GOOD}",
        f"Sure!\n\n{GOOD}\n\nThis policy evicts what is oldest.",
        f"{GOOD}\n\n**Why it is good** it is simple",
        f"I suggest {GOOD}",
        DOUBLE,
        f"{GOOD}\n# a comment that does not come back",
    ],
)
def test_a_policy_is_found_in_what_a_model_says(script: Script, proposer: Make, answer: str) -> None:
    script.steps = [chat(answer)]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.reason, proposal.calls) == (CANONICAL, None, 1)


@pytest.mark.parametrize(
    ("answer", "more", "words"),
    [
        ("", {}, "the answer held nothing"),
        (None, {"reasoning_content": GOOD}, "the answer held only thinking"),
        ("", {"reasoning": GOOD}, "the answer held only thinking"),
        (f"<think>{GOOD}", {}, "the answer held only thinking"),
        (f"<think>{GOOD}</think>", {}, "the answer held only thinking"),
        (None, {"refusal": "I cannot help."}, "the model refused: I cannot help."),
        ("I would rather not.", {}, "expected"),
        ("```\nsome code\n```", {}, "expected"),
    ],
)
def test_an_answer_without_a_policy_gets_one_repair(
    script: Script, proposer: Make, answer: str | None, more: dict[str, str], words: str
) -> None:
    script.steps = [chat(answer, **more), chat(GOOD)]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls) == (CANONICAL, 2)
    *_, said, repair = script.bodies[1]["messages"]
    assert (said["role"], repair["role"]) == ("assistant", "user")
    assert words in repair["content"]


def test_the_repair_shows_the_checkers_own_words(script: Script, proposer: Make) -> None:
    script.steps = [chat(f"```\n{ILL_TYPED}\n```"), chat(GOOD)]
    assert proposer().propose(ASK).text == CANONICAL
    first, second = script.bodies
    assert second["messages"][:-2] == first["messages"]
    assert second["messages"][-2] == {"role": "assistant", "content": ILL_TYPED}
    repair = second["messages"][-1]["content"]
    assert "answer:1:27: error: `age + 5` adds time and a plain number" in repair
    assert "age + 5" in repair
    assert "^" in repair


def test_an_answer_that_is_wrong_twice_is_given_up(script: Script, proposer: Make) -> None:
    script.steps = [chat(ILL_TYPED)]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls) == (None, 2)
    assert proposal.reason is not None
    assert proposal.reason.startswith("not a policy, nor after one repair: answer:1:27: error")


@pytest.mark.parametrize("answer", [GOOD, f"```\n{GOOD}", f"<think>{GOOD}", ""])
def test_what_was_cut_off_is_not_taken(script: Script, proposer: Make, answer: str) -> None:
    """The rest may have said more: `order by age` may have become `order by age / mean(age)`."""
    script.steps = [chat(answer, "length")]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls) == (None, 2)
    assert "4,096 tokens" in str(proposal.reason)


def test_what_was_cut_off_behind_a_closed_fence_is_taken(script: Script, proposer: Make) -> None:
    script.steps = [chat(f"```\n{GOOD}\n```\nThis policy ev", "length")]
    assert proposer().propose(ASK).text == CANONICAL


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("policy p : schedule order by arrival", "expected a policy of kind `evict`, found `schedule`"),
        ("policy p : evict knob budget : tokens = 4096 order by depth - budget", "was changed"),
        ("policy p : evict knob budget : time = 2048 order by age - budget", "was changed"),
        ("policy p : evict knob mine : tokens = 2048 order by depth - mine", "none of the knobs"),
        ("policy p : evict let budget = depth order by budget", "`budget` is a knob here"),
        ("policy p : evict param budget = 1 in [0, 2] order by uses * budget", "`budget` is a knob here"),
        ("policy p : evict order by waiting_refs, age", "`waiting_refs` is not provided in replay mode"),
        ("policy p : evict let x = uses if waiting > running else 0 order by x", "`waiting` is not provided"),
        ("policy p : evict order by age candidates 5%", "write `candidates 10%` or `candidates all`"),
        ("policy p : evict order by age if age > 3 else 0", "error"),
    ],
)
def test_what_was_not_asked_for_is_refused(script: Script, proposer: Make, answer: str, words: str) -> None:
    script.steps = [chat(answer)]
    proposal = proposer().propose(ASK)
    assert proposal.text is None
    assert words in str(proposal.reason)


def test_the_default_share_counts_as_declared(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD), chat(f"{GOOD} candidates 1%")]
    proposal = proposer().propose(replace(ASK, candidates=(1.0,)))
    assert (proposal.text, proposal.calls) == (f"{CANONICAL}candidates 1%\n", 2)
    assert "no `candidates` means 10%" in script.bodies[1]["messages"][-1]["content"]


def test_a_knob_comes_back_as_it_was_declared(script: Script, proposer: Make) -> None:
    script.steps = [chat("policy p : evict knob budget : tokens*1 = 2.048e3 order by depth - budget")]
    assert "knob budget : tokens = 2048\n" in str(proposer().propose(ASK).text)


@pytest.mark.parametrize(("kind", "mode"), [("evict", "engine"), ("schedule", "engine")])
def test_signals_of_the_engine_are_taken_in_engine_mode(
    script: Script, proposer: Make, kind: Kind, mode: str
) -> None:
    signal = "waiting_refs" if kind == "evict" else "wait"
    script.steps = [chat(f"policy p : {kind} order by {signal}")]
    assert proposer().propose(replace(ASK, kind=kind, mode=mode)).text is not None


def test_halves_of_characters_harm_nobody(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    step = chat(None)
    step["body"] = '{"choices": [{"message": {"content": "policy p : evict \\"\\ud800\\" order by age"}}]}'
    script.steps = [step]
    assert proposer().propose(ASK).text == 'policy p : evict\n"?"\n\norder by age\n'
    assert rows(database, "done") == [(1,)]


def test_comments_and_long_descriptions_are_left_out(script: Script, proposer: Make) -> None:
    script.steps = [chat(f'policy p : evict\n"{"x" * 400}"\n# why\norder by age')]
    assert proposer().propose(ASK).text == CANONICAL


@pytest.mark.parametrize(
    "text", ["policy p : evict\nlet a = age +\norder by a", "policy p : evict\norder by age\nparam h = 1"]
)
def test_a_broken_part_of_a_policy_is_not_taken_for_prose(text: str) -> None:
    reply = Reply(text, False, False, False, None, None, None)
    assert find_policy(reply) == text
