"""Functions that compiled orderings call by address, themselves compiled once a process.

`exp` and `log1p` for one and for several numbers (inline they would take half as long
again to compile with every policy), and the selection of a rank.
"""

from __future__ import annotations

from tanren_dsl.backends.llvm_text import DECLARATIONS, LANES, Assembly

NAMES = ("exp1", "log1p1", f"exp{LANES}", f"log1p{LANES}", "select_rank")
"""The functions; `select_rank` is `kernels.select.select_rank`, `double (double *, int64_t, int64_t)`."""

_EXP_TERMS = (479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0)
_LOG1P_TERMS = (21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0)
_SHIFT = 6755399441055744.0  # 1.5 * 2**52: the low bits of (k + _SHIFT) are k
_WHOLE = 0x4330000000000000  # bits of 2**52: the low bits hold a whole number


def module_text() -> str:
    """The module with all of `NAMES`."""
    parts = [DECLARATIONS, _SELECT]
    for lanes in (1, LANES):
        for name, body in (("exp", exp_body), ("log1p", log1p_body)):
            out = Assembly({})
            out.set_lanes(lanes)
            result = body(out, "%x")
            lines = "\n".join(out.lines)
            head = f"define {out.f} @{name}{lanes}({out.f} %x) nounwind"
            parts.append(f"{head} {{\n{lines}\n  ret {out.f} {result}\n}}\n")
    return "\n".join(parts)


def exp_body(out: Assembly, given: str) -> str:
    """The published sequence of `exp`, without branches; the scaling adds to the exponent's bits."""
    new = out.new
    nan = new(f"fcmp uno {out.f} {given}, {out.c(0.0)}")
    x = out.select(nan, out.c(0.0), given)
    x = out.most(x, out.c(-708.0))
    x = out.least(x, out.c(709.0))
    scaled = new(f"fmul {out.f} {x}, {out.c(1.4426950408889634)}")
    shifted = new(f"fadd {out.f} {scaled}, {out.c(0.5)}")
    k = out.intrinsic("floor", shifted)
    high = new(f"fmul {out.f} {k}, {out.c(0.6931471803691238)}")
    rest = new(f"fsub {out.f} {x}, {high}")
    low = new(f"fmul {out.f} {k}, {out.c(1.9082149292705877e-10)}")
    r = new(f"fsub {out.f} {rest}, {low}")
    p = out.c(1.0 / 6227020800.0)
    for addend in (*(1.0 / term for term in _EXP_TERMS), 0.5, 1.0, 1.0):
        product = new(f"fmul {out.f} {p}, {r}")
        p = new(f"fadd {out.f} {product}, {out.c(addend)}")
    whole = new(f"fadd {out.f} {k}, {out.c(_SHIFT)}")
    bits = new(f"bitcast {out.f} {whole} to {out.i}")
    exponent = new(f"shl {out.i} {bits}, {out.ci(52)}")
    mantissa = new(f"bitcast {out.f} {p} to {out.i}")
    both = new(f"add {out.i} {mantissa}, {exponent}")
    result = new(f"bitcast {out.i} {both} to {out.f}")
    return out.select(nan, given, result)


def log1p_body(out: Assembly, given: str) -> str:
    """The published sequence of `log1p`, without branches; both arms of its one choice are computed."""
    new = out.new
    lowest = out.c(-0.9999999999999999)
    x = out.most(given, lowest)
    below = new(f"fcmp olt {out.f} {x}, {out.c(-0.25)}")
    above = new(f"fcmp ogt {out.f} {x}, {out.c(0.4)}")
    far = new(f"or {out.b} {below}, {above}")
    one = new(f"fadd {out.f} {x}, {out.c(1.0)}")
    bits = new(f"bitcast {out.f} {one} to {out.i}")
    field = new(f"lshr {out.i} {bits}, {out.ci(52)}")
    biased = new(f"or {out.i} {field}, {out.ci(_WHOLE)}")
    as_double = new(f"bitcast {out.i} {biased} to {out.f}")
    e = new(f"fsub {out.f} {as_double}, {out.c(2.0**52 + 1022.0)}")
    fraction = new(f"and {out.i} {bits}, {out.ci((1 << 52) - 1)}")
    half = new(f"or {out.i} {fraction}, {out.ci(0x3FE0000000000000)}")
    m = new(f"bitcast {out.i} {half} to {out.f}")
    small = new(f"fcmp olt {out.f} {m}, {out.c(0.7071067811865476)}")
    twice = new(f"fmul {out.f} {m}, {out.c(2.0)}")
    m = out.select(small, twice, m)
    e_less = new(f"fsub {out.f} {e}, {out.c(1.0)}")
    e = out.select(small, e_less, e)
    k = out.select(far, e, out.c(0.0))
    m_less = new(f"fsub {out.f} {m}, {out.c(1.0)}")
    f = out.select(far, m_less, x)
    two_f = new(f"fadd {out.f} {f}, {out.c(2.0)}")
    s = new(f"fdiv {out.f} {f}, {two_f}")
    z = new(f"fmul {out.f} {s}, {s}")
    p = out.c(1.0 / 23.0)
    for term in _LOG1P_TERMS:
        product = new(f"fmul {out.f} {p}, {z}")
        p = new(f"fadd {out.f} {product}, {out.c(1.0 / term)}")
    zp = new(f"fmul {out.f} {z}, {p}")
    two_s = new(f"fmul {out.f} {s}, {out.c(2.0)}")
    series = new(f"fmul {out.f} {two_s}, {zp}")
    low = new(f"fmul {out.f} {k}, {out.c(1.9082149292705877e-10)}")
    tail = new(f"fadd {out.f} {series}, {low}")
    mid = new(f"fadd {out.f} {two_s}, {tail}")
    high = new(f"fmul {out.f} {k}, {out.c(0.6931471803691238)}")
    result = new(f"fadd {out.f} {high}, {mid}")
    huge = new(f"fcmp ugt {out.f} {given}, {out.c(1.7976931348623157e308)}")
    return out.select(huge, given, result)


_SELECT = """\
define double @select_rank(ptr noalias %v, i64 %n, i64 %k) nounwind {
entry:
  %last = sub i64 %n, 1
  br label %scan
scan:
  %s = phi i64 [ 0, %entry ], [ %s.next, %scan.go ]
  %s.at = getelementptr double, ptr %v, i64 %s
  %s.value = load double, ptr %s.at
  %s.nan = fcmp uno double %s.value, 0.0
  br i1 %s.nan, label %nan, label %scan.go
scan.go:
  %s.next = add i64 %s, 1
  %s.more = icmp slt i64 %s.next, %n
  br i1 %s.more, label %scan, label %narrow
nan:
  ret double %s.value
narrow:
  %low = phi i64 [ 0, %scan.go ], [ %low.next, %choose ]
  %high = phi i64 [ %last, %scan.go ], [ %high.next, %choose ]
  %seed = phi i64 [ 1, %scan.go ], [ %seed.next, %choose ]
  %wide = icmp slt i64 %low, %high
  br i1 %wide, label %pick, label %found
pick:
  %seed.mul = mul i64 %seed, 1103515245
  %seed.add = add i64 %seed.mul, 12345
  %seed.next = and i64 %seed.add, 2147483647
  %span = sub i64 %high, %low
  %size = add i64 %span, 1
  %off = urem i64 %seed.next, %size
  %pivot.i = add i64 %low, %off
  %pivot.at = getelementptr double, ptr %v, i64 %pivot.i
  %pivot = load double, ptr %pivot.at
  br label %up
up:
  %i = phi i64 [ %low, %pick ], [ %i.up, %up.go ], [ %i.swap, %swap.go ]
  %j.held = phi i64 [ %high, %pick ], [ %j.held, %up.go ], [ %j.swap, %swap.go ]
  %i.at = getelementptr double, ptr %v, i64 %i
  %i.value = load double, ptr %i.at
  %i.less = fcmp olt double %i.value, %pivot
  br i1 %i.less, label %up.go, label %down
up.go:
  %i.up = add i64 %i, 1
  br label %up
down:
  %j = phi i64 [ %j.held, %up ], [ %j.down, %down.go ]
  %j.at = getelementptr double, ptr %v, i64 %j
  %j.value = load double, ptr %j.at
  %j.more = fcmp ogt double %j.value, %pivot
  br i1 %j.more, label %down.go, label %meet
down.go:
  %j.down = sub i64 %j, 1
  br label %down
meet:
  %crossed = icmp sgt i64 %i, %j
  br i1 %crossed, label %choose, label %swap
swap:
  store double %j.value, ptr %i.at
  store double %i.value, ptr %j.at
  %i.swap = add i64 %i, 1
  %j.swap = sub i64 %j, 1
  %again = icmp sle i64 %i.swap, %j.swap
  br i1 %again, label %swap.go, label %choose
swap.go:
  br label %up
choose:
  %i.end = phi i64 [ %i, %meet ], [ %i.swap, %swap ]
  %j.end = phi i64 [ %j, %meet ], [ %j.swap, %swap ]
  %left = icmp sle i64 %k, %j.end
  %right = icmp sge i64 %k, %i.end
  %high.next = select i1 %left, i64 %j.end, i64 %high
  %low.right = select i1 %right, i64 %i.end, i64 %low
  %low.next = select i1 %left, i64 %low, i64 %low.right
  %either = or i1 %left, %right
  br i1 %either, label %narrow, label %found
found:
  %k.at = getelementptr double, ptr %v, i64 %k
  %k.value = load double, ptr %k.at
  %plain = fadd double %k.value, 0.0
  ret double %plain
}
"""
