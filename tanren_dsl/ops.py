"""The operator table: syntax, typing rule, meaning, ties and clamps, cost.

One row an operator of the typed IR. The checker reads the typing rule, the
interpreter reads `meaning` (a name in `kernels/meaning.py`), backends carry one
entry a row and a test holds them complete, the search reads cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Form: TypeAlias = Literal["infix", "prefix", "power", "call", "choice", "aggregate"]
Rule: TypeAlias = Literal[
    "same",  # equal units (a literal 0 joins in), the unit is kept
    "instant-same",  # as `same`, and instants are allowed
    "subtract",  # as `same`, and instant - instant is a time
    "compare",  # equal units or two instants, gives a truth value
    "multiply",  # units multiply
    "divide",  # units divide
    "power",  # units to the power
    "root",  # units halve
    "plain",  # plain number to plain number
    "keep",  # any unit is kept
    "logic",  # truth values
    "choose",  # a truth value and two equal types
    "aggregate",  # a per-object number; the unit is kept
]


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table.

    Attributes:
        name: the name in the IR.
        text: how it is written in a policy.
        arity: arguments in the IR; `max_args` in the text (folded from the left), None for any number.
        cost: fixed weight when complexity is priced.
        meaning: exact meaning, for the reference page.
    """

    name: str
    text: str
    form: Form
    rule: Rule
    arity: int
    cost: float
    meaning: str
    min_args: int = 0
    max_args: int | None = 0


OPS: tuple[Op, ...] = (
    Op("add", "+", "infix", "same", 2, 1.0, "IEEE-754 sum"),
    Op("sub", "-", "infix", "subtract", 2, 1.0, "IEEE-754 difference; of two instants, a time"),
    Op("mul", "*", "infix", "multiply", 2, 1.0, "IEEE-754 product"),
    Op("div", "/", "infix", "divide", 2, 1.5, "IEEE-754 quotient; 0 when the divisor is 0"),
    Op("neg", "-", "prefix", "keep", 1, 0.5, "sign flipped"),
    Op("pow2", "** 2", "power", "power", 1, 1.0, "x * x"),
    Op("pow3", "** 3", "power", "power", 1, 1.5, "(x * x) * x"),
    Op("lt", "<", "infix", "compare", 2, 1.0, "less; false with a NaN"),
    Op("le", "<=", "infix", "compare", 2, 1.0, "less or equal; false with a NaN"),
    Op("gt", ">", "infix", "compare", 2, 1.0, "greater; false with a NaN"),
    Op("ge", ">=", "infix", "compare", 2, 1.0, "greater or equal; false with a NaN"),
    Op("eq", "==", "infix", "compare", 2, 1.0, "equal; false with a NaN"),
    Op("ne", "!=", "infix", "compare", 2, 1.0, "not equal; true with a NaN"),
    Op("and", "and", "infix", "logic", 2, 0.5, "both"),
    Op("or", "or", "infix", "logic", 2, 0.5, "either"),
    Op("not", "not", "prefix", "logic", 1, 0.5, "the opposite"),
    Op("choose", "a if c else b", "choice", "choose", 3, 1.5, "a where c holds, else b (IR order: c, a, b)"),
    Op("min", "min", "call", "instant-same", 2, 1.0, "the second if it is less, else the first", 2, None),
    Op("max", "max", "call", "instant-same", 2, 1.0, "the second if it is greater, else the first", 2, None),
    Op("abs", "abs", "call", "keep", 1, 0.5, "sign cleared", 1, 1),
    Op("sqrt", "sqrt", "call", "root", 1, 1.5, "rounded root; a negative argument counts as 0", 1, 1),
    Op(
        "log1p", "log1p", "call", "plain", 1, 2.0,
        "logarithm of 1 + x by the published sequence; an argument below -1 + 2**-53 counts as that", 1, 1,
    ),
    Op("exp", "exp", "call", "plain", 1, 2.0,
       "exponential by the published sequence; the argument is held in [-708, 709]", 1, 1),
    Op("clip", "clip", "call", "same", 3, 1.5, "min(max(x, low), high)", 3, 3),
    Op("floor", "floor", "call", "plain", 1, 1.0, "greatest whole number not above x; never -0", 1, 1),
    Op("mean", "mean", "aggregate", "aggregate", 1, 2.0,
       "sum from 0 in the engine's order, divided by the count; 0 for none", 1, 1),
    Op("median", "median", "aggregate", "aggregate", 1, 3.0,
       "value of rank (n - 1) // 2, from 0, never -0; NaN if any value is; 0 for none", 1, 1),
    Op("p90", "p90", "aggregate", "aggregate", 1, 3.0,
       "value of rank (9 * n + 9) // 10 - 1, from 0, never -0; NaN if any value is; 0 for none", 1, 1),
    Op("lowest", "lowest", "aggregate", "aggregate", 1, 2.0,
       "min folded from the first value in the engine's order; 0 for none", 1, 1),
    Op("highest", "highest", "aggregate", "aggregate", 1, 2.0,
       "max folded from the first value in the engine's order; 0 for none", 1, 1),
)  # fmt: skip

OP_BY_NAME: dict[str, Op] = {op.name: op for op in OPS}
INFIX: dict[str, Op] = {op.text: op for op in OPS if op.form == "infix"}
CALLS: dict[str, Op] = {op.text: op for op in OPS if op.form in ("call", "aggregate")}
AGGREGATES: frozenset[str] = frozenset(op.name for op in OPS if op.form == "aggregate")

SIGNAL_COST = 1.0
"""Weight of reading a signal, a name or a constant when complexity is priced."""
