"""The grammar is accepted by the XGrammar that vLLM ships, and so are the example policies."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from pathlib import Path

from tanren_dsl.check import load
from tanren_dsl.grammar import grammar_text
from tests.conform.environments import engine_python

SCRIPT = """
import json, sys
import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts
given = json.load(sys.stdin)
grammar = xgrammar.Grammar.from_lark(given["grammar"])
print(json.dumps({text: bool(accepts(grammar, text)) for text in given["texts"]}))
"""
WRONG = ["policy p : evict", "policy p : evict order by", "policy p : evict order by a <", "order by a"]


def test_xgrammar_accepts_the_grammar_and_the_examples() -> None:
    python = engine_python("0.32.0")
    paths = sorted(Path(str(files("tanren_dsl.examples"))).glob("*/*.tpl"))
    right = [load(path).text.strip() for path in paths]
    out = subprocess.run(
        [str(python), "-c", SCRIPT],
        input=json.dumps({"grammar": grammar_text(), "texts": right + WRONG}),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    accepted = json.loads(out.stdout.splitlines()[-1])
    assert [text for text in right if not accepted[text]] == []
    assert [text for text in WRONG if accepted[text]] == []
