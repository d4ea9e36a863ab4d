"""Caps, resumed runs, killed processes and replays: what the log says holds."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time as real_time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tanren_dsl.errors import TanrenError
from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.proposer import Proposal, Proposer
from tanren_dsl.evolve.llm.settings import Caps, ModelSettings
from tests.evolve.llm.conftest import ASK, CANONICAL, GOOD, ILL_TYPED, Make, Time, rows
from tests.evolve.llm.scripted import Script, chat, refusal

PRICES = {"price_in": 1.0, "price_out": 10.0}


def test_an_ask_is_answered_once(script: Script, proposer: Make) -> None:
    script.steps = [chat(ILL_TYPED), chat(GOOD)]
    first = proposer().propose(ASK)
    assert first == Proposal(CANONICAL, None, 2)
    assert proposer().propose(ASK) == first
    assert len(script.bodies) == 2


def test_another_ask_of_the_same_name_is_asked(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD)]
    one = proposer()
    one.propose(ASK)
    one.propose(replace(ASK, diagnosis="other facts"))
    assert len(script.bodies) == 2


def test_an_answer_that_came_before_a_kill_is_used(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    """Killed between the two turns, the second run makes the second call only."""
    script.steps = [chat(ILL_TYPED), chat(GOOD)]
    first = proposer().propose(ASK)
    with database:
        database.execute("delete from proposals")
        database.execute("delete from calls where turn = 1")
    script.steps = [chat(GOOD)]
    assert proposer().propose(ASK) == first
    assert rows(database, "turn") == [(0,), (1,)]
    assert len(script.bodies) == 3


@pytest.mark.parametrize("answers", [[refusal(500, "broken")], [chat(ILL_TYPED)], [refusal(401, "no")]])
def test_a_failure_is_an_outcome_that_holds(script: Script, proposer: Make, answers: list[Any]) -> None:
    script.steps = answers
    first = proposer(attempts=2).propose(ASK)
    assert first.text is None
    count = len(script.bodies)
    script.steps = [chat(GOOD)]
    assert proposer().propose(ASK) == first
    assert len(script.bodies) == count


def test_attempts_of_a_run_that_ended_count(
    script: Script, proposer: Make, database: sqlite3.Connection
) -> None:
    script.steps = [refusal(500, "broken")]
    first = proposer(attempts=2).propose(ASK)
    with database:
        database.execute("delete from proposals")
    assert proposer(attempts=2).propose(ASK) == first
    assert len(script.bodies) == 2


CAPS = [
    (Caps(calls=2), "the cap of 2 calls is reached"),
    (Caps(tokens=26_000), "the cap of 26,000 tokens leaves"),
    (Caps(usd=0.06), "the cap of 0.06 USD leaves"),
    (Caps(wall_s=100.0), "the cap of 100 s is reached"),
]


@pytest.mark.parametrize(("caps", "words"), CAPS)
def test_a_cap_stops_before_the_next_call_and_in_a_resumed_run_too(
    script: Script, proposer: Make, database: sqlite3.Connection, caps: Caps, words: str
) -> None:
    settings: dict[str, Any] = {"caps": caps, "max_tokens": 2000, **PRICES}
    one = proposer(**settings)
    script.steps = [chat(GOOD, usage=(8000, 1500))]
    asks = [replace(ASK, key=f"g0.p{place}") for place in range(6)]
    proposals = []
    for ask in asks:
        proposals.append(one.propose(ask))
        if caps.wall_s is not None:
            with database:
                database.execute("update calls set seconds = 60 where seconds < 60")
    made = len(script.bodies)
    assert made == 2
    assert [proposal.text for proposal in proposals] == [CANONICAL, CANONICAL, None, None, None, None]
    assert all(str(proposal.reason).startswith(words) for proposal in proposals[2:])
    assert str(one.exhausted).startswith(words)

    resumed = proposer(**settings)
    assert [resumed.propose(ask) for ask in asks] == proposals
    assert str(resumed.propose(replace(ASK, key="new")).reason).startswith(words)
    assert str(resumed.exhausted).startswith(words)
    richer = proposer(**{**settings, "caps": Caps()})
    assert [richer.propose(ask) for ask in asks] == proposals
    assert len(script.bodies) == made
    spent = resumed.spent
    assert (spent.calls, spent.tokens_in, spent.tokens_out) == (2, 16_000, 3_000)
    assert spent.usd == pytest.approx(0.046)


@pytest.mark.parametrize("caps", [Caps(calls=0), Caps(tokens=3000), Caps(usd=0.001), Caps(wall_s=0.0)])
def test_a_cap_may_allow_no_call_at_all(script: Script, proposer: Make, caps: Caps) -> None:
    one = proposer(caps=caps, **PRICES, dialect="auto")
    assert one.propose(ASK).reason is not None
    assert one.exhausted is not None
    assert script.bodies == []


def test_a_cap_stops_between_attempts(script: Script, proposer: Make, time: Time) -> None:
    script.steps = [refusal(500, "broken")]
    proposal = proposer(caps=Caps(calls=3), attempts=10).propose(ASK)
    assert (proposal.reason, proposal.calls) == ("the cap of 3 calls is reached", 3)
    assert len(time.slept) == 3


def test_a_wait_that_time_does_not_allow_is_not_begun(script: Script, proposer: Make, time: Time) -> None:
    script.steps = [refusal(429, "slow down", retry_after=50)]
    one = proposer(caps=Caps(wall_s=30.0))
    proposal = one.propose(ASK)
    assert str(proposal.reason).startswith("the cap of 30 s leaves no room for a wait of 50.0 s")
    assert (time.slept, len(script.bodies)) == ([], 1)
    assert one.exhausted is not None


def test_waits_count_as_time(script: Script, proposer: Make) -> None:
    script.steps = [refusal(429, "slow down", retry_after=50), chat(GOOD)]
    one = proposer(caps=Caps(wall_s=50.5))
    assert one.propose(ASK).text == CANONICAL
    assert 50.0 <= one.spent.wall_s < 50.5


def test_free_calls_go_on_at_a_cap_of_no_money(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD)]
    assert proposer(caps=Caps(usd=0.0), price_in=0.0, price_out=0.0).propose(ASK).text == CANONICAL


def test_money_without_prices_is_refused(proposer: Make) -> None:
    with pytest.raises(TanrenError, match=r"expected models\.price_out") as caught:
        proposer(caps=Caps(usd=5.0), price_in=1.0)
    assert "USD" not in str(caught.value.diagnostics[0].message).split("expected")[1]


def test_an_answer_that_counts_nothing_is_counted_at_its_worst(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD, usage=None)]
    one = proposer(max_tokens=500)
    one.propose(ASK)
    assert one.spent.tokens_out == 500
    assert one.spent.tokens_in > 2000


def test_a_limit_that_a_cap_needs_is_not_given_up(script: Script, proposer: Make) -> None:
    script.steps = [refusal(400, "Unsupported parameter: 'max_tokens'")]
    proposal = proposer(dialect="vllm", caps=Caps(tokens=10**6)).propose(ASK)
    assert proposal.reason == "the server takes no limit on the tokens of an answer, and a cap needs one"
    assert len(script.bodies) == 1


KILLED = """
import sqlite3, sys
from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.proposer import Proposer
from tanren_dsl.evolve.llm.settings import ModelSettings
from tests.evolve.llm.conftest import ASK
settings = ModelSettings(dialect="plain", base_url=sys.argv[1], model="m", needs_key=False, max_tokens=700)
Proposer(settings, CallLog(sqlite3.connect(sys.argv[2]))).propose(ASK)
"""


def test_a_call_that_was_killed_in_flight_counts_at_its_worst(
    script: Script, proposer: Make, database: sqlite3.Connection, tmp_path: Path
) -> None:
    script.steps = [{**chat(GOOD), "delay": 1.5}]
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", KILLED, script.url, str(tmp_path / "run.sqlite")]
    process = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    deadline = real_time.monotonic() + 60
    while not script.bodies and real_time.monotonic() < deadline:
        real_time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()

    script.steps = [chat(GOOD)]
    resumed = proposer(max_tokens=700)
    before = resumed.spent
    assert (before.calls, before.tokens_out, before.wall_s) == (1, 700, 300.0)
    assert before.tokens_in > 2000
    assert rows(database, "done, status") == [(0, None)]
    proposal = resumed.propose(ASK)
    assert proposal == Proposal(CANONICAL, None, 2)
    assert rows(database, "attempt, done") == [(1, 0), (2, 1)]


def test_a_replay_asks_nobody(
    script: Script, proposer: Make, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.steps = [chat(ILL_TYPED), chat(GOOD), refusal(404, "gone")]
    one = proposer()
    asks = [ASK, replace(ASK, key="g3.p13")]
    proposals = [one.propose(ask) for ask in asks]

    def no_client(*_: object) -> None:
        raise AssertionError("a client was made")

    monkeypatch.setattr("tanren_dsl.evolve.llm.client.Client", no_client)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "TANREN_MODEL"):
        monkeypatch.delenv(name, raising=False)
    replayed = proposer(replay_only=True, base_url=None, needs_key=True, model="m")
    assert [replayed.propose(ask) for ask in asks] == proposals
    assert replayed.probe() == "models: replayed from the log of 3 calls, no server is asked"
    with database:
        database.execute("delete from proposals where key = ?", (ASK.key,))
    assert replayed.propose(ASK) == proposals[0]  # from its answers alone


def test_a_replay_says_what_is_missing(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD)]
    proposer().propose(ASK)
    replayed = proposer(replay_only=True)
    with pytest.raises(TanrenError, match=r"no answer to 'g9\.p9' \(turn 0\): it holds nothing of this name"):
        replayed.propose(replace(ASK, key="g9.p9"))
    with pytest.raises(TanrenError, match=r"no answer to 'g3\.p12' \(turn 0\): it holds another request"):
        replayed.propose(replace(ASK, objective="another"))


def test_a_log_that_cannot_be_written_is_said(
    tmp_path: Path, settings: ModelSettings, script: Script
) -> None:
    path = tmp_path / "run.sqlite"
    db = sqlite3.connect(path)
    CallLog(db)
    db.close()
    script.steps = [chat(GOOD)]
    readonly = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with (
        Proposer(settings, CallLog(readonly)) as one,
        pytest.raises(TanrenError, match="cannot write the log"),
    ):
        one.propose(ASK)
    readonly.close()
    assert script.bodies == []


def test_what_was_spent_reads_as_words(script: Script, proposer: Make) -> None:
    script.steps = [chat(GOOD)]
    one = proposer(**PRICES)
    one.propose(ASK)
    assert str(one.spent) == "1 calls, 100 tokens in and 20 out, 0.0003 USD, 0 s"
    assert asdict(one.spent)["calls"] == 1
