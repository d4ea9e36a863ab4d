"""Which field of a request a server does not take, by what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tanren_dsl.evolve.llm.reply import error_text

_UNKNOWN = re.compile(
    r"unknown|unsupported|not supported|does ?n.t support|does not support|unrecogni[sz]ed|unexpected|"
    r"extra (?:input|field)|extra_forbidden|not permitted|not allowed|not enabled|cannot find|"
    r"cannot both|invalid (?:parameter|field|argument)|no longer|deprecated",
    re.IGNORECASE,
)


def refused_field(status: int | None, response: str, sent: Sequence[str]) -> str | None:
    """The field that a server refuses by name, among the optional ones that were sent.

    A field whose value is wrong is not refused: `max_tokens is too large` names it, and leaving it
    out would change what was asked for.

    >>> refused_field(400, '{"error": {"message": "Unknown name: seed"}}', ["top_p", "seed"])
    'seed'
    """
    if status not in (400, 422):
        return None
    message, parameter = _message(response)
    if not _UNKNOWN.search(message):
        return None
    if parameter in sent:
        return parameter
    places = {name: match.start() for name in sent if (match := _named(name, message)) is not None}
    return min(places, key=lambda name: places[name], default=None)


def message_of(response: str) -> str:
    """What a server says went wrong, in one line."""
    return _message(response)[0][:500]


def _named(name: str, message: str) -> re.Match[str] | None:
    outer = name.partition(".")[0]
    pattern = rf"(?<![\w.]){re.escape(name)}(?!\w)" + (rf"|(?<!\w){outer}(?!\w)" if outer != name else "")
    return re.search(pattern, message)


def _message(response: str) -> tuple[str, str | None]:
    """The message, and the parameter where the server sets it apart."""
    try:
        data = json.loads(response)
    except (ValueError, RecursionError):
        return " ".join(response.split()), None
    if isinstance(data, list) and data:
        data = data[0]
    error = data.get("error", data) if isinstance(data, dict) else data
    found = error.get("param") if isinstance(error, dict) else None
    if isinstance(data, dict) and isinstance(data.get("detail"), list):
        # one entry a field, each with its place: the whole text names it
        return " ".join(json.dumps(data["detail"]).split()), None
    return error_text(error), found if isinstance(found, str) else None
