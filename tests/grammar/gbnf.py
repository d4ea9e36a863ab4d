"""A reader of GBNF that works as llama.cpp's does: every way at once, as stacks, character by character.

It shares nothing with the code that writes the rendering. One rule a line.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

Item: TypeAlias = tuple[Any, ...]
"""`("rule", name)` or `("chars", is_negated, ranges)`."""
Stack: TypeAlias = Any
"""`(item, rest of the stack)`, or None when nothing more is wanted."""

_TOKEN = re.compile(
    r'\s*(::=|[A-Za-z][A-Za-z0-9-]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|[()|?*+])'
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "]": "]"}


class Gbnf:
    """A grammar; `widest` is the most ways that were open at once."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, list[list[Item]]] = {}
        self.widest = 0
        for line in text.splitlines():
            self._tokens = _tokens(line)
            name = self._tokens.pop(0)
            assert self._tokens.pop(0) == "::="
            self._name = name
            self._rules[name] = self._alternatives()
            assert not self._tokens, line
        used = {item[1] for ways in self._rules.values() for way in ways for item in way if item[0] == "rule"}
        assert used <= set(self._rules)
        assert not set(self._rules) - used - {"root"}
        for name in self._rules:
            assert name not in self._leads(name), f"{name} is left recursive"

    def accepts(self, text: str) -> bool:
        """Whether the whole text is one of the grammar's."""
        stacks = self.beginning()
        for char in text:
            stacks = self.step(stacks, char)
            self.widest = max(self.widest, len(stacks))
        return None in stacks

    def beginning(self) -> set[Stack]:
        """Every way to begin; None among the ways says that a text may end here."""
        return self._expanded((("rule", "root"), None))

    def step(self, stacks: set[Stack], char: str) -> set[Stack]:
        """The ways that are open after a character."""
        after: set[Stack] = set()
        for stack in stacks:
            if stack is not None and _matches(stack[0], char):
                after |= self._expanded(stack[1])
        return after

    def _expanded(self, stack: Stack) -> set[Stack]:
        """The same with characters on top."""
        found: set[Stack] = set()
        seen, waiting = set[Stack](), [stack]
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            if here is None or here[0][0] == "chars":
                found.add(here)
                continue
            for way in self._rules[here[0][1]]:
                rest = here[1]
                for item in reversed(way):
                    rest = (item, rest)
                waiting.append(rest)
        return found

    def _leads(self, name: str) -> set[str]:
        """Rules that may stand first in a rule."""
        seen, waiting = set[str](), [name]
        while waiting:
            for way in self._rules[waiting.pop()]:
                for item in way:
                    if item[0] == "chars":
                        break
                    if item[1] not in seen:
                        seen.add(item[1])
                        waiting.append(item[1])
                    if not self._may_be_empty(item[1], frozenset()):
                        break
        return seen

    def _may_be_empty(self, name: str, above: frozenset[str]) -> bool:
        return name not in above and any(
            all(item[0] == "rule" and self._may_be_empty(item[1], above | {name}) for item in way)
            for way in self._rules[name]
        )

    def _alternatives(self) -> list[list[Item]]:
        ways = [self._sequence()]
        while self._tokens and self._tokens[0] == "|":
            self._tokens.pop(0)
            ways.append(self._sequence())
        return ways

    def _sequence(self) -> list[Item]:
        items: list[Item] = []
        while self._tokens and self._tokens[0] not in ("|", ")"):
            part = self._part()
            if self._tokens and self._tokens[0][0] in "?*+{":
                part = [self._repeated(part, self._tokens.pop(0))]
            items += part
        return items

    def _part(self) -> list[Item]:
        token = self._tokens.pop(0)
        if token == "(":
            ways = self._alternatives()
            assert self._tokens.pop(0) == ")"
            return [self._new(ways)]
        if token.startswith('"'):
            return [("chars", False, ((char, char),)) for char in _unescaped(token[1:-1])]
        if token.startswith("["):
            return [_class(token[1:-1])]
        return [("rule", token)]

    def _repeated(self, part: list[Item], mark: str) -> Item:
        least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(mark) or _bounds(mark)
        if most is None:
            more = self._new([[]])
            self._rules[more[1]] = [[*part, more], []]
            return self._new([[*part * least, more]])
        rest = self._new([[]])
        for _ in range(most - least):
            rest = self._new([[*part, rest], []])
        return self._new([[*part * least, rest]])

    def _new(self, ways: list[list[Item]]) -> Item:
        name = f"{self._name}_{len(self._rules)}"
        self._rules[name] = ways
        return ("rule", name)


def _tokens(line: str) -> list[str]:
    found, at = [], 0
    while line[at:].strip():
        match = _TOKEN.match(line, at)
        assert match is not None, line[at:]
        found.append(match[1])
        at = match.end()
    return found


def _bounds(mark: str) -> tuple[int, int | None]:
    least, comma, most = mark[1:-1].partition(",")
    return int(least), int(most or least) if most or not comma else None


def _unescaped(text: str) -> list[str]:
    def plain(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]

    return list(re.sub(r"\\(?:(x[0-9a-f]{2})|(.))", plain, text))


def _class(text: str) -> Item:
    is_negated = text.startswith("^")
    chars = _unescaped(text[1:] if is_negated else text)
    ranges, at = [], 0
    while at < len(chars):
        if at + 2 < len(chars) and chars[at + 1] == "-":
            ranges.append((chars[at], chars[at + 2]))
            at += 3
        else:
            ranges.append((chars[at], chars[at]))
            at += 1
    return ("chars", is_negated, tuple(ranges))


def _matches(item: Item, char: str) -> bool:
    return any(low <= char <= high for low, high in item[2]) is not item[1]
