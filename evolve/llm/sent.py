"""What came of a request, without the library that sent it (which takes long to load)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of a request.

    Attributes:
        status: None where nothing came back.
        text: the body of the response, or what went wrong instead.
        retry_after: the header of that name, in seconds or as a date.
        reached: whether the server may have seen the request, and may have worked for it.
    """

    status: int | None
    text: str
    retry_after: str | None = None
    reached: bool = True
