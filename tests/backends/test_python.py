"""Target python: readable, self-contained, stable text."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tanren_dsl.backends import python, python_helpers
from tanren_dsl.backends.python_module import emit_module
from tanren_dsl.errors import UnsupportedError
from tanren_dsl.interp import evaluate
from tanren_dsl.ir import (
    Apply,
    Const,
    Fold,
    KnobRef,
    Ordering,
    OrderingBuilder,
    ParamRef,
    Policy,
    SignalRef,
    Stage,
)
from tanren_dsl.kernels import meaning, select
from tanren_dsl.ops import AGGREGATES, OPS
from tanren_dsl.signals import SIGNALS
from tanren_dsl.units import BOOL, PLAIN, TIME, TOKENS
from tests.ir_strategies import policy_of

GOLDEN = Path(__file__).parent.parent / "golden" / "python"
OBJECT, DECISION = Stage.OBJECT, Stage.DECISION

WARM_TEXT = '''policy warm : evict
"Keep what a waiting conversation would feel; a \\\\ and a """ stay as they are."
knob budget : 1 = 3
param heat = 0.4 in [0, 8]
order by 1 if uses >= 2 and gap < budget else 0, log1p(uses) * heat - age / mean(age)
'''


def warm() -> Policy:
    b = OrderingBuilder()
    uses, gap = (b.add(SignalRef(name, PLAIN, OBJECT)) for name in ("uses", "gap"))
    age = b.add(SignalRef("age", TIME, OBJECT))
    one, zero, two = (b.add(Const(value, PLAIN)) for value in (1.0, 0.0, 2.0))
    budget = b.add(KnobRef("budget", PLAIN))
    often = b.add(Apply("ge", (uses, two), BOOL, OBJECT))
    close = b.add(Apply("lt", (gap, budget), BOOL, OBJECT))
    both = b.add(Apply("and", (often, close), BOOL, OBJECT))
    first = b.add(Apply("choose", (both, one, zero), PLAIN, OBJECT))
    log = b.add(Apply("log1p", (uses,), PLAIN, OBJECT))
    heat = b.add(Apply("mul", (log, b.add(ParamRef("heat", 0.4, PLAIN))), PLAIN, OBJECT))
    ratio = b.add(Apply("div", (age, b.add(Fold("mean", age, TIME))), PLAIN, OBJECT))
    second = b.add(Apply("sub", (heat, ratio), PLAIN, OBJECT))
    return replace(policy_of(b.build([first, second]), text=WARM_TEXT), name="warm")


def lean() -> Policy:
    b = OrderingBuilder()
    work = b.add(SignalRef("uncached_tokens", TOKENS, OBJECT))
    typical = b.add(Fold("p90", work, TOKENS))
    half = b.add(Apply("div", (typical, b.add(Const(2.0, PLAIN))), TOKENS, DECISION))
    over = b.add(Apply("sub", (work, half), TOKENS, OBJECT))
    cost = b.add(Apply("div", (b.add(Apply("pow2", (over,), TOKENS, OBJECT)), half), TOKENS, OBJECT))
    order = b.build([cost])
    b = OrderingBuilder()
    wait = b.add(SignalRef("wait", TIME, OBJECT))
    preempt = b.build([b.add(Apply("div", (wait, b.add(Fold("highest", wait, TIME))), PLAIN, OBJECT))])
    return replace(policy_of(order, "schedule", "policy lean : schedule\n"), name="lean", preempt=preempt)


@pytest.mark.parametrize("policy", [warm(), lean()], ids=["warm", "lean"])
def test_the_file_is_as_before(policy: Policy, update_golden: bool) -> None:
    path = GOLDEN / f"{policy.name}.py"
    text = emit_module(policy)
    if update_golden:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def load(policy: Policy) -> dict[str, object]:
    space: dict[str, object] = {}
    exec(compile(emit_module(policy), policy.name, "exec"), space)
    return space


def test_the_file_stands_alone_and_gives_the_interpreters_keys() -> None:
    policy = warm()
    space = load(policy)
    objects = [{"uses": 3.0, "gap": 1.0, "last_use": 5.0}, {"uses": 0.0, "gap": 9.0, "last_use": 2.0}]
    columns = {name: np.array([row[name] for row in objects]) for name in objects[0]}
    want = evaluate(policy, policy.order, {"now": 10.0}, columns, 2)
    entry = space["keys"]
    assert callable(entry)
    assert entry({"now": 10.0}, objects) == [tuple(row) for row in want.tolist()]
    assert entry({"now": 10.0}, objects, {"budget": 0.5})[0][0] == 0.0
    assert WARM_TEXT.rstrip("\n") in str(space["__doc__"])


def test_preempt_by_has_its_own_entry() -> None:
    entry = load(lean())["preempt_keys"]
    assert callable(entry)
    requests = [{"uncached_tokens": 1.0, "arrival": 0.0}, {"uncached_tokens": 1.0, "arrival": 5.0}]
    assert entry({"now": 10.0}, requests) == [(1.0,), (0.5,)]


def test_every_operator_has_an_entry() -> None:
    assert set(python.APPLY) == {op.name for op in OPS} - AGGREGATES


def test_every_helper_exists() -> None:
    named = {name for names in python_helpers._HELPERS.values() for name in names}
    assert all(hasattr(meaning, name) or hasattr(select, name) for name in named)


def test_no_signal_has_the_name_of_a_helper_or_an_argument() -> None:
    taken = {"order", "preempt", "rows", "ids", "n", "keys", "scratch", "i", "j", "float", "range", "math"}
    taken |= {name for names in python_helpers._HELPERS.values() for name in names}
    assert not taken & {row.name for row in SIGNALS}


def test_only_used_helpers_are_copied() -> None:
    policy = warm()
    text = python_helpers.helpers_source(policy.order, decorator="@njit")
    assert python_helpers.helper_names(policy.order) == ("div", "log1p")
    assert text.count("@njit\ndef ") == 2
    assert "_LN2_HIGH = " in text
    assert "_INV_LN2" not in text
    assert "float:" not in text


def test_a_policy_without_helpers_copies_none() -> None:
    assert python_helpers.helpers_source(Ordering((SignalRef("uses", PLAIN, OBJECT),), (0,))) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2.0"), (-0.0, "(-0.0)"), (-1.5, "(-1.5)"), (math.inf, "math.inf"), (-math.inf, "(-math.inf)"),
     (math.nan, "math.nan"), (5e-324, "5e-324")],
)  # fmt: skip
def test_literals_are_exact(value: float, text: str) -> None:
    assert python.literal(value) == text


def test_a_long_expression_is_cut_in_the_comment() -> None:
    b = OrderingBuilder()
    value = b.add(SignalRef("uses", PLAIN, OBJECT))
    for _ in range(60):
        value = b.add(Apply("add", (value, value), PLAIN, OBJECT))
    ordering = b.build([value])
    assert python_helpers.describe(ordering, 1) == "uses + uses"
    assert len(python_helpers.describe(ordering, ordering.keys[0])) < 250
    assert len(python.emit_function(policy_of(ordering), ordering)) < 5000


def test_an_unknown_operator_is_refused_by_name_and_target() -> None:
    b = OrderingBuilder()
    uses = b.add(SignalRef("uses", PLAIN, OBJECT))
    policy = policy_of(b.build([b.add(Apply("cosine", (uses,), PLAIN, OBJECT))]))
    with pytest.raises(UnsupportedError, match="'python' cannot express the operator 'cosine'"):
        python.emit_function(policy, policy.order)
