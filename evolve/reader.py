"""One table of a TOML file: values are asked for by name, and every error names the key's path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, TypeVar

from tanren_dsl.errors import TanrenError

_T = TypeVar("_T")


class Reader:
    """One table of the file; remembers which keys were asked for."""

    def __init__(self, source: str, path: str, data: dict[str, Any]) -> None:
        self.source, self.path, self.data = source, path, data
        self._asked: set[str] = set()

    def error(self, key: str, expected: str, found: object) -> TanrenError:
        """A wrong value, with its key path."""
        text = repr(found)
        text = text if len(text) <= 60 else f"{text[:57]}..."
        return TanrenError(f"{self.source}: {self._at(key)}: expected {expected}, found {text}")

    def take(self, key: str) -> Any:
        """A value as it is."""
        self._asked.add(key)
        return self.data.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self._value(key, default, "a text")
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "a text", value)
        return value

    def truth(self, key: str, default: bool) -> bool:
        """`true` or `false`."""
        value = self._value(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.error(key, "true or false", value)
        return value

    def whole(self, key: str, default: int | None = None, *, least: int = 0, most: int = 10_000_000) -> int:
        """A whole number in a range."""
        words = f"a whole number from {least:,} to {most:,}"
        value = self._value(key, default, words)
        if value is default and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.error(key, words, value)
        return value

    def number(
        self, key: str, default: float | None = None, *, low: float = -math.inf, high: float = math.inf,
        above: bool = False, words: str = "a number",
    ) -> float:  # fmt: skip
        """A finite number in a range; `above` leaves the lower end out."""
        if low > -math.inf:
            words += f" above {low:g}" if above else f" of at least {low:g}"
        if high < math.inf:
            words += f" and at most {high:g}"
        value = self._value(key, default, words)
        try:
            number = math.nan
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = float(value)
        except OverflowError:  # a whole number beyond the largest double
            number = math.inf
        if not math.isfinite(number) or not low <= number <= high or (above and number == low):
            raise self.error(key, words, value)
        return number

    def each(self, key: str, read: Any) -> Iterator[Any]:
        """Every element of a list, read by `read(reader, index)`; none where the key is missing."""
        values = self.take(key)
        if values is None:
            return
        if not isinstance(values, list):
            raise self.error(key, "a list", values)
        inner = Reader(self.source, self._at(key), {f"[{i}]": value for i, value in enumerate(values)})
        for index in inner.data:
            yield read(inner, index)

    def table(self, key: str, *, required: bool = False) -> Reader:
        """A sub-table, empty where it is missing."""
        value: Any = self._value(key, None if required else {}, "a table")
        if not isinstance(value, dict):
            raise self.error(key, "a table", value)
        return Reader(self.source, self._at(key), value)

    def finish(self) -> None:
        """Refuse what nobody asked for."""
        for key in self.data:
            if key not in self._asked:
                close = get_close_matches(key, sorted(self._asked), n=1)
                known = ", ".join(sorted(self._asked))
                hint = f"did you mean `{close[0]}`?" if close else f"known here: {known}"
                raise TanrenError(f"{self.source}: {self._at(key)}: unknown key", hint=hint)

    def _value(self, key: str, default: _T, words: str) -> Any | _T:
        self._asked.add(key)
        if key in self.data:
            return self.data[key]
        if default is None:
            raise TanrenError(f"{self.source}: {self._at(key)}: expected {words}, found nothing")
        return default

    def _at(self, key: str) -> str:
        if key.startswith("[") or not self.path:
            return f"{self.path}{key}"
        return f"{self.path}.{key}"
