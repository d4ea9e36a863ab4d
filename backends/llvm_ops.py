"""The operators in LLVM assembly: one entry each, straight-line code without fast-math flags."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

_EXP_TERMS = (479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0)
_LOG1P_TERMS = (21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0)
_SHIFT = 6755399441055744.0  # 1.5 * 2**52: the low bits of (k + _SHIFT) are k
_WHOLE = 0x4330000000000000  # bits of 2**52: the low bits hold a whole number


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: a double, or a truth value held as one bit."""

    text: str
    is_bit: bool = False


class Writer(Protocol):
    """Where operators write their instructions."""

    def value(self, index: int) -> Value:
        """The operand of a node."""
        ...

    def number(self, index: int) -> str:
        """The node as a double."""
        ...

    def bit(self, index: int) -> str:
        """The node as a truth value."""
        ...

    def new(self, instruction: str) -> str:
        """Append an instruction; its fresh name."""
        ...


def double(value: float) -> str:
    """A double constant in LLVM's exact notation."""
    if math.isnan(value):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def least(out: Writer, x: str, y: str) -> str:
    """The second if it is less, else the first."""
    less = out.new(f"fcmp olt double {y}, {x}")
    return out.new(f"select i1 {less}, double {y}, double {x}")


def most(out: Writer, x: str, y: str) -> str:
    """The second if it is greater, else the first."""
    more = out.new(f"fcmp ogt double {y}, {x}")
    return out.new(f"select i1 {more}, double {y}, double {x}")


_Rule: TypeAlias = Callable[[Writer, tuple[int, ...]], Value]


def _arithmetic(instruction: str) -> _Rule:
    def rule(out: Writer, args: tuple[int, ...]) -> Value:
        return Value(out.new(f"{instruction} double {', '.join(out.number(arg) for arg in args)}"))

    return rule


def _compare(predicate: str) -> _Rule:
    def rule(out: Writer, args: tuple[int, ...]) -> Value:
        x, y = (out.number(arg) for arg in args)
        return Value(out.new(f"fcmp {predicate} double {x}, {y}"), is_bit=True)

    return rule


def _logic(instruction: str) -> _Rule:
    def rule(out: Writer, args: tuple[int, ...]) -> Value:
        x, y = (out.bit(arg) for arg in args)
        return Value(out.new(f"{instruction} i1 {x}, {y}"), is_bit=True)

    return rule


def _call(name: str) -> _Rule:
    def rule(out: Writer, args: tuple[int, ...]) -> Value:
        return Value(out.new(f"call double @llvm.{name}.f64(double {out.number(args[0])})"))

    return rule


def _div(out: Writer, args: tuple[int, ...]) -> Value:
    x, y = (out.number(arg) for arg in args)
    zero = out.new(f"fcmp oeq double {y}, 0.0")
    quotient = out.new(f"fdiv double {x}, {y}")
    return Value(out.new(f"select i1 {zero}, double 0.0, double {quotient}"))


def _not(out: Writer, args: tuple[int, ...]) -> Value:
    return Value(out.new(f"xor i1 {out.bit(args[0])}, true"), is_bit=True)


def _power(times: int) -> _Rule:
    def rule(out: Writer, args: tuple[int, ...]) -> Value:
        x = product = out.number(args[0])
        for _ in range(times - 1):
            product = out.new(f"fmul double {product}, {x}")
        return Value(product)

    return rule


def _choose(out: Writer, args: tuple[int, ...]) -> Value:
    test, then, other = args
    bit = out.bit(test)
    if out.value(then).is_bit and out.value(other).is_bit:
        return Value(out.new(f"select i1 {bit}, i1 {out.bit(then)}, i1 {out.bit(other)}"), is_bit=True)
    return Value(out.new(f"select i1 {bit}, double {out.number(then)}, double {out.number(other)}"))


def _minimum(out: Writer, args: tuple[int, ...]) -> Value:
    return Value(least(out, out.number(args[0]), out.number(args[1])))


def _maximum(out: Writer, args: tuple[int, ...]) -> Value:
    return Value(most(out, out.number(args[0]), out.number(args[1])))


def _clip(out: Writer, args: tuple[int, ...]) -> Value:
    x, low, high = (out.number(arg) for arg in args)
    return Value(least(out, most(out, x, low), high))


def _sqrt(out: Writer, args: tuple[int, ...]) -> Value:
    x = out.number(args[0])
    negative = out.new(f"fcmp olt double {x}, 0.0")
    root = out.new(f"call double @llvm.sqrt.f64(double {x})")
    return Value(out.new(f"select i1 {negative}, double 0.0, double {root}"))


def _floor(out: Writer, args: tuple[int, ...]) -> Value:
    down = out.new(f"call double @llvm.floor.f64(double {out.number(args[0])})")
    return Value(out.new(f"fadd double {down}, 0.0"))


def _exp(out: Writer, args: tuple[int, ...]) -> Value:
    given = out.number(args[0])
    new = out.new
    nan = new(f"fcmp uno double {given}, 0.0")
    x = new(f"select i1 {nan}, double 0.0, double {given}")
    x = most(out, x, double(-708.0))
    x = least(out, x, double(709.0))
    scaled = new(f"fmul double {x}, {double(1.4426950408889634)}")
    shifted = new(f"fadd double {scaled}, {double(0.5)}")
    k = new(f"call double @llvm.floor.f64(double {shifted})")
    high = new(f"fmul double {k}, {double(0.6931471803691238)}")
    rest = new(f"fsub double {x}, {high}")
    low = new(f"fmul double {k}, {double(1.9082149292705877e-10)}")
    r = new(f"fsub double {rest}, {low}")
    p = double(1.0 / 6227020800.0)
    for addend in (*(1.0 / term for term in _EXP_TERMS), 0.5, 1.0, 1.0):
        product = new(f"fmul double {p}, {r}")
        p = new(f"fadd double {product}, {double(addend)}")
    whole = new(f"fadd double {k}, {double(_SHIFT)}")
    bits = new(f"bitcast double {whole} to i64")
    exponent = new(f"shl i64 {bits}, 52")
    mantissa = new(f"bitcast double {p} to i64")
    both = new(f"add i64 {mantissa}, {exponent}")
    result = new(f"bitcast i64 {both} to double")
    return Value(new(f"select i1 {nan}, double {given}, double {result}"))


def _log1p(out: Writer, args: tuple[int, ...]) -> Value:
    given = out.number(args[0])
    new = out.new
    lowest = double(-0.9999999999999999)
    x = most(out, given, lowest)
    below = new(f"fcmp olt double {x}, {double(-0.25)}")
    above = new(f"fcmp ogt double {x}, {double(0.4)}")
    far = new(f"or i1 {below}, {above}")
    one = new(f"fadd double {x}, 1.0")
    bits = new(f"bitcast double {one} to i64")
    field = new(f"lshr i64 {bits}, 52")
    biased = new(f"or i64 {field}, {_WHOLE}")
    as_double = new(f"bitcast i64 {biased} to double")
    e = new(f"fsub double {as_double}, {double(2.0**52 + 1022.0)}")
    fraction = new(f"and i64 {bits}, {(1 << 52) - 1}")
    half = new(f"or i64 {fraction}, {0x3FE0000000000000}")
    m = new(f"bitcast i64 {half} to double")
    small = new(f"fcmp olt double {m}, {double(0.7071067811865476)}")
    twice = new(f"fmul double {m}, 2.0")
    m = new(f"select i1 {small}, double {twice}, double {m}")
    e_less = new(f"fsub double {e}, 1.0")
    e = new(f"select i1 {small}, double {e_less}, double {e}")
    k = new(f"select i1 {far}, double {e}, double 0.0")
    m_less = new(f"fsub double {m}, 1.0")
    f = new(f"select i1 {far}, double {m_less}, double {x}")
    two_f = new(f"fadd double {f}, 2.0")
    s = new(f"fdiv double {f}, {two_f}")
    z = new(f"fmul double {s}, {s}")
    p = double(1.0 / 23.0)
    for term in _LOG1P_TERMS:
        product = new(f"fmul double {p}, {z}")
        p = new(f"fadd double {product}, {double(1.0 / term)}")
    zp = new(f"fmul double {z}, {p}")
    two_s = new(f"fmul double {s}, 2.0")
    series = new(f"fmul double {two_s}, {zp}")
    low = new(f"fmul double {k}, {double(1.9082149292705877e-10)}")
    tail = new(f"fadd double {series}, {low}")
    mid = new(f"fadd double {two_s}, {tail}")
    high = new(f"fmul double {k}, {double(0.6931471803691238)}")
    result = new(f"fadd double {high}, {mid}")
    huge = new(f"fcmp ugt double {given}, {double(1.7976931348623157e308)}")
    return Value(new(f"select i1 {huge}, double {given}, double {result}"))


APPLY: dict[str, _Rule] = {
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
    "log1p": _log1p,
    "exp": _exp,
    "clip": _clip,
    "floor": _floor,
}
"""One entry an operator that is not an aggregate."""
