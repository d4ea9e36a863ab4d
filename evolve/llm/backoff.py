"""When an attempt is made again, and how long that waits."""

from __future__ import annotations

import math
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random

_FIRST_S = 1.0
"""Upper end of the wait after the first failure; it doubles with each further one."""


def is_worth_another(status: int | None) -> bool:
    """Whether the same request may succeed later: no answer, too many requests, or a server's own failure.

    >>> [is_worth_another(status) for status in (None, 408, 409, 429, 500, 503, 400, 401, 404)]
    [True, True, True, True, True, True, False, False, False]
    """
    return status is None or status in (408, 409, 425, 429) or status >= 500


def wait_of(failures: int, seed: str, longest_s: float, retry_after: str | None, now: float) -> float:
    """Seconds until the next attempt.

    What the server asks for, else by chance up to a limit that doubles with each failure: if all
    clients waited alike they would come back together. The chance is the seed's.

    Args:
        failures: so far, at least 1.
        seed: of this wait alone.
        longest_s: the most, whatever is asked for.
        retry_after: the server's wish, in seconds or as an HTTP date.
        now: seconds since 1970.
    """
    wish = _seconds(retry_after, now)
    if wish is not None:
        return min(wish, longest_s)
    return Random(seed).uniform(0.0, min(longest_s, _FIRST_S * 2.0 ** min(failures - 1, 60)))


def _seconds(retry_after: str | None, now: float) -> float | None:
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            date = parsedate_to_datetime(retry_after)
        except ValueError:
            return None
        # a date without a zone is UTC, as HTTP has it
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
    return max(0.0, seconds) if math.isfinite(seconds) else None
