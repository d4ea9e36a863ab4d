"""The decision vector and the moving means in it, for both kinds of policy.

Pure functions of arrays, shared by the simulators and, as text, by the emitted file.
"""

from tanren_dsl.kernels.jit import inlined
from tanren_dsl.signals import HIT_RATE_WINDOW, RATE_WINDOW, decision_index

NOW = decision_index("now")
WAITING = decision_index("waiting")
RUNNING = decision_index("running")
MAX_RUNNING = decision_index("max_running")
KV_FREE = decision_index("kv_free")
CAPACITY = decision_index("capacity")
TOKEN_BUDGET = decision_index("token_budget")
BLOCK_SIZE = decision_index("block_size")
HIT_RATE = decision_index("hit_rate")
MEAN_GAP = decision_index("mean_gap")
OLDEST_WAIT = decision_index("oldest_wait")
SERVICE_RATE = decision_index("service_rate")

TALLY_WIDTH = 6
HIT_RATES = float(HIT_RATE_WINDOW)
RATES = float(RATE_WINDOW)


@inlined
def mean_after(mean, count, value, window):
    """The mean once the value that is number `count` has come: plain at first, then moving."""
    if count < window:
        return mean + (value - mean) / count
    return mean + (value - mean) * (1.0 / window)


@inlined
def moving_mean(tally, at, value, window):
    """Fold a value into the mean at `tally[at]`, counted at `tally[at + 1]`."""
    tally[at + 1] += 1.0
    tally[at] = mean_after(tally[at], tally[at + 1], value, window)
