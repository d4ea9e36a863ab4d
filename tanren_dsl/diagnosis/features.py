"""What decisions are compared by: signals, and scale-free forms of them, as the language writes them.

A feature is an expression of one or two signals with a unit. Times are held in microseconds, as
everywhere, and shown in seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.signals import Kind, signals_of
from tanren_dsl.units import MICROSECONDS_PER_SECOND, PLAIN, TOKENS, Bool, Instant, Number, Type

Doubles: TypeAlias = NDArray[np.float64]

_OVER_MEAN = re.compile(r"(\w+) / mean\((\w+)\)")
_OVER_OTHER = re.compile(r"(\w+) / (\w+)")


@dataclass(frozen=True, slots=True)
class Feature:
    """One number of a decision.

    Attributes:
        text: the expression, as a policy would write it.
        family: its main signal; two features of a family say much the same.
        type: its unit.
        twin: the text of the other form of it: scale-free beside absolute, or the reverse; empty if none.
    """

    text: str
    family: str
    type: Type
    twin: str = ""

    def show(self, values: float | Sequence[float]) -> str:
        """The value, or several, with the unit, for people."""
        return shown(values, self.type)


@dataclass(frozen=True, eq=False)
class Features:
    """K features of n decisions: `values` is float64[n, K]."""

    rows: tuple[Feature, ...]
    values: Doubles

    def column(self, text: str) -> Doubles | None:
        """[n] values of a feature by its expression, or None."""
        found = [k for k, row in enumerate(self.rows) if row.text == text]
        return self.values[:, found[0]] if found else None


def features_of(kind: Kind, values: Mapping[str, Doubles], means: Mapping[str, Doubles]) -> Features:
    """All features that differ between decisions.

    Args:
        kind: of the policy.
        values: [n] of each signal at each decision; instants are left out.
        means: [n] of per-object signals, over the objects that were being ordered.

    Returns:
        Signals in the table's order, each followed by its scale-free form; then combinations of two.
    """
    found: list[tuple[Feature, Doubles]] = []
    for name, column in values.items():
        row = signals_of(kind)[name]
        if isinstance(row.type, Instant):
            continue
        relative = _relative(name, row.relative, values, means)
        found.append((Feature(name, name, row.type, row.relative if relative is not None else ""), column))
        if relative is not None:
            found.append((Feature(row.relative, name, PLAIN, name), relative))
    found += _combinations(values)
    kept = [(row, column) for row, column in found if len(column) and (column != column[0]).any()]
    texts = {row.text for row, _ in kept}
    rows = tuple(
        Feature(row.text, row.family, row.type, row.twin if row.twin in texts else "") for row, _ in kept
    )
    count = len(next(iter(values.values()))) if values else 0
    table = np.column_stack([column for _, column in kept]) if kept else np.zeros((count, 0))
    return Features(rows, table)


def shown(values: float | Sequence[float], type_: Type) -> str:
    """A value, or several, with the unit: seconds, tokens, requests; plain numbers bare.

    >>> from tanren_dsl.units import TIME
    >>> shown(1_500_000.0, TIME), shown((8.0, 16384.0), TOKENS), shown(0.25, PLAIN)
    ('1.5 s', '8 / 16,384 tokens', '0.25')
    """
    each = (values,) if isinstance(values, float) else values
    if isinstance(type_, Bool):
        return " / ".join("yes" if value else "no" for value in each)
    text = " / ".join(_digits(in_units(value, type_)) for value in each)
    if not isinstance(type_, Number):
        return f"{text} s"
    unit = "" if type_.unit.is_plain else str(type_.unit).replace("time", "s").replace("1/", "/")
    return f"{text} {unit}".rstrip()


def in_units(value: float, type_: Type) -> float:
    """The value with time in seconds.

    >>> from tanren_dsl.units import TIME
    >>> in_units(2_000_000.0, TIME)
    2.0
    """
    if isinstance(type_, Instant):
        return value / MICROSECONDS_PER_SECOND
    power = type_.unit.time if isinstance(type_, Number) else 0
    return float(value / MICROSECONDS_PER_SECOND**power)


def _digits(number: float) -> str:
    """Whole numbers whole, others with four digits that count."""
    if abs(number) < 1e15 and (number == int(number) or abs(number) >= 10_000):
        return f"{number:,.0f}"
    return f"{number:,.4g}"


def _relative(
    name: str, text: str, values: Mapping[str, Doubles], means: Mapping[str, Doubles]
) -> Doubles | None:
    """The scale-free form of a signal that the table names, where it can be computed."""
    match = _OVER_MEAN.fullmatch(text)
    if match is not None and match[1] == match[2] == name and name in means:
        return _over(values[name], means[name])
    match = _OVER_OTHER.fullmatch(text)
    if match is not None and match[1] == name and match[2] in values:
        return _over(values[name], values[match[2]])
    return None


def _combinations(values: Mapping[str, Doubles]) -> list[tuple[Feature, Doubles]]:
    found: list[tuple[Feature, Doubles]] = []
    if "chain" in values and "depth" in values:
        chain, depth = values["chain"], values["depth"]
        found.append((Feature("chain - depth", "chain - depth", TOKENS), chain - depth))
        found.append((Feature("depth / chain", "chain - depth", PLAIN), _over(depth, chain)))
    if "age" in values and "mean_gap" in values:
        found.append((Feature("age / mean_gap", "age", PLAIN), _over(values["age"], values["mean_gap"])))
    if "uncached_tokens" in values and "prompt_tokens" in values:
        share = _over(values["uncached_tokens"], values["prompt_tokens"])
        found.append((Feature("uncached_tokens / prompt_tokens", "cached_tokens", PLAIN), share))
    return found


def _over(above: Doubles, below: Doubles) -> Doubles:
    """Division as the language has it: by zero it gives zero."""
    return np.divide(above, below, out=np.zeros(len(above)), where=below != 0)
