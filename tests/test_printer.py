import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.check import loads
from tanren_dsl.errors import TanrenError
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_expr, print_number, print_ordering, print_policy
from tanren_dsl.source import Source
from tanren_dsl.syntax import OrderBy, PolicyText
from tests.strategies import Example, literals, policies, policy_texts


def _parse(text: str) -> PolicyText:
    return parse(Source("p.tpl", text))


@given(policy_texts("evict") | policy_texts("schedule"))
def test_printing_and_parsing_gives_the_same_tree(policy: PolicyText) -> None:
    text = print_policy(policy)
    assert _parse(text) == policy
    assert print_policy(_parse(text)) == text


@given(literals())
def test_numbers_read_back_as_the_same_double(value: float) -> None:
    text = print_number(value)
    assert float(text) == value
    assert _parse(f"policy p : evict order by {text}").decls[0].keys[0].value == value  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "a - (b - c)",
        "a - b - c",
        "a / (b * c)",
        "(a + b) * c",
        "-(a + b)",
        "-a ** 2",
        "(-a) ** 2",
        "(a ** 2) ** 3",
        "(a / b) ** 3",
        "not (a and b)",
        "not a < b",
        "(a if b else c) + 1",
        "(a if b else c) if d else e",
        "a if (b if c else d) else e",
        "a if b else c if d else e",
        "(a or b) and c",
        "a or (b or c)",
        "(a < b) == (c < d)",
        "max(a if b else c, -d)",
        "--a",
    ],
)
def test_parentheses_are_kept_only_where_needed(text: str) -> None:
    decl = _parse(f"policy p : evict order by (({text}))").decls[0]
    assert isinstance(decl, OrderBy)
    assert print_expr(decl.keys[0]) == text


def test_comments_stay_with_their_declaration() -> None:
    text = """# the file
policy p : evict # the kind
"Doc."   # the doc
# about a
let a = uses + # inside
    depth    # behind a
let b = 2 param c = 1 in [0, 2]# behind c

# about the order
order by a,b
# the end"""
    assert (
        print_policy(_parse(text))
        == """# the file
# the kind
policy p : evict
"Doc."  # the doc

# about a
# inside
let a = uses + depth  # behind a
let b = 2

param c = 1 in [0, 2]  # behind c

# about the order
order by a, b
# the end
"""
    )


@given(
    policies("evict"),
    st.lists(st.sampled_from(["# c\n", "\n", "  # d\n"]), min_size=1, max_size=6),
    st.randoms(),
)
def test_printing_with_comments_is_idempotent_and_keeps_each(example: Example, notes: list[str], rng) -> None:
    words = example.text.split(" ")
    for note in notes:
        words.insert(rng.randint(0, len(words)), note)
    try:
        policy = _parse(" ".join(words))
    except TanrenError:  # a comment fell into the docstring
        return
    text = print_policy(policy)
    again = _parse(text)
    assert again == policy
    assert print_policy(again) == text
    assert sorted(c.text for c in again.comments) == sorted(c.text for c in policy.comments)


def test_long_lists_of_keys_are_broken() -> None:
    key = "log1p(uses) * 1000000 / (1 + exp(-uses))"
    assert print_policy(_parse(f"policy p : evict order by {key}, {key}, {key}")).splitlines()[2:] == [
        "order by",
        f"    {key},",
        f"    {key},",
        f"    {key}",
    ]


def test_typed_keys_print_as_expressions() -> None:
    policy = loads(
        "policy p : evict let a = age / mean(age) order by max(a, 1, -2) ** 2 if generated else -a, uses"
    )
    assert print_ordering(policy.order) == [
        "max(age / mean(age), 1, -2) ** 2 if generated else -(age / mean(age))",
        "uses",
    ]


def test_shared_parts_cannot_explode() -> None:
    lets = " ".join(f"let a{i} = a{i - 1} * a{i - 1}" for i in range(1, 60))
    policy = loads(f"policy p : evict let a0 = uses {lets} order by a59")
    assert len(print_ordering(policy.order)[0]) < 5000


@given(policies("evict") | policies("schedule"))
def test_printed_normal_forms_check_to_themselves(example: Example) -> None:
    policy = example.policy
    keys = print_ordering(policy.order)
    if any("..." in key for key in keys):
        return
    names = [f"param {p.name} = {p.value!r} in [{p.low!r}, {p.high!r}]" for p in policy.params]
    names += [f"knob {k.name} : {k.unit_text} = 0" for k in policy.knobs]
    text = f"policy p : {policy.kind} {' '.join(names)} order by {', '.join(keys)}"
    assert print_ordering(loads(text).order) == keys
