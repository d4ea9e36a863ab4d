"""The published meaning of every operator: `+ - * /` and exact scaling, nothing of libm.

Plain functions on doubles. The interpreter calls them, Numba compiles them, and
their text is copied into every emitted file, so this module imports only `math`
(frexp, ldexp, sqrt, fabs and floor are exact or correctly rounded everywhere).
"""

import math

_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_INV_LN2 = 1.4426950408889634
_SQRT_HALF = 0.7071067811865476
_LOG1P_LEAST = -0.9999999999999999


def div(x: float, y: float) -> float:
    """`x / y`, and 0 when `y` is 0."""
    if y == 0.0:
        return 0.0
    return x / y


def minimum(x: float, y: float) -> float:
    """The second if it is less, else the first."""
    if y < x:
        return y
    return x


def maximum(x: float, y: float) -> float:
    """The second if it is greater, else the first."""
    if y > x:
        return y
    return x


def clip(x: float, low: float, high: float) -> float:
    """`min(max(x, low), high)`."""
    return minimum(maximum(x, low), high)


def root(x: float) -> float:
    """Square root; a negative argument counts as 0."""
    if x < 0.0:
        return 0.0
    return math.sqrt(x)


def floor(x: float) -> float:
    """Greatest whole number not above `x`, never -0; non-finite stays as it is."""
    if not (-4503599627370496.0 < x < 4503599627370496.0):
        return x
    return float(math.floor(x)) + 0.0


def exp(x: float) -> float:
    """Exponential, with the argument held in [-708, 709].

    x = k ln 2 + r with |r| <= ln 2 / 2; a Taylor polynomial of degree 13; exact scaling by 2**k.
    """
    if x != x:
        return x
    if x < -708.0:
        x = -708.0
    if x > 709.0:
        x = 709.0
    k = float(math.floor(x * _INV_LN2 + 0.5))
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    return math.ldexp(p, int(k))


def log1p(x: float) -> float:
    """Logarithm of `1 + x`; an argument below -1 + 2**-53 counts as that.

    Near 0 the series is in x itself; elsewhere 1 + x = m 2**k with m near 1. Then
    log m = 2 artanh(s) with s = f / (2 + f), f = m - 1.
    """
    if x != x or x > 1.7976931348623157e308:
        return x
    if x < _LOG1P_LEAST:
        x = _LOG1P_LEAST
    k = 0.0
    f = x
    if x < -0.25 or x > 0.4:
        m, e = math.frexp(1.0 + x)
        k = float(e)
        if m < _SQRT_HALF:
            m = m * 2.0
            k = k - 1.0
        f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 1.0 / 23.0
    p = p * z + 1.0 / 21.0
    p = p * z + 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z + 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z + 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z + 1.0 / 7.0
    p = p * z + 1.0 / 5.0
    p = p * z + 1.0 / 3.0
    return k * _LN2_HIGH + (2.0 * s + (2.0 * s * (z * p) + k * _LN2_LOW))
