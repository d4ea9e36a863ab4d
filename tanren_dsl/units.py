"""Types are units: numbers with a unit, instants, and truth values.

A unit is `time^a * tokens^b * requests^c` with small integer exponents. A plain
number has all exponents zero. Instants are points in time, not durations: they
are a type of their own, so that no constant can stand for a moment of one trace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

MAX_EXPONENT = 4
"""Largest size of an exponent; anything beyond is a type error."""

BASES = ("time", "tokens", "requests")


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """Exponents of time, tokens and requests. `time` is held in whole microseconds."""

    time: int = 0
    tokens: int = 0
    requests: int = 0

    @property
    def exponents(self) -> tuple[int, int, int]:
        """The three exponents in the order of `BASES`."""
        return (self.time, self.tokens, self.requests)

    @property
    def is_plain(self) -> bool:
        """Whether this is the unit of a plain number."""
        return self.exponents == (0, 0, 0)

    @property
    def is_in_bounds(self) -> bool:
        """Whether every exponent is at most `MAX_EXPONENT` in size."""
        return all(abs(e) <= MAX_EXPONENT for e in self.exponents)

    def __mul__(self, other: Unit) -> Unit:
        return Unit(self.time + other.time, self.tokens + other.tokens, self.requests + other.requests)

    def __truediv__(self, other: Unit) -> Unit:
        return Unit(self.time - other.time, self.tokens - other.tokens, self.requests - other.requests)

    def __pow__(self, power: int) -> Unit:
        return Unit(self.time * power, self.tokens * power, self.requests * power)

    def halved(self) -> Unit | None:
        """The unit of a square root, or None when an exponent is odd."""
        if any(e % 2 for e in self.exponents):
            return None
        return Unit(self.time // 2, self.tokens // 2, self.requests // 2)

    def __str__(self) -> str:
        over = [_factor(b, e) for b, e in zip(BASES, self.exponents, strict=True) if e > 0]
        under = [_factor(b, -e) for b, e in zip(BASES, self.exponents, strict=True) if e < 0]
        text = "*".join(over) or "1"
        return "/".join([text, *under])


@dataclass(frozen=True, slots=True)
class Number:
    """A double with a unit."""

    unit: Unit

    def __str__(self) -> str:
        return "a plain number" if self.unit.is_plain else str(self.unit)


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time: whole microseconds since the start, held in a double."""

    def __str__(self) -> str:
        return "an instant"


@dataclass(frozen=True, slots=True)
class Bool:
    """A truth value, held as 0.0 or 1.0."""

    def __str__(self) -> str:
        return "a truth value"


Type: TypeAlias = Number | Instant | Bool

PLAIN_UNIT = Unit()
PLAIN = Number(PLAIN_UNIT)
TIME = Number(Unit(time=1))
TOKENS = Number(Unit(tokens=1))
REQUESTS = Number(Unit(requests=1))
INSTANT = Instant()
BOOL = Bool()

MICROSECONDS_PER_SECOND = 1e6
"""Knobs are written in seconds and held in microseconds: factor per power of time."""

_FACTOR = re.compile(r"\s*(time|tokens|requests|1)\s*(?:(?:\*\*|\^)\s*([1-9]))?\s*")


def parse_unit(text: str) -> Unit | None:
    """Read a product or quotient such as `tokens/time`, `1/time` or `tokens*time`.

    Returns None when the text is not a unit.

    >>> str(parse_unit("tokens / time"))
    'tokens/time'
    """
    unit, pos, sign = PLAIN_UNIT, 0, 1
    while True:
        match = _FACTOR.match(text, pos)
        if match is None:
            return None
        base, power = match.group(1), int(match.group(2) or 1)
        if base != "1":
            unit = unit * (Unit(**{base: 1}) ** (sign * power))
        pos = match.end()
        if pos == len(text):
            return unit
        if text[pos] not in "*/":
            return None
        sign = 1 if text[pos] == "*" else -1
        pos += 1


def _factor(base: str, exponent: int) -> str:
    return base if exponent == 1 else f"{base}**{exponent}"
