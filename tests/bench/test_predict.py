"""What is predicted for requests that come one at a time, where it can be counted by hand."""

from __future__ import annotations

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.bench.predict import Engine, predict_hits
from tanren_dsl.bench.prompts import Sizes, fitted, paced, prompts
from tanren_dsl.check import loads
from tanren_dsl.trace.read import read_trace
from tests.bench.fake import BLOCK, FakeServer

TABLE = fitted(read_trace("chat:2:30"), Sizes(4096, 4096, tokens_per_id=2, output_cap=4))
ENGINE = Engine("vllm-0.32", BLOCK, 16, 2048, 4096, asynchronous=False)


def hits(text: str | None, blocks: int, step_us: int | None = None) -> int:
    policy = None if text is None else loads(text)
    return predict_hits(policy, TABLE, ENGINE, blocks, compile_ordering, step_us=step_us)


def test_a_cache_that_is_large_enough_finds_every_block_that_was_sent_before() -> None:
    with FakeServer() as server:
        for prompt in prompts(TABLE, 4096):
            server.admit(prompt)
    assert hits(None, 5000) == server.counters["hits"] > 0


def test_a_small_cache_forgets_and_a_policy_forgets_others() -> None:
    keep = "policy keep : evict\ncandidates all\norder by 1 if uses > 0 else 0, last_use"
    assert hits("policy same : evict order by last_use", 48) == hits(None, 48) < hits(None, 5000)
    assert hits(keep, 48) != hits(None, 48)


def test_requests_that_overlap_are_predicted_by_their_arrivals() -> None:
    together = paced(TABLE, 1e6, "even", 0)
    found = predict_hits(None, together, ENGINE, 5000, compile_ordering, step_us=20_000)
    assert 0 <= found <= hits(None, 5000)
