"""How a compiled ordering is called: the one binary contract between backends and simulators.

A scorer is a C function

    void score(double *decision, double *rows, int32_t *ids, int64_t n,
               double *keys, double *scratch)

- `decision`: the decision vector, `signals.DECISION_ORDER` first, then the policy's
  knobs in order of declaration (microseconds where time is meant).
- `rows`: object table, row-major, `signals.ROW_WIDTH` doubles a row; stored signal
  `s` of object `ids[j]` is `rows[ids[j] * ROW_WIDTH + column_of(kind, s)]`.
- `ids`: the n objects to order, in the engine's own order; aggregates fold over them.
- `keys`: out; key k of object j is `keys[j * key_count + k]`.
- `scratch`: room for n doubles.

It does not allocate, does not fail, and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.signals import DECISION_ORDER

DECISION_WIDTH = len(DECISION_ORDER)
"""Where the knobs begin in the decision vector."""


@dataclass(frozen=True)
class CompiledOrdering:
    """Machine code of one ordering; valid as long as this object lives."""

    ordering: Ordering
    address: int
    key_count: int
    keep_alive: object = field(repr=False)


CompileOrdering: TypeAlias = Callable[[Policy, Ordering], CompiledOrdering]
"""What a simulator needs from a backend."""
