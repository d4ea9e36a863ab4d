"""Bounds of values, to prove a factor strictly positive. Conservative: unknown is (-inf, inf).

Bounds are computed in the same doubles as the values. Rounding is monotone, so a bound
computed from bounds still bounds the computed value, underflow included: a product of
two positives counts as positive only if the product of their least values is not 0.
NaN is outside every claim here: a factor that is NaN makes a key a fault either way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from tanren_dsl.ir import Apply, Const, Fold, Node, ParamDecl, ParamRef, SignalRef
from tanren_dsl.kernels import meaning
from tanren_dsl.signals import SIGNALS

Range: TypeAlias = tuple[float, float]
"""Least and greatest value, both included."""

ANY: Range = (-math.inf, math.inf)
_COUNT: Range = (1.0, 2.0**53)  # the positive signals are whole numbers, exact in a double
_POSITIVE = frozenset(row.name for row in SIGNALS if row.positive)


def ranges(nodes: Sequence[Node], params: Iterable[ParamDecl]) -> list[Range]:
    """Bounds of each node; params by their declared ranges, knobs unknown.

    >>> from tanren_dsl.units import PLAIN
    >>> ranges([ParamRef("a", 1.0, PLAIN)], [ParamDecl("a", 1.0, 0.5, 2.0, False)])
    [(0.5, 2.0)]
    """
    by_name = {param.name: param for param in params}
    done: list[Range] = []
    for node in nodes:
        match node:
            case Const(value):
                found = (value, value)
            case ParamRef(name) if name in by_name:
                found = (by_name[name].low, by_name[name].high)
            case SignalRef(name):
                found = _COUNT if name in _POSITIVE else ANY
            case Fold():
                found = ANY
            case Apply(op, args):
                found = _apply(op, [done[arg] for arg in args])
            case _:
                found = ANY
        done.append(ANY if math.isnan(found[0]) or math.isnan(found[1]) else found)
    return done


def is_positive(bounds: Range) -> bool:
    """Whether every value in the range is strictly positive."""
    return bounds[0] > 0.0


def _apply(op: str, args: Sequence[Range]) -> Range:
    match op, args:
        case "add", [(a, b), (c, d)]:
            return (a + c, b + d)
        case "mul", [(a, b), (c, d)] if a >= 0.0 and c >= 0.0:
            return (a * c, b * d)
        case "div", [(a, b), (c, d)] if a >= 0.0 and c > 0.0:
            return (a / d, b / c)
        case "pow2", [(a, b)] if a >= 0.0:
            return (a * a, b * b)
        case "pow3", [(a, b)] if a >= 0.0:
            return (a * a * a, b * b * b)
        case "min", [(a, b), (c, d)]:
            return (min(a, c), min(b, d))
        case "max", [(a, b), (c, d)]:
            return (max(a, c), max(b, d))
        case "clip", [value, low, high]:
            return _apply("min", [_apply("max", [value, low]), high])
        case "abs", [(a, b)]:
            return (a, b) if a >= 0.0 else (0.0, math.inf)
        case "sqrt", [(a, b)]:
            return (meaning.root(a), math.inf if b == math.inf else meaning.root(b))
        case "exp", _:
            return (1e-308, math.inf)  # the argument is held above -708, where exp is 3e-308
        case "log1p", [(a, _)] if a >= 1e-300:
            return (min(a, 1.0) / 4.0, math.inf)  # log(1 + x) >= x / (1 + x) >= min(x, 1) / 2
        case "choose", [_, (a, b), (c, d)]:
            return (min(a, c), max(b, d))
        case _:
            return ANY
