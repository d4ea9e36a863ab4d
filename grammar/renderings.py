"""The grammar in the form that llama.cpp, SGLang and XGrammar take: GBNF, made from `tanren.lark`.

GBNF has no tokens, no ignored text and, in llama.cpp, no left recursion. So blanks and comments
stand in the rules here, at least one where two words meet, a name is spelled out as any word but a
keyword, and left recursion becomes repetition. What these rules allow, our parser reads; a few texts
that it reads as well, such as `(a)if b else c` without a blank, are not allowed.

With `Limits` the language is finite, so every answer ends by itself: without, a model can write
blanks, letters or brackets until its tokens are spent, and small ones do.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from tanren_dsl.grammar import grammar_text
from tanren_dsl.grammar.notation import Alt, Many, Node, Notation, Ref, Seq, read_notation
from tanren_dsl.grammar.shapes import edge_refs, factored, levelled, without_left_recursion


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a text may repeat.

    Attributes:
        parts: declarations before and after `order by`, keys, arguments, operands of one chain.
        letters: characters of a name, and digits in a row of a number.
        doc: characters of a description.
        blanks: blanks and line ends in a row; comments are left out.
        depth: brackets, signs, `not` and `else` within each other.
    """

    parts: int = 8
    letters: int = 32
    doc: int = 200
    blanks: int = 6
    depth: int = 6


LIMITS = Limits()
"""What a model server is given, unless told otherwise."""


def lark_text() -> str:
    """The grammar as it is, in the dialect that OpenAI's tools, llguidance and XGrammar read."""
    return grammar_text()


@cache
def ebnf_text(limits: Limits | None = LIMITS) -> str:
    """The grammar as GBNF, the notation of llama.cpp, which XGrammar and SGLang call EBNF.

    The first rule is `root`. Rule names have letters, digits and `-` only, for llama.cpp.
    """
    return _Writer(read_notation(grammar_text()), limits).text()


_EXPONENT_DIGITS = 2
"""With limits; a number is finite then, whatever stands before."""
_NAME = "NAME"
_LETTERS = string.ascii_letters + "_"
_WORD = _LETTERS + string.digits


class _Writer:
    def __init__(self, notation: Notation, limits: Limits | None) -> None:
        self._tokens = notation.tokens
        self._rules = {
            name: factored(without_left_recursion(name, self._distinct(body)))
            for name, body in notation.rules.items()
        }
        if limits is not None:
            self._rules = levelled(self._rules, limits.depth)
        self._limits = limits
        self._ends: dict[tuple[str, bool], frozenset[str]] = {}

    def text(self) -> str:
        """All rules, those of tokens and blanks last."""
        comment = "" if self._limits else ' ("#" [^\\r\\n]*)?'
        lines = [f"root ::= {self._body(self._rules['start'])} gap?{comment}"]
        for name, body in self._rules.items():
            if name != "start":  # a reader that renames `root` to it would find the name taken
                lines.append(f"{_dashed(name)} ::= {self._body(body)}")
        for name, pattern in self._tokens.items():
            if name == _NAME:
                lines += self._names([word for word in self._tokens.values() if word.isalpha()])
            elif _literal(pattern) is None:
                lines.append(f"token-{_dashed(name)} ::= {self._pattern(pattern)}")
        if self._limits is None:
            lines.append('gap ::= ([ \\t\\r\\n] | "#" [^\\r\\n]* [\\r\\n])+')
        else:
            lines.append(f'gap ::= " " | "\\n" [ \\n]{{0,{self._limits.blanks - 1}}}')
        return "\n".join(lines) + "\n"

    def _distinct(self, node: Node) -> Node:
        """Without tokens that another alternative allows as well, such as `2` beside any number."""
        if not isinstance(node, Alt):
            return node
        own = {
            item: self._tokens[item.name]
            for item in node.items
            if isinstance(item, Ref) and item.name in self._tokens
        }
        texts = {item: _literal(pattern) for item, pattern in own.items()}
        patterns = [pattern for item, pattern in own.items() if texts[item] is None]
        doubles = {
            item
            for item, text in texts.items()
            if text is not None and any(re.fullmatch(pattern, text) for pattern in patterns)
        }
        return Alt(tuple(item for item in node.items if item not in doubles))

    def _body(self, body: Node) -> str:
        return " | ".join(self._sequence(one) for one in (body.items if isinstance(body, Alt) else (body,)))

    def _sequence(self, node: Node) -> str:
        """One alternative; a part at its start that may be absent makes two."""
        items = node.items if isinstance(node, Seq) else (node,)
        first, rest = items[0], items[1:]
        if isinstance(first, Many) and first.least == 0 and first.most == 1 and rest:
            return f"{self._joined((first.item, *rest))} | {self._joined(rest)}"
        return self._joined(items)

    def _joined(self, items: Sequence[Node]) -> str:
        """Parts with blanks between; `before` is what the text so far may end with."""
        texts: list[str] = []
        before: frozenset[str] = frozenset()
        for item in items:
            own = self._edge(item, last=True)
            if isinstance(item, Many):
                gap = self._gap(before if item.most == 1 else before | own, item.item)
                texts.append(f"({gap} {self._part(item.item)}){self._times(item)}")
                before |= own
            else:
                texts += [self._gap(before, item)] if texts else []
                texts.append(self._part(item))
                before = own
        return " ".join(texts)

    def _part(self, node: Node) -> str:
        match node:
            case Ref(name) if name in self._tokens:
                text = _literal(self._tokens[name])
                return f"token-{_dashed(name)}" if text is None else f'"{text}"'
            case Ref(name):
                return _dashed(name)
            case Alt():
                return f"({self._body(node)})"
            case Seq():
                return self._sequence(node)
            case Many():
                raise ValueError("a repetition without anything before it")

    def _times(self, many: Many) -> str:
        if many.most == 1:
            return "?"
        return "*" if self._limits is None else f"{{0,{self._limits.parts}}}"

    def _gap(self, before: frozenset[str], item: Node) -> str:
        """Blanks between two parts: at least one where a word may meet a word."""
        after = self._edge(item, last=False)
        return "gap" if self._has_word(before) and self._has_word(after) else "gap?"

    def _has_word(self, tokens: Iterable[str]) -> bool:
        """Whether one of these tokens is made of letters and digits."""
        patterns = [self._tokens[token] for token in tokens]
        return any(text.isalnum() or re.fullmatch(text, "a") or re.fullmatch(text, "0") for text in patterns)

    def _edge(self, node: Node, *, last: bool) -> frozenset[str]:
        """Tokens that a part may begin or end with."""
        match node:
            case Ref(name) if name in self._tokens:
                return frozenset({name})
            case Ref(name):
                return self._edge_of_rule(name, last)
            case Many(item):
                return self._edge(item, last=last)
            case Alt(items):
                return frozenset().union(*(self._edge(item, last=last) for item in items))
            case Seq(items):
                found: frozenset[str] = frozenset()
                for item in reversed(items) if last else items:
                    found |= self._edge(item, last=last)
                    if not isinstance(item, Many):
                        break
                return found

    def _edge_of_rule(self, name: str, last: bool) -> frozenset[str]:
        """Likewise, of a rule: what is reached through others, each looked at once."""
        if (name, last) not in self._ends:
            found: frozenset[str] = frozenset()
            seen, waiting = set[str](), [name]
            while waiting:
                seen.add(here := waiting.pop())
                for ref in edge_refs(self._rules[here], last):
                    if ref in self._tokens:
                        found |= {ref}
                    elif ref not in seen:
                        waiting.append(ref)
            self._ends[name, last] = found
        return self._ends[name, last]

    def _pattern(self, pattern: str) -> str:
        """A token's pattern: groups, classes and marks are written alike in both notations."""
        parts = re.findall(r"\[(?:\\.|[^\]\\])*\]|\\.|[()|?*+]|[^()|?*+\[\\]+", pattern)
        limits, text = self._limits, ""
        for part in parts:
            if part in ("*", "+") and limits is not None:
                most = limits.doc if part == "*" and text.lstrip().startswith('"') else limits.letters
                most = _EXPONENT_DIGITS if "[eE]" in text else most
                text += f"{{{int(part == '+')},{most}}}"
            elif part in ("(", ")", "|", "?", "*", "+") or part.startswith("["):
                text += f" {part}" if part[0] in "([|" else part
            else:
                text += " " + _quoted(part.removeprefix("\\"))
        return text.strip()

    def _names(self, keywords: Sequence[str]) -> list[str]:
        """Any word but these, by a rule for each beginning of one."""
        tail = f"[{_class(_WORD)}]" + ("*" if self._limits is None else f"{{0,{self._limits.letters}}}")
        beginnings = sorted({word[:end] for word in keywords for end in range(len(word))})
        lines = []
        for start in beginnings:
            further = sorted(
                {word[len(start)] for word in keywords if word.startswith(start) and word != start}
            )
            others = [char for char in (_WORD if start else _LETTERS) if char not in further]
            ways = [f"[{_class(others)}] {tail}"]
            for char in further:
                word = start + char
                rule = f"token-name-{word}"
                if word not in beginnings:  # a whole keyword: more must follow
                    ways.append(f'"{char}" [{_class(_WORD)}] {tail}')
                elif word in keywords:
                    ways.append(f'"{char}" {rule}')
                else:
                    ways.append(f'"{char}" {rule}?')
            name = f"token-name-{start}" if start else "token-name"
            lines.append(f"{name} ::= {' | '.join(ways)}")
        return sorted(lines, key=lambda line: line.split()[0])


def _literal(pattern: str) -> str | None:
    """The one text that a pattern stands for, if it is one."""
    text = re.sub(r"\\([^\w\s])", r"\1", pattern)
    return text if re.escape(text) == pattern or (text == pattern and pattern.isalnum()) else None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _class(chars: Iterable[str]) -> str:
    """Characters as ranges: `A-Z_a-z`."""
    codes = sorted(map(ord, chars))
    runs: list[list[int]] = []
    for code in codes:
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return "".join(chr(a) if a == b else f"{chr(a)}-{chr(b)}" for a, b in runs)


def _dashed(name: str) -> str:
    return name.lower().replace("_", "-")
