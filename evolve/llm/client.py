"""One request to a server, through OpenAI's client with its own retries off.

The answer is read as text, so that it is kept as it came and a server with its own idea of a field
is no problem of ours; and it is read against a deadline, since a server may send a byte now and then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai

from tanren_dsl.evolve.llm.dialects import Api, Body
from tanren_dsl.evolve.llm.sent import Sent
from tanren_dsl.evolve.llm.settings import NO_KEY, Address, is_local

_CONNECT_S = 10.0
_LONGEST = 16 << 20
_SDK = frozenset(
    "model messages input tools tool_choice parallel_tool_calls temperature top_p max_tokens "  # noqa: SIM905
    "max_completion_tokens max_output_tokens seed reasoning_effort reasoning".split()
)
"""Fields that the client knows; others travel beside them, as it wants it."""


class Client:
    """A connection for each request: nothing is left open that somebody would have to close."""

    def __init__(self, address: Address, clock: Callable[[], float]) -> None:
        self._clock = clock
        # newer versions of the client are typed for a successor of httpx, and take both
        http: Any = httpx.Client(
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=not is_local(address.base_url),  # a proxy knows no server of this machine
        )
        self._headers: Any = dict.fromkeys(_unwanted(address), openai.Omit())
        self._openai = openai.OpenAI(
            base_url=address.base_url,
            api_key=address.key,
            max_retries=0,
            http_client=http,
        )

    def send(self, api: Api, body: Body, timeout_s: float) -> Sent:
        """Send a request and read the whole answer within so many seconds; never raises for a server."""
        known: dict[str, Any] = {name: value for name, value in body.items() if name in _SDK}
        extra = {name: value for name, value in body.items() if name not in _SDK}
        create: Any = (
            self._openai.responses.with_streaming_response.create
            if api == "responses"
            else self._openai.chat.completions.with_streaming_response.create
        )
        return self._read(
            lambda limit: create(
                **known, extra_body=extra or None, extra_headers=self._headers, timeout=limit
            ),
            timeout_s,
        )

    def models(self, timeout_s: float) -> Sent:
        """Ask for the list of models, likewise."""
        listed: Any = self._openai.models.with_streaming_response.list
        return self._read(lambda limit: listed(extra_headers=self._headers, timeout=limit), timeout_s)

    def close(self) -> None:
        """Close what is open."""
        self._openai.close()

    def _read(self, call: Callable[[httpx.Timeout], Any], timeout_s: float) -> Sent:
        deadline = self._clock() + timeout_s
        limit = httpx.Timeout(timeout_s, connect=min(_CONNECT_S, timeout_s))
        try:
            with call(limit) as response:
                chunks, length = [], 0
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    length += len(chunk)
                    if self._clock() > deadline:
                        return Sent(None, f"no whole answer within {timeout_s:g} s")
                    if length > _LONGEST:
                        return Sent(None, f"the answer has more than {_LONGEST:,} bytes")
                text = b"".join(chunks).decode("utf-8", "replace")
                return Sent(int(response.status_code), text)
        except openai.APIStatusError as error:
            after = error.response.headers.get("retry-after")
            return Sent(error.status_code, _body_of(error), after)
        except (openai.APITimeoutError, httpx.TimeoutException) as error:
            cause = error.__cause__ or error
            reached = "Connect" not in type(cause).__name__
            return Sent(None, f"no answer within {timeout_s:g} s", reached=reached)
        except (openai.APIConnectionError, httpx.HTTPError) as error:
            cause = error.__cause__ or error
            reached = "ConnectError" not in type(cause).__name__
            return Sent(None, f"the connection failed: {cause}", reached=reached)


def _unwanted(address: Address) -> list[str]:
    """Headers that the client would add from the environment, and that are not for this server."""
    headers = ["Authorization"] if address.key == NO_KEY else []
    is_theirs = (urlsplit(address.base_url).hostname or "").endswith("openai.com")
    return headers if is_theirs else [*headers, "OpenAI-Organization", "OpenAI-Project"]


def _body_of(error: openai.APIStatusError) -> str:
    """The body of a refusal as text."""
    try:
        return str(error.response.text)
    except (httpx.HTTPError, RuntimeError):  # not read, or broken off
        return json.dumps(error.body) if error.body is not None else error.message
