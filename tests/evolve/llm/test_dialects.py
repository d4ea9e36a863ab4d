"""Each server's request, exactly, and its answers; and how a dialect is found."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from typing import Any

import pytest

from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.server import ModelServer
from tanren_dsl.evolve.llm.settings import ModelSettings, address_of
from tanren_dsl.grammar import grammar_text
from tanren_dsl.grammar.renderings import ebnf_text
from tests.evolve.llm.conftest import ASK, CANONICAL, GOOD, Make, rows
from tests.evolve.llm.scripted import Script, Step, chat, refusal, responses, tool

LARK, EBNF = grammar_text(), ebnf_text()
TEXT = "Hand over the complete text of one policy."
GIVEN = {"temperature": 0.5, "top_p": 0.9, "seed": True, "reasoning_effort": "low", "max_tokens": 999}
CHAT = {"temperature": 0.5, "top_p": 0.9, "seed": 7, "reasoning_effort": "low", "max_tokens": 999}
BY_TOOL = responses({"type": "reasoning"}, {"type": "custom_tool_call", "name": "emit", "input": GOOD})

SHAPES: list[tuple[str, str, Step, str, dict[str, Any]]] = [
    (
        "openai-responses",
        "default",
        BY_TOOL,
        "/v1/responses",
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "max_output_tokens": 999,
            "reasoning": {"effort": "low"},
            "tools": [
                {
                    "type": "custom",
                    "name": "emit",
                    "description": TEXT,
                    "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
                }
            ],
            "tool_choice": {"type": "custom", "name": "emit"},
            "parallel_tool_calls": False,
        },
    ),
    (
        "openai-chat",
        "default",
        tool(GOOD),
        "/v1/chat/completions",
        {
            **{name: value for name, value in CHAT.items() if name != "max_tokens"},
            "max_completion_tokens": 999,
            "tools": [
                {
                    "type": "custom",
                    "custom": {
                        "name": "emit",
                        "description": TEXT,
                        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}},
                    },
                }
            ],
            "tool_choice": {"type": "custom", "custom": {"name": "emit"}},
        },
    ),
    (
        "vllm",
        "default",
        chat(GOOD),
        "/v1/chat/completions",
        {**CHAT, "structured_outputs": {"grammar": EBNF}},
    ),
    ("vllm", "lark", chat(GOOD), "/v1/chat/completions", {**CHAT, "structured_outputs": {"grammar": LARK}}),
    ("sglang", "default", chat(GOOD), "/v1/chat/completions", {**CHAT, "ebnf": EBNF}),
    ("sglang", "lark", chat(GOOD), "/v1/chat/completions", {**CHAT, "ebnf": f"%llguidance {{}}\n{LARK}"}),
    (
        "llama.cpp",
        "default",
        chat(GOOD),
        "/v1/chat/completions",
        {**{name: value for name, value in CHAT.items() if name != "reasoning_effort"}, "grammar": EBNF},
    ),
    (
        "llama.cpp",
        "lark",
        chat(GOOD),
        "/v1/chat/completions",
        {
            **{name: value for name, value in CHAT.items() if name != "reasoning_effort"},
            "grammar": f"%llguidance {{}}\n{LARK}",
        },
    ),
    ("plain", "default", chat(GOOD), "/v1/chat/completions", CHAT),
]


@pytest.mark.parametrize(("dialect", "notation", "answer", "path", "expected"), SHAPES)
def test_a_request_has_the_servers_shape_and_nothing_else(
    script: Script,
    proposer: Make,
    dialect: str,
    notation: str,
    answer: Step,
    path: str,
    expected: dict[str, Any],
) -> None:
    script.steps = [answer]
    assert proposer(dialect=dialect, notation=notation, **GIVEN).propose(ASK).text == CANONICAL
    (body,) = script.bodies
    messages = body.pop("input" if dialect == "openai-responses" else "messages")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert body == {"model": "m", **expected}
    assert script.paths == [path]


def test_settings_that_are_not_given_are_not_sent(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD)]
    proposer().propose(ASK)
    assert set(script.bodies[0]) == {"model", "messages", "max_tokens"}


def test_the_log_holds_the_request_as_it_was_sent(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    script.steps = [chat(GOOD)]
    proposer(dialect="vllm", temperature=0.3).propose(ASK)
    ((request, response, url, model),) = rows(database, "request, response, url, model")
    assert json.loads(request) == script.bodies[0]
    assert json.loads(response) == chat(GOOD)["body"]
    assert (url, model) == (f"{script.url}/chat/completions", "m")


@pytest.mark.parametrize(
    "answer",
    [
        BY_TOOL,
        responses({"type": "message", "content": [{"type": "output_text", "text": f"```\n{GOOD}\n```"}]}),
        responses({"type": "custom_tool_call", "name": "emit", "input": f"```\n{GOOD}\n```"}),
    ],
)
def test_answers_of_the_responses_api(script: Script, proposer: Make, answer: Step) -> None:
    script.steps = [answer]
    one = proposer(dialect="openai-responses")
    assert one.propose(ASK).text == CANONICAL
    assert (one.spent.tokens_in, one.spent.tokens_out) == (100, 20)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (responses({"type": "reasoning"}, cut=True), "only thinking, and its 4,096 tokens were spent"),
        (responses({"type": "custom_tool_call", "input": GOOD}, cut=True), "cut off after 4,096 tokens"),
        (responses({"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}), "refused: no"),
    ],
)
def test_the_responses_api_says_what_is_missing(
    script: Script, proposer: Make, answer: Step, words: str
) -> None:
    script.steps = [answer]
    assert words in str(proposer(dialect="openai-responses").propose(ASK).reason)


def test_text_in_parts_is_joined(script: Script, proposer: Make) -> None:
    parts: Any = [{"type": "text", "text": GOOD[:10]}, {"type": "image"}, {"type": "text", "text": GOOD[10:]}]
    script.steps = [chat(parts)]
    assert proposer().propose(ASK).text == CANONICAL


@pytest.mark.parametrize(
    ("owner", "field"),
    [("vllm", "structured_outputs"), ("sglang", "ebnf"), ("llamacpp", "grammar"), ("somebody", None)],
)
def test_auto_finds_the_dialect_by_who_owns_the_models(
    script: Script, proposer: Make, owner: str, field: str | None
) -> None:
    script.owned_by, script.steps = owner, [chat(GOOD)]
    assert proposer(dialect="auto").propose(ASK).text == CANONICAL
    assert set(script.bodies[0]) - {"model", "messages", "max_tokens"} == ({field} - {None})
    proposer(dialect="auto").propose(replace(ASK, key="another"))
    assert script.lists == 1


def test_auto_falls_back_to_plain_on_a_refused_grammar_and_remembers_it(
    script: Script, proposer: Make, database: sqlite3.Connection, time: Any
) -> None:
    script.owned_by, script.steps = "vllm", [refusal(400, "grammar is not valid"), chat(GOOD)]
    assert proposer(dialect="auto").propose(ASK).text == CANONICAL
    proposer(dialect="auto").propose(replace(ASK, key="another"))
    assert ["structured_outputs" in body for body in script.bodies] == [True, False, False]
    assert rows(database, "dialect, status") == [("vllm", 400), ("plain", 200), ("plain", 200)]
    assert time.slept == []


def test_a_refusal_of_something_else_does_not_cost_the_grammar(script: Script, proposer: Make) -> None:
    script.owned_by, script.steps = "vllm", [refusal(400, "the prompt is too long")]
    assert proposer(dialect="auto").propose(ASK).reason == "status 400: the prompt is too long"
    script.steps = [chat(GOOD)]
    proposer(dialect="auto").propose(replace(ASK, key="another"))
    assert ["structured_outputs" in body for body in script.bodies] == [True, False, True]


def test_a_dialect_that_is_set_is_kept(script: Script, proposer: Make) -> None:
    script.steps = [refusal(400, "grammar is not valid")]
    assert proposer(dialect="vllm").propose(ASK).reason == "status 400: grammar is not valid"
    assert len(script.bodies) == 1


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("https://api.openai.com/v1", "openai-responses"),
        ("https://me.openai.azure.com/openai/v1", "openai-chat"),
    ],
)
def test_auto_knows_the_hosts_of_openai_without_asking(
    database: sqlite3.Connection, settings: ModelSettings, url: str, dialect: str
) -> None:
    changed = replace(settings, dialect="auto", base_url=url)
    one = ModelServer(changed, address_of(changed, {}), CallLog(database), lambda: 0.0, lambda _: None)
    assert one.dialect().name == dialect


def test_auto_without_a_list_of_models_asks_plainly_and_looks_again(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    script.owned_by, script.list_status, script.steps = "vllm", 500, [chat(GOOD)]
    proposer(dialect="auto").propose(ASK)
    script.list_status = 200
    proposer(dialect="auto").propose(replace(ASK, key="another"))
    assert rows(database, "dialect") == [("plain",), ("vllm",)]
