"""Random typed orderings and hostile inputs, built straight from nodes: every operator, every stage.

Units are ignored (every number is plain): backends never look at them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tanren_dsl.ir import (
    Apply,
    Const,
    Fold,
    KnobDecl,
    KnobRef,
    Node,
    Ordering,
    OrderingBuilder,
    ParamRef,
    Policy,
    SignalRef,
    Stage,
    stage_of,
)
from tanren_dsl.ops import OP_BY_NAME, OPS
from tanren_dsl.signals import STORED, Kind, signals_of
from tanren_dsl.units import BOOL, PLAIN

HOSTILE = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.75, 1e308, -1e308, 5e-324, -5e-324, 1e-300,
    float("inf"), float("-inf"), float("nan"), 709.5, -708.5, -0.25, 0.4, 1e15, 4503599627370497.0,
)  # fmt: skip
KNOBS = (KnobDecl("budget", PLAIN, "1", 3.0, 3.0), KnobDecl("slo", PLAIN, "1", 2.5, 2.5))

numbers = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers(0, 10**12).map(float),
    st.integers(0, 5).map(float),
    st.floats(-1e4, 1e4),
    st.floats(),
)


@dataclass(frozen=True)
class Case:
    """A policy (only `order` is set) and the inputs of one decision."""

    policy: Policy
    decision: dict[str, float]
    columns: dict[str, NDArray[np.float64]]
    n: int
    knobs: dict[str, float]


def policy_of(ordering: Ordering, kind: Kind = "evict", text: str = "") -> Policy:
    """A policy around an ordering."""
    return Policy("random", kind, None, (), KNOBS, ordering, None, 10.0 if kind == "evict" else None, text)


@st.composite
def orderings(draw: st.DrawFn, kind: Kind = "evict", size: int = 24) -> Ordering:
    """An ordering of up to `size` operators; aggregates are not nested."""
    builder = OrderingBuilder()
    table = signals_of(kind)
    pool: list[int] = []
    for name in draw(st.lists(st.sampled_from(sorted(table)), min_size=2, max_size=6, unique=True)):
        row = table[name]
        stage = Stage.OBJECT if row.scope == "object" else Stage.DECISION
        pool.append(builder.add(SignalRef(name, row.type, stage)))
    for value in draw(st.lists(st.one_of(numbers, st.just(2.0)), min_size=1, max_size=3)):
        pool.append(builder.add(Const(value, PLAIN)))
    pool.append(builder.add(ParamRef("heat", draw(st.floats(-8, 8)), PLAIN)))
    pool.append(builder.add(KnobRef(draw(st.sampled_from(KNOBS)).name, PLAIN)))
    folded: set[int] = set()
    nodes: list[Node] = [builder.node(i) for i in range(max(pool) + 1)]
    names = [op.name for op in OPS]
    for _ in range(draw(st.integers(1, size))):
        op = OP_BY_NAME[draw(st.sampled_from(names))]
        recent = draw(st.booleans())
        args = tuple(draw(st.sampled_from(pool[-4:] if recent else pool)) for _ in range(op.arity))
        if op.form == "aggregate":
            if args[0] in folded:
                continue
            index = builder.add(Fold(op.name, args[0], PLAIN))
            folded.add(index)
        else:
            type_ = BOOL if op.rule in ("compare", "logic") else PLAIN
            index = builder.add(Apply(op.name, args, type_, stage_of(nodes, args)))
            if any(arg in folded for arg in args):
                folded.add(index)
        if index == len(nodes):
            nodes.append(builder.node(index))
            pool.append(index)
    keys = draw(st.lists(st.sampled_from(pool[-4:]), min_size=1, max_size=3))
    return builder.build(keys)


@st.composite
def cases(draw: st.DrawFn, size: int = 24, most: int = 40) -> Case:
    """A random policy with random or hostile inputs."""
    kind: Kind = draw(st.sampled_from(("evict", "schedule")))
    policy = policy_of(draw(orderings(kind, size)), kind)
    return draw(inputs(policy, most))


@st.composite
def inputs(draw: st.DrawFn, policy: Policy, most: int = 40) -> Case:
    """Inputs for a policy: n from 0 to `most`, columns from a few values each, tame or hostile."""
    n = draw(st.integers(0, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tame = st.integers(0, 10**9).map(float)
    values = numbers if draw(st.booleans()) else tame
    columns: dict[str, NDArray[np.float64]] = {}
    for name in STORED[policy.kind]:
        few = np.array(draw(st.lists(values, min_size=1, max_size=3)))
        columns[name] = few[rng.integers(0, len(few), n)]
    decision = {
        name: draw(values) for name, row in signals_of(policy.kind).items() if row.scope == "decision"
    }
    knobs = {decl.name: draw(values) for decl in policy.knobs}
    return Case(policy, decision, columns, n, knobs)


def bits(keys: NDArray[np.float64]) -> list[list[int]]:
    """Keys as integers of their bits, every NaN as one."""
    plain = np.where(np.isnan(keys), np.float64("nan"), keys)
    rows: list[list[int]] = np.ascontiguousarray(plain).view(np.int64).tolist()
    return rows
