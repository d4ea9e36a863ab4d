"""vLLM scheduler with the eviction policy `t_lru`, emitted by tanren-dsl 0.1.0.

Fits vLLM 0.19.1, 0.32.0; on any other it says so in one line and vLLM's own order holds.
On:   put this file on PYTHONPATH and start vLLM with --scheduler-cls FILE_STEM.Scheduler
Off:  drop the flag (or set TANREN_DISABLE=1)

The policy:

    policy t_lru : evict
    "Text with \\\\ and ''' in it."
    knob budget : tokens = 2048
    order by 0 if depth >= max(0, chain - budget) else 1, last_use
"""


from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import time
from operator import attrgetter
from typing import Any

import numpy as np

try:
    import numba
except Exception:  # missing, or at odds with NumPy: the same functions run as plain Python
    numba = None


FITS = ('0.19.1', '0.32.0')
MADE_BY = '0.1.0'
DECISION_WIDTH = 12


EVICTS = True
POLICY = 't_lru'
POLICY_SHA256 = '79229599b40710fa3a269eef74cdd834d32908771d54c8b7d00b0f3048acd5e0'
SHAPE = 'static'
HEAP = True
AHEAD = False
PERCENT = 10.0
KEY_COUNT = 2
KNOBS = (('budget', 1.0, 2048.0),)
READS = frozenset(['chain', 'depth', 'last_use'])
WRITES = True
USES_MATTER = True
NUMBERED = False
AS_OF_STEP = False
ROW_WIDTH = 3
SETTLED = 2
SETTLED_WIDTH = 2


SCHEDULES = False
LINE_POLICY = LINE_SHA256 = ""
LINE_KNOBS = ()
PREEMPT_KEYS = 0
Dispatcher = make_dispatching_class = None


HAVE_NUMBA = numba is not None and os.environ.get("TANREN_NO_NUMBA") != "1"


def _jit(function):
    return numba.njit(error_model="numpy", _nrt=False)(function) if HAVE_NUMBA else function


NOW = 0
WAITING = 1
RUNNING = 2
MAX_RUNNING = 3
KV_FREE = 4
CAPACITY = 5
TOKEN_BUDGET = 6
BLOCK_SIZE = 7
HIT_RATE = 8
MEAN_GAP = 9
OLDEST_WAIT = 10
SERVICE_RATE = 11
TALLY_WIDTH = 6
HIT_RATES = 256.0
RATES = 64.0


@_jit
def mean_after(mean, count, value, window):
    """The mean once the value that is number `count` has come: plain at first, then moving."""
    if count < window:
        return mean + (value - mean) / count
    return mean + (value - mean) * (1.0 / window)


@_jit
def moving_mean(tally, at, value, window):
    """Fold a value into the mean at `tally[at]`, counted at `tally[at + 1]`."""
    tally[at + 1] += 1.0
    tally[at] = mean_after(tally[at], tally[at + 1], value, window)


EMPTY = 4294967295
UNSCORED = 2147483648
LOW = np.uint32(2147483647)
FEW = 96
SPARE = 16


@_jit
def ring_push_back(ring, pos, ends, block, mark):
    """Append a block (`mark`: 0 or UNSCORED). Modifies the queue; makes room by closing empty slots."""
    if ends[1] - ends[0] == ring.shape[0]:
        ring_compact(ring, pos, ends)
    ring[ends[1] & (ring.shape[0] - 1)] = block + mark
    pos[block] = ends[1]
    ends[1] += 1
    ends[2] += 1


@_jit
def ring_push_front(ring, pos, ends, block, mark):
    """Prepend a block (`mark`: 0 or UNSCORED). Modifies the queue; makes room by closing empty slots."""
    if ends[1] - ends[0] == ring.shape[0]:
        ring_compact(ring, pos, ends)
    ends[0] -= 1
    ring[ends[0] & (ring.shape[0] - 1)] = block + mark
    pos[block] = ends[0]
    ends[2] += 1


@_jit
def ring_remove(ring, pos, ends, block):
    """Take a block out, wherever it stands. Modifies the queue."""
    ring[pos[block] & (ring.shape[0] - 1)] = EMPTY
    pos[block] = -1
    ends[2] -= 1


@_jit
def ring_close(ring, pos, ends, upto):
    """Close the gaps before position `upto`, towards it; the order does not change."""
    mask = ring.shape[0] - 1
    write = upto
    for read in range(upto - 1, ends[0] - 1, -1):
        entry = ring[read & mask]
        if entry != EMPTY:
            write -= 1
            ring[write & mask] = entry
            pos[entry & LOW] = write
    ends[0] = write


@_jit
def ring_compact(ring, pos, ends):
    """Close all gaps."""
    ring_close(ring, pos, ends, ends[1])


@_jit
def ring_pop_front(ring, pos, ends, n, out):
    """Take the first n blocks in the engine's own order into `out`. Modifies the queue."""
    mask = ring.shape[0] - 1
    at = ends[0]
    for i in range(n):
        entry = ring[at & mask]
        while entry == EMPTY:
            at += 1
            entry = ring[at & mask]
        at += 1
        block = entry & LOW
        pos[block] = -1
        out[i] = block
    ends[0] = at
    ends[2] -= n


@_jit
def spare_of(considered, n):
    """How many blocks beyond n a ranking of so many considered ones names, for the rest of the step."""
    return min(SPARE, (considered - n) // 2)


@_jit
def keys_less(keys, a, b):
    """Whether row a stands before row b: keys ascending, then the engine's own order."""
    for k in range(keys.shape[1]):
        if keys[a, k] < keys[b, k]:
            return True
        if keys[b, k] < keys[a, k]:
            return False
    return a < b


@_jit
def all_finite(values, n):
    """Whether the first n values hold no inf and no nan."""
    odd = 0
    for i in range(n):
        odd += not (abs(values[i]) <= 1.7976931348623157e308)
    return odd == 0


@_jit
def lowest_rows(keys, n, want, chosen, firsts):
    """Indices of the `want` lowest of the first n rows, ascending, into `chosen`.

    `firsts` is room for `want` doubles: a few are kept sorted, beside their first key; many in a heap.
    """
    if want <= FEW:
        lowest_few(keys, n, want, chosen, firsts)
    else:
        lowest_many(keys, n, want, chosen)


@_jit
def lowest_few(keys, n, want, chosen, firsts):
    """`lowest_rows` by insertion."""
    size = 0
    bound = np.inf
    last = 0
    count = keys.shape[1]
    for i in range(n):
        key = keys[i, 0]
        if key > bound:
            continue
        if size < want:
            at = size
            size += 1
        else:
            if key == bound:  # a tie goes to the earlier row, unless a later key decides
                if count == 1 or keys[i, 1] > keys[last, 1]:
                    continue
                if keys[i, 1] == keys[last, 1] and (count == 2 or keys[i, 2] >= keys[last, 2]):
                    continue
            at = want - 1
        while at > 0:
            before = firsts[at - 1]
            if key > before or (key == before and not keys_less(keys, i, chosen[at - 1])):
                break
            firsts[at] = before
            chosen[at] = chosen[at - 1]
            at -= 1
        firsts[at] = key
        chosen[at] = i
        if size == want:
            bound = firsts[want - 1]
            last = chosen[want - 1]


@_jit
def lowest_many(keys, n, want, chosen):
    """`lowest_rows` by a heap, its greatest in front."""
    size = 0
    bound = 0.0
    for i in range(n):
        if size < want:
            child = size
            size += 1
            while child > 0:
                parent = (child - 1) >> 1
                if not keys_less(keys, chosen[parent], i):
                    break
                chosen[child] = chosen[parent]
                child = parent
            chosen[child] = i
            bound = keys[chosen[0], 0]
        elif keys[i, 0] <= bound and keys_less(keys, i, chosen[0]):
            heap_sink(keys, chosen, size, i)
            bound = keys[chosen[0], 0]
    while size > 1:
        size -= 1
        last = chosen[size]
        chosen[size] = chosen[0]
        heap_sink(keys, chosen, size, last)


@_jit
def heap_sink(keys, heap, size, item):
    """Put `item` in place of the greatest row of the heap."""
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and keys_less(keys, heap[child], heap[child + 1]):
            child += 1
        if not keys_less(keys, item, heap[child]):
            break
        heap[hole] = heap[child]
        hole = child
    heap[hole] = item


@_jit
def ring_take(ring, pos, ends, n, spare, plain, plains, scored, rated, keys, flat, chosen, firsts, out):
    """Choose n of the considered blocks into `out`, by the keys of `scored`. Modifies the queue.

    Unscored ones go first, in the engine's order; then the lowest (keys, engine's order). The `spare`
    next ones stand behind them in `out` and stay in the queue (0, if all n are unscored).
    Any non-finite key (`flat` is `keys` in one dimension): the engine's own order for the whole
    decision, and none behind it. Returns 1 for such a fault.
    """
    if plains < n and not all_finite(flat, rated * keys.shape[1]):
        ring_pop_front(ring, pos, ends, n, out)
        return 1
    filled = min(plains, n)
    for i in range(filled):
        out[i] = plain[i]
    if filled < n:
        lowest_rows(keys, rated, n - filled + spare, chosen, firsts)
        for i in range(n - filled + spare):
            out[filled + i] = scored[chosen[i]]
    for i in range(n):
        ring_remove(ring, pos, ends, out[i])
    return 0


HEAP_SIZE = 0
LAST_STAMP = 1
BAD = 2


@_jit
def entry_less(entry_keys, entry_stamp, a, b):
    """Whether entry a stands before entry b: keys ascending, then the engine's own order."""
    for k in range(entry_keys.shape[1]):
        if entry_keys[a, k] < entry_keys[b, k]:
            return True
        if entry_keys[b, k] < entry_keys[a, k]:
            return False
    return entry_stamp[a] < entry_stamp[b]


@_jit
def entry_swap(entry_keys, entry_block, entry_stamp, a, b):
    """Exchange two entries."""
    for k in range(entry_keys.shape[1]):
        entry_keys[a, k], entry_keys[b, k] = entry_keys[b, k], entry_keys[a, k]
    entry_block[a], entry_block[b] = entry_block[b], entry_block[a]
    entry_stamp[a], entry_stamp[b] = entry_stamp[b], entry_stamp[a]


@_jit
def entry_up(entry_keys, entry_block, entry_stamp, child):
    """Restore the heap upwards from an entry."""
    while child > 0:
        parent = (child - 1) >> 1
        if not entry_less(entry_keys, entry_stamp, child, parent):
            break
        entry_swap(entry_keys, entry_block, entry_stamp, child, parent)
        child = parent


@_jit
def entry_down(entry_keys, entry_block, entry_stamp, hole, size):
    """Restore the heap downwards from an entry."""
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and entry_less(entry_keys, entry_stamp, child + 1, child):
            child += 1
        if not entry_less(entry_keys, entry_stamp, child, hole):
            break
        entry_swap(entry_keys, entry_block, entry_stamp, child, hole)
        hole = child


@_jit
def heap_push(entry_keys, entry_block, entry_stamp, size, stamp, keys, row, block):
    """Add a block with the keys in a row of `keys`; returns the new size. Drops stale entries when full."""
    if size == entry_block.shape[0]:
        live = 0
        for i in range(size):
            owner = entry_block[i]
            if stamp[owner] == entry_stamp[i]:
                entry_swap(entry_keys, entry_block, entry_stamp, live, i)
                live += 1
        size = live
        for i in range(size // 2 - 1, -1, -1):
            entry_down(entry_keys, entry_block, entry_stamp, i, size)
    for k in range(entry_keys.shape[1]):
        entry_keys[size, k] = keys[row, k]
    entry_block[size] = block
    entry_stamp[size] = stamp[block]
    entry_up(entry_keys, entry_block, entry_stamp, size)
    return size + 1


@_jit
def heap_pop(entry_keys, entry_block, entry_stamp, size, stamp):
    """Drop the lowest entry; returns (its block, the new size), block -1 if it was stale."""
    block = entry_block[0]
    if stamp[block] != entry_stamp[0]:
        block = -1
    size -= 1
    if size > 0:
        entry_swap(entry_keys, entry_block, entry_stamp, 0, size)
        entry_down(entry_keys, entry_block, entry_stamp, 0, size)
    return block, size


@_jit
def heap_enter(keys, row, entry_keys, entry_block, entry_stamp, heap, stamp, bad, block):
    """A block enters the free queue; a row of `keys` holds its keys."""
    heap[LAST_STAMP] += 1
    stamp[block] = heap[LAST_STAMP]
    if all_finite(keys[row], keys.shape[1]):
        heap[HEAP_SIZE] = heap_push(
            entry_keys, entry_block, entry_stamp, heap[HEAP_SIZE], stamp, keys, row, block
        )
    else:
        bad[block] = 1
        heap[BAD] += 1


@_jit
def heap_leave(heap, stamp, bad, block):
    """A block leaves the free queue otherwise than by `heap_take`."""
    stamp[block] = -1
    if bad[block] != 0:
        bad[block] = 0
        heap[BAD] -= 1


@_jit
def heap_take(ring, pos, ends, entry_keys, entry_block, entry_stamp, heap, stamp, bad, n, out):
    """Choose n free blocks into `out`: the unscored ones in front, then the lowest. Modifies the queue.

    Any key that is not finite among the queued blocks: the engine's own order. Returns
    (1 if keys decided or should have, 1 for such a fault).
    """
    filled = 0
    mask = ring.shape[0] - 1
    while filled < n:
        entry = ring[ends[0] & mask]
        if entry < UNSCORED:
            break
        if entry != EMPTY:
            out[filled] = entry & LOW
            ring_remove(ring, pos, ends, out[filled])
            filled += 1
        ends[0] += 1
    if filled == n:
        return 0, 0
    if heap[BAD] > 0:
        while filled < n:
            entry = ring[ends[0] & mask]
            if entry != EMPTY:
                block = entry & LOW
                out[filled] = block
                filled += 1
                ring_remove(ring, pos, ends, block)
                heap_leave(heap, stamp, bad, block)
            ends[0] += 1
        return 1, 1
    size = heap[HEAP_SIZE]
    while filled < n:
        block, size = heap_pop(entry_keys, entry_block, entry_stamp, size, stamp)
        if block >= 0:
            out[filled] = block
            filled += 1
            stamp[block] = -1
            ring_remove(ring, pos, ends, block)
    heap[HEAP_SIZE] = size
    return 1, 0


LAST_USE = 0
CREATED = -1
GAP = -1
DEPTH = 1
CHAIN = 2
USES = -1
SPACED_USES = -1
GHOST_USES = -1
CHILDREN = -1
GENERATED = -1
WAITING_REFS = -1
USED_AT = -1
MARK = -1
HUGE = 4194304
GAPS = 1024.0


@_jit
def row_written(rows, block, now, depth, chain, ghost_uses):
    """A block got its hash; `generated` and `children` are the caller's to keep."""
    row = rows[block]
    if USES >= 0:
        row[USES] = 0.0
    if DEPTH >= 0:
        row[DEPTH] = depth
    if CHAIN >= 0:
        row[CHAIN] = chain
    if GAP >= 0:
        row[GAP] = 0.0
    if SPACED_USES >= 0:
        row[SPACED_USES] = 0.0
    if USED_AT >= 0:
        row[USED_AT] = now
    if CREATED >= 0:
        row[CREATED] = now
    if GHOST_USES >= 0:
        row[GHOST_USES] = ghost_uses


@_jit
def row_used(rows, block, now, chain, mean_gap):
    """An admission hit a block. Returns the gap, which belongs into the mean gap."""
    row = rows[block]
    gap = 0.0
    if USED_AT >= 0:
        gap = now - row[USED_AT]
        row[USED_AT] = now
    if GAP >= 0:
        row[GAP] = gap
    if USES >= 0:
        row[USES] += 1.0
    if SPACED_USES >= 0:
        mark = row[MARK] if row[SPACED_USES] > 0.0 else row[CREATED]
        spaced = now - mark >= mean_gap
        row[SPACED_USES] += 1.0 if spaced else 0.0
        row[MARK] = now if spaced else mark
    if CHAIN >= 0:
        row[CHAIN] = chain if chain > row[CHAIN] else row[CHAIN]
    return gap


@_jit
def row_released(rows, block, now, hashed):
    """A block entered the free queue; one without a hash keeps nothing but the moment."""
    row = rows[block]
    if hashed == 0:
        for c in range(rows.shape[1]):
            row[c] = 0.0
        if CREATED >= 0:
            row[CREATED] = now
    if LAST_USE >= 0:
        row[LAST_USE] = now


@_jit
def maximum(x, y):
    """The second if it is greater, else the first."""
    if y > x:
        return y
    return x


@_jit
def settle(decision, rows, ids, n, keys, scratch):
    # key 1: last_use
    # key 2: 0 if (depth >= max(0, chain - budget)) else 1
    if n == 0:
        return
    knob_budget = float(decision[12])
    for j in range(n):
        i = ids[j]
        depth = float(rows[i, 1])
        chain = float(rows[i, 2])
        last_use = float(rows[i, 0])
        keys[j, 0] = last_use
        keys[j, 1] = 0.0 if (depth >= maximum(0.0, chain - knob_budget)) else 1.0


@_jit
def order(decision, rows, ids, n, keys, scratch):
    # key 1: rest1
    # key 2: last_use
    if n == 0:
        return
    for j in range(n):
        i = ids[j]
        rest1 = float(rows[i, 1])
        last_use = float(rows[i, 0])
        keys[j, 0] = rest1
        keys[j, 1] = last_use


def CLOCK() -> int:  # noqa: N802 - the one injectable name of this file
    """Whole microseconds of the wall clock; a test may replace it."""
    return time.time_ns() // 1000


_LOG = logging.getLogger("vllm.tanren")
_STATUS: dict[str, Any] = {"policy": POLICY, "sha256": POLICY_SHA256, "mode": "not started"}
_LINE_STATUS: dict[str, Any] = {"policy": LINE_POLICY, "sha256": LINE_SHA256, "mode": "not started"}
_OWN_ORDER = "vLLM's own order holds"
_SLOW_LIMIT = 3
_SLOW_MEMORY = 500


def status() -> dict[str, Any]:
    """What the policies are doing: mode, decisions, faults, and why one is off if it is.

    The evict policy's own; under `schedule` the schedule policy's, if there is one.
    """
    out: dict[str, Any] = _told(_STATUS) if EVICTS else {"mode": "no evict policy"}
    if SCHEDULES:
        out["schedule"] = _told(_LINE_STATUS)
    return out


def _told(status: dict[str, Any]) -> dict[str, Any]:
    live = status.get("live")
    out = {key: value for key, value in status.items() if key != "live"}
    if live is not None:
        out.update(live.counts())
    return out


def Scheduler(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - named by --scheduler-cls
    """Make vLLM's scheduler with the policies in it; asynchronous exactly when the engine is."""
    base = _stock_class(kwargs["vllm_config"] if "vllm_config" in kwargs else args[0])
    aside = _answer(_reason_to_stand_aside)
    evict_aside = (aside or _answer(_reason_to_pass_through)) if EVICTS else "no policy"
    works = evict_aside is None or (SCHEDULES and aside is None)
    # Made once, whatever comes: it may bind ports and start a connector.
    scheduler = (make_scheduler_class(base) if works else base)(*args, **kwargs)
    _answer(_say_unknown_knobs)
    if EVICTS:
        how = f"{SHAPE} order, {'heap' if HEAP else 'scan'}"
        _start(_STATUS, "evictions", how, base, evict_aside or _answer(_attach, scheduler, "tanren"))
    if SCHEDULES:
        how = "who is admitted and who is pushed out" if PREEMPT_KEYS else "who is admitted"
        _start(_LINE_STATUS, "scheduling", how, base, aside or _answer(_attach, scheduler, "tanren_line"))
    return scheduler


def _start(status: dict[str, Any], what: str, how: str, base: Any, reason: str | None) -> None:
    """One line that says whether a policy is at work."""
    name = (
        f"policy {status['policy']} ({status['sha256'][:12]}, tanren-dsl {MADE_BY}, vLLM {_vllm_version()})"
    )
    if reason is None:
        status.update(mode="active")
        code = "numba" if HAVE_NUMBA else "plain Python"
        _LOG.info("tanren: %s decides %s: %s, %s, %s", name, what, how, code, base.__name__)
        atexit.register(say_farewell, status["live"])
    else:
        status.update(mode=reason, live=None)
        _LOG.warning("tanren: %s stands aside, %s: %s", name, _OWN_ORDER, reason)


class Part:
    """A policy at work: what its guard counts, and when it switches the policy off.

    A part has `status`, `counts()`, and `give_back()`, which returns to vLLM what the part took.
    """

    status: dict[str, Any]
    noun = "decisions"

    def __init__(self) -> None:
        self.on, self.said = True, False
        self.budget_s = seconds_allowed()
        self.errors = 0
        self.slow = self.spent_s = 0.0

    def spent(self, took_s: float) -> None:
        """A decision took so long; too many slow ones in quick succession switch the policy off."""
        self.spent_s += took_s
        self.slow -= self.slow / _SLOW_MEMORY  # a rare pause of the machine is forgotten
        if took_s > self.budget_s:
            self.slow += 1
            if self.slow > _SLOW_LIMIT - 0.5:
                self.off(f"{_SLOW_LIMIT} {self.noun} over {self.budget_s * 1e3:g} ms (TANREN_BUDGET_MS)")

    def failed(self, error: Exception) -> None:
        """One of our own steps failed: the policy is off, and vLLM goes on."""
        self.errors += 1
        self.off(in_one_line(error))

    def off(self, reason: str) -> None:
        """Give every decision back to vLLM, for good, and say so once."""
        if not self.on:
            return
        self.on = False
        try:
            self.give_back()
        except Exception as error:  # vLLM replaced what we knew: it stays as it is
            reason = f"{reason}; {in_one_line(error)}"
        if self.status.get("live") is self:
            self.status["mode"] = f"off: {reason}"
        _LOG.error("tanren: policy %s is off, vLLM's own order holds: %s", self.status["policy"], reason)

    def give_back(self) -> None:
        """Return to vLLM what the part took."""
        raise NotImplementedError


def say_farewell(part: Any) -> None:
    """One line at shutdown, once."""
    if not part.said:
        part.said = True
        told = ", ".join(f"{name} {value}" for name, value in part.counts().items())
        _LOG.info("tanren: policy %s ends%s: %s", part.status["policy"], "" if part.on else " (off)", told)


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__).split("+")[0]


def _stock_class(config: Any) -> Any:
    """The scheduler that vLLM takes when none is named."""
    kind = "Async" if config.scheduler_config.async_scheduling else ""
    module, name = f"{kind.lower()}_scheduler".lstrip("_"), f"{kind}Scheduler"
    if getattr(config, "diffusion_config", None) is not None:
        module, name = "diffusion_scheduler", f"Diffusion{name}"
    return getattr(importlib.import_module(f"vllm.v1.core.sched.{module}"), name)


def _answer(question: Any, *args: Any) -> str | None:
    """A reason to stand aside, if there is one; a failure is one too."""
    try:
        return question(*args)  # type: ignore[no-any-return]
    except Exception as error:
        return in_one_line(error)


def _attach(scheduler: Any, name: str) -> str | None:
    part = Evictor if name == "tanren" else Dispatcher
    reason = part.reason_not_to_attach(scheduler)
    if reason is None:
        live = part(scheduler)
        live.status["live"] = live
        setattr(scheduler, name, live)
    return reason  # type: ignore[no-any-return]


def in_one_line(error: Exception) -> str:
    """The error for the log; compilers write pages."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def seconds_allowed() -> float:
    """What a decision may take, by the operator."""
    return number_of("TANREN_BUDGET_MS", 0.02, 1e-3)


def knob_values(knobs: Any) -> list[float]:
    """The operator's knobs of one policy, in its own scale."""
    return [number_of(f"TANREN_KNOB_{name.upper()}", default, scale) for name, scale, default in knobs]


def _say_unknown_knobs() -> None:
    known = [f"TANREN_KNOB_{name.upper()}" for name, _, _ in KNOBS + LINE_KNOBS]
    for name in sorted(os.environ):
        if name.startswith("TANREN_KNOB_") and name not in known:
            has = ", ".join(known) or "it has none"
            names = " and ".join(filter(None, (POLICY, LINE_POLICY)))
            _LOG.warning("tanren: %s names no knob of policy %s: %s", name, names, has)


def number_of(name: str, default: float, scale: float) -> float:
    """A number that the operator may set in the environment; refuses what is none."""
    written = os.environ.get(name)
    if written is None:
        return default
    try:
        value = float(written) * scale
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name}={written!r} is not a number")
    return value


def _reason_to_stand_aside() -> str | None:
    if os.environ.get("TANREN_DISABLE") == "1":
        return "TANREN_DISABLE=1"
    version = _vllm_version()
    if version not in FITS and os.environ.get("TANREN_FORCE") != "1":
        return f"vLLM {version} is not one of {', '.join(FITS)} (TANREN_FORCE=1 overrides)"
    return None


def _reason_to_pass_through() -> str | None:
    if SHAPE == "identity" and os.environ.get("TANREN_NO_IDENTITY") != "1":
        return "pass-through: this policy's order is vLLM's own"
    return None


def make_scheduler_class(base: Any) -> Any:
    """The scheduler of vLLM, which tells the policies what they need to know."""
    if SCHEDULES:
        base = make_dispatching_class(base)
    return make_evicting_class(base) if EVICTS else base


def make_evicting_class(base: Any) -> Any:
    """The scheduler of vLLM with the two moments marked at which time is frozen."""

    class TanrenScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; freezes the moment at the top of a step, nothing else."""

        tanren: Any = None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is None or not evictor.on:
                return super().schedule(*args, **kwargs)
            try:
                evictor.step_begins()
            except Exception as error:
                evictor.failed(error)
            output = super().schedule(*args, **kwargs)
            if AS_OF_STEP or USES_MATTER:
                try:
                    evictor.step_ends(output)
                except Exception as error:
                    evictor.failed(error)
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is not None and evictor.on:
                try:
                    evictor.freeze_now()
                except Exception as error:
                    evictor.failed(error)
            return super().update_from_output(*args, **kwargs)

        def shutdown(self, *args: Any, **kwargs: Any) -> Any:
            if self.tanren is not None:
                say_farewell(self.tanren)
            return super().shutdown(*args, **kwargs)

    return TanrenScheduler


def told_before(evictor: Any, owner: Any, name: str, tell: Any) -> tuple[Any, str, Any, Any]:
    """A method, and one in its place that first tells the evictor its arguments."""
    original = getattr(owner, name)

    def ours(*args: Any, **kwargs: Any) -> Any:
        if evictor.on:
            try:
                tell(*args, **kwargs)
            except Exception as error:
                evictor.failed(error)
        return original(*args, **kwargs)

    return owner, name, original, ours


def told_after(evictor: Any, owner: Any, name: str, tell: Any) -> tuple[Any, str, Any, Any]:
    """A method, and one in its place that then tells the evictor its answer and its arguments."""
    original = getattr(owner, name)

    def ours(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if evictor.on:
            try:
                tell(answer, *args, **kwargs)
            except Exception as error:
                evictor.failed(error)
        return answer

    return owner, name, original, ours


def noted_after(evictor: Any, owner: Any, name: str) -> tuple[Any, str, Any, Any]:
    """A method, and one in its place that then notes the moment and its arguments, for later."""
    original = getattr(owner, name)

    def ours(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        if evictor.on:
            evictor.pending.append((evictor.now, args, kwargs))
        return answer

    return owner, name, original, ours


def make_queue_class(base: Any) -> Any:
    """The free queue of vLLM with another choice of victims."""

    class TanrenQueue(base):  # type: ignore[misc]
        """vLLM's free queue, which stays the storage; only the choice of victims differs.

        Calls go to `base` by name: the policy may switch itself off, and the queue's class
        back to vLLM's, in the middle of one.
        """

        tanren: Any

        def popleft(self) -> Any:
            return self.popleft_n(1)[0]

        def popleft_n(self, n: int) -> Any:
            evictor, victims = self.tanren, None
            if n > 0 and evictor.on:
                try:
                    victims = evictor.choose(n)
                except Exception as error:
                    evictor.failed(error)
            if victims is None:
                return base.popleft_n(self, n)
            before: Any = None  # what stands on either side of those taken last
            after: Any = None
            for block in victims:
                if block is after:
                    after = block.next_free_block
                else:
                    if after is not None:
                        before.next_free_block, after.prev_free_block = after, before
                    before, after = block.prev_free_block, block.next_free_block
                block.prev_free_block = block.next_free_block = None
            before.next_free_block, after.prev_free_block = after, before
            self.num_free_blocks -= n
            return victims

        def append(self, block: Any) -> None:
            base.append(self, block)
            self._entered([block], False)

        def append_n(self, blocks: Any) -> None:
            base.append_n(self, blocks)
            if blocks:
                self._entered(blocks, False)

        def prepend_n(self, blocks: Any) -> None:
            base.prepend_n(self, blocks)
            if blocks:
                self._entered(blocks, True)

        def _entered(self, blocks: Any, to_front: bool) -> None:
            if self.tanren.on:
                try:
                    self.tanren.entered(blocks, to_front)
                except Exception as error:
                    self.tanren.failed(error)

    return TanrenQueue


# Sections of the state: where each begins and ends stands in its first 512 bytes. What is read of every
# considered block, _SETTLED, stands by its place in the ring, so that it is read in order; the rest by id.
(
    _POS, _ENDS, _ROWS, _SETTLED, _FRESH, _DECISION, _TALLY, _KEYS, _SCRATCH, _PLAIN, _SCORED, _SLOTS, _LOWS,
    _OUT, _RING, _HASHED, _ENTRY_KEYS, _ENTRY_BLOCK, _ENTRY_STAMP, _STAMP, _BAD, _HEAP,
) = range(22)  # fmt: skip
# In _ENDS, behind head, tail and count. _LEFT: blocks that the step's ranking still names; it stands in
# _OUT, of which those before _NEXT are taken and those before _GONE have left the mirror. _FRONTIER: the
# position before which the considered blocks are, _FRONT many. (The last two where there is a heap.)
_DECISIONS, _FAULTS, _STRAYS, _LEFT, _NEXT, _GONE, _FRONTIER, _FRONT = range(3, 11)
_OUT_OF_STEP, _PICKED, _IN_ORDER, _STANDS, _FAULT = range(5)  # what `pick` answers
# Columns of the table by hash: first a row for each block id, then one for each hash; see `Hashes`.
_OWN, _PARENT = 0, 1
_HOLDERS, _CHILD_COUNT, _EVICTED_AT, _EVICTED_USES, _WAITING_COUNT = range(5)


def new_state(blocks: int) -> Any:
    """The memory of an empty queue of so many block ids, every section on cache lines of its own."""
    starts: list[int] = []
    at = 512
    for size in _sizes(blocks):
        starts += [at, at + size]
        at += -(-size // 64) * 64
    room = np.zeros(at + 64, np.uint8)
    skip = -room.ctypes.data % 64
    state = room[skip : skip + at]
    state[:512].view(np.int64)[: len(starts)] = starts
    view(state, _POS, np.int64)[:] = -1
    ends = view(state, _ENDS, np.int64)
    ends[:2] = ends[_FRONTIER] = 1 << 40
    return state


def _sizes(blocks: int) -> tuple[int, ...]:
    entries = 4 * blocks + 64 if HEAP else 0
    heaped = blocks if HEAP else 0
    ring = 1 << max(4, (2 * blocks + 2).bit_length())
    return (
        8 * blocks, 8 * 16, 8 * blocks * ROW_WIDTH, 8 * ring * SETTLED_WIDTH, 8 * blocks * max(1, SETTLED),
        8 * (DECISION_WIDTH + len(KNOBS)), 8 * TALLY_WIDTH,
        8 * blocks * KEY_COUNT, 8 * blocks, 4 * blocks, 4 * blocks, 4 * blocks, 4 * blocks,
        4 * blocks, 4 * ring, blocks,
        8 * entries * KEY_COUNT, 4 * entries, 8 * entries, 8 * heaped, heaped, 8 * 3,
    )  # fmt: skip


def view(state: Any, section: int, kind: Any) -> Any:
    """One section as an array."""
    at = state[:512].view(np.int64)
    return state[at[2 * section] : at[2 * section + 1]].view(kind)


def queue_of(state: Any) -> Any:
    """The ring, the places in it and its ends."""
    return view(state, _RING, np.uint32), view(state, _POS, np.int64), view(state, _ENDS, np.int64)


def _compiled_views() -> Any:
    """What compiled functions have in place of `view`, by kind: two loads and an addition."""
    from numba.core import types
    from numba.extending import intrinsic
    from numba.np.arrayobj import make_array, populate_array

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = signature.return_type
        word = context.get_value_type(types.int64)
        size = word(array.dtype.bitwidth // 8)
        start = make_array(signature.args[0])(context, builder, args[0]).data
        marks = builder.bitcast(start, word.as_pointer())
        place = builder.mul(args[1], word(2))
        first = builder.load(builder.gep(marks, [place]))
        last = builder.load(builder.gep(marks, [builder.add(place, word(1))]))
        shape, strides = [builder.udiv(builder.sub(last, first), size)], [size]
        if array.ndim == 2:
            shape = [builder.udiv(shape[0], args[2]), args[2]]
            strides = [builder.mul(args[2], size), size]
        out = make_array(array)(context, builder)
        data = builder.bitcast(builder.gep(start, [first]), out.data.type)
        populate_array(out, data, shape, strides, size, None)
        return out._getvalue()

    def flat(kind: Any) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def part(_context: Any, state: Any, _section: Any) -> Any:
            return types.Array(kind, 1, "C")(state, types.int64), generate

        return part

    @intrinsic  # type: ignore[untyped-decorator]
    def table(_context: Any, state: Any, _section: Any, _width: Any) -> Any:
        return types.Array(types.float64, 2, "C")(state, types.int64, types.int64), generate

    return *map(flat, (types.float64, types.int64, types.uint32, types.uint8)), table


def _plain_views() -> Any:
    def flat(kind: Any) -> Any:
        return lambda state, section: view(state, section, kind)

    def table(state: Any, section: int, width: int) -> Any:
        return view(state, section, np.float64).reshape(-1, width)

    return *map(flat, (np.float64, np.int64, np.uint32, np.uint8)), table


_f8, _i8, _u4, _u1, _table = _compiled_views() if HAVE_NUMBA else _plain_views()


@_jit
def _queue(state):
    return _u4(state, _RING), _i8(state, _POS), _i8(state, _ENDS)


@_jit
def settle_rows(state, ids):
    """These blocks begin to rest: keep what of their keys is known."""
    if SETTLED > 0:
        fresh, settled = _table(state, _FRESH, SETTLED), _table(state, _SETTLED, SETTLED_WIDTH)
        ring, pos, _ = _queue(state)
        n, mask = ids.shape[0], ring.shape[0] - 1
        settle(_f8(state, _DECISION), _table(state, _ROWS, ROW_WIDTH), ids, n, fresh, _f8(state, _SCRATCH))
        for j in range(n):
            for c in range(SETTLED):
                settled[pos[ids[j]] & mask, c] = fresh[j, c]


@_jit
def catch_up(state):
    """Blocks that were taken from the standing ranking without a call leave the mirror."""
    ring, pos, ends = _queue(state)
    if ends[_NEXT] > ends[_GONE]:
        hashed, out = _u1(state, _HASHED), _u4(state, _OUT)
        for i in range(ends[_GONE], ends[_NEXT]):
            ring_remove(ring, pos, ends, out[i])
            hashed[out[i]] = 0
        ends[_LEFT] -= ends[_NEXT] - ends[_GONE]
        ends[_GONE] = ends[_NEXT]


@_jit
def close_gaps(state, upto):
    """Close the gaps in the ring before position `upto`, towards it; the order does not change."""
    ring, pos, ends = _queue(state)
    settled, mask = _table(state, _SETTLED, SETTLED_WIDTH), ring.shape[0] - 1
    write = upto
    for read in range(upto - 1, ends[0] - 1, -1):
        entry = ring[read & mask]
        if entry != EMPTY:
            write -= 1
            if write != read:
                ring[write & mask] = entry
                pos[entry & LOW] = write
                for c in range(SETTLED):
                    settled[write & mask, c] = settled[read & mask, c]
    ends[0] = write


@_jit
def released(state, ids, now, unscored):
    """Blocks enter the free queue at its back, in this order; `unscored`: at its front, the first as head."""
    catch_up(state)
    ring, pos, ends = _queue(state)
    rows, hashed = _table(state, _ROWS, ROW_WIDTH), _u1(state, _HASHED)
    n = ids.shape[0]
    ends[_LEFT] = 0
    if ends[1] - ends[0] + n > ring.shape[0]:
        close_gaps(state, ends[1])
        ends[_FRONTIER] = ends[1] - ends[2] + ends[_FRONT]
    if unscored:
        for i in range(n - 1, -1, -1):
            ring_push_front(ring, pos, ends, ids[i], UNSCORED)
        ends[_FRONT] += n
        return
    for i in range(n):
        row_released(rows, ids[i], now, hashed[ids[i]])
        ring_push_back(ring, pos, ends, ids[i], 0)
    settle_rows(state, ids)


@_jit
def taken_back(state, ids):
    """Blocks are held again; those in the free queue leave it."""
    catch_up(state)
    ring, pos, ends = _queue(state)
    for i in range(ids.shape[0]):
        if pos[ids[i]] != -1:
            if HEAP and pos[ids[i]] < ends[_FRONTIER]:
                ends[_FRONT] -= 1
                heap_leave(_i8(state, _HEAP), _i8(state, _STAMP), _u1(state, _BAD), ids[i])
            ring_remove(ring, pos, ends, ids[i])
            ends[_LEFT] = 0


@_jit
def used(state, ids, now, chain):
    """An admission hits these blocks, in chain order; those in the free queue leave it."""
    taken_back(state, ids)
    rows, tally = _table(state, _ROWS, ROW_WIDTH), _f8(state, _TALLY)
    mean_gap = _f8(state, _DECISION)[MEAN_GAP]
    for i in range(ids.shape[0]):
        if ids[i] != 0:  # the null block stands for what was never computed
            moving_mean(tally, 0, row_used(rows, ids[i], now, chain, mean_gap), GAPS)


@_jit
def written(state, ids, spans, block_size):
    """Blocks got their hash: of each span (how many, when, number of the first in its chain, prompt)."""
    catch_up(state)
    rows, hashed = _table(state, _ROWS, ROW_WIDTH), _u1(state, _HASHED)
    at = 0
    for k in range(0, spans.shape[0], 4):
        now, first, prompt = spans[k + 1], int(spans[k + 2]), spans[k + 3]
        for i in range(int(spans[k])):
            block = ids[at]
            at += 1
            if block != 0:
                row_written(rows, block, now, float((first + i) * block_size), prompt, 0.0)
                if GENERATED >= 0:
                    rows[block, GENERATED] = 1.0 if (first + i + 1) * block_size > prompt else 0.0
                hashed[block] = 1


@_jit
def unhashed(state, block, unscored):
    """A block lost its hash otherwise than as a victim; one that is queued rests on without it."""
    catch_up(state)
    ring, pos, ends = _queue(state)
    _u1(state, _HASHED)[block] = 0
    if pos[block] == -1:
        return
    lone = _u4(state, _LOWS)[:1]
    lone[0] = block
    _forget(state, lone)
    at = pos[block] & (ring.shape[0] - 1)
    if unscored and ring[at] < UNSCORED:
        ring[at] = block + UNSCORED
    ends[_STRAYS] += 1
    ends[_LEFT] = 0


@_jit
def _forget(state, ids):
    rows = _table(state, _ROWS, ROW_WIDTH)
    for i in range(ids.shape[0]):
        row_released(rows, ids[i], rows[ids[i], LAST_USE] if LAST_USE >= 0 else 0.0, 0)
    settle_rows(state, ids)


@_jit
def all_unhashed(state, unscored):
    """All hashes are gone; what is queued rests on, in the same order."""
    catch_up(state)
    ring, _, ends = _queue(state)
    lows, mask, count = _u4(state, _LOWS), ring.shape[0] - 1, 0
    for at in range(ends[0], ends[1]):
        entry = ring[at & mask]
        if entry < UNSCORED:
            lows[count] = entry
            count += 1
            if unscored:
                ring[at & mask] = entry + UNSCORED
    _forget(state, lows[:count])
    _u1(state, _HASHED)[:] = 0
    ends[_LEFT] = ends[_STRAYS] = 0
    if HEAP:
        _i8(state, _HEAP)[HEAP_SIZE] = _i8(state, _HEAP)[BAD] = 0
        _i8(state, _STAMP)[:] = -1
        _u1(state, _BAD)[:] = 0
        ends[_FRONTIER], ends[_FRONT] = ends[0], 0


@_jit
def pick(state, table, n, free, extra):
    """Choose n of the free blocks; they leave the queue and lose their hash.

    Answers _OUT_OF_STEP if the queue is not so long as the engine's, _FAULT if a key was not finite
    and so the engine's own order holds, _IN_ORDER if the choice happens to be that, _PICKED: they are
    the first of the section _OUT, or _STANDS: the next of it, for the step's ranking still stands.
    """
    catch_up(state)
    ends = _i8(state, _ENDS)
    if ends[2] != free or free < n:
        return _OUT_OF_STEP
    hashed, out = _u1(state, _HASHED), _u4(state, _OUT)
    stands = n <= ends[_LEFT]
    if HEAP and ends[_STRAYS] == 0:
        answer, fault = _pop(state, n, extra, stands)
    elif stands:
        ends[_NEXT] += n
        catch_up(state)
        return _STANDS
    else:
        answer, fault = _scan(state, table, n, extra)
    ends[_FAULTS] += fault
    for i in range(n):
        hashed[out[i]] = 0
    return _FAULT if fault != 0 else answer


@_jit
def _pop(state, n, extra, stands):
    ring, pos, ends = _queue(state)
    out, lows = _u4(state, _OUT), _u4(state, _LOWS)
    considered = min(n + extra, ends[2])
    if not stands:
        _advance(state, considered)
    firsts = _first_queued(state, n)
    decided, fault = heap_take(
        ring, pos, ends, _table(state, _ENTRY_KEYS, KEY_COUNT), _u4(state, _ENTRY_BLOCK),
        _i8(state, _ENTRY_STAMP), _i8(state, _HEAP), _i8(state, _STAMP), _u1(state, _BAD), n, out,
    )  # fmt: skip
    ends[_FRONT] -= n
    if stands:
        ends[_LEFT] -= n
    else:
        ends[_DECISIONS] += decided
        ends[_LEFT] = spare_of(considered, n) if decided > fault else 0
    for i in range(firsts):
        if lows[i] != out[i]:
            return _PICKED, fault
    return _IN_ORDER if firsts == n else _PICKED, fault


@_jit
def _advance(state, considered):
    """The first `considered` blocks of the queue are considered; the heap learns of those it did not know."""
    ring, _, ends = _queue(state)
    scored, slots, mask, known = _u4(state, _SCORED), _u4(state, _SLOTS), ring.shape[0] - 1, 0
    while ends[_FRONT] < considered:
        slot = ends[_FRONTIER] & mask
        entry = ring[slot]
        ends[_FRONTIER] += 1
        if entry != EMPTY:
            ends[_FRONT] += 1
            if entry < UNSCORED:
                scored[known] = entry
                slots[known] = slot
                known += 1
    if known > 0:
        _enter_heap(state, known)


@_jit
def _first_queued(state, n):
    """The first n blocks of the queue into _LOWS, or fewer if they stand too far apart. Returns how many."""
    ring, _, ends = _queue(state)
    lows, mask, at, count = _u4(state, _LOWS), ring.shape[0] - 1, ends[0], 0
    last = min(ends[1], at + 2 * n + 64)
    while count < n and at < last:
        entry = ring[at & mask]
        at += 1
        if entry != EMPTY:
            lows[count] = entry & LOW
            count += 1
    return count


@_jit
def fill_counts(settled, table, ids, slots, n):
    """Write what is counted by hash into the settled rows of n blocks; see `Hashes`."""
    for j in range(n):
        own = table[ids[j], _OWN]
        if CHILDREN >= 0:
            settled[slots[j], CHILDREN] = float(table[own, _CHILD_COUNT]) if own >= 0 else 0.0
        if WAITING_REFS >= 0:
            settled[slots[j], WAITING_REFS] = float(table[own, _WAITING_COUNT]) if own >= 0 else 0.0


@_jit
def _consider(state, n, extra):
    """The considered set, as the simulator takes it; with the places of the scored blocks in the ring.

    Returns the numbers of both and the position behind the considered set.
    """
    ring, _, ends = _queue(state)
    plain, scored, slots = _u4(state, _PLAIN), _u4(state, _SCORED), _u4(state, _SLOTS)
    mask, want, at = ring.shape[0] - 1, min(n + extra, ends[2]), ends[0]
    plains = rated = 0
    while plains + rated < want:
        slot = at & mask
        entry = ring[slot]
        at += 1
        if entry < UNSCORED:
            scored[rated] = entry
            slots[rated] = slot
            rated += 1
        elif entry != EMPTY:
            plain[plains] = entry & LOW
            plains += 1
            if plains == n and rated == 0:
                break
    return plains, rated, at


@_jit
def _scan(state, table, n, extra):
    ring, pos, ends = _queue(state)
    plain, scored, slots = _u4(state, _PLAIN), _u4(state, _SCORED), _u4(state, _SLOTS)
    flat, scratch, out = _f8(state, _KEYS), _f8(state, _SCRATCH), _u4(state, _OUT)
    keys, settled = _table(state, _KEYS, KEY_COUNT), _table(state, _SETTLED, SETTLED_WIDTH)
    plains, rated, behind = _consider(state, n, extra)
    spare = 0
    if plains < n:
        ends[_DECISIONS] += 1
        spare = spare_of(plains + rated, n)
        if CHILDREN >= 0 or WAITING_REFS >= 0:
            fill_counts(settled, table, scored, slots, rated)
        order(_f8(state, _DECISION), settled, slots, rated, keys, scratch)
    fault = ring_take(
        ring, pos, ends, n, spare, plain, plains, scored, rated, keys, flat, _u4(state, _LOWS), scratch, out
    )
    ends[_LEFT] = spare if fault == 0 else 0
    ends[_NEXT] = ends[_GONE] = n
    if behind - ends[0] > 2 * (plains + rated) + 64:
        close_gaps(state, behind)
    same = rated == 0
    if not same and plains == 0:
        same = True
        for i in range(n):
            same = same and out[i] == scored[i]
    return _IN_ORDER if same else _PICKED, fault


@_jit
def _enter_heap(state, n):
    """The heap learns of the n blocks in _SCORED, whose keys will not change."""
    scored, slots, keys = _u4(state, _SCORED), _u4(state, _SLOTS), _table(state, _KEYS, KEY_COUNT)
    settled = _table(state, _SETTLED, SETTLED_WIDTH)
    order(_f8(state, _DECISION), settled, slots, n, keys, _f8(state, _SCRATCH))
    entry_keys, entry_block = _table(state, _ENTRY_KEYS, KEY_COUNT), _u4(state, _ENTRY_BLOCK)
    entry_stamp, stamp = _i8(state, _ENTRY_STAMP), _i8(state, _STAMP)
    heap, bad = _i8(state, _HEAP), _u1(state, _BAD)
    for j in range(n):
        heap_enter(keys, j, entry_keys, entry_block, entry_stamp, heap, stamp, bad, scored[j])


_LONG_AGO = -(1 << 60)


@_jit
def _let_go(table, dead, number):
    table[number, _HOLDERS] -= 1
    if table[number, _HOLDERS] == 0:
        dead[0] += 1
        dead[dead[0]] = number


@_jit
def _drop(table, dead, block):
    own, parent = table[block, _OWN], table[block, _PARENT]
    if parent >= 0:
        table[parent, _CHILD_COUNT] -= 1
        _let_go(table, dead, parent)
    _let_go(table, dead, own)
    table[block, _OWN] = table[block, _PARENT] = -1


@_jit
def hashes_written(state, table, dead, ids, numbers, evictions, remembered):
    """Blocks got the hashes numbers[1:]; before each in its chain stands the one before it there."""
    rows = _table(state, _ROWS, ROW_WIDTH)
    for i in range(ids.shape[0]):
        block, parent, own = ids[i], numbers[i], numbers[i + 1]
        table[own, _HOLDERS] += 1
        if block == 0:
            _let_go(table, dead, own)
            continue
        if table[block, _OWN] >= 0:
            _drop(table, dead, block)
        table[block, _OWN] = own
        table[block, _PARENT] = parent
        if parent >= 0:
            table[parent, _HOLDERS] += 1
            table[parent, _CHILD_COUNT] += 1
        if GHOST_USES >= 0 and evictions - table[own, _EVICTED_AT] < remembered:
            rows[block, GHOST_USES] = float(table[own, _EVICTED_USES])


@_jit
def hashes_evicted(state, table, dead, ids, n, line, evictions):
    """The first n of these blocks lose their hashes, if they have one. Returns the evictions so far."""
    rows = _table(state, _ROWS, ROW_WIDTH)
    for i in range(n):
        block = ids[i]
        own = table[block, _OWN]
        if own < 0:
            continue
        evictions += 1
        if GHOST_USES >= 0:
            table[own, _EVICTED_AT] = evictions
            table[own, _EVICTED_USES] = int(rows[block, USES] + rows[block, GHOST_USES])
            table[own, _HOLDERS] += 1
            slot = evictions % line.shape[0]
            if line[slot] >= 0:
                _let_go(table, dead, line[slot])
            line[slot] = own
        _drop(table, dead, block)
    return evictions


@_jit
def hashes_forgotten(table, dead, blocks, line):
    """All hashes are gone, and with them what was remembered of evicted ones."""
    for block in range(blocks):
        if table[block, _OWN] >= 0:
            _drop(table, dead, block)
    for slot in range(line.shape[0]):
        if line[slot] >= 0:
            table[line[slot], _EVICTED_AT] = _LONG_AGO
            _let_go(table, dead, line[slot])
            line[slot] = -1


@_jit
def hashes_waited_for(table, dead, numbers, change):
    """One more, or one less, waiting request whose prompt has these hashes."""
    for i in range(numbers.shape[0]):
        table[numbers[i], _WAITING_COUNT] += change
        table[numbers[i], _HOLDERS] += 1
        if change < 0:
            _let_go(table, dead, numbers[i])
            _let_go(table, dead, numbers[i])


class Hashes:
    """Numbers for the hashes in use, and the table that counts by them."""

    def __init__(self, blocks: int, remembered: int) -> None:
        self.blocks = blocks
        self.remembered = remembered
        self.number: dict[Any, int] = {}
        self.key: list[Any] = []
        self.spare: list[int] = []
        self.table = np.full((blocks, 5), -1, np.int64)
        self.dead = np.zeros(1, np.int64)
        self.line = np.full(remembered, -1, np.int64)
        self.evictions = 0
        self.waiting: dict[str, Any] = {}
        self._grow(2 * blocks)

    def written(self, state: Any, ids: Any, request: Any, first: int) -> None:
        """Blocks number `first` and on of the request's chain got their hash."""
        keys = request.block_hashes
        chain = keys[first - 1 if first else 0 : first + len(ids)]
        numbers = self._numbers(chain) if first else [-1, *self._numbers(chain)]
        given = np.array(numbers, np.int64)
        hashes_written(state, self.table, self.dead, ids, given, self.evictions, self.remembered)
        self._bury()

    def evicted(self, state: Any, ids: Any, n: int) -> None:
        """The first n of these blocks lost their hash, if they had one."""
        self.evictions = hashes_evicted(state, self.table, self.dead, ids, n, self.line, self.evictions)
        self._bury()

    def forget(self) -> None:
        """All hashes are gone."""
        hashes_forgotten(self.table, self.dead, self.blocks, self.line)
        self._bury()

    def wait(self, requests: Any, block_size: int) -> None:
        """These requests wait now."""
        waiting = {request.request_id: request for request in requests}
        for name in self.waiting.keys() - waiting.keys():
            hashes_waited_for(self.table, self.dead, self.waiting.pop(name), -1)
        for name in waiting.keys() - self.waiting.keys():
            request = waiting[name]
            keys = request.block_hashes[: request.num_prompt_tokens // block_size]
            self.waiting[name] = np.array(self._numbers(keys), np.int64)
            hashes_waited_for(self.table, self.dead, self.waiting[name], 1)
        self._bury()

    def _numbers(self, keys: Any) -> list[int]:
        return [self.number[key] if key in self.number else self._new(key) for key in keys]

    def _new(self, key: Any) -> int:
        if not self.spare:
            self._grow(len(self.key))
        number = self.spare.pop()
        self.number[key] = number
        self.key[number - self.blocks] = key
        self.table[number] = (0, 0, _LONG_AGO, 0, 0)
        return number

    def _grow(self, more: int) -> None:
        size = len(self.table)
        self.table = np.concatenate((self.table, np.zeros((more, 5), np.int64)))
        self.dead = np.zeros(2 * len(self.table) + 1, np.int64)
        self.key += [None] * more
        self.spare += range(size + more - 1, size - 1, -1)

    def _bury(self) -> None:
        count = int(self.dead[0])
        if count:
            self.dead[0] = 0
            for number in self.dead[1 : count + 1].tolist():
                key = self.key[number - self.blocks]
                if key is not None and self.table[number, _HOLDERS] == 0:
                    del self.number[key]
                    self.key[number - self.blocks] = None
                    self.spare.append(number)


_ID = attrgetter("block_id")


def ids_of(blocks: Any) -> Any:
    """The ids of these blocks, as the compiled functions want them."""
    return np.fromiter(map(_ID, blocks), np.uint32, len(blocks))


def warm_up(decision: Any) -> None:
    """Compile everything now, on a queue of three blocks; nothing compiles on the request path."""
    state = new_state(4)
    view(state, _DECISION, np.float64)[:] = decision
    if "hit_rate" in READS or "service_rate" in READS:
        moving_mean(view(state, _TALLY, np.float64), 4, 0.5, RATES)
    table = np.zeros((1, 1), np.int64)
    ids = np.arange(1, 4, dtype=np.uint32)
    if NUMBERED:
        hashes = Hashes(4, 3)
        hashes.wait([_Asking()], 1)
        hashes.wait([], 1)
        hashes.written(state, ids, _Asking(), 0)
        table = hashes.table
    if WRITES:
        written(state, ids, np.array((3.0, 0.0, 0.0, 2.0)), 1)
    released(state, ids[:2], 0.0, False)
    released(state, ids[2:], 0.0, True)
    pick(state, table, 1, 3, 4)
    pick(state, table, 1, 2, 4)
    if NUMBERED:
        hashes.evicted(state, ids, 1)
        hashes.forget()
    if USES_MATTER:
        used(state, ids[:1], 0.0, 0.0)
    taken_back(state, ids)
    unhashed(state, 1, False)
    all_unhashed(state, False)


class _Asking:
    """As much of a request as the warm-up needs."""

    request_id = "warm-up"
    block_hashes = (b"1", b"2", b"3")
    num_prompt_tokens = 3


_MANY_PENDING = 256


class Evictor(Part):
    """The policy at work: a mirror of the free queue and the signals, in flat arrays by block id."""

    status = _STATUS

    @staticmethod
    def reason_not_to_attach(scheduler: Any) -> str | None:
        """Why this engine is none that the file can serve; None if it is one."""
        manager = scheduler.kv_cache_manager
        if not manager.enable_caching:
            return "prefix caching is off, nothing to decide"
        if manager.num_kv_cache_groups != 1:
            return f"{manager.num_kv_cache_groups} KV cache groups, this file handles one"
        if manager.block_pool.hash_block_size != scheduler.block_size:
            return "blocks and their hashes differ in size"
        if type(manager.block_pool.free_block_queue).__name__ != "FreeKVCacheBlockQueue":
            return "another free queue is already in place"
        return None

    def __init__(self, scheduler: Any) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.queue = self.pool.free_block_queue
        self.blocks = self.pool.blocks
        self.block_of = self.blocks.__getitem__
        count = len(self.blocks)
        self.usable = count - 1
        self.block_size = int(scheduler.block_size)
        self.unhashed_unscored = hasattr(self.queue, "prepend_n")
        self.extra = count if PERCENT is None else -int(-PERCENT * self.usable // 100)
        self.start = CLOCK()
        self.now = 0.0
        self.mark, self.tokens = 0.0, 0
        self.admission: tuple[Any, int] | None = None
        self.hit_end: Any = None

        self.state = new_state(count)
        self.ends = view(self.state, _ENDS, np.int64)
        self.out = view(self.state, _OUT, np.uint32)
        self.marks, self.names = memoryview(self.ends), memoryview(self.out)  # the same, cheap to read
        self.tally = view(self.state, _TALLY, np.float64)
        self.decision = view(self.state, _DECISION, np.float64)
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        self.decision[DECISION_WIDTH:] = knob_values(KNOBS)
        self.hashes = Hashes(count, self.usable) if NUMBERED else None
        self.no_table = np.zeros((1, 1), np.int64)
        self.pending: list[Any] = []
        self.named: list[int] = []  # by the step's ranking; those before `at` are taken
        self.at = self.standing = self.expected = 0

        ring, pos, ends = queue_of(self.state)
        for block in self.queue.get_all_free_blocks():
            ring_push_back(ring, pos, ends, block.block_id, UNSCORED)
        warm_up(self.decision)
        self._attach()

    # -- what the engine tells us ------------------------------------------------

    def freeze_now(self) -> None:
        """Hold the clock still until the next step or output; one that was set back goes on from here."""
        now = CLOCK() - self.start
        if now < self.now:
            self.start += now - int(self.now)
            now = int(self.now)
        self.now = float(now)

    def step_begins(self) -> None:
        """Freeze everything that is *as of this step*; the ranking of the last one no longer stands."""
        self.freeze_now()
        self.standing = self.marks[_LEFT] = 0
        if WRITES and len(self.pending) > _MANY_PENDING:
            self.flush()
        if AS_OF_STEP:
            self._freeze_signals()

    def _freeze_signals(self) -> None:
        decision, tally = self.decision, self.tally
        decision[NOW] = self.now
        if "mean_gap" in READS or "spaced_uses" in READS:
            decision[MEAN_GAP] = tally[0]
        if "kv_free" in READS:
            decision[KV_FREE] = self.queue.num_free_blocks / self.usable
        if "hit_rate" in READS:
            decision[HIT_RATE] = tally[2]
        if "service_rate" in READS:
            if self.now > self.mark:
                if self.tokens > 0:
                    moving_mean(tally, 4, self.tokens / (self.now - self.mark), RATES)
                self.mark, self.tokens = self.now, 0
            decision[SERVICE_RATE] = tally[4]
        if "running" in READS:
            decision[RUNNING] = float(len(self.scheduler.running))
        if "waiting" in READS:
            decision[WAITING] = float(sum(len(queue) for queue in self._waiting()))
        if "oldest_wait" in READS:
            first = min((request.arrival_time for request in self._waiting_requests()), default=None)
            arrival = self.now if first is None else float(round(first * 1e6) - self.start)
            decision[OLDEST_WAIT] = max(0.0, self.now - arrival)
        if "waiting_refs" in READS and self.hashes is not None:
            self.hashes.wait(self._waiting_requests(), self.block_size)

    def step_ends(self, output: Any) -> None:
        """What the step did is known."""
        self.tokens += output.total_num_scheduled_tokens
        self.admitted()

    def looked_up(self, request: Any, hit: Any) -> None:
        """A waiting request found these blocks cached; it may be admitted with them."""
        self.admitted()
        self.admission = (request, len(hit))
        self.hit_end = hit[-1] if hit else None

    def admitted(self) -> None:
        """Count the admission in question, if it came about."""
        if self.admission is None:
            return
        request, hits = self.admission
        self.admission = self.hit_end = None
        asked = (request.num_tokens - 1) // self.block_size
        if "hit_rate" in READS and asked > 0 and request.status.name == "RUNNING":
            moving_mean(self.tally, 2, hits / asked, HIT_RATES)

    def touched(self, blocks: Any) -> None:
        """Blocks are held again: an admission hits them, or a connector copies them."""
        if not blocks:
            return
        self._before_change()
        ids = ids_of(blocks)
        if self.admission is not None and blocks[-1] is self.hit_end:
            self.hit_end = None
            used(self.state, ids, self.now, float(self.admission[0].num_prompt_tokens))
        else:
            taken_back(self.state, ids)

    def flush(self) -> None:
        """Hand over what was written; it must be known before any of it is released or counted."""
        pending, self.pending = self.pending, []
        blocks: list[Any] = []
        spans: list[float] = []
        chains: list[tuple[Any, int, int]] = []
        for now, args, kwargs in pending:
            for request, first, fresh in _spans_of(*args, **kwargs):
                blocks += fresh
                spans += (len(fresh), now, first, request.num_prompt_tokens)
                chains.append((request, first, len(fresh)))
        ids = ids_of(blocks)
        written(self.state, ids, np.array(spans, np.float64), self.block_size)
        if self.hashes is not None:
            for request, first, count in chains:
                self.hashes.written(self.state, ids[:count], request, first)
                ids = ids[count:]

    def _before_change(self) -> None:
        """The queue or the hashes of queued blocks are about to change."""
        self.standing = 0
        if self.pending:
            self.flush()

    def forgotten(self, block_ids: Any) -> None:
        """These blocks may have lost their hash otherwise than as victims."""
        self._before_change()
        gone = [b for b in block_ids if self.blocks[b].block_hash is None and b != 0]
        if self.hashes is not None:
            self.hashes.evicted(self.state, np.array(gone, np.uint32), len(gone))
        for b in gone:
            unhashed(self.state, b, self.unhashed_unscored)

    def reset(self) -> None:
        """All hashes are gone."""
        self._before_change()
        if self.hashes is not None:
            self.hashes.forget()
        all_unhashed(self.state, self.unhashed_unscored)

    def entered(self, blocks: Any, to_front: bool) -> None:
        """Blocks enter the free queue, in this order, at its back or (the first as head) its front."""
        self._before_change()
        released(self.state, ids_of(blocks), self.now, to_front)

    # -- the decision ------------------------------------------------------------

    def choose(self, n: int) -> list[Any] | None:
        """The n blocks to take, best victim first; None: take the engine's own."""
        at, free = self.at, self.queue.num_free_blocks
        if at + n <= self.standing and free == self.expected:
            self.at = self.marks[_NEXT] = at + n
            self.expected = free - n
            return list(map(self.block_of, self.named[at : at + n]))
        began = time.perf_counter()
        victims = self._decide(n, free)
        self.spent(time.perf_counter() - began)
        return victims

    def _decide(self, n: int, free: int) -> list[Any] | None:
        hashes = self.hashes
        if hashes is None:
            answer = pick(self.state, self.no_table, n, free, self.extra)
        else:
            if self.pending:
                self.flush()
            answer = pick(self.state, hashes.table, n, free, self.extra)
        if answer == _OUT_OF_STEP:
            raise RuntimeError(f"{n} blocks asked for, {free} free, {self.marks[2]} in the mirror")
        if answer == _FAULT and self.marks[_FAULTS] == 1:
            _LOG.warning("tanren: policy %s gave a key that is not finite; %s", POLICY, _OWN_ORDER)
        at = self.at if answer == _STANDS else 0
        self.at, self.expected = at + n, free - n
        if hashes is not None:
            hashes.evicted(self.state, self.out[at:], n)
        named = self.names[: self.at + self.marks[_LEFT] if AHEAD else self.at].tolist()
        if AHEAD:
            self.named, self.standing = named, len(named)
        return list(map(self.block_of, named[at : self.at])) if answer in (_PICKED, _STANDS) else None

    def give_back(self) -> None:
        """VLLM's queue and its methods as they were."""
        self.queue.__class__ = self.stock_queue
        for owner, name, original, ours in self.wrapped:
            if vars(owner).get(name) is ours:  # else another has wrapped it since
                setattr(owner, name, original)

    def counts(self) -> dict[str, Any]:
        """Decisions scored, those that fell back on the engine's order, and what they cost."""
        decisions = int(self.ends[_DECISIONS])
        return {
            "decisions": decisions,
            "faults": int(self.ends[_FAULTS]),
            "errors": self.errors,
            "us_per_decision": round(1e6 * self.spent_s / max(1, decisions), 1),
        }

    # -- attaching ---------------------------------------------------------------

    def _attach(self) -> None:
        """Enter the engine; what may fail comes first, so that a failure leaves nothing behind."""
        pool = self.pool
        self.wrapped = [
            told_before(self, pool, "touch", self.touched),
            told_after(self, pool, "evict_blocks", lambda _, block_ids: self.forgotten(block_ids)),
            told_after(self, pool, "reset_prefix_cache", lambda done, **_: self.reset() if done else None),
        ]
        if WRITES:
            self.wrapped.append(noted_after(self, pool, "cache_full_blocks"))
        if USES_MATTER or "hit_rate" in READS:
            found = lambda answer, request: self.looked_up(request, answer[0].blocks[0])  # noqa: E731
            self.wrapped.append(told_after(self, self.manager, "get_computed_blocks", found))
        self.stock_queue = type(self.queue)
        self.queue.tanren = self
        self.queue.__class__ = make_queue_class(self.stock_queue)
        for owner, name, _, ours in self.wrapped:
            setattr(owner, name, ours)

    # -- small parts -------------------------------------------------------------

    def _waiting(self) -> list[Any]:
        names = ("waiting", "skipped_waiting", "kv_holding_waiting")
        queues = [getattr(self.scheduler, name) for name in names if hasattr(self.scheduler, name)]
        return [getattr(queue, "_heap", queue) for queue in queues]  # iterating a priority queue sorts it

    def _waiting_requests(self) -> list[Any]:
        return [request for queue in self._waiting() for request in queue]


def _spans_of(
    request: Any, blocks: Any, num_cached_blocks: int, num_full_blocks: int,
    *_: Any, block_mask: Any = None, **_more: Any,
) -> Any:  # fmt: skip
    """Runs of blocks to which this call of `cache_full_blocks` gave a hash: request, first number, blocks."""
    fresh = blocks[num_cached_blocks:num_full_blocks]  # may be fewer than named
    if block_mask is None or all(block_mask):
        return ((request, num_cached_blocks, fresh),)
    chosen = zip(fresh, block_mask, strict=False)
    return [(request, place, [block]) for place, (block, yes) in enumerate(chosen, num_cached_blocks) if yes]
