"""Servers that are busy, broken, slow or particular: attempts, waits, and fields that are left out."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest

from tanren_dsl.evolve.llm.backoff import wait_of
from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.proposer import Proposer
from tests.evolve.llm.conftest import ASK, CANONICAL, GOOD, Make, Time, rows
from tests.evolve.llm.scripted import Script, Step, chat, refusal

BUSY = refusal(429, "slow down")


def test_a_wait_that_a_server_asks_for_is_kept(script: Script, proposer: Make, time: Time) -> None:
    script.steps = [refusal(429, "slow down", retry_after=7), chat(GOOD)]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls, time.slept) == (CANONICAL, 2, [7.0])


def test_a_wait_may_be_asked_for_as_a_date(script: Script, proposer: Make, time: Time) -> None:
    date = formatdate(time.now + 11, usegmt=True)
    script.steps = [refusal(503, "loading", retry_after=date), chat(GOOD)]
    assert proposer().propose(ASK).text == CANONICAL
    assert time.slept == [11.0]


@pytest.mark.parametrize(
    ("wish", "wait"),
    [("3600", 60.0), ("-5", 0.0), ("1.5", 1.5), ("Thu, 01 Jan 1970 00:01:40 GMT", 0.0), ("0", 0.0)],
)
def test_a_wish_is_held_in_bounds(wish: str, wait: float) -> None:
    assert wait_of(1, "seed", 60.0, wish, 1000.0) == wait


def test_waits_are_random_grow_and_are_the_seeds_own() -> None:
    waits = [[wait_of(n, f"{seed}:{n}", 60.0, "soon", 0.0) for n in range(1, 12)] for seed in range(50)]
    assert all(0 <= wait <= min(60.0, 2.0 ** (n - 1)) for row in waits for n, wait in enumerate(row, 1))
    assert len({row[0] for row in waits}) == 50
    assert max(row[-1] for row in waits) > 50 > 5 > min(row[-1] for row in waits)
    assert waits[3] == [wait_of(n, f"3:{n}", 60.0, "nan", 0.0) for n in range(1, 12)]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_failures_of_a_moment_are_tried_again(
    script: Script, proposer: Make, time: Time, database: sqlite3.Connection, status: int
) -> None:
    script.steps = [refusal(status, "a moment"), refusal(status, "a moment"), chat(GOOD)]
    assert proposer().propose(ASK).text == CANONICAL
    assert rows(database, "attempt, status, tokens_out") == [(1, status, 0), (2, status, 0), (3, 200, 20)]
    assert len(time.slept) == 2
    waited = [row[0] for row in rows(database, "waited_s")]
    assert waited == pytest.approx([*time.slept, 0.0], abs=1e-6)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_other_refusals_are_final(script: Script, proposer: Make, status: int) -> None:
    script.steps = [refusal(status, "no such thing")]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.reason, proposal.calls) == (None, f"status {status}: no such thing", 1)


def test_attempts_come_to_an_end(script: Script, proposer: Make, time: Time) -> None:
    script.steps = [BUSY]
    proposal = proposer(attempts=3).propose(ASK)
    assert (proposal.reason, proposal.calls) == ("status 429: slow down (3 attempts)", 3)
    assert len(time.slept) == 2


def test_a_server_that_does_not_answer_in_time_has_had_its_attempt(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    script.steps = [{**chat(GOOD), "delay": 1.0}, chat(GOOD)]
    assert proposer(timeout_s=0.3).propose(ASK).text == CANONICAL
    first, second = rows(database, "status, error, tokens_out, done")
    assert first == (None, "no answer within 0.3 s", 4096, 1)  # it may have worked all the time
    assert second[0] == 200


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for(
    script: Script, settings: Any, database: sqlite3.Connection
) -> None:
    script.steps = [{**chat(GOOD), "piece": 10, "pause": 0.15}]
    changed = replace(settings, timeout_s=0.4, attempts=1)
    with Proposer(changed, CallLog(database)) as one:
        assert one.propose(ASK).reason == "no whole answer within 0.4 s (1 attempts)"
    assert rows(database, "seconds < 0.9") == [(1,)]


@pytest.mark.parametrize(
    "step",
    [
        {"status": 200, "body": "<html>please log in</html>"},
        {"status": 200, "body": {"choices": []}},
        {"status": 200, "body": {"error": {"message": "no provider"}}},
        {"status": 200, "body": []},
        {"status": 200, "body": "{", "missing": 40},
    ],
)
def test_what_is_no_answer_is_tried_again(script: Script, proposer: Make, step: Step) -> None:
    script.steps = [step, chat(GOOD)]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls) == (CANONICAL, 2)


def test_a_server_that_is_not_there_costs_nothing(proposer: Make, database: sqlite3.Connection) -> None:
    proposal = proposer(base_url="http://127.0.0.1:9/v1", attempts=2).propose(ASK)
    assert "the connection failed" in str(proposal.reason)
    assert rows(database, "tokens_in + tokens_out, done") == [(0, 1), (0, 1)]


@pytest.mark.parametrize(
    ("field", "answer"),
    [
        ("seed", refusal(400, 'Invalid JSON payload received. Unknown name "seed": Cannot find field.')),
        (
            "temperature",
            refusal(400, "Unsupported value: 'temperature' does not support 0.5 with this model."),
        ),
        ("top_p", {"status": 400, "body": {"error": {"message": "not supported", "param": "top_p"}}}),
        (
            "reasoning_effort",
            {
                "status": 422,
                "body": {
                    "detail": [{"loc": ["body", "reasoning_effort"], "msg": "Extra inputs are not permitted"}]
                },
            },
        ),
    ],
)
def test_a_field_that_a_server_does_not_know_is_left_out_from_then_on(
    script: Script, proposer: Make, time: Time, field: str, answer: Step
) -> None:
    script.steps = [answer, chat(GOOD)]
    given = {"temperature": 0.5, "top_p": 0.9, "seed": True, "reasoning_effort": "low"}
    assert proposer(**given).propose(ASK).text == CANONICAL
    first, second = script.bodies
    assert {**second, field: first[field]} == first
    assert field not in second
    assert time.slept == []

    proposer(**given).propose(replace(ASK, key="g3.p13"))
    assert field not in script.bodies[2]
    assert len(script.bodies) == 3


def test_a_limit_is_sent_under_its_other_name(script: Script, proposer: Make) -> None:
    words = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    script.steps = [refusal(400, words), chat(GOOD)]
    assert proposer().propose(ASK).text == CANONICAL
    first, second = script.bodies
    assert second.pop("max_completion_tokens") == first.pop("max_tokens") == 4096
    assert first == second


def test_a_value_that_is_wrong_drops_no_field(script: Script, proposer: Make) -> None:
    script.steps = [refusal(400, "max_tokens is too large: 4096. This model has a context of 1024.")]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls) == (None, 1)
    assert "too large" in str(proposal.reason)


def test_our_key_never_reaches_the_log(
    script: Script, proposer: Make, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-1")
    script.steps = [refusal(401, "wrong key sk-secret-1")]
    proposal = proposer(needs_key=True).propose(ASK)
    assert script.headers[0]["authorization"] == "Bearer sk-secret-1"
    assert proposal.reason == "status 401: wrong key (key)"
    assert "sk-secret" not in "\n".join(database.iterdump())


def test_nothing_of_the_environment_is_sent_to_a_server_that_wants_no_key(
    script: Script, proposer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret")
    script.steps = [chat(GOOD)]
    proposer().propose(ASK)
    assert "secret" not in "".join(script.headers[0].values())
    assert "authorization" not in script.headers[0]


def test_an_interrupted_wait_counts_and_the_next_run_goes_on(
    script: Script, proposer: Make, time: Time, database: sqlite3.Connection
) -> None:
    one = proposer()

    def interrupted(seconds: float) -> None:
        time.now += seconds / 2
        raise KeyboardInterrupt

    script.steps = [refusal(429, "slow down", retry_after=8), chat(GOOD)]
    assert one._server is not None
    one._server._sleep = interrupted
    with pytest.raises(KeyboardInterrupt):
        one.propose(ASK)
    assert rows(database, "waited_s") == [(4.0,)]
    proposal = proposer().propose(ASK)
    assert (proposal.text, proposal.calls) == (CANONICAL, 2)
