"""Whatever a server sends: a policy, or a reason, and never an exception or an endless search."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tanren_dsl.evolve.llm.dialects import Api
from tanren_dsl.evolve.llm.judge import judge
from tanren_dsl.evolve.llm.refused import message_of, refused_field
from tanren_dsl.evolve.llm.reply import Reply, find_policy, read_reply, without_thinking
from tests.evolve.llm.conftest import ASK, GOOD

NAMES = """choices message content tool_calls type custom input text usage prompt_tokens output name
completion_tokens finish_reason reasoning refusal incomplete_details reason error param detail output_text"""
KEYS = st.sampled_from(NAMES.split())
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.sampled_from(["custom", "message", "output_text", "custom_tool_call", "length", GOOD, "\ud800", ""])
)
ANY: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
WORDS = """<think> </think> [THINK] [/THINK] ``` ```tpl ~~~~ order by age let policy p : evict <|channel|>
analysis <|end|> so it is ( # "
"""
PIECES = st.sampled_from([*WORDS.split(), "\n", " ", "policy p : evict", "\norder by age", "\nlet a = b"])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["chat", "responses"]), ANY)
@example("chat", {"choices": [{"message": {"content": [None]}}]})
@example("responses", {"output": [{"type": "message", "content": [{"type": "output_text", "text": 3}]}]})
def test_any_json_is_an_answer_or_a_value_error(api: Api, data: Any) -> None:
    try:
        reply = read_reply(api, json.dumps(data))
    except ValueError:
        return
    reply.text.encode()
    find_policy(reply)


@given(ANY)
def test_any_json_is_a_message(data: Any) -> None:
    text = json.dumps(data)
    message_of(text)
    assert refused_field(400, text, ["seed", "reasoning.effort"]) in (None, "seed", "reasoning.effort")


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_has_a_verdict(text: str) -> None:
    verdict = judge(find_policy(Reply(text, False, False, False, None, None, None)), ASK)
    assert (verdict.text is None) is (verdict.wrong is not None)


LONG = [
    "<think>" * 40_000,
    "</think>" * 40_000,
    "<think>a</think>" * 20_000,
    "```\n" * 60_000,
    "<|channel|>analysis " * 20_000,
    "policy " * 40_000,
    "(" * 300_000,
    " " * 300_000,
    "policy a :\n" * 500,
]


@pytest.mark.parametrize("text", LONG)
def test_a_long_text_is_looked_through_soon(text: str) -> None:
    began = time.perf_counter()
    find_policy(Reply(text, False, False, False, None, None, None))
    assert time.perf_counter() - began < 5.0


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a", "a"),
        ("<think>a</think>b", "b"),
        ("<THINK>a</Think>b<thinking>c</thinking>d", "bd"),
        ("a</think>b", "b"),
        ("a<think>b", "a"),
        ("<think>a", ""),
        ("a</think>b</think>c", "c"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b", "b"),
    ],
)
def test_thinking_is_taken_off(text: str, rest: str) -> None:
    assert without_thinking(text) == rest
