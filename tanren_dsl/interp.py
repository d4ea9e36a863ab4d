"""The reference meaning of a typed ordering: plain floats, one node after another.

Every backend must give these bits. It is written to be obvious, not fast; it
holds no budget and no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.ir import Apply, Const, Fold, KnobRef, Node, Ordering, ParamRef, Policy, SignalRef, Stage
from tanren_dsl.kernels import meaning
from tanren_dsl.signals import signals_of

APPLY: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": meaning.div,
    "neg": lambda a: -a,
    "pow2": lambda a: a * a,
    "pow3": lambda a: (a * a) * a,
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "gt": lambda a, b: float(a > b),
    "ge": lambda a, b: float(a >= b),
    "eq": lambda a, b: float(a == b),
    "ne": lambda a, b: float(a != b),
    "and": lambda a, b: float(a != 0.0 and b != 0.0),
    "or": lambda a, b: float(a != 0.0 or b != 0.0),
    "not": lambda a: float(a == 0.0),
    "choose": lambda c, a, b: a if c != 0.0 else b,
    "min": meaning.minimum,
    "max": meaning.maximum,
    "abs": abs,
    "sqrt": meaning.root,
    "log1p": meaning.log1p,
    "exp": meaning.exp,
    "clip": meaning.clip,
    "floor": meaning.floor,
}
"""Operators of one object or of the decision, by name."""


def evaluate(
    policy: Policy,
    ordering: Ordering,
    decision: Mapping[str, float],
    columns: Mapping[str, NDArray[np.float64]],
    n: int,
    knobs: Mapping[str, float] | None = None,
) -> NDArray[np.float64]:
    """The keys of n objects, which stand in the engine's own order.

    Args:
        policy: gives the kind and the knobs.
        ordering: `policy.order` or `policy.preempt`.
        decision: per-decision signals by name; times in microseconds.
        columns: stored per-object signals by name, shape `(n,)` each; `age` and its
            like are computed from `now` and the instant they count from.
        n: number of objects.
        knobs: values by name in the unit's own scale; the declared default stands for a missing one.

    Returns:
        Shape `(n, keys)`.

    Raises:
        TanrenError: a signal that the ordering reads is missing, or a knob is unknown.
    """
    settings = knob_values(policy, knobs)
    check_inputs(policy, ordering, decision, columns, n)
    values: list[float | list[float]] = []
    for node in ordering.nodes:
        values.append(_value(policy, node, values, decision, columns, n, settings))
    keys = np.empty((n, len(ordering.keys)), dtype=np.float64)
    for k, index in enumerate(ordering.keys):
        keys[:, k] = values[index]
    return keys


def order(keys: NDArray[np.float64]) -> tuple[list[int], bool]:
    """Positions sorted by (keys, the engine's own order), and whether the decision is a fault.

    `keys` has shape `(n, keys)`. If any key is not finite the engine's own order stands: a fault.
    -0.0 and 0.0 are equal.
    """
    if not bool(np.isfinite(keys).all()):
        return list(range(len(keys))), True
    return rank(keys), False


def rank(keys: NDArray[np.float64]) -> list[int]:
    """Positions sorted by (keys, the engine's own order); `keys` has shape `(n, keys)`, all finite."""
    rows = keys.tolist()
    return sorted(range(len(rows)), key=lambda j: (rows[j], j))


def reads(policy: Policy, ordering: Ordering) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the per-decision and of the stored per-object signals that an ordering needs."""
    table = signals_of(policy.kind)
    decision: dict[str, None] = {}
    stored: dict[str, None] = {}
    for name in ordering.signals():
        row = table[name]
        if row.scope == "decision":
            decision[name] = None
        elif row.since is None:
            stored[name] = None
        else:
            decision["now"] = None
            stored[row.since] = None
    return tuple(decision), tuple(stored)


def check_inputs(
    policy: Policy,
    ordering: Ordering,
    decision: Mapping[str, float],
    columns: Mapping[str, NDArray[np.float64]],
    n: int,
) -> None:
    """Refuse inputs that lack a signal or have a column of another length than n."""
    wanted_decision, wanted_columns = reads(policy, ordering)
    for name in wanted_decision:
        if name not in decision:
            raise TanrenError(f"signal {name!r} is read by {policy.name!r} and not given for the decision")
    for name in wanted_columns:
        if name not in columns:
            raise TanrenError(f"signal {name!r} is read by {policy.name!r} and not given for the objects")
        if len(columns[name]) != n:
            raise TanrenError(f"signal {name!r} has {len(columns[name])} values, expected {n}")


def knob_values(policy: Policy, knobs: Mapping[str, float] | None) -> dict[str, float]:
    """Value of every declared knob, in order of declaration; refuses undeclared names."""
    given = dict(knobs or {})
    values = {decl.name: float(given.pop(decl.name, decl.default)) for decl in policy.knobs}
    if given:
        known = ", ".join(values) or "none"
        raise TanrenError(f"policy {policy.name!r} has no knob {min(given)!r}, expected one of: {known}")
    return values


def _value(
    policy: Policy,
    node: Node,
    values: Sequence[float | list[float]],
    decision: Mapping[str, float],
    columns: Mapping[str, NDArray[np.float64]],
    n: int,
    knobs: Mapping[str, float],
) -> float | list[float]:
    match node:
        case Const(value=value) | ParamRef(value=value):
            return float(value)
        case KnobRef(name=name):
            return knobs[name]
        case SignalRef(name=name):
            return _signal(policy, name, decision, columns)
        case Apply(op, args, _, Stage.OBJECT):
            spread = [_spread(values[arg], n) for arg in args]
            return [APPLY[op](*row) for row in zip(*spread, strict=True)]
        case Apply(op, args):
            return APPLY[op](*(values[arg] for arg in args))
        case Fold(op, arg):
            return FOLDS[op](_spread(values[arg], n)) if n > 0 else 0.0


def _signal(
    policy: Policy,
    name: str,
    decision: Mapping[str, float],
    columns: Mapping[str, NDArray[np.float64]],
) -> float | list[float]:
    row = signals_of(policy.kind)[name]
    if row.scope == "decision":
        return float(decision[name])
    if row.since is None:
        return [float(value) for value in columns[name]]
    now = float(decision["now"])
    return [now - float(value) for value in columns[row.since]]


def _spread(value: float | list[float], n: int) -> list[float]:
    return value if isinstance(value, list) else [value] * n


def _mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total = total + value
    return total / float(len(values))


def _median(values: list[float]) -> float:
    return _of_rank(values, (len(values) - 1) // 2)


def _p90(values: list[float]) -> float:
    return _of_rank(values, (9 * len(values) + 9) // 10 - 1)


def _of_rank(values: list[float], k: int) -> float:
    if any(math.isnan(value) for value in values):
        return math.nan
    return sorted(values)[k] + 0.0


def _lowest(values: list[float]) -> float:
    least = values[0]
    for value in values[1:]:
        least = meaning.minimum(least, value)
    return least


def _highest(values: list[float]) -> float:
    most = values[0]
    for value in values[1:]:
        most = meaning.maximum(most, value)
    return most


FOLDS: dict[str, Callable[[list[float]], float]] = {
    "mean": _mean,
    "median": _median,
    "p90": _p90,
    "lowest": _lowest,
    "highest": _highest,
}
"""Aggregates over one or more values in the engine's own order; of none they are 0."""
