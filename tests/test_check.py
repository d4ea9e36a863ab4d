import math
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.check import check, load, loads, warnings
from tanren_dsl.errors import TanrenError
from tanren_dsl.grammar import grammar_text
from tanren_dsl.ir import Apply, Const, Fold, KnobRef, ParamRef, SignalRef, Stage, stage_of
from tanren_dsl.names import keywords
from tanren_dsl.parser import parse, read_source
from tanren_dsl.printer import print_ordering, print_policy
from tanren_dsl.source import Source
from tanren_dsl.syntax import Let, Name, Num, OrderBy, PolicyText
from tanren_dsl.units import INSTANT, PLAIN, TIME, TOKENS, Number, Unit
from tests.strategies import Example, policies

WRONG = Path(__file__).parent / "fixtures" / "wrong" / "policies.txt"
EXAMPLES = Path(str(files("tanren_dsl.examples")))


def _keys(text: str, kind: str = "evict") -> list[str]:
    return print_ordering(loads(f"policy p : {kind} {text}").order)


def _wrong() -> list[tuple[str, str, str]]:
    """Title, text and expected report of every wrong program."""
    cases = []
    for block in WRONG.read_text(encoding="utf-8").split("=== ")[1:]:
        title, rest = block.split("\n", 1)
        text, expected = rest.split("\n--- expected\n", 1)
        cases.append((title, text, expected.rstrip("\n")))
    return cases


def _report(text: str) -> str:
    with pytest.raises(TanrenError) as caught:
        loads(text, "wrong.tpl")
    return str(caught.value)


@pytest.mark.parametrize(("title", "text", "expected"), _wrong(), ids=lambda case: case[:40])
def test_wrong_programs_are_reported_in_full(
    title: str, text: str, expected: str, update_golden: bool
) -> None:
    if not update_golden:
        assert _report(text) == expected, title


def test_wrong_programs_are_rewritten_on_demand(update_golden: bool) -> None:
    cases = _wrong()
    assert len({title for title, _, _ in cases}) == len(cases) > 45
    if update_golden:
        blocks = [f"=== {title}\n{text}\n--- expected\n{_report(text)}\n\n" for title, text, _ in cases]
        WRONG.write_text("".join(blocks), encoding="utf-8")


@pytest.mark.parametrize(
    ("key", "type_"),
    [
        ("age", TIME),
        ("last_use", INSTANT),
        ("age * depth / mean(age)", TOKENS),
        ("sqrt(depth ** 2)", TOKENS),
        ("sqrt(depth * capacity)", TOKENS),
        ("max(0, chain - 0)", TOKENS),
        ("clip(0, age, 0) * uses", TIME),
        ("0 if generated else gap", TIME),
        ("last_use if generated else created", INSTANT),
        ("1 / age", Number(Unit(time=-1))),
        ("age ** 3", Number(Unit(time=3))),
        ("1 if (generated if uses > 0 else depth == 0) else 0", PLAIN),
        ("max(last_use, created) - created", TIME),
        ("1 if age > 5 * mean(age) else 0", PLAIN),
    ],
)
def test_well_typed_keys_have_the_type_they_should(key: str, type_: object) -> None:
    order = loads(f"policy p : evict order by {key}").order
    assert order.nodes[order.keys[0]].type == type_


def test_lets_may_hold_instants_and_truths() -> None:
    text = "let t = max(last_use, created) let b = t > now and not generated order by 1 if b else 0, t"
    assert _keys(text)[1] == "max(last_use, created)"


def test_a_let_holding_zero_is_a_plain_number() -> None:
    with pytest.raises(TanrenError, match="adds time and a plain number"):
        loads("policy p : evict let z = 0 order by age + z")


def test_min_and_max_fold_from_the_left() -> None:
    order = loads("policy p : evict order by max(uses, children, 3)").order
    outer = order.nodes[order.keys[0]]
    assert isinstance(outer, Apply)
    assert isinstance(order.nodes[outer.args[0]], Apply)
    assert order.nodes[outer.args[1]] == Const(3.0, PLAIN)


def test_choose_holds_its_condition_first() -> None:
    order = loads("policy p : evict order by uses if generated else children").order
    node = order.nodes[order.keys[0]]
    assert isinstance(node, Apply)
    assert [order.nodes[arg].name for arg in node.args] == ["generated", "uses", "children"]  # type: ignore[union-attr]


def test_both_orderings_stand_alone() -> None:
    policy = loads("policy p : schedule let a = wait / mean(wait) order by -a preempt by a, preemptions")
    assert policy.preempt is not None
    assert print_ordering(policy.order) == ["-(wait / mean(wait))"]
    assert print_ordering(policy.preempt) == ["wait / mean(wait)", "preemptions"]
    assert policy.signals() == ("wait", "preemptions")


def test_the_considered_set_defaults_to_ten_percent() -> None:
    assert loads("policy p : evict order by uses").percent == 10.0
    assert loads("policy p : evict order by uses candidates all").percent is None
    assert loads("policy p : evict candidates 2.5% order by uses").percent == 2.5
    assert loads("policy p : schedule order by arrival").percent is None


def test_knobs_are_written_in_seconds_and_held_in_microseconds() -> None:
    text = "policy p : schedule knob r : tokens/time = 1000 knob s : time**2 = 3"
    text += " order by prompt_tokens - r * wait, s"
    rate, square = loads(text).knobs
    assert (rate.default, rate.written, rate.unit_text) == (1000 * 1e6**-1, 1000.0, "tokens/time")
    assert (square.default, square.written) == (3e12, 3.0)
    assert loads(text, knobs={"r": 50}).knobs[0].default == 50 * 1e6**-1


def test_knob_settings_are_checked() -> None:
    text = "policy p : evict knob budget : tokens = 1 order by depth - budget * uses"
    with pytest.raises(TanrenError, match=r"no knob `budgte`\n  hint: did you mean `budget`"):
        loads(text, knobs={"budgte": 1.0})
    with pytest.raises(TanrenError, match="takes a finite number, found nan"):
        loads(text, knobs={"budget": math.nan})
    with pytest.raises(TanrenError, match="it has no knobs"):
        loads("policy p : evict order by uses", knobs={"a": 1.0})


def test_params_keep_their_names_and_are_not_folded() -> None:
    policy = loads("policy p : evict param a = 2 in [0, 8] order by uses * (a * 3)")
    assert _keys("param a = 2 in [0, 8] order by uses * (a * 3)") == ["uses * (a * 3)"]
    assert ParamRef("a", 2.0, PLAIN) in policy.order.nodes


def test_trees_that_no_parser_made_are_checked_too() -> None:
    zero = Num(0.0)  # one object in two places with two units
    text = PolicyText("p", "evict", None, (Let("age", Name("uses")),))
    with pytest.raises(TanrenError) as caught:
        check(text, Source("p", ""))
    assert len(caught.value.diagnostics) == 2
    shared = PolicyText("p", "evict", None, (OrderBy((zero, Name("uses"))),))
    assert print_ordering(check(shared, Source("p", "")).order) == ["uses"]


def test_keywords_are_those_of_the_grammar() -> None:
    assert {"order", "by", "let", "in", "not", "evict", "all"} <= keywords()
    assert all(f'"{word}"' in grammar_text() for word in keywords())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("policy p : evict order by age", ["sole key `age`"]),
        ("policy p : evict let a = now - last_use order by a", ["sole key `age`"]),
        ("policy p : schedule order by wait", ["sole key `wait`"]),
        ("policy p : schedule order by cached_tokens", ["sole key `cached_tokens`"]),
        ("policy p : evict let a = uses let b = a param c = 1 in [0, 2] knob d : 1 = 1 order by last_use",
         ["`a` is never", "`b` is never", "`c` is never", "`d` is never"]),
        ("policy p : evict let a = uses let b = a order by b", []),
        ("policy p : evict order by age, depth", []),
        ("policy p : schedule knob a : time = 1 order by arrival preempt by wait - a * preemptions", []),
    ],
)  # fmt: skip
def test_warnings_of_a_text(text: str, words: list[str]) -> None:
    found = warnings(parse(Source("p", text)))
    assert len(found) == len(words)
    assert all(word in finding.message for word, finding in zip(words, found, strict=True))


def test_warnings_of_a_policy() -> None:
    policy = loads("policy p : schedule param a = 1 in [1, 2] order by (now - arrival) * a")
    assert [finding.message.split(",")[0] for finding in warnings(policy)] == [
        "lowest comes first",
        "`a` has no effect on the order",
    ]


@given(policies("evict") | policies("schedule"))
def test_random_policies_have_sound_nodes(example: Example) -> None:
    policy = example.policy
    for ordering in (policy.order, policy.preempt):
        if ordering is None:
            continue
        nodes = ordering.nodes
        assert 1 <= len(ordering.keys) <= 3
        for index, node in enumerate(nodes):
            match node:
                case Apply(_, args, _, stage):
                    assert all(arg < index for arg in args)
                    assert stage == stage_of(nodes, args)
                case Fold(_, arg, _, stage):
                    assert arg < index
                    assert nodes[arg].stage == Stage.OBJECT
                    assert stage == Stage.DECISION
                case KnobRef() | SignalRef() | ParamRef() | Const():
                    pass


@given(st.data())
def test_wrong_names_never_crash_the_checker(data: st.DataObject) -> None:
    words = data.draw(policies("evict")).text.split(" ")
    at = data.draw(st.integers(0, len(words) - 1))
    words[at] = data.draw(st.sampled_from(["age", "generated", "last_use", "mean", "zzz", "0", "wait", "v0"]))
    with suppress(TanrenError):
        loads(" ".join(words))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/*.tpl")), ids=lambda path: path.stem)
def test_examples_are_canonical_and_without_warnings(path: Path) -> None:
    source = read_source(path)
    text = parse(source)
    assert print_policy(text) == source.text
    assert text.name == path.stem
    assert path.parent.name in (text.kind, "configs")
    assert text.doc
    assert text.comments
    assert warnings(text) == warnings(load(path)) == []


def test_fifo_and_lfu_rank_every_block() -> None:
    assert load(EXAMPLES / "evict" / "fifo.tpl").percent is None
    assert load(EXAMPLES / "evict" / "lfu.tpl").percent is None
