import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.errors import TanrenError
from tanren_dsl.grammar import Mistake, grammar_text, mistakes
from tanren_dsl.parser import MAX_BYTES, MAX_NODES, parse, read_source
from tanren_dsl.source import Source
from tanren_dsl.syntax import (
    Call,
    Candidates,
    Expr,
    IfElse,
    Infix,
    Knob,
    Let,
    Name,
    Num,
    OrderBy,
    Param,
    Prefix,
)


def _parse(text: str):
    return parse(Source("p.tpl", text))


def _key(text: str) -> Expr:
    decl = _parse(f"policy p : evict order by {text}").decls[0]
    assert isinstance(decl, OrderBy)
    return decl.keys[0]


def _error(text: str) -> TanrenError:
    with pytest.raises(TanrenError) as caught:
        _parse(text)
    return caught.value


a, b, c, d = (Name(word) for word in "abcd")


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b * c", Infix("+", a, Infix("*", b, c))),
        ("a - b - c", Infix("-", Infix("-", a, b), c)),
        ("a / b / c", Infix("/", Infix("/", a, b), c)),
        ("-a ** 2", Prefix("-", Infix("**", a, Num(2.0)))),
        ("-a * b", Infix("*", Prefix("-", a), b)),
        ("a * -b", Infix("*", a, Prefix("-", b))),
        ("a ** 3 * b", Infix("*", Infix("**", a, Num(3.0)), b)),
        ("not a < b", Prefix("not", Infix("<", a, b))),
        ("a and not b or c", Infix("or", Infix("and", a, Prefix("not", b)), c)),
        ("a or b and c", Infix("or", a, Infix("and", b, c))),
        ("a if b else c if d else a", IfElse(a, b, IfElse(c, d, a))),
        ("a + b if b > c and d else -c",
         IfElse(Infix("+", a, b), Infix("and", Infix(">", b, c), d), Prefix("-", c))),
        ("max(a, b if c else d)", Call("max", (a, IfElse(b, c, d)))),
        ("(((a)))", a),
        ("a<=b", Infix("<=", a, b)),
        ("--a", Prefix("-", Prefix("-", a))),
    ],
)  # fmt: skip
def test_precedence_is_pythons(text: str, tree: Expr) -> None:
    assert _key(text) == tree


@pytest.mark.parametrize("text", ["0", "2", "3", "10", "0.5", "1e9", "1E-3", "2.5e+10", "22", "1e-999"])
def test_numbers_read_as_doubles(text: str) -> None:
    assert _key(text) == Num(float(text))


@pytest.mark.parametrize("text", [".5", "5.", "007", "1_000", "1e", "0x10", "1e999", "5k"])
def test_other_numbers_are_refused(text: str) -> None:
    _error(f"policy p : evict order by {text}")


def test_declarations_hold_what_was_written() -> None:
    policy = _parse(
        'policy p : schedule\n"One line."\nknob k : tokens / time ** 2 = -1.5\n'
        "param a = -1 in [-2, 8] log let b = a order by a, b preempt by b"
    )
    assert (policy.name, policy.kind, policy.doc) == ("p", "schedule", "One line.")
    assert policy.decls[:3] == (
        Knob("k", "tokens/time**2", -1.5),
        Param("a", -1.0, -2.0, 8.0, True),
        Let("b", a),
    )
    assert _parse("policy p : evict candidates 2% order by a").decls[0] == Candidates(2.0)
    assert _parse("policy p : evict order by a candidates all").decls[1] == Candidates(None)


def test_spans_cover_the_text_they_came_from() -> None:
    source = Source("p", "policy p : evict\nlet v = (a + b) * max( a,2 )\norder by v if not a else -b ** 2")
    policy = parse(source)
    let, order = policy.decls
    assert isinstance(let, Let)
    assert isinstance(order, OrderBy)
    product, choice = let.value, order.keys[0]
    assert isinstance(product, Infix)
    assert isinstance(choice, IfElse)
    assert let.span.text == "let v = (a + b) * max( a,2 )"
    assert let.name_span.text == "v"
    assert product.span.text == "(a + b) * max( a,2 )"
    assert product.left.span.text == "a + b"
    assert product.right.span.text == "max( a,2 )"
    assert isinstance(product.right, Call)
    assert product.right.func_span.text == "max"
    assert choice.span.text == "v if not a else -b ** 2"
    assert choice.test.span.text == "not a"
    assert choice.orelse.span.text == "-b ** 2"
    assert policy.kind_span.text == "evict"
    assert policy.span.text == "policy p : evict"
    assert order.span.place == "p:3:1"


def test_comments_are_collected_with_their_place() -> None:
    policy = _parse('# one\npolicy p : evict # two\n"a # b"\norder by a + # three\r\n  b\n # four')
    assert [(comment.text, comment.own_line) for comment in policy.comments] == [
        ("# one", True),
        ("# two", False),
        ("# three", False),
        ("# four", True),
    ]


@pytest.mark.parametrize("row", mistakes(), ids=lambda row: row.example)
def test_every_known_mistake_gets_its_hint(row: Mistake) -> None:
    finding = _error(row.example).diagnostics[0]
    assert finding.hint is not None
    assert finding.hint.split("line 1")[0] == row.hint.split("{open}")[0]
    assert finding.message.startswith("expected ")
    assert "found" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2**20,
        "policy p : evict order by " + "(" * 60_000,
        "policy p : evict order by " + "-" * 60_000 + "a",
        "policy p : evict order by " + "a if b else " * 5_000 + "a",
        "policy p : evict order by " + "a+" * 30_000 + "a",
        "policy p : evict order by " + "not " * 500 + "a",
        "policy p : evict order by " + "max(" * 70 + "a" + ")" * 70,
    ],
    ids=lambda text: f"{text[26:38]}... {len(text)}",
)
def test_hostile_sizes_give_one_clear_error(text: str) -> None:
    error = _error(text)
    assert len(error.diagnostics) == 1
    assert any(word in str(error) for word in ("larger than", "nest at most", "at most 2000"))


def test_chains_up_to_the_node_limit_parse() -> None:
    terms = MAX_NODES // 2 - 1
    assert isinstance(_key("+".join(["a"] * terms)), Infix)
    assert _key("(" * 64 + "a" + ")" * 64) == a
    assert _key("-" * 63 + "a").span.text == "-" * 63 + "a"


_PIECES = [*'ab1 .,()[]*/%+-<=#"\n', "policy ", " order by ", " if ", " else "]


@given(st.lists(st.sampled_from(_PIECES), max_size=60).map("".join))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for head in ("", "policy p : evict order by "):
        with suppress(TanrenError):
            _parse(head + text)


def test_files_are_read_with_clear_errors(tmp_path) -> None:
    def refuses(data: bytes | None, words: str) -> None:
        path = tmp_path / "p.tpl"
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(TanrenError, match=words):
            read_source(path)

    refuses(None, "there is no such file")
    refuses(b"", "is empty")
    refuses(b" \r\n", "is empty")
    refuses(b"\xef\xbb\xbf", "is empty")
    refuses(b"policy \xff", "not UTF-8: byte 0xff at offset 7")
    refuses(b"policy p\0", "NUL byte at offset 8")
    refuses(b"#" * (MAX_BYTES + 1), "larger than 64 KiB")
    with pytest.raises(TanrenError, match="it is a directory"):
        read_source(tmp_path)


def test_byte_order_marks_and_carriage_returns_are_fine(tmp_path) -> None:
    path = tmp_path / "p.tpl"
    path.write_bytes(b"\xef\xbb\xbfpolicy p : evict\r\n# why\r\norder by a\r\n")
    policy = parse(read_source(path))
    assert policy.decls == (OrderBy((a,)),)
    assert policy.comments[0].text == "# why"
    assert policy.decls[0].span.place == f"{path}:3:1"


def test_the_grammar_is_accepted_by_llguidance() -> None:
    llguidance = pytest.importorskip("llguidance")
    grammar = llguidance.LLMatcher.grammar_from_lark(grammar_text())
    assert llguidance.LLMatcher.validate_grammar(grammar) == ""


class _ByteTokens:
    """The 256 bytes and an end mark: a tokenizer of no model."""

    eos_token_id = 256
    bos_token_id = None
    tokens = [bytes([i]) for i in range(256)] + [b"<|end|>"]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        (
            'policy p : evict\n"Doc."\n# c\nknob k : 1/time = -3\nlet x = a\norder by x ** 2, -a if b else 0',
            True,
        ),
        ("policy p : schedule\nparam a = 1 in [0, 8] log\norder by a preempt by max(1, a)\n", True),
        ("policy p : evict order by x ** 4", False),
        ("policy p : evict order by 1 < a < 2", False),
        ("policy p : evict order by .5", False),
        ("policy p : evict let a = b", False),
    ],
)
def test_llguidance_and_our_parser_agree(text: str, is_fine: bool) -> None:
    llguidance = pytest.importorskip("llguidance")
    tokens = _ByteTokens()
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens))
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar_text()))
    consumed = matcher.try_consume_tokens(tokens(text))
    assert (consumed == len(text) and matcher.is_accepting()) is is_fine
    if is_fine:
        _parse(text)
    else:
        _error(text)


def test_infinite_numbers_are_refused_where_they_stand() -> None:
    error = _error("policy p : evict param a = 1e999 in [0, 1] order by a")
    assert error.diagnostics[0].message == "expected a finite number, found `1e999`"
    assert math.isfinite(_key("1e308").value)
