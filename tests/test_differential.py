"""Every backend gives the bits of the interpreter, on random policies and hostile inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tanren_dsl.backends.base import Scorer, pack
from tanren_dsl.backends.numba import NumbaScorer
from tanren_dsl.backends.python import PythonScorer, emit_function
from tanren_dsl.interp import evaluate
from tanren_dsl.ir import Apply, Const, Fold, KnobRef, Ordering, OrderingBuilder, Policy, SignalRef, Stage
from tanren_dsl.kernels import meaning, select
from tanren_dsl.ops import AGGREGATES, OPS
from tanren_dsl.units import PLAIN
from tests.ir_strategies import KNOBS, Case, bits, cases, inputs, policy_of
from tests.strategies import policies

SCORERS: list[Callable[[Policy, Ordering], Scorer]] = [
    NumbaScorer,
    partial(NumbaScorer, quick=True),
    PythonScorer,
]


def expected(case: Case) -> list[list[int]]:
    return bits(evaluate(case.policy, case.policy.order, case.decision, case.columns, case.n, case.knobs))


def scored(scorer: Scorer, case: Case) -> list[list[int]]:
    return bits(scorer.score(case.decision, case.columns, case.n, case.knobs))


@settings(max_examples=250)
@given(cases())
def test_machine_code_and_emitted_text_give_the_interpreters_bits(case: Case) -> None:
    want = expected(case)
    for scorer in SCORERS:
        assert scored(scorer(case.policy, case.policy.order), case) == want, scorer


@settings(max_examples=20)
@given(cases(size=14))
def test_emitted_text_under_njit_gives_the_interpreters_bits(case: Case) -> None:
    order = jitted(case.policy)
    packed = pack(case.policy, case.policy.order, case.decision, case.columns, case.n, case.knobs)
    order(packed.decision, packed.rows, packed.ids, case.n, packed.keys, packed.scratch)
    assert bits(packed.keys) == expected(case)


@pytest.mark.parametrize("op", [op.name for op in OPS])
def test_every_operator_agrees_in_both_widths(op: str) -> None:
    narrow, wide = (policy_with(op, padding) for padding in (False, True))

    @settings(max_examples=25)
    @given(st.data())
    def agree(data: st.DataObject) -> None:
        for policy in (narrow, wide):
            case = data.draw(inputs(policy))
            want = expected(case)
            for scorer in SCORERS:
                assert scored(scorer(policy, policy.order), case) == want

    agree()


def policy_with(op: str, padding: bool) -> Policy:
    """The operator per object and per decision; with `padding`, beside dear ones, so in vectors."""
    builder = OrderingBuilder()
    names = ("uses", "gap", "depth")
    columns = [builder.add(SignalRef(name, PLAIN, Stage.OBJECT)) for name in names]
    knobs = [builder.add(KnobRef(decl.name, PLAIN)) for decl in KNOBS] + [builder.add(Const(0.5, PLAIN))]
    if op in AGGREGATES:
        arg = columns[0]
        if padding:
            dear = builder.add(Apply("exp", (arg,), PLAIN, Stage.OBJECT))
            arg = builder.add(Apply("mul", (dear, columns[1]), PLAIN, Stage.OBJECT))
        return policy_of(builder.build([builder.add(Fold(op, arg, PLAIN))]))
    arity = next(row.arity for row in OPS if row.name == op)
    keys = [
        builder.add(Apply(op, tuple(columns[:arity]), PLAIN, Stage.OBJECT)),
        builder.add(Apply(op, tuple(knobs[:arity]), PLAIN, Stage.DECISION)),
    ]
    if padding:
        dear = builder.add(Apply("log1p", (columns[2],), PLAIN, Stage.OBJECT))
        keys.append(builder.add(Apply("add", (dear, keys[1]), PLAIN, Stage.OBJECT)))
    return policy_of(builder.build(keys))


@cache
def helpers() -> dict[str, object]:
    """The helpers under Numba, compiled once: callees are found among themselves."""
    space: dict[str, object] = {"math": __import__("math"), **vars(meaning)}
    names = ("div", "minimum", "maximum", "root", "floor", "exp", "log1p")
    jit = {name: numba.njit(getattr(meaning, name)) for name in names}
    jit["select_rank"] = numba.njit(select.select_rank)
    space.update(jit)
    clip = "def clip(x, low, high):\n    return minimum(maximum(x, low), high)\n"
    exec(clip, space)
    space["clip"] = numba.njit(space["clip"])
    return space


def jitted(policy: Policy) -> Any:
    space = dict(helpers())
    exec(emit_function(policy, policy.order), space)
    return numba.njit(space["order"])


def test_a_large_decision_agrees() -> None:
    rng = np.random.default_rng(7)
    builder = OrderingBuilder()
    uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    age = builder.add(SignalRef("age", PLAIN, Stage.OBJECT))
    heat = builder.add(Apply("log1p", (uses,), PLAIN, Stage.OBJECT))
    keys = [builder.add(Apply("div", (age, builder.add(Fold(op, age, PLAIN))), PLAIN, Stage.OBJECT))
            for op in ("mean", "p90")]  # fmt: skip
    policy = policy_of(builder.build([heat, *keys]))
    n = 5003
    columns = {
        "uses": rng.integers(0, 9, n).astype(float),
        "last_use": rng.integers(0, 10**9, n).astype(float),
    }
    case = Case(policy, {"now": 1e9}, columns, n, {})
    want = expected(case)
    for scorer in SCORERS:
        assert scored(scorer(policy, policy.order), case) == want


@settings(max_examples=120)
@given(st.data())
def test_checked_policies_agree(data: st.DataObject) -> None:
    policy = data.draw(policies()).policy
    for ordering in (policy.order, policy.preempt):
        if ordering is None:
            continue
        case = data.draw(inputs(policy))
        want = bits(evaluate(policy, ordering, case.decision, case.columns, case.n, case.knobs))
        for scorer in SCORERS:
            assert scored(scorer(policy, ordering), case) == want, scorer
