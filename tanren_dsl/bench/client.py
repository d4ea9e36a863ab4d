"""The load: requests sent at their times whatever the server does (open loop), and how long each took.

OpenAI-compatible completions over HTTP, streamed. It sends, it counts and it takes times; what is
sent was made before, and nothing is judged here. A request that fails is recorded with its error
and never sent again.

Times are of one clock, in seconds. Time to first token (TTFT) and time to the end of the stream
(E2E) count from the moment a request was handed to its connection; how much later that was than
planned is the drift. Time per output token is (E2E - TTFT) / (tokens - 1).
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import httpx

_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
_KEEP_IDLE_S = 2.0
"""An idle connection is closed before uvicorn does so after 5 s: else a request may meet its closing."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent, and when: seconds after the start of the replay. `body` is serialised already."""

    planned_s: float
    prompt_tokens: int
    output_tokens: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a request. Times in seconds; a time that was not reached is None.

    `planned_s` and `sent_s` count from the start of the replay, `ttft_s` and `e2e_s` from `sent_s`.
    `output_tokens` were received, by the server's own count. `status` is HTTP's. `error` is None if
    all tokens came that were asked for.
    """

    index: int
    planned_s: float
    sent_s: float
    ttft_s: float | None
    e2e_s: float | None
    prompt_tokens: int
    output_tokens: int
    status: int | None
    error: str | None

    @property
    def tpot_s(self) -> float | None:
        """Seconds an output token after the first; None for one token or a failed request."""
        if self.error is not None or self.ttft_s is None or self.e2e_s is None or self.output_tokens < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)

    def as_json(self) -> dict[str, Any]:
        """One line of `requests.jsonl`; microseconds are kept."""
        line = {**asdict(self), "tpot_s": self.tpot_s}
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in line.items()}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Record:
        """The record of a line."""
        return cls(**{name: line[name] for name in cls.__dataclass_fields__})


def completion(model: str, prompt: Sequence[int], output_tokens: int, planned_s: float = 0.0) -> Request:
    """A streamed completion of exactly so many output tokens."""
    body = {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return Request(planned_s, len(prompt), output_tokens, json.dumps(body, separators=(",", ":")).encode())


def replay(
    url: str,
    requests: Sequence[Request],
    *,
    timeout_s: float,
    serial: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[Record]:
    """Send every request and wait for all answers; records in the order of the requests.

    Args:
        url: address of the server, without a slash at its end.
        requests: in order of their planned times.
        timeout_s: seconds that a request may take from its sending to its end.
        serial: one after the other, each when the one before has ended; planned times are not used.
        progress: called with the number of finished requests.
    """
    with _no_collector():
        return asyncio.run(_replay(f"{url}/v1/completions", requests, timeout_s, serial, progress))


async def _replay(
    url: str,
    requests: Sequence[Request],
    timeout_s: float,
    serial: bool,
    progress: Callable[[int], None] | None,
) -> list[Record]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_IDLE_S)
    records: list[Record] = []

    async with httpx.AsyncClient(
        limits=limits, timeout=timeout_s, headers=_HEADERS, trust_env=False
    ) as client:
        start = time.perf_counter()

        async def send(index: int, request: Request) -> None:
            records.append(await _send(client, url, index, request, start, timeout_s))
            if progress is not None:
                progress(len(records))

        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(requests):
                if serial:
                    await send(index, request)
                    continue
                wait_s = start + request.planned_s - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                group.create_task(send(index, request))
    return sorted(records, key=lambda record: record.index)


async def _send(
    client: httpx.AsyncClient, url: str, index: int, request: Request, start: float, timeout_s: float
) -> Record:
    clock = time.perf_counter
    sent = clock()
    first = last = None
    status = error = None
    pieces: list[bytes] = []
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("POST", url, content=request.body) as response,
        ):
            status = response.status_code
            async for piece in response.aiter_raw():
                last = clock()
                if first is None and not piece.startswith(b":"):  # a comment of SSE keeps a connection alive
                    first = last
                pieces.append(piece)
    except TimeoutError:
        error = f"not ended after {timeout_s:g} s"
    except httpx.TimeoutException as problem:
        error = f"not ended after {timeout_s:g} s ({type(problem).__name__})"
    except httpx.HTTPError as problem:
        error = f"{type(problem).__name__}: {problem}".rstrip(": ")
    answer = b"".join(pieces)
    tokens, seen_prompt, complaint = (0, None, None) if status != 200 else _read(answer)
    if error is None:
        error = _error(request, status, answer, tokens, seen_prompt, complaint)
    return Record(
        index=index,
        planned_s=request.planned_s,
        sent_s=sent - start,
        ttft_s=first - sent if first is not None and tokens else None,
        e2e_s=last - sent if last is not None and error is None else None,
        prompt_tokens=request.prompt_tokens,
        output_tokens=tokens,
        status=status,
        error=error,
    )


def _read(answer: bytes) -> tuple[int, int | None, str | None]:
    """Output tokens, prompt tokens as the server saw them, and what the stream complains about.

    Without a usage record, as in a stream that broke off, each event counts as one token.
    """
    events = [line[5:].strip() for line in answer.split(b"\n") if line.startswith(b"data:")]
    complaint = None if events and events[-1] == b"[DONE]" else "the stream ended early"
    failed = next((event for event in events if event.startswith(b'{"error"')), None)
    if failed is not None:
        complaint = _message(failed)
    usage = next((found for event in reversed(events) if (found := _usage(event)) is not None), None)
    if usage is not None:
        return usage[0], usage[1], complaint
    return sum(event != b"[DONE]" and event is not failed for event in events), None, complaint


def _usage(event: bytes) -> tuple[int, int] | None:
    """Output and prompt tokens by the usage record of an event, if it has one."""
    if b'"completion_tokens"' not in event:
        return None
    try:
        usage = json.loads(event)["usage"]
        return int(usage["completion_tokens"]), int(usage["prompt_tokens"])
    except (ValueError, LookupError, TypeError):  # the event was cut short
        return None


def _error(
    request: Request,
    status: int | None,
    answer: bytes,
    tokens: int,
    seen_prompt: int | None,
    complaint: str | None,
) -> str | None:
    if status != 200:
        return f"status {status}: {_message(answer)}"
    if complaint is not None:
        return complaint
    if tokens != request.output_tokens:
        return f"{tokens} tokens came, {request.output_tokens} were asked for"
    if seen_prompt is not None and seen_prompt != request.prompt_tokens:
        return f"the server saw {seen_prompt} prompt tokens, {request.prompt_tokens} were sent"
    return None


def _message(answer: bytes) -> str:
    """The text of an error answer."""
    try:
        found = json.loads(answer)
        found = found.get("error", found)
        text = str(found.get("message", found)) if isinstance(found, dict) else str(found)
    except (ValueError, AttributeError):
        text = answer.decode("utf-8", errors="replace")
    return text.strip()[:_SHOWN]


@contextmanager
def _no_collector() -> Iterator[None]:
    """Pauses of the garbage collector, which grow with all that was imported, are kept out of the times."""
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
