from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl import check as checker
from tanren_dsl.check import loads
from tanren_dsl.interp import evaluate
from tanren_dsl.ir import Const, Ordering, ParamDecl, ParamRef, Policy, Stage
from tanren_dsl.passes.normal import normalize
from tanren_dsl.passes.ranges import ranges
from tanren_dsl.passes.rewrites import REWRITES, Rewrite
from tanren_dsl.printer import print_ordering
from tanren_dsl.signals import DECISION_ORDER, STORED
from tests.strategies import Example, policies

N = 40


def _raw(text: str) -> Policy:
    """The policy as written: no rewrite at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checker, "normalize", lambda ordering, params: ordering)  # noqa: ARG005
        return loads(text)


def _inputs(kind: str, seed: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Small whole numbers, so that dropping a factor or an addend cannot round."""
    rng = np.random.default_rng(seed)
    decision = {name: float(rng.integers(1, 50)) for name in DECISION_ORDER}
    decision |= {"now": 1000.0, "kv_free": 0.25, "hit_rate": 0.5}
    columns = {name: rng.integers(0, 12, N).astype(float) for name in STORED[kind]}  # type: ignore[index]
    for name in ("generated", "resumed"):
        if name in columns:
            columns[name] = (columns[name] > 5).astype(float)
    return decision, columns


def _order(policy: Policy, ordering: Ordering, seed: int) -> list[int]:
    decision, columns = _inputs(policy.kind, seed)
    keys = evaluate(policy, ordering, decision, columns, N)
    return list(np.lexsort(keys.T[::-1]))


@pytest.mark.parametrize("row", REWRITES, ids=lambda row: row.name)
def test_every_rewrite_does_what_the_table_says(row: Rewrite) -> None:
    policy = loads(f"policy p : {row.kind} order by {row.example[0]}")
    assert ", ".join(print_ordering(policy.order)) == row.example[1]


@pytest.mark.parametrize("row", REWRITES, ids=lambda row: row.name)
@pytest.mark.parametrize("seed", range(5))
def test_every_rewrite_keeps_the_order(row: Rewrite, seed: int) -> None:
    text = f"policy p : {row.kind} order by {row.example[0]}"
    before, after = _raw(text), loads(text)
    assert before.order != after.order
    assert _order(before, before.order, seed) == _order(after, after.order, seed)


@given(policies("evict") | policies("schedule"))
def test_the_normal_form_is_its_own_normal_form(example: Example) -> None:
    policy = example.policy
    assert normalize(policy.order, policy.params) == policy.order
    if policy.preempt is not None:
        assert normalize(policy.preempt, policy.params) == policy.preempt


@settings(max_examples=200)
@given(policies("evict") | policies("schedule"), st.integers(0, 1000))
def test_random_keys_are_never_swapped(example: Example, seed: int) -> None:
    """Rounding may tie what the normal form still tells apart, never the other way round."""
    raw = _raw(example.text)
    decision, columns = _inputs(raw.kind, seed)
    for key in raw.order.keys:
        single = Ordering(raw.order.nodes, (key,))
        before = evaluate(raw, single, decision, columns, N)[:, 0]
        after = evaluate(raw, normalize(single, raw.params), decision, columns, N)[:, 0]
        if not (np.isfinite(before).all() and np.isfinite(after).all()):
            continue
        less = before[:, None] < before[None, :]
        assert not (less & (after[:, None] >= after[None, :])).any()


@pytest.mark.parametrize(
    ("key", "normal"),
    [
        ("uses * hit_rate", "uses * hit_rate"),  # may be 0
        ("uses / kv_free", "uses / kv_free"),
        ("uses * k", "uses * k"),  # a knob may be set to anything
        ("uses * a", "uses"),
        ("uses * b", "uses * b"),  # its range begins at 0
        ("uses * exp(hit_rate)", "uses"),
        ("uses * (exp(hit_rate) * exp(hit_rate))", "uses * (exp(hit_rate) * exp(hit_rate))"),  # may underflow
        ("uses * (capacity * block_size)", "uses"),
        ("uses * (capacity / block_size)", "uses"),
        ("uses * (capacity - block_size)", "uses * (capacity - block_size)"),
        ("uses * max(1, hit_rate)", "uses"),
        ("uses * min(1, hit_rate)", "uses * min(1, hit_rate)"),
        ("uses * sqrt(a) * log1p(a)", "uses"),
        ("uses * clip(hit_rate, 1, 2)", "uses"),
        ("uses * mean(uses)", "uses * mean(uses)"),
        ("uses * (1 + abs(hit_rate))", "uses"),
        ("mean(age) - age", "last_use"),
        ("-(now - last_use) / capacity", "last_use"),
        ("last_use - now", "last_use"),
        ("now - min(last_use, created)", "now - min(last_use, created)"),
        ("min(last_use, created) - now", "min(last_use, created)"),
    ],
)
def test_only_what_is_proven_positive_is_dropped(key: str, normal: str) -> None:
    head = "policy p : evict knob k : 1 = 1 param a = 1 in [0.5, 2] param b = 1 in [0, 2]"
    assert print_ordering(loads(f"{head} order by {key}").order) == [normal]


@pytest.mark.parametrize(
    ("keys", "normal"),
    [
        ("kv_free, uses, 3", ["uses"]),
        ("3, kv_free", ["3"]),
        ("-age, last_use, uses", ["last_use", "uses"]),
        ("uses * 2, uses * 3, depth", ["uses", "depth"]),
    ],
)
def test_keys_that_decide_nothing_are_dropped(keys: str, normal: list[str]) -> None:
    assert print_ordering(loads(f"policy p : evict order by {keys}").order) == normal


def test_constants_that_would_not_be_finite_stay_unfolded() -> None:
    order = loads("policy p : evict order by min(uses, exp(709) * exp(709))").order
    assert print_ordering(order) == ["min(uses, exp(709) * exp(709))".replace("exp(709)", _exp709())]


def _exp709() -> str:
    order = loads("policy p : evict order by min(uses, exp(709))").order
    return next(repr(node.value) for node in order.nodes if isinstance(node, Const))


def test_ranges_of_params_come_from_their_declarations() -> None:
    node = ParamRef("a", 1.0, loads("policy p : evict order by uses").order.nodes[0].type)
    assert ranges([node], [ParamDecl("a", 1.0, 0.5, 2.0, False)]) == [(0.5, 2.0)]
    assert replace(node, stage=Stage.CONST) == node
