"""What the emitted file remembers by hash: numbers for hashes in use, and ghosts.

Copied, below the marker line, between `vllm_runtime.py` and `vllm_evictor.py`.
"""

from __future__ import annotations

from typing import Any

# ======== runtime ========


class HashNumbers:
    """Small numbers for the hashes in use, so that arrays can count by hash."""

    def __init__(self, most: int) -> None:
        self.number: dict[Any, int] = {}
        self.key: list[Any] = [None] * most
        self.holders = [0] * most
        self.spare = list(range(most - 1, -1, -1))

    def hold(self, key: Any) -> int:
        """The hash's number; one holder more."""
        number = self.number.get(key)
        if number is None:
            number = self.spare.pop()
            self.number[key] = number
            self.key[number] = key
        self.holders[number] += 1
        return number

    def let_go(self, number: int) -> None:
        """One holder less; with the last one the number is free again."""
        self.holders[number] -= 1
        if self.holders[number] == 0:
            del self.number[self.key[number]]
            self.key[number] = None
            self.spare.append(number)


class Ghosts:
    """Uses of the hashes behind the last so many evictions."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.uses: dict[Any, tuple[int, float]] = {}
        self.line: list[Any] = [None] * most

    def remember(self, key: Any, uses: float) -> None:
        """The hash is evicted with so many uses; the eviction `most` before this one is forgotten."""
        slot = self.count % self.most
        old = self.line[slot]
        if old is not None and self.uses[old][0] == self.count - self.most:
            del self.uses[old]
        self.uses[key] = (self.count, uses)
        self.line[slot] = key
        self.count += 1

    def recall(self, key: Any) -> float:
        """Remembered uses of a hash, 0 if there are none."""
        return self.uses[key][1] if key in self.uses else 0.0
