"""Every tree is a valid policy, whatever made it; texts and trees say the same."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from random import Random

import pytest

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.evolve.candidate import classics, cost_of, key_of
from tanren_dsl.evolve.generator import Generator, Tree
from tanren_dsl.evolve.operators import (
    Limits,
    Rates,
    crossover,
    fresh,
    mutate_constant,
    mutate_keys,
    mutate_point,
    mutate_shrink,
    mutate_subtree,
    seeded,
    slots_of,
    vary,
)
from tanren_dsl.evolve.primitives import Constant, Order, Primitives, build_primitives
from tanren_dsl.evolve.translate import from_policy, to_syntax
from tanren_dsl.ir import Policy
from tanren_dsl.parser import parse, read_source
from tanren_dsl.printer import print_policy
from tanren_dsl.signals import ENGINE, REPLAY, signals_of
from tanren_dsl.sim.replay import simulate
from tanren_dsl.source import Source
from tanren_dsl.syntax import Knob
from tanren_dsl.trace.read import read_trace

KNOBS = (Knob("budget", "tokens", 2048.0), Knob("pace", "1/time", 0.5), Knob("share", "1", 0.25))
PRIMITIVES = build_primitives(KNOBS)
MAKE = Generator(PRIMITIVES)
LIMITS = Limits(nodes=40, height=8)
MUTATIONS = (mutate_subtree, mutate_point, mutate_constant, mutate_shrink, mutate_keys)
SERVICE_EXAMPLES = sorted(Path(str(files("tanren_dsl.examples"))).glob("schedule/*.tpl"))
EXAMPLES = sorted(Path(str(files("tanren_dsl.examples"))).glob("evict/*.tpl"))


def policy_of(tree: Tree, primitives: Primitives = PRIMITIVES) -> Policy:
    """The checked policy of a tree; its text must be canonical and give the same tree again."""
    syntax = to_syntax(tree, primitives, "p")
    text = print_policy(syntax)
    parsed = parse(Source("p.tpl", text))
    assert parsed == syntax
    assert print_policy(parsed) == text
    again = from_policy(parsed, primitives)
    assert again is not None
    assert print_policy(to_syntax(again, primitives, "p")) == text
    return loads(text)


def assert_fits(tree: Tree) -> None:
    for node, slot in zip(tree, slots_of(tree), strict=True):
        assert issubclass(node.ret, slot)


def test_random_trees_and_their_offspring_are_valid_policies() -> None:
    rng = Random(0)
    trees = [fresh(MAKE, LIMITS, rng) for _ in range(500)]
    for place, tree in enumerate(trees):
        policy_of(tree)
        with seeded(0, place) as state:
            for child in (
                crossover(tree, trees[state.randrange(len(trees))], state),
                MUTATIONS[place % len(MUTATIONS)](tree, MAKE, state),
            ):
                assert_fits(child)
                policy_of(child)


def test_trees_read_only_what_replay_provides() -> None:
    rows = signals_of("evict")
    rng = Random(1)
    for _ in range(100):
        for name in policy_of(fresh(MAKE, LIMITS, rng)).signals():
            assert REPLAY in rows[name].provided_by


def test_generations_of_variation_stay_within_the_limits() -> None:
    limits = Limits(nodes=15, height=4)
    rates = Rates(0.35, 0.25, 0.1, 0.1, 0.05, 0.1, 0.05)
    trees = [fresh(MAKE, limits, Random(i)) for i in range(8)]
    for generation in range(15):
        for place in range(8):
            with seeded(generation, place) as rng:
                made = vary(trees[place : place + 1], MAKE, rates, limits, 1, rng).tree
            assert limits.hold(made)
            trees[place] = made


def test_products_are_valid_policies() -> None:
    for place in range(100):
        tree = MAKE.product(Random(place))
        assert_fits(tree)
        policy_of(tree)


def test_every_type_can_be_made_at_any_height() -> None:
    for slot in MAKE.slots:
        for height in range(4):
            nodes = MAKE.subtree(Random(height), slot, height)
            assert issubclass(nodes[0].ret, slot)


def test_literals_are_not_negative_and_short() -> None:
    rng = Random(2)
    tree = next(t for t in iter(lambda: fresh(MAKE, LIMITS, rng), None) if any(map(_is_constant, t)))
    for _ in range(50):
        tree = mutate_constant(tree, MAKE, rng)
        for node in filter(_is_constant, tree):
            assert node.value >= 0
            assert float(f"{node.value:.3g}") == node.value


def test_crossover_does_not_depend_on_the_order_of_a_set() -> None:
    first, second = MAKE.tree(Random(5), 4), MAKE.tree(Random(6), 4)
    assert crossover(first, second, Random(7)) == crossover(first, second, Random(7))


def test_a_random_state_is_given_back() -> None:
    import random

    random.seed(9)
    expected = random.Random(9).random()
    with seeded(1, 2):
        random.random()
    assert random.random() == expected


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_classic_and_its_tree_hit_the_same(path: Path) -> None:
    source = read_source(path)
    tree = from_policy(parse(source), PRIMITIVES)
    assert tree is not None
    trace = read_trace("chat:1:300")
    results = [
        simulate(trace, policy, compile_ordering, 2000) for policy in (loads(source.text), policy_of(tree))
    ]
    assert results[0].hits_each.tolist() == results[1].hits_each.tolist()


def test_the_first_classics_have_trees_which_are_the_same_policies() -> None:
    found = {one.classic: one for one in classics(PRIMITIVES)}
    for name in ("fifo", "frequency_cost", "lfu", "lru", "never_hit_first", "slru"):
        tree = found[name].tree
        assert tree is not None
        assert key_of(policy_of(tree)) == found[name].key
    assert found["t_lru"].tree is not None


@pytest.mark.parametrize(
    ("body", "tree_body"),
    [
        ("param heat = 0.4 in [0, 8]\norder by uses * heat", "order by uses * 0.4"),
        ("param heat = -1 in [-2, 8]\norder by uses * heat", "order by uses * -1"),
        ("knob k : 1 = 3\norder by uses * k", "order by uses * 3"),
        ("knob share : 1 = 9\norder by uses * share", "knob share : 1 = 0.25\norder by uses * share"),
        ("let a = age\nlet b = a / mean(a)\norder by b", "order by age / mean(age)"),
        ("order by max(0, age, gap)", "order by max(age, 0, gap)"),
        ("order by 1 if 0 < age else 0", "order by 1 if age > 0 else 0"),
        ("order by 0 if generated else age", "order by age if not generated else 0"),
        ("order by 0 - age", "order by -age"),
        ("order by age * pace", "knob pace : 1/time = 0.5\norder by age * pace"),
    ],
)
def test_texts_become_trees(body: str, tree_body: str) -> None:
    tree = from_policy(parse(Source("p", f"policy p : evict {body}")), PRIMITIVES)
    assert tree is not None
    expected = print_policy(parse(Source("p", f"policy p : evict {tree_body} candidates 10%")))
    assert print_policy(to_syntax(tree, PRIMITIVES, "p")) == expected


@pytest.mark.parametrize(
    "body",
    [
        "order by depth ** 2",
        "order by waiting_refs",
        "knob slack : tokens = 2\norder by depth - slack",
        "order by mean(age * 2) - age",
        "order by age candidates 5%",
    ],
)
def test_texts_beyond_the_set_have_no_tree(body: str) -> None:
    assert from_policy(parse(Source("p", f"policy p : evict {body}")), PRIMITIVES) is None


def test_a_schedule_policy_has_no_tree() -> None:
    assert from_policy(parse(Source("p", "policy p : schedule order by arrival")), PRIMITIVES) is None


SCHEDULE = build_primitives(KNOBS, kind="schedule", mode=ENGINE)
SERVICE = Generator(SCHEDULE)


def test_random_schedule_trees_and_their_offspring_are_valid_policies() -> None:
    rng = Random(3)
    rows = signals_of("schedule")
    trees = [fresh(SERVICE, LIMITS, rng) for _ in range(200)]
    pushing = 0
    for place, tree in enumerate(trees):
        with seeded(1, place) as state:
            for child in (
                tree,
                crossover(tree, trees[state.randrange(len(trees))], state),
                MUTATIONS[place % len(MUTATIONS)](tree, SERVICE, state),
                SERVICE.balance(state),
                SERVICE.product(state),
            ):
                assert_fits(child)
                policy = policy_of(child, SCHEDULE)
                assert policy.kind == "schedule"
                pushing += policy.preempt is not None
                for name in policy.signals():
                    assert ENGINE in rows[name].provided_by
    assert pushing > 20


def test_balances_are_valid_policies() -> None:
    for place in range(50):
        policy_of(MAKE.balance(Random(place)))


@pytest.mark.parametrize("path", SERVICE_EXAMPLES, ids=lambda path: path.stem)
def test_a_schedule_classic_and_its_tree_are_the_same_policy(path: Path) -> None:
    found = {one.classic: one for one in classics(SCHEDULE)}[path.stem]
    if path.stem in ("aged_sjf", "longest_prefix_match", "residual_sjf"):
        assert found.tree is None  # a knob with a unit that the problem does not have
        return
    assert found.tree is not None
    assert key_of(policy_of(found.tree, SCHEDULE)) == found.key or path.stem == "fcfs"


def test_what_pushes_out_the_running_is_part_of_a_policy() -> None:
    texts = ["order by arrival", "order by arrival preempt by wait", "order by arrival preempt by -wait"]
    policies = [loads(f"policy p : schedule {text}") for text in texts]
    assert len({key_of(policy) for policy in policies}) == 3
    assert [cost_of(policy) for policy in policies] == [1.0, 2.0, 2.0]


def test_the_root_is_an_order() -> None:
    assert MAKE.tree(Random(0), 0).root.ret is Order


def _is_constant(node: object) -> bool:
    return isinstance(node, Constant)
