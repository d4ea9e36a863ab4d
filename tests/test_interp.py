"""The reference meaning: ranks, ties, signs of zero, NaN, faults, accuracy of the published sequences."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tanren_dsl.errors import TanrenError
from tanren_dsl.interp import APPLY, FOLDS, evaluate, order, rank
from tanren_dsl.ir import Fold, KnobRef, OrderingBuilder, Policy, SignalRef, Stage
from tanren_dsl.kernels import meaning
from tanren_dsl.kernels.select import select_rank
from tanren_dsl.ops import AGGREGATES, OPS
from tanren_dsl.units import PLAIN, TIME
from tests.ir_strategies import policy_of

NAN, INF = math.nan, math.inf


def policy_with_age() -> Policy:
    builder = OrderingBuilder()
    age = builder.add(SignalRef("age", TIME, Stage.OBJECT))
    mean = builder.add(Fold("mean", age, TIME))
    budget = builder.add(KnobRef("budget", PLAIN))
    return policy_of(builder.build([age, mean, budget]))


def is_same(x: float, y: float) -> bool:
    """Equal, the sign of zero included; all NaNs are one."""
    return (x != x and y != y) or (x == y and math.copysign(1.0, x) == math.copysign(1.0, y))


def test_every_operator_has_a_meaning() -> None:
    assert set(APPLY) == {op.name for op in OPS} - AGGREGATES
    assert set(FOLDS) == AGGREGATES


def test_age_is_now_less_last_use_and_knobs_default() -> None:
    policy = policy_with_age()
    columns = {"last_use": np.array([1.0, 4.0])}
    keys = evaluate(policy, policy.order, {"now": 10.0}, columns, 2)
    assert keys.tolist() == [[9.0, 7.5, 3.0], [6.0, 7.5, 3.0]]
    keys = evaluate(policy, policy.order, {"now": 10.0}, columns, 2, {"budget": 8.0})
    assert keys[:, 2].tolist() == [8.0, 8.0]


def test_no_objects_give_no_keys() -> None:
    policy = policy_with_age()
    assert evaluate(policy, policy.order, {"now": 1.0}, {"last_use": np.empty(0)}, 0).shape == (0, 3)


@pytest.mark.parametrize(
    ("decision", "columns", "knobs", "named"),
    [
        ({}, {"last_use": np.zeros(1)}, {}, "'now'"),
        ({"now": 1.0}, {}, {}, "'last_use'"),
        ({"now": 1.0}, {"last_use": np.zeros(2)}, {}, "2 values, expected 1"),
        ({"now": 1.0}, {"last_use": np.zeros(1)}, {"bugdet": 1.0}, "'bugdet', expected one of: budget, slo"),
    ],
)
def test_missing_inputs_are_named(
    decision: dict[str, float], columns: dict[str, np.ndarray], knobs: dict[str, float], named: str
) -> None:
    policy = policy_with_age()
    with pytest.raises(TanrenError, match=named):
        evaluate(policy, policy.order, decision, columns, 1, knobs)


def test_ranks_go_by_keys_then_by_the_engines_order() -> None:
    keys = np.array([[1.0, 5.0], [0.0, 9.0], [1.0, 4.0], [-0.0, 9.0], [1.0, 4.0]])
    assert rank(keys) == [1, 3, 2, 4, 0]
    assert order(keys) == ([1, 3, 2, 4, 0], False)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_key_that_is_not_finite_leaves_the_engines_own_order(bad: float) -> None:
    assert order(np.array([[3.0], [2.0], [bad]])) == ([0, 1, 2], True)


@pytest.mark.parametrize(
    ("op", "args", "result"),
    [
        ("div", (1.0, 0.0), 0.0),
        ("div", (-1.0, -0.0), 0.0),
        ("div", (NAN, 0.0), 0.0),
        ("div", (-0.0, 2.0), -0.0),
        ("min", (0.0, -0.0), 0.0),
        ("min", (-0.0, 0.0), -0.0),
        ("min", (NAN, 1.0), NAN),
        ("min", (1.0, NAN), 1.0),
        ("max", (-0.0, 0.0), -0.0),
        ("max", (NAN, 1.0), NAN),
        ("max", (1.0, NAN), 1.0),
        ("clip", (NAN, 0.0, 1.0), NAN),
        ("clip", (5.0, 2.0, 1.0), 1.0),
        ("clip", (-5.0, 2.0, 1.0), 1.0),
        ("sqrt", (-4.0,), 0.0),
        ("sqrt", (-0.0,), -0.0),
        ("sqrt", (NAN,), NAN),
        ("floor", (-0.0,), 0.0),
        ("floor", (-0.5,), -1.0),
        ("floor", (INF,), INF),
        ("floor", (NAN,), NAN),
        ("abs", (-0.0,), 0.0),
        ("neg", (0.0,), -0.0),
        ("pow3", (-2.0,), -8.0),
        ("ne", (NAN, NAN), 1.0),
        ("eq", (NAN, NAN), 0.0),
        ("eq", (0.0, -0.0), 1.0),
        ("lt", (NAN, 1.0), 0.0),
        ("choose", (1.0, 2.0, 3.0), 2.0),
        ("choose", (0.0, 2.0, 3.0), 3.0),
        ("exp", (-INF,), meaning.exp(-708.0)),
        ("exp", (INF,), meaning.exp(709.0)),
        ("exp", (0.0,), 1.0),
        ("exp", (NAN,), NAN),
        ("log1p", (-5.0,), meaning.log1p(-1.0 + 2.0**-53)),
        ("log1p", (-INF,), meaning.log1p(-1.0 + 2.0**-53)),
        ("log1p", (INF,), INF),
        ("log1p", (0.0,), 0.0),
        ("log1p", (NAN,), NAN),
    ],
)
def test_corners_of_operators(op: str, args: tuple[float, ...], result: float) -> None:
    assert is_same(APPLY[op](*args), result)


@pytest.mark.parametrize(
    ("op", "values", "result"),
    [
        ("mean", [1e308, 1e308, -1e308], INF),
        ("mean", [1.0, 1e16, -1e16], 0.0),
        ("mean", [-0.0, -0.0], 0.0),
        ("median", [4.0, 1.0, 3.0, 2.0], 2.0),
        ("median", [5.0], 5.0),
        ("median", [-0.0, -0.0, 0.0], 0.0),
        ("median", [1.0, NAN, 2.0], NAN),
        ("median", [-INF, INF], -INF),
        ("p90", [float(i) for i in range(10)], 8.0),
        ("p90", [float(i) for i in range(11)], 9.0),
        ("p90", [float(i) for i in range(20)], 17.0),
        ("p90", [3.0, 7.0], 7.0),
        ("p90", [-0.0], 0.0),
        ("p90", [NAN], NAN),
        ("lowest", [0.0, -0.0], 0.0),
        ("lowest", [2.0, NAN, 1.0], 1.0),
        ("lowest", [NAN, 1.0], NAN),
        ("highest", [-0.0, 0.0], -0.0),
        ("highest", [1.0, NAN, 2.0], 2.0),
        ("highest", [NAN, 2.0], NAN),
    ],
)
def test_corners_of_aggregates(op: str, values: list[float], result: float) -> None:
    assert is_same(FOLDS[op](values), result)


@given(st.lists(st.floats(), min_size=1, max_size=60), st.data())
def test_the_selection_gives_the_value_of_the_rank(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values) - 1))
    clean = not any(math.isnan(value) for value in values)
    want = sorted(values)[k] + 0.0 if clean else NAN
    assert is_same(select_rank(list(values), len(values), k), want)


@given(st.floats(-708.0, 709.0))
def test_exp_is_within_three_units_in_the_last_place(x: float) -> None:
    with localcontext() as context:
        context.prec = 40
        assert ulps(meaning.exp(x), Decimal(x).exp()) <= 3


@given(st.one_of(st.floats(-0.9999999999999998, 1e308), st.floats(-0.99, 2.0)))
def test_log1p_is_within_three_units_in_the_last_place(x: float) -> None:
    if abs(x) < 1e-250:
        assert ulps(meaning.log1p(x), Decimal(x)) <= 3
        return
    with localcontext() as context:
        context.prec = 600 if abs(x) < 1e-20 else 60
        assert ulps(meaning.log1p(x), (1 + Decimal(x)).ln()) <= 3


def ulps(found: float, exact: Decimal) -> float:
    return float(abs(Decimal(found) - exact) / Decimal(math.ulp(float(exact))))
