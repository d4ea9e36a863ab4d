"""What every backend offers, and how inputs by name become the arrays of the binary contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from tanren_dsl.errors import UnsupportedError
from tanren_dsl.interp import check_inputs, knob_values, reads
from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.kernels.abi import DECISION_WIDTH
from tanren_dsl.signals import ROW_WIDTH, column_of, decision_index


class Scorer(Protocol):
    """An ordering made executable by some backend."""

    def score(
        self,
        decision: Mapping[str, float],
        columns: Mapping[str, NDArray[np.float64]],
        n: int,
        knobs: Mapping[str, float] | None = None,
    ) -> NDArray[np.float64]:
        """Keys of n objects, shape `(n, keys)`; arguments as in `interp.evaluate`."""
        ...


class Backend(Protocol):
    """Makes scorers; `name` is the target's name in messages."""

    @property
    def name(self) -> str:
        """The target's name."""
        ...

    def scorer(self, policy: Policy, ordering: Ordering) -> Scorer:
        """A scorer of `policy.order` or `policy.preempt`."""
        ...


@dataclass(frozen=True, slots=True)
class Packed:
    """Inputs of one decision as `kernels/abi.py` wants them.

    Attributes:
        decision: shape `(DECISION_WIDTH + knobs,)`.
        rows: shape `(n, ROW_WIDTH)`, C order.
        ids: shape `(n,)`, int32: 0 to n - 1.
        keys: out, shape `(n, keys)`.
        scratch: shape `(n,)`.
    """

    decision: NDArray[np.float64]
    rows: NDArray[np.float64]
    ids: NDArray[np.int32]
    keys: NDArray[np.float64]
    scratch: NDArray[np.float64]


def pack(
    policy: Policy,
    ordering: Ordering,
    decision: Mapping[str, float],
    columns: Mapping[str, NDArray[np.float64]],
    n: int,
    knobs: Mapping[str, float] | None = None,
) -> Packed:
    """Arrays from values by name; what the ordering does not read stays 0.

    Raises:
        TanrenError: a signal that the ordering reads is missing, or a knob is unknown.
    """
    check_inputs(policy, ordering, decision, columns, n)
    settings = list(knob_values(policy, knobs).values())
    wanted_decision, wanted_columns = reads(policy, ordering)
    vector = np.zeros(DECISION_WIDTH + len(settings), dtype=np.float64)
    vector[DECISION_WIDTH:] = settings
    for name in wanted_decision:
        vector[decision_index(name)] = decision[name]
    rows = np.zeros((n, ROW_WIDTH), dtype=np.float64)
    for name in wanted_columns:
        rows[:, column_of(policy.kind, name)] = columns[name]
    return Packed(
        vector,
        rows,
        np.arange(n, dtype=np.int32),
        np.zeros((n, len(ordering.keys)), dtype=np.float64),
        np.zeros(n, dtype=np.float64),
    )


def knob_index(policy: Policy, name: str) -> int:
    """Index of a knob in the decision vector."""
    return DECISION_WIDTH + [decl.name for decl in policy.knobs].index(name)


def unsupported(what: str, target: str) -> NoReturn:
    """Refuse a node by name for a target.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(f"target {target!r} cannot express {what}")
