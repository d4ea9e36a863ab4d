"""The operators in LLVM assembly: one entry each, straight-line code without fast-math flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tanren_dsl.backends.llvm_text import Assembly, Value

Rule: TypeAlias = Callable[[Assembly, Sequence[Value]], Value]
"""Writes an operator over its operands."""


def _arithmetic(instruction: str) -> Rule:
    def rule(out: Assembly, args: Sequence[Value]) -> Value:
        return Value(out.new(f"{instruction} {out.f} {', '.join(out.number(arg) for arg in args)}"))

    return rule


def _compare(predicate: str) -> Rule:
    def rule(out: Assembly, args: Sequence[Value]) -> Value:
        x, y = (out.number(arg) for arg in args)
        return Value(out.new(f"fcmp {predicate} {out.f} {x}, {y}"), is_bit=True)

    return rule


def _logic(instruction: str) -> Rule:
    def rule(out: Assembly, args: Sequence[Value]) -> Value:
        x, y = (out.bit(arg) for arg in args)
        return Value(out.new(f"{instruction} {out.b} {x}, {y}"), is_bit=True)

    return rule


def _call(name: str) -> Rule:
    def rule(out: Assembly, args: Sequence[Value]) -> Value:
        return Value(out.intrinsic(name, out.number(args[0])))

    return rule


def _div(out: Assembly, args: Sequence[Value]) -> Value:
    x, y = (out.number(arg) for arg in args)
    zero = out.new(f"fcmp oeq {out.f} {y}, {out.c(0.0)}")
    quotient = out.new(f"fdiv {out.f} {x}, {y}")
    return Value(out.select(zero, out.c(0.0), quotient))


def _not(out: Assembly, args: Sequence[Value]) -> Value:
    return Value(out.new(f"xor {out.b} {out.bit(args[0])}, {out.truth}"), is_bit=True)


def _power(times: int) -> Rule:
    def rule(out: Assembly, args: Sequence[Value]) -> Value:
        x = product = out.number(args[0])
        for _ in range(times - 1):
            product = out.new(f"fmul {out.f} {product}, {x}")
        return Value(product)

    return rule


def _choose(out: Assembly, args: Sequence[Value]) -> Value:
    test, then, other = args
    bit = out.bit(test)
    if then.is_bit and other.is_bit:
        return Value(
            out.new(f"select {out.b} {bit}, {out.b} {out.bit(then)}, {out.b} {out.bit(other)}"), is_bit=True
        )
    return Value(out.select(bit, out.number(then), out.number(other)))


def _minimum(out: Assembly, args: Sequence[Value]) -> Value:
    return Value(out.least(out.number(args[0]), out.number(args[1])))


def _maximum(out: Assembly, args: Sequence[Value]) -> Value:
    return Value(out.most(out.number(args[0]), out.number(args[1])))


def _clip(out: Assembly, args: Sequence[Value]) -> Value:
    x, low, high = (out.number(arg) for arg in args)
    return Value(out.least(out.most(x, low), high))


def _sqrt(out: Assembly, args: Sequence[Value]) -> Value:
    x = out.number(args[0])
    negative = out.new(f"fcmp olt {out.f} {x}, {out.c(0.0)}")
    root = out.intrinsic("sqrt", x)
    return Value(out.select(negative, out.c(0.0), root))


def _floor(out: Assembly, args: Sequence[Value]) -> Value:
    down = out.intrinsic("floor", out.number(args[0]))
    return Value(out.new(f"fadd {out.f} {down}, {out.c(0.0)}"))


def _outside(name: str) -> Rule:
    def rule(out: Assembly, args: Sequence[Value]) -> Value:
        return Value(out.call(name, out.number(args[0])))

    return rule


APPLY: dict[str, Rule] = {
    "add": _arithmetic("fadd"),
    "sub": _arithmetic("fsub"),
    "mul": _arithmetic("fmul"),
    "div": _div,
    "neg": _arithmetic("fneg"),
    "pow2": _power(2),
    "pow3": _power(3),
    "lt": _compare("olt"),
    "le": _compare("ole"),
    "gt": _compare("ogt"),
    "ge": _compare("oge"),
    "eq": _compare("oeq"),
    "ne": _compare("une"),
    "and": _logic("and"),
    "or": _logic("or"),
    "not": _not,
    "choose": _choose,
    "min": _minimum,
    "max": _maximum,
    "abs": _call("fabs"),
    "sqrt": _sqrt,
    "log1p": _outside("log1p"),
    "exp": _outside("exp"),
    "clip": _clip,
    "floor": _floor,
}
"""One entry an operator that is not an aggregate."""
