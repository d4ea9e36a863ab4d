"""The complete list of rewrites that make the normal form, for readers and for the tests.

The code is in `fold.py`, `simplify.py` and `keys.py`; a test runs every example here
before and after. The form after all of them is the meaning of a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tanren_dsl.signals import Kind

Place: TypeAlias = Literal["anywhere", "key", "key list"]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One row: what becomes what, where, and why the order of objects stays.

    Attributes:
        name: short name.
        place: anywhere in an expression, at the top of a key, or in the list of keys.
        before: what is rewritten; x, y, z are anything, c is a literal, d is the same for all
            objects of a decision, f is such a value that is proven strictly positive.
        after: what it becomes.
        why: why no object changes its place.
        kind: kind of policy of the example.
        example: keys, and their normal form.
    """

    name: str
    place: Place
    before: str
    after: str
    why: str
    kind: Kind
    example: tuple[str, str]


def _row(
    name: str, place: Place, before: str, after: str, why: str, example: tuple[str, str], kind: Kind = "evict"
) -> Rewrite:
    return Rewrite(name, place, before, after, why, kind, example)


_EXACT = "the value is the same bit for bit"
_ZERO = "the value is the same but for the sign of a zero, which no operator tells apart"

REWRITES: tuple[Rewrite, ...] = (
    _row("fold constants", "anywhere", "c1 op c2", "its value, if finite", _EXACT,
         ("uses / (2 + exp(0))", "uses")),
    _row("add nothing", "anywhere", "x + 0, 0 + x, x - 0", "x", _ZERO, ("uses * depth + 0", "uses * depth")),
    _row("subtract from nothing", "anywhere", "0 - x", "-x", _ZERO, ("0 - uses", "-uses")),
    _row("times one", "anywhere", "x * 1, 1 * x, x / 1", "x", _EXACT, ("log1p(uses * 1)", "log1p(uses)")),
    _row("times minus one", "anywhere", "x * -1, -1 * x, x / -1", "-x", _EXACT, ("uses * -1", "-uses")),
    _row("double sign", "anywhere", "--x", "x", _EXACT, ("--uses", "uses")),
    _row("sign of a difference", "anywhere", "-(x - y)", "y - x", _ZERO,
         ("-(uses - children)", "children - uses")),
    _row("add a negative", "anywhere", "x + -y, -y + x", "x - y", _EXACT,
         ("uses + -children", "uses - children")),
    _row("subtract a negative", "anywhere", "x - -y", "x + y", _EXACT,
         ("uses - -children", "uses + children")),
    _row("absolute of a sign", "anywhere", "abs(-x), abs(abs(x))", "abs(x)", _EXACT,
         ("abs(-(uses * children))", "abs(uses * children)")),
    _row("twice not", "anywhere", "not not x", "x", _EXACT,
         ("1 if not not generated else 0", "1 if generated else 0")),
    _row("same in min and max", "anywhere", "min(x, x), max(x, x)", "x", _EXACT, ("min(uses, uses)", "uses")),
    _row("same or known truth", "anywhere", "x and x, x or x, x and true, x or false, ...",
         "x, or the known one", _EXACT, ("1 if generated and 1 < 2 else 0", "1 if generated else 0")),
    _row("known choice", "anywhere", "x if c else y, x if y else x", "the branch taken", _EXACT,
         ("uses if 1 < 2 else children", "uses")),
    _row("choice on not", "anywhere", "x if not y else z", "z if y else x", _EXACT,
         ("0 if not generated else 1", "1 if generated else 0")),
    _row("choice of a known truth", "anywhere", "true if x else y, y if x else false, ...",
         "x or y, x and y, ...", _EXACT,
         ("1 if (1 < 2 if generated else uses > 1) else 0", "1 if generated or uses > 1 else 0")),
    _row("aggregate of a shared value", "anywhere", "mean(d), median(d), ...", "d",
         "the value is one and the same for all; only the rounding of a mean's sum is gone",
         ("uses / mean(1 if 1 < 2 else uses)", "uses")),
    _row("time since last use", "anywhere", "now - last_use, last_use - now", "age, -age",
         "`age` is that difference, bit for bit", ("(now - last_use) * uses", "age * uses")),
    _row("time since writing", "anywhere", "now - created, created - now", "lifetime, -lifetime",
         "`lifetime` is that difference, bit for bit", ("(created - now) * uses", "-lifetime * uses")),
    _row("time since arrival", "anywhere", "now - arrival, arrival - now", "wait, -wait",
         "`wait` is that difference, bit for bit", ("now - arrival", "wait"), "schedule"),
    _row("shared factor", "key", "x * f, f * x, x / f", "x",
         "multiplying or dividing by one strictly positive number never swaps two keys",
         ("uses * capacity / 3", "uses")),
    _row("shared addend", "key", "x + d, d + x, x - d", "x", "adding one number to all keys never swaps two",
         ("uses + hit_rate", "uses")),
    _row("shared minuend", "key", "d - x", "-x", "as a shared addend", ("kv_free - uses", "-uses")),
    _row("under a sign", "key", "-(x * f), -(x + d), ...", "-x", "as above, all keys with the sign flipped",
         ("-(uses * capacity + capacity)", "-uses")),
    _row("oldest use first", "key", "-age", "last_use",
         "now is the same for all: a greater age is an earlier last_use, exact in whole microseconds",
         ("-age", "last_use")),
    _row("oldest writing first", "key", "-lifetime", "created", "likewise", ("-lifetime", "created")),
    _row("oldest arrival first", "key", "-wait", "arrival", "likewise", ("-wait", "arrival"), "schedule"),
    _row("shared key", "key list", "d, x", "x",
         "a key that all objects share decides nothing; a sole one stays", ("kv_free, uses", "uses")),
    _row("repeated key", "key list", "x, y, x", "x, y", "objects equal in a key are equal in its repetition",
         ("uses, children, uses", "uses, children")),
)  # fmt: skip
"""Every rewrite."""
