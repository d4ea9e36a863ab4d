"""The look at a server before a run."""

from __future__ import annotations

import sqlite3

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.settings import Caps
from tests.evolve.llm.conftest import GOOD, Make, rows
from tests.evolve.llm.scripted import Script, chat, refusal


def test_a_probe_says_who_is_asked_and_how(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    script.owned_by, script.steps = "vllm", [chat("policy", "length", usage=(30, 16))]
    one = proposer(dialect="auto", temperature=1.0, caps=Caps(calls=50, usd=2.0), price_in=1.0, price_out=2.0)
    said = [f"model m at {script.url}", "dialect vllm: the grammar is taken", "at most 50 calls, 2.0 USD"]
    assert one.probe().splitlines() == said
    (body,) = script.bodies
    assert body["max_tokens"] == 16
    assert "grammar" in body["structured_outputs"]
    assert rows(database, "key, tokens_in, tokens_out") == [("probe", 30, 16)]
    assert proposer(dialect="auto", caps=Caps(calls=9)).probe().splitlines()[1] == said[1]
    assert len(script.bodies) == 1


def test_a_probe_finds_out_that_the_grammar_is_refused(script: Script, proposer: Make) -> None:
    script.owned_by, script.steps = "vllm", [refusal(400, "no grammars here"), chat(GOOD)]
    lines = proposer(dialect="auto").probe().splitlines()
    assert lines[1] == "dialect plain: no grammar is sent, answers are read by the parser"
    assert lines[2] == "no cap on calls, tokens, money or time"


def test_a_probe_of_a_set_dialect_says_what_failed(script: Script, proposer: Make) -> None:
    script.steps = [refusal(400, "no grammars here")]
    lines = proposer(dialect="vllm").probe().splitlines()
    assert lines[1:3] == [
        "a short call with the grammar failed: status 400: no grammars here",
        "dialect vllm: no answer to a request with the grammar yet",
    ]


def test_a_probe_says_what_is_not_sent(script: Script, proposer: Make) -> None:
    script.steps = [refusal(400, "Unknown name 'seed'"), chat(GOOD)]
    lines = proposer(dialect="llama.cpp", reasoning_effort="low", seed=True).probe().splitlines()
    assert lines[2] == "not sent, since the server does not take it: seed, reasoning_effort"


@pytest.mark.parametrize(
    ("status", "words"), [(401, "refuses m: status 401: no key"), (404, "refuses m: status 404: no key")]
)
def test_a_probe_stops_a_run_that_cannot_work(
    script: Script, proposer: Make, status: int, words: str
) -> None:
    script.steps = [refusal(status, "no key")]
    with pytest.raises(TanrenError, match=words):
        proposer().probe()


def test_a_probe_of_nobody_is_an_error(proposer: Make) -> None:
    with pytest.raises(TanrenError, match=r"http://127\.0\.0\.1:9/v1 does not answer"):
        proposer(base_url="http://127.0.0.1:9/v1").probe()


def test_a_probe_keeps_within_the_caps(script: Script, proposer: Make) -> None:
    said = proposer(caps=Caps(calls=0)).probe()
    assert "failed: the cap of 0 calls is reached" in said
    assert script.bodies == []


def test_a_probe_that_failed_is_made_again(script: Script, proposer: Make) -> None:
    script.steps = [refusal(503, "loading")]
    assert "failed: status 503: loading (2 attempts)" in proposer(dialect="vllm", attempts=2).probe()
    script.steps = [chat(GOOD)]
    assert "dialect vllm: the grammar is taken" in proposer(dialect="vllm", attempts=2).probe()
