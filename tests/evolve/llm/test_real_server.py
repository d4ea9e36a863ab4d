"""A real vLLM with a model of random weights: whatever it writes under our grammar can be parsed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tanren_dsl.bench.cpu import cpu_spec
from tanren_dsl.bench.server import Server, serve
from tanren_dsl.evolve.llm.calls import CallLog
from tanren_dsl.evolve.llm.proposer import Proposer
from tanren_dsl.evolve.llm.server import Failed, ModelServer, Turn
from tanren_dsl.evolve.llm.settings import ModelSettings, address_of
from tanren_dsl.grammar.renderings import Limits
from tanren_dsl.parser import parse
from tanren_dsl.source import Source
from tests.conform.environments import engine_python
from tests.evolve.llm.byte_model import make_byte_model
from tests.evolve.llm.conftest import ASK, rows

FLAT = Limits(parts=1, letters=8, doc=20, blanks=1, depth=0)
"""Narrow enough that an answer of random letters ends by itself, most often within 150 tokens."""
NESTED = replace(FLAT, depth=1)
"""With brackets, it takes up to some 700."""
LONGEST = 12_288


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    python = engine_python("0.32.0")
    folder = tmp_path_factory.mktemp("model")
    model = make_byte_model(folder / "model", LONGEST)
    # one thread: several wait for each other by spinning, which a busy machine turns into minutes
    spec = cpu_spec(python, model, 1024, max_num_seqs=4, environment={"OMP_NUM_THREADS": "1"})
    with serve(replace(spec, max_model_len=LONGEST), folder / "log") as running:
        yield running


@pytest.fixture
def settings(server: Server) -> ModelSettings:
    # no seed: with one, this server's CPU build fails at prompts that it takes in several steps
    return ModelSettings(
        dialect="auto",
        base_url=f"{server.url}/v1",
        model=server.model,
        needs_key=False,
        temperature=1.0,
        max_tokens=200,
        timeout_s=120.0,
        attempts=1,
    )


def answers(settings: ModelSettings, database: sqlite3.Connection, limits: Limits, count: int) -> list[str]:
    """What the model writes and brings to an end itself, out of so many answers."""
    one = ModelServer(settings, address_of(settings), CallLog(database), _now, _no_wait, limits)
    ended = []
    for number in range(count):
        message = {"role": "user", "content": f"Write policy {number}."}
        reply = one.ask(Turn(f"a{number}", 0, f"{limits}", (message,), number))
        assert not isinstance(reply, Failed), reply.reason
        if not reply.is_cut:
            ended.append(reply.text)
    one.close()
    assert one.dialect().name == "vllm"
    assert rows(database, "distinct status") == [(200,)]  # each was taken as it was sent
    return ended


def test_whatever_a_model_writes_under_our_grammar_can_be_parsed(
    settings: ModelSettings, database: sqlite3.Connection
) -> None:
    texts = answers(replace(settings, max_tokens=250), database, FLAT, 15)
    texts += answers(replace(settings, max_tokens=500), database, NESTED, 5)
    assert len(set(texts)) == len(texts) >= 12
    for text in texts:
        assert parse(Source("answer", text)).name


def test_the_lark_text_is_taken_too(settings: ModelSettings, database: sqlite3.Connection) -> None:
    """It has no limits: a random answer under it goes on to the end of its tokens."""
    texts = answers(replace(settings, notation="lark", max_tokens=40), database, FLAT, 2)
    for text in texts:
        assert text.startswith("policy")


def test_a_proposer_asks_it_with_the_whole_prompt(
    settings: ModelSettings, database: sqlite3.Connection
) -> None:
    with Proposer(settings, CallLog(database), limits=FLAT) as one:
        assert one.probe().splitlines()[:2] == [
            f"model {settings.model} at {settings.base_url}",
            "dialect vllm: the grammar is taken",
        ]
        proposal = one.propose(ASK)
        assert proposal.text is None  # random words are no signals
        assert proposal == Proposer(settings, CallLog(database), replay_only=True).propose(ASK)
    (first, *_) = rows(database, "status, tokens_in, tokens_out, request")[1:]
    status, tokens_in, tokens_out, request = first
    assert (status, json.loads(request)["temperature"]) == (200, 1.0)
    assert tokens_in > 5000
    assert 0 < tokens_out <= 200


def test_a_grammar_that_is_none_is_refused_and_plain_text_asked_for(
    settings: ModelSettings, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tanren_dsl.evolve.llm.dialects.ebnf_text", lambda _: "root ::= missing")
    one = ModelServer(
        replace(settings, max_tokens=16), address_of(settings), CallLog(database), _now, _no_wait
    )
    reply = one.ask(Turn("a", 0, "h", ({"role": "user", "content": "Write a policy."},), 1))
    one.close()
    assert not isinstance(reply, Failed)
    assert one.dialect().name == "plain"
    assert rows(database, "dialect, status") == [("vllm", 400), ("plain", 200)]


def _now() -> float:
    return 0.0


def _no_wait(seconds: float) -> None:
    raise AssertionError(f"a wait of {seconds} s")


def test_the_model_is_made_anew_alike(tmp_path: Path) -> None:
    one, other = make_byte_model(tmp_path / "a", LONGEST), make_byte_model(tmp_path / "b", LONGEST)
    assert (one / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
