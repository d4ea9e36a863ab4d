"""Rewrites that hold anywhere in an expression, bit for bit but for the sign of a zero.

No operator of the language tells -0 from 0, so that sign cannot be seen. (One exception:
the mean of one and the same value is that value, without the rounding of a sum.) The
list is `rewrites.py`; key-only rewrites are in `keys.py`.
"""

from __future__ import annotations

from typing import cast

from tanren_dsl.ir import Apply, Const, Fold, Node, Ordering, OrderingBuilder, SignalRef, Stage
from tanren_dsl.passes.rebuild import apply, rebuild
from tanren_dsl.signals import SIGNALS
from tanren_dsl.units import BOOL

_SINCE = {row.since: row for row in SIGNALS if row.since is not None}


def simplify(ordering: Ordering) -> Ordering:
    """The ordering with each node replaced by the simplest equal one.

    >>> from tanren_dsl.ir import OrderingBuilder
    >>> from tanren_dsl.units import PLAIN
    >>> builder = OrderingBuilder()
    >>> uses = builder.add(SignalRef("uses", PLAIN, Stage.OBJECT))
    >>> one = builder.add(Const(1.0, PLAIN))
    >>> product = builder.add(Apply("mul", (uses, one), PLAIN, Stage.OBJECT))
    >>> [node.name for node in simplify(builder.build([product])).nodes]
    ['uses']
    """
    return rebuild(ordering, _rule)


def _rule(builder: OrderingBuilder, node: Node) -> int:
    found: int | None = None
    match node:
        case Apply("add" | "sub" | "mul" | "div"):
            found = _arithmetic(builder, node)
        case Apply("neg", (x,)):
            found = _negation(builder, node, x)
        case Apply("abs", (x,)):
            match builder.node(x):
                case Apply("abs"):
                    found = x
                case Apply("neg", (y,)):
                    found = apply(builder, "abs", (y,), node.type)
                case _:
                    pass
        case Apply("not", (x,)):
            match builder.node(x):
                case Apply("not", (y,)):
                    found = y
                case _:
                    pass
        case Apply("and" | "or" as op, (x, y)):
            found = _junction(builder, op, x, y)
        case Apply("min" | "max", (x, y)) if x == y:
            found = x
        case Apply("choose", (test, then, orelse)):
            found = _choice(builder, node, test, then, orelse)
        case Fold(_, x) if builder.node(x).stage < Stage.OBJECT:
            found = x
        case _:
            pass
    return builder.add(node) if found is None else found


def _arithmetic(builder: OrderingBuilder, node: Apply) -> int | None:
    x, y = node.args
    match node.op, builder.node(x), builder.node(y):
        case ("add" | "sub", _, Const(0.0)):
            return x
        case ("add", Const(0.0), _):
            return y
        case ("sub", Const(0.0), _):
            return apply(builder, "neg", (y,), node.type)
        case ("mul" | "div", _, Const(1.0)):
            return x
        case ("mul", Const(1.0), _):
            return y
        case ("mul" | "div", _, Const(-1.0)):
            return apply(builder, "neg", (x,), node.type)
        case ("mul", Const(-1.0), _):
            return apply(builder, "neg", (y,), node.type)
        case ("add", _, Apply("neg", (z,))):
            return apply(builder, "sub", (x, z), node.type)
        case ("add", Apply("neg", (z,)), _):
            return apply(builder, "sub", (y, z), node.type)
        case ("sub", _, Apply("neg", (z,))):
            return apply(builder, "add", (x, z), node.type)
        case ("sub", SignalRef("now"), SignalRef(name)) if name in _SINCE:
            return _elapsed(builder, name)
        case ("sub", SignalRef(name), SignalRef("now")) if name in _SINCE:
            return apply(builder, "neg", (_elapsed(builder, name),), node.type)
        case _:
            return None


def _elapsed(builder: OrderingBuilder, since: str) -> int:
    row = _SINCE[since]
    return builder.add(SignalRef(row.name, row.type, Stage.OBJECT))


def _negation(builder: OrderingBuilder, node: Apply, x: int) -> int | None:
    match builder.node(x):
        case Apply("neg", (y,)):
            return y
        case Apply("sub", (y, z)):
            return apply(builder, "sub", (z, y), node.type)
        case _:
            return None


def _junction(builder: OrderingBuilder, op: str, x: int, y: int) -> int | None:
    if x == y:
        return x
    for known, other in ((x, y), (y, x)):
        constant = builder.node(known)
        if isinstance(constant, Const):
            decides = (constant.value != 0.0) == (op == "or")
            return known if decides else other
    return None


def _choice(builder: OrderingBuilder, node: Apply, test: int, then: int, orelse: int) -> int | None:
    if then == orelse:
        return then
    match builder.node(test):
        case Const(value):
            return then if value != 0.0 else orelse
        case Apply("not", (inner,)):
            return apply(builder, "choose", (inner, orelse, then), node.type)
        case _:
            pass
    if node.type != BOOL:
        return None
    is_then_known = isinstance(builder.node(then), Const)
    if not is_then_known and not isinstance(builder.node(orelse), Const):
        return None
    known, other = (then, orelse) if is_then_known else (orelse, then)
    is_true = cast(Const, builder.node(known)).value != 0.0
    if is_then_known != is_true:  # `false if c else x`, `x if c else true`
        test = apply(builder, "not", (test,), BOOL)
    return apply(builder, "or" if is_true else "and", (test, other), BOOL)
