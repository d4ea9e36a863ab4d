"""A trace by path or name: the format is recognised by content, never by file name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.azure import FIELDS as AZURE_FIELDS
from tanren_dsl.trace.azure import read_azure
from tanren_dsl.trace.files import load_text
from tanren_dsl.trace.generate import CHAT_BLOCK, CHAT_REQUESTS, generate_chat
from tanren_dsl.trace.mooncake import FIELDS, read_mooncake
from tanren_dsl.trace.planted import PLANTED_BLOCK, PLANTED_REQUESTS, generate_planted
from tanren_dsl.trace.table import RequestTable


class Reader(Protocol):
    """How a format is read; refuses with a `TanrenError`."""

    def __call__(  # noqa: D102
        self, path: str | Path, *, text: str | None, block_tokens: int | None, skip_bad: bool
    ) -> RequestTable: ...


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One readable format: its name, whether some first lines are in it, its reader."""

    name: str
    recognises: Callable[[list[str]], bool]
    read: Reader


_HEAD_LINES = 20
_CHAT, _PLANTED = "chat", "planted"
EMBEDDED = (_CHAT, _PLANTED)
"""Names of the traces that are made and not read."""
_FOREIGN = {
    "chat_id": "Bailian JSONL (timestamps in seconds, 16-token blocks)",
    "conversations": "a ShareGPT conversation",
    "conversation": "a WildChat or LMSYS conversation",
    "requests": "an agent-session trace (ids local to a session)",
    "messages": "chat messages",
    "Timestamp,Model,Request tokens": "a BurstGPT trace (no block ids)",
}


def read_trace(
    path_or_name: str | Path, *, block_tokens: int | None = None, skip_bad: bool = False
) -> RequestTable:
    """Read a trace file, or make the embedded one.

    Args:
        path_or_name: a file, or `chat`, `chat:SEED` or `chat:SEED:REQUESTS` for the generator, and
            `planted` likewise (a file of such a name is read as `./chat`).
        block_tokens: tokens of a trace block, where detection should not decide.
        skip_bad: leave bad lines out, counted in the notes, instead of refusing.

    Raises:
        TanrenError: nothing readable there, or a bad line.
    """
    if isinstance(path_or_name, str) and path_or_name.split(":")[0] in EMBEDDED:
        return _generate(path_or_name, block_tokens)
    if isinstance(path_or_name, str) and not path_or_name:
        raise TanrenError("expected the path of a trace, found an empty name")
    text = load_text(path_or_name)
    head = _head(text)
    for known in FORMATS:
        if known.recognises(head):
            return known.read(path_or_name, text=text, block_tokens=block_tokens, skip_bad=skip_bad)
    names = ", ".join(known.name for known in FORMATS)
    raise TanrenError(
        f"{path_or_name}: the format is not known: found {_seen(head)}",
        hint=f"readable: {names}; or the embedded traces {_CHAT} and {_PLANTED}, {_CHAT}:SEED, "
        f"{_CHAT}:SEED:REQUESTS",
    )


def _generate(name: str, block_tokens: int | None) -> RequestTable:
    kind, *numbers = name.split(":")
    if len(numbers) > 2 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in numbers):
        raise TanrenError(
            f"expected {kind}, {kind}:SEED or {kind}:SEED:REQUESTS, found {name!r}",
            hint=f"seed and requests are whole numbers, such as {kind}:7:2000",
        )
    seed = int(numbers[0]) if numbers else 0
    if kind == _PLANTED:
        many = int(numbers[1]) if len(numbers) > 1 else PLANTED_REQUESTS
        return generate_planted(seed, many, block_tokens=block_tokens or PLANTED_BLOCK)
    requests = int(numbers[1]) if len(numbers) > 1 else CHAT_REQUESTS
    return generate_chat(
        seed, requests, block_tokens=block_tokens if block_tokens is not None else CHAT_BLOCK
    )


def _head(text: str) -> list[str]:
    """The first lines that are not blank."""
    stripped = (line.strip() for line in text[:1_000_000].split("\n"))
    return list(islice((line for line in stripped if line), _HEAD_LINES))


def _is_mooncake(head: list[str]) -> bool:
    fields = {field for line in head if line.startswith("{") for field in FIELDS if f'"{field}"' in line}
    # Bailian has the same four fields with times in seconds: reading it here would be 1,000 times too fast
    return len(fields) >= 2 and not any('"chat_id"' in line for line in head)


def _is_azure(head: list[str]) -> bool:
    # further columns, such as the images of 2025, are another format
    return [field.strip() for field in head[0].split(",")] == list(AZURE_FIELDS)


def _seen(head: list[str]) -> str:
    first = head[0]
    for mark, meaning in _FOREIGN.items():
        if f'"{mark}"' in first or first.startswith(mark):
            return meaning
    short = first if len(first) <= 60 else f"{first[:57]}..."
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return f"a first line {short!r}"
    if isinstance(value, dict):
        return f"JSON lines with the fields {', '.join(map(repr, list(value)[:8]))}"
    return f"a JSON {type(value).__name__} on the first line: {short!r}"


FORMATS: list[TraceFormat] = [
    TraceFormat("Mooncake JSONL", _is_mooncake, read_mooncake),
    TraceFormat("Azure LLM CSV", _is_azure, read_azure),
]
"""Every readable format, tried in order."""
