"""Policy warm: the order of blocks to evict, lowest key first.

Generated: edit the policy instead.

sha256 of the text below: f5d84d2477c016145596dc9d28015d86c2096ec1918778b513d3a714879b21b2

policy warm : evict
"Keep what a waiting conversation would feel; a \\\\ and a \"\"\" stay as they are."
knob budget : 1 = 3
param heat = 0.4 in [0, 8]
order by 1 if uses >= 2 and gap < budget else 0, log1p(uses) * heat - age / mean(age)
"""

import math

import numpy as np

DECISION = {"now": 0}  # signals of the decision and their places
COLUMNS = {"uses": 1, "gap": 4, "last_use": 0}  # signals of an object and their columns
KNOBS = {"budget": 3.0, "slo": 2.5}  # the operator's settings; times in microseconds


_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_SQRT_HALF = 0.7071067811865476
_LOG1P_LEAST = -0.9999999999999999


def div(x, y):
    """`x / y`, and 0 when `y` is 0."""
    if y == 0.0:
        return 0.0
    return x / y


def log1p(x):
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


def order(decision, rows, ids, n, keys, scratch):
    # key 1: 1 if ((uses >= 2) and (gap < budget)) else 0
    # key 2: (log1p(uses) * heat) - (age / mean(age))
    if n == 0:
        return
    now = float(decision[0])
    knob_budget = float(decision[12])
    param_heat = 0.4
    mean_of_age = 0.0
    for j in range(n):
        i = ids[j]
        age = now - float(rows[i, 0])
        mean_of_age = mean_of_age + age
    mean_of_age = mean_of_age / float(n)
    for j in range(n):
        i = ids[j]
        uses = float(rows[i, 1])
        gap = float(rows[i, 4])
        age = now - float(rows[i, 0])
        keys[j, 0] = 1.0 if ((uses >= 2.0) and (gap < knob_budget)) else 0.0
        keys[j, 1] = (log1p(uses) * param_heat) - div(age, mean_of_age)


def keys(decision, objects, knobs=None):
    """Keys of objects given as dicts of signals, in the engine's own order; the lowest goes first.

    `decision` holds the values of the decision by name; times are in microseconds.
    """
    return _keys(order, 2, decision, objects, knobs or {})


def _keys(function, count, decision, objects, knobs):
    n = len(objects)
    vector = np.zeros(12 + len(KNOBS))
    for name, place in DECISION.items():
        vector[place] = decision[name]
    for place, (name, default) in enumerate(KNOBS.items()):
        vector[12 + place] = knobs.get(name, default)
    rows = np.zeros((n, 16))
    for j, signals in enumerate(objects):
        for name, column in COLUMNS.items():
            rows[j, column] = signals[name]
    out = np.zeros((n, count))
    function(vector, rows, np.arange(n, dtype=np.int32), n, out, np.zeros(n))
    return [tuple(float(key) for key in row) for row in out]
