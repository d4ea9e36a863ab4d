"""The client against a server that streams: what is sent, when relative to others, what is recorded."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest

from tanren_dsl.bench.client import Record, Request, completion, replay
from tests.bench.fake import FakeServer, running


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running() as server:
        yield server


def load(count: int, gap_s: float = 0.0, tokens: int = 4, first: int = 100) -> list[Request]:
    return [completion("m", [first + i, 5, 6], tokens, i * gap_s) for i in range(count)]


def test_what_is_sent_fixes_prompt_and_length(server: FakeServer) -> None:
    (record,) = replay(server.url, [completion("m", [7, 8, 9], 5)], timeout_s=30)
    (asked,) = server.seen
    assert asked == {
        "model": "m", "prompt": [7, 8, 9], "max_tokens": 5, "min_tokens": 5, "ignore_eos": True,
        "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert (record.output_tokens, record.prompt_tokens, record.status, record.error) == (5, 3, 200, None)
    assert record.ttft_s is not None
    assert record.e2e_s is not None
    assert record.tpot_s == (record.e2e_s - record.ttft_s) / 4
    assert 0 < record.ttft_s <= record.e2e_s


def test_open_loop_sends_on_while_others_are_in_flight() -> None:
    with running(delay_s=0.1) as server:
        records = replay(server.url, load(20), timeout_s=30)
    assert server.most_in_flight > 15
    assert [record.index for record in records] == list(range(20))
    assert all(record.error is None for record in records)


def test_requests_leave_in_their_order_and_not_before_their_time(server: FakeServer) -> None:
    records = replay(server.url, load(8, gap_s=0.05), timeout_s=30)
    assert [asked["prompt"][0] for asked in server.seen] == list(range(100, 108))
    assert all(record.sent_s >= record.planned_s for record in records)
    assert [record.planned_s for record in records] == [0.05 * i for i in range(8)]


def test_serial_keeps_one_in_flight_and_waits_for_no_time(server: FakeServer) -> None:
    finished: list[int] = []
    records = replay(server.url, load(6, gap_s=1e6), timeout_s=30, serial=True, progress=finished.append)
    assert server.most_in_flight == 1
    assert [asked["prompt"][0] for asked in server.seen] == list(range(100, 106))
    assert finished == [1, 2, 3, 4, 5, 6]
    assert all(record.error is None for record in records)


@pytest.mark.parametrize(
    ("fault", "status", "tokens", "error"),
    [
        ("refuse", 400, 0, "status 400: too long"),
        ("short", 200, 3, "3 tokens came, 4 were asked for"),
        ("complain", 200, 2, "the engine is dead"),
        ("die", 200, 2, "RemoteProtocolError: "),
        ("other", 200, 4, "the server saw 4 prompt tokens, 3 were sent"),
    ],
)
def test_a_failure_is_recorded_once_and_leaves_the_others_alone(
    server: FakeServer, fault: str, status: int, tokens: int, error: str
) -> None:
    server.faults[101] = fault
    first, failed, last = replay(server.url, load(3), timeout_s=30)
    assert len(server.seen) == 3
    assert (first.error, last.error) == (None, None)
    assert (failed.status, failed.output_tokens) == (status, tokens)
    assert failed.error is not None
    assert failed.error.startswith(error)
    assert (failed.e2e_s, failed.tpot_s) == (None, None)
    assert (failed.ttft_s is None) == (tokens == 0)


def test_a_server_without_usage_records_is_counted_by_events(server: FakeServer) -> None:
    server.faults[100] = "plain"
    (record,) = replay(server.url, load(1), timeout_s=30)
    assert (record.output_tokens, record.error) == (4, None)


def test_a_request_that_takes_too_long_is_given_up(server: FakeServer) -> None:
    server.faults[100] = "hang"
    late, fine = replay(server.url, load(2), timeout_s=0.5)
    assert late.error is not None
    assert late.error.startswith("not ended after 0.5 s")
    assert late.ttft_s is None
    assert fine.error is None


def test_a_server_that_is_not_there_is_an_error_of_every_request() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    records = replay(f"http://127.0.0.1:{port}", load(3), timeout_s=5)
    assert [record.status for record in records] == [None] * 3
    assert all(record.error is not None and "ConnectError" in record.error for record in records)


def test_a_record_survives_its_line() -> None:
    record = Record(3, 0.5, 0.5000014, 0.25, 1.0, 7, 4, 200, None)
    again = Record.from_json(record.as_json())
    assert again.sent_s == 0.500001
    assert (again.index, again.tpot_s) == (3, 0.25)
    assert record.as_json()["tpot_s"] == 0.25


def test_the_garbage_collector_runs_again_afterwards(server: FakeServer) -> None:
    replay(server.url, load(1), timeout_s=5)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
