"""The grammar in the notations of model servers: what they let through is what our parser reads."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings

from tanren_dsl.grammar.notation import read_notation
from tanren_dsl.grammar.renderings import LIMITS, Limits, ebnf_text, lark_text
from tanren_dsl.names import keywords
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_policy
from tanren_dsl.source import Source
from tanren_dsl.syntax import PolicyText
from tests.conform.environments import engine_python
from tests.grammar.gbnf import Gbnf
from tests.strategies import policy_texts

PATHS = sorted(Path(str(files("tanren_dsl.examples"))).glob("*/*.tpl"))
RAW = [path.read_text(encoding="utf-8") for path in PATHS]
PRINTED = [print_policy(replace(parse(Source("example", text)), comments=())) for text in RAW]
RIGHT = [
    "policy p : evict order by orders + ord + or_ + (let1) + iff",
    'policy p:evict "doc é" order by a*1.0e-5,-b+--c candidates 10%',
    "policy p : schedule param a = -1 in [0, 8] log order by not (a < 1) and b or c preempt by max(1, a)",
    "policy p : evict knob k : tokens/time ** 2 = 1 order by a ** 2 if b else c if d else f(g, h(i))",
    "policy p : evict\norder by a\nlet b = c\nlet d = e",
]
WRONG = [
    "",
    " policy p : evict order by a",
    "policy p : evict",
    "policy p : evict order by",
    "policy p : evict order by a <",
    "order by a",
    "policy p : evict order by a if",
    "policy p : evict order by a let b = 1 +",
    "policy p : evict let a = b",
    "policy p : evict order by x ** 4",
    "policy p : evict order by 1 < a < 2",
    "policy p : evict order by .5",
    "policy p : evict order by 01",
    "policy p : evict order by a b",
    "policy p : evict order by a;",
    'policy p : evict "a\nb" order by a',
    "policy p : evict order by f()",
    "policy p : other order by a",
]
GLUED = [
    "policyp : evict order by a",
    "policy p : evictorder by a",
    "policy p : evict order by if",
    "policy order : evict order by a",
]
"""Our parser reads words first, llguidance only those that may come next; so it lets these through."""
NARROW = Limits(parts=1, letters=4, doc=8, blanks=1, depth=1)


FREE = Gbnf(ebnf_text(None))


@pytest.fixture
def free() -> Gbnf:
    return Gbnf(ebnf_text(None))


@pytest.fixture(scope="module")
def limited() -> Gbnf:
    return Gbnf(ebnf_text())


def test_the_packaged_policies_are_let_through(free: Gbnf, limited: Gbnf) -> None:
    assert PATHS
    assert [text for text in [*RAW, *RIGHT] if not free.accepts(text)] == []
    assert [text for text in [*PRINTED, *RIGHT] if not limited.accepts(text)] == []


@settings(max_examples=30, deadline=None)
@given(policy_texts("evict") | policy_texts("schedule"))
def test_whatever_is_printed_is_let_through(policy: PolicyText) -> None:
    assert FREE.accepts(print_policy(policy))


def test_what_the_parser_does_not_read_is_not_let_through(free: Gbnf, limited: Gbnf) -> None:
    assert [text for text in WRONG + GLUED if free.accepts(text) or limited.accepts(text)] == []


def test_a_comment_ends_with_its_line(free: Gbnf) -> None:
    assert free.accepts("policy p : evict # why\norder by a # because")
    assert not free.accepts("policy p : evict # why order by a")


def test_keywords_are_no_names_and_words_that_begin_like_them_are(free: Gbnf, limited: Gbnf) -> None:
    words = sorted(keywords())
    assert len(words) == 18
    for grammar in (free, limited):
        assert [word for word in words if grammar.accepts(f"policy {word} : evict order by a")] == []
        for word in words:
            names = [word[:-1], f"{word}_", f"{word}s", word.upper(), f"_{word}"]
            allowed = [name for name in names if name and name not in keywords()]
            assert [n for n in allowed if not grammar.accepts(f"policy {n} : evict order by {n}")] == []


def test_few_ways_stay_open_at_once(free: Gbnf) -> None:
    """llama.cpp follows every way at once: brackets must not double them."""
    depth = 20
    assert free.accepts(f"policy p : evict order by {'max(1, (' * depth}a{'))' * depth}")
    assert free.widest < 100


def test_with_limits_repetitions_end(limited: Gbnf) -> None:
    head = "policy p : evict order by "
    most = LIMITS.parts
    assert limited.accepts(head + "+".join("a" * (most + 1)))
    assert not limited.accepts(head + "+".join("a" * (most + 2)))
    assert not limited.accepts(head + "a" * (2 * LIMITS.letters))
    assert not limited.accepts(head + "1" * (LIMITS.letters + 3))
    assert not limited.accepts(head + "1e999")
    assert limited.accepts(head + "(" * LIMITS.depth + "a" + ")" * LIMITS.depth)
    assert not limited.accepts(head + "(" * (LIMITS.depth + 1) + "a" + ")" * (LIMITS.depth + 1))
    assert not limited.accepts(head + "\n" * (LIMITS.blanks + 1) + "a")
    assert not limited.accepts(head + "not " * (LIMITS.depth + 1) + "a")


@pytest.mark.parametrize("limits", [None, LIMITS, NARROW])
def test_names_of_rules_suit_every_reader(limits: Limits | None) -> None:
    names = [line.split(" ::= ")[0] for line in ebnf_text(limits).splitlines()]
    assert names[0] == "root"
    assert "start" not in names  # llguidance renames `root` to it
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)


def test_a_random_walk_ends_in_a_policy() -> None:
    """Characters chosen at random under narrow limits: every walk ends, in what the parser reads."""
    grammar, rng = Gbnf(ebnf_text(NARROW)), random.Random(1)
    letters = 'abcdefghilmnoprstuvxy_0123 \n"()[]<>=!+-*/%,:'
    for _ in range(25):
        text, stacks = "", grammar.beginning()
        while True:
            tried = ((char, grammar.step(stacks, char)) for char in rng.sample(letters, len(letters)))
            char, after = next(((char, after) for char, after in tried if after), ("", set()))
            if None in stacks and (not char or rng.random() < 0.2):
                break
            text, stacks = text + char, after
            assert 0 < len(text) < 5000
        assert parse(Source("walk", text)).name


def test_the_lark_text_is_taken_by_llguidance() -> None:
    llguidance = pytest.importorskip("llguidance")
    grammar = llguidance.LLMatcher.grammar_from_lark(lark_text())
    assert llguidance.LLMatcher.validate_grammar(grammar) == ""
    tokens = _ByteTokens()
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens))

    def accepts(text: str) -> bool:
        matcher = llguidance.LLMatcher(tokenizer, grammar)
        return matcher.try_consume_tokens(tokens(text)) == len(tokens(text)) and matcher.is_accepting()

    assert [text for text in [*(raw.strip() for raw in RAW), *PRINTED, *RIGHT] if not accepts(text)] == []
    assert [text for text in WRONG if accepts(text)] == []
    assert [text for text in GLUED if not accepts(text)] == []


@pytest.mark.parametrize("limits", [None, LIMITS])
def test_llguidance_can_convert_the_ebnf_text(limits: Limits | None) -> None:
    """Well-formed for it; what it then accepts is less (its words are greedy), so it is given Lark."""
    converter = pytest.importorskip("llguidance.gbnf_to_lark")
    llguidance = pytest.importorskip("llguidance")
    lark = converter.gbnf_to_lark(ebnf_text(limits))
    assert llguidance.LLMatcher.validate_grammar(llguidance.LLMatcher.grammar_from_lark(lark)) == ""


XGRAMMAR = """
import json, sys
import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts
given = json.load(sys.stdin)
grammar = xgrammar.Grammar.from_ebnf(given["grammar"])
print(json.dumps({text: bool(accepts(grammar, text)) for text in given["texts"]}))
"""


@pytest.mark.parametrize("version", ["0.19.1", "0.32.0"])
@pytest.mark.parametrize("limits", [None, LIMITS])
def test_xgrammar_reads_the_ebnf_text_as_we_do(version: str, limits: Limits | None) -> None:
    right = [*PRINTED, *RIGHT, *(RAW if limits is None else ())]
    out = subprocess.run(
        [str(engine_python(version)), "-c", XGRAMMAR],
        input=json.dumps({"grammar": ebnf_text(limits), "texts": right + WRONG + GLUED}),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    accepted = json.loads(out.stdout.splitlines()[-1])
    assert [text for text in right if not accepted[text]] == []
    assert [text for text in WRONG + GLUED if accepted[text]] == []


@pytest.mark.parametrize("part", ["%import common.WS", "%declare A", "start{a}: a", 'start: "a"~3'])
def test_what_the_notation_does_not_know_is_an_error(part: str) -> None:
    with pytest.raises(ValueError, match="no part of the dialect"):
        read_notation(f"{part}\n" if part.startswith("start") else f'start: "a"\n{part}\n')


class _ByteTokens:
    """The 256 bytes and an end mark: a tokenizer of no model."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([i]) for i in range(256)] + [b"<|end|>"]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
