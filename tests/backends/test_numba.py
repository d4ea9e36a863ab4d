"""Machine code: tables complete, code freed, cached by bits, refused by name."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import weakref

import numpy as np
import pytest

from tanren_dsl.backends import llvm_ops, llvm_runtime, plan
from tanren_dsl.backends.llvm_text import Assembly
from tanren_dsl.backends.numba import CACHE_SIZE, NumbaBackend, NumbaScorer, compile_ordering
from tanren_dsl.errors import UnsupportedError
from tanren_dsl.ir import Apply, Const, Fold, OrderingBuilder, Policy, SignalRef, Stage
from tanren_dsl.kernels import meaning
from tanren_dsl.kernels.abi import DECISION_WIDTH, CompileOrdering
from tanren_dsl.ops import AGGREGATES, OPS
from tanren_dsl.signals import ROW_WIDTH, column_of
from tanren_dsl.units import PLAIN
from tests.ir_strategies import policy_of


def policy_times(value: float) -> Policy:
    builder = OrderingBuilder()
    uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    factor = builder.add(Const(value, PLAIN))
    return policy_of(builder.build([builder.add(Apply("mul", (uses, factor), PLAIN, Stage.OBJECT))]))


def key_of(policy: Policy) -> float:
    keys = NumbaScorer(policy, policy.order).score({}, {"uses": np.array([3.0])}, 1)
    return float(keys[0, 0])


def test_every_operator_has_an_entry() -> None:
    assert set(llvm_ops.APPLY) == {op.name for op in OPS} - AGGREGATES


@pytest.mark.parametrize("op", sorted(AGGREGATES))
def test_every_aggregate_compiles(op: str) -> None:
    builder = OrderingBuilder()
    uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    policy = policy_of(builder.build([builder.add(Fold(op, uses, PLAIN))]))
    keys = NumbaBackend().scorer(policy, policy.order).score({}, {"uses": np.array([2.0, 2.0])}, 2)
    assert keys.tolist() == [[2.0], [2.0]]


def test_it_is_what_a_simulator_asks_for() -> None:
    compile_: CompileOrdering = compile_ordering
    policy = policy_times(2.0)
    compiled = compile_(policy, policy.order)
    assert compiled.address != 0
    assert compiled.key_count == 1
    assert compiled.ordering == policy.order


def test_constants_that_compare_equal_are_kept_apart() -> None:
    assert np.signbit(key_of(policy_times(-0.0)))
    assert not np.signbit(key_of(policy_times(0.0)))


def test_code_is_freed_with_its_last_user() -> None:
    policy = policy_times(0.125)
    compiled = compile_ordering(policy, policy.order)
    engine = weakref.ref(compiled.keep_alive)
    others = [policy_times(100.0 + i) for i in range(CACHE_SIZE)]
    for other in others:
        compile_ordering(other, other.order)
    gc.collect()
    assert engine() is not None
    del compiled
    gc.collect()
    assert engine() is None


def test_an_unknown_operator_is_refused_by_name_and_target() -> None:
    builder = OrderingBuilder()
    uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    policy = policy_of(builder.build([builder.add(Apply("cosine", (uses,), PLAIN, Stage.OBJECT))]))
    with pytest.raises(UnsupportedError, match="'numba' cannot express the operator 'cosine'"):
        compile_ordering(policy, policy.order)


def test_no_fast_math_is_written() -> None:
    text = llvm_runtime.module_text()
    words = set(text.replace("(", " ").replace(",", " ").split())
    assert not words & {"fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"}
    assert Assembly({}).new("fadd double %x, %y") == "%v1"


def test_a_spawned_process_compiles_its_own() -> None:
    policy = policy_times(7.0)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(key_of, (policy,)) == key_of(policy) == 21.0


def test_a_plan_puts_aggregates_before_what_needs_them() -> None:
    builder = OrderingBuilder()
    uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    gap = builder.add(SignalRef("gap", PLAIN, Stage.OBJECT))
    mean = builder.add(Fold("mean", uses, PLAIN))
    median = builder.add(Fold("median", gap, PLAIN))
    p90 = builder.add(Fold("p90", gap, PLAIN))
    both = builder.add(Apply("add", (mean, p90), PLAIN, Stage.DECISION))
    steps = plan.plan(builder.build([both, median]))
    assert steps.before == ()
    assert steps.waves == (plan.Wave((plan.Loop((0, 1), (2,), 1, (3, 4)),), (5,)),)
    assert steps.last == ()


def test_rows_are_found_by_id() -> None:
    builder = OrderingBuilder()
    uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    heat = builder.add(Apply("log1p", (uses,), PLAIN, Stage.OBJECT))
    policy = policy_of(builder.build([uses, heat]))
    compiled = compile_ordering(policy, policy.order)
    rows = np.zeros((50, ROW_WIDTH))
    rows[:, column_of("evict", "uses")] = np.arange(50.0)
    ids = np.array([49, 3, 7, 0, 12], dtype=np.int32)
    keys = np.full((6, 2), -1.0)
    arrays = (np.zeros(DECISION_WIDTH + 2), rows, ids, keys, np.zeros(5))
    decision, table, order, out, scratch = (array.ctypes.data for array in arrays)
    pointer = ctypes.c_void_p
    call = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64, pointer, pointer)
    call(compiled.address)(decision, table, order, 5, out, scratch)
    assert keys[:5, 0].tolist() == [49.0, 3.0, 7.0, 0.0, 12.0]
    assert keys[:5, 1].tolist() == [meaning.log1p(float(i)) for i in ids]
    assert keys[5].tolist() == [-1.0, -1.0]  # nothing is written past the last object
