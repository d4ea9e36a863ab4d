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

import importlib
import logging
import math
import os
import time
from typing import Any

import numpy as np

try:
    import numba
except Exception:  # missing, or at odds with NumPy: the same functions run as plain Python
    numba = None


POLICY = 't_lru'
POLICY_SHA256 = '79229599b40710fa3a269eef74cdd834d32908771d54c8b7d00b0f3048acd5e0'
FITS = ('0.19.1', '0.32.0')
SHAPE = 'static'
PERCENT = 10.0
KEY_COUNT = 2
KNOBS = (('budget', 1.0, 2048.0),)
READS = frozenset(['chain', 'depth', 'last_use'])
ROW_WIDTH = 16
DECISION_WIDTH = 12


HAVE_NUMBA = numba is not None and os.environ.get("TANREN_NO_NUMBA") != "1"


def _jit(function):
    return numba.njit(error_model="numpy")(function) if HAVE_NUMBA else function


EMPTY = 4294967295
UNSCORED = 2147483648
LOW = np.uint32(2147483647)
FEW = 96


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
def ring_consider(ring, pos, ends, n, extra, plain, scored):
    """The considered set of an allocation of n blocks: the first n + extra free ones.

    Those marked UNSCORED go to `plain`, the others to `scored`, each in the engine's
    order. Stops early when the first n are all unscored, for then those are taken.
    Returns (number of plain, number of scored). May close gaps; the order does not change.
    """
    mask = ring.shape[0] - 1
    want = min(n + extra, ends[2])
    at = ends[0]
    plains = 0
    rated = 0
    while plains + rated < want:
        entry = ring[at & mask]
        at += 1
        if entry < UNSCORED:
            scored[rated] = entry
            rated += 1
        elif entry != EMPTY:
            plain[plains] = entry & LOW
            plains += 1
            if plains == n and rated == 0:
                break
    if at - ends[0] > 2 * want + 64:
        ring_close(ring, pos, ends, at)
    return plains, rated


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
def ring_take(ring, pos, ends, n, plain, plains, scored, rated, keys, flat, chosen, firsts, out):
    """Choose n of the considered blocks into `out`, by the keys of `scored`. Modifies the queue.

    Unscored ones go first, in the engine's order; then the lowest (keys, engine's order).
    Any non-finite key (`flat` is `keys` in one dimension): the engine's own order for the whole
    decision. Returns 1 for such a fault.
    """
    if plains < n and not all_finite(flat, rated * keys.shape[1]):
        ring_pop_front(ring, pos, ends, n, out)
        return 1
    filled = min(plains, n)
    for i in range(filled):
        out[i] = plain[i]
    if filled < n:
        lowest_rows(keys, rated, n - filled, chosen, firsts)
        for i in range(n - filled):
            out[filled + i] = scored[chosen[i]]
    for i in range(n):
        ring_remove(ring, pos, ends, out[i])
    return 0


def new_ring(blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Empty queue for block ids 0 to blocks - 1: (ring, pos, ends)."""
    size = 1 << max(4, (2 * blocks + 2).bit_length())
    return np.zeros(size, np.uint32), np.full(blocks, -1, np.int64), np.array([1 << 40, 1 << 40, 0], np.int64)


LAST_USE = 0
CREATED = 8
GAP = 4
DEPTH = 2
CHAIN = 3
USES = 1
SPACED_USES = 5
GHOST_USES = 9
CHILDREN = 10
GENERATED = 11
USED_AT = 6
MARK = 7
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
HUGE = 4194304
GAPS = 1024.0
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


@_jit
def row_written(rows, block, now, depth, chain, ghost_uses):
    """A block got its hash; `generated` and `children` are the caller's to keep."""
    row = rows[block]
    row[USES] = 0.0
    row[DEPTH] = depth
    row[CHAIN] = chain
    row[GAP] = 0.0
    row[SPACED_USES] = 0.0
    row[USED_AT] = now
    row[CREATED] = now
    row[GHOST_USES] = ghost_uses


@_jit
def row_used(rows, block, now, chain, mean_gap):
    """An admission hit a block. Returns the gap, which belongs into the mean gap."""
    row = rows[block]
    gap = now - row[USED_AT]
    row[GAP] = gap
    row[USED_AT] = now
    row[USES] += 1.0
    mark = row[MARK] if row[SPACED_USES] > 0.0 else row[CREATED]
    spaced = now - mark >= mean_gap
    row[SPACED_USES] += 1.0 if spaced else 0.0
    row[MARK] = now if spaced else mark
    row[CHAIN] = chain if chain > row[CHAIN] else row[CHAIN]
    return gap


@_jit
def rows_used(rows, ids, now, chain, mean_gap, tally):
    """An admission hit these blocks, in this order."""
    for i in range(ids.shape[0]):
        moving_mean(tally, 0, row_used(rows, ids[i], now, chain, mean_gap), GAPS)


@_jit
def fill_children(rows, ids, n, block_hash, children):
    """Write the child counts of n blocks into their rows; counts are kept by hash."""
    for j in range(n):
        held = block_hash[ids[j]]
        rows[ids[j], CHILDREN] = float(children[held]) if held >= 0 else 0.0


@_jit
def row_released(rows, block, now, hashed):
    """A block entered the free queue; one without a hash keeps nothing but the moment."""
    row = rows[block]
    if hashed == 0:
        for c in range(rows.shape[1]):
            row[c] = 0.0
        row[CREATED] = now
    row[LAST_USE] = now


def new_rows(blocks: int) -> np.ndarray:
    """Rows of zeros, each on cache lines of its own: float64[blocks, ROW_WIDTH]."""
    room = np.empty(max(blocks * ROW_WIDTH + 8, HUGE // 8))
    room.fill(0.0)
    start = -(room.ctypes.data // 8) % 8
    return room[start : start + blocks * ROW_WIDTH].reshape(blocks, ROW_WIDTH)


@_jit
def maximum(x, y):
    """The second if it is greater, else the first."""
    if y > x:
        return y
    return x


@_jit
def order(decision, rows, ids, n, keys, scratch):
    # key 1: 0 if (depth >= max(0, chain - budget)) else 1
    # key 2: last_use
    if n == 0:
        return
    knob_budget = float(decision[12])
    for j in range(n):
        i = ids[j]
        depth = float(rows[i, 2])
        chain = float(rows[i, 3])
        last_use = float(rows[i, 0])
        keys[j, 0] = 0.0 if (depth >= maximum(0.0, chain - knob_budget)) else 1.0
        keys[j, 1] = last_use


def CLOCK() -> int:  # noqa: N802 - the one injectable name of this file
    """Whole microseconds of the wall clock; a test may replace it."""
    return time.time_ns() // 1000


_LOG = logging.getLogger("vllm.tanren")
_STATUS: dict[str, Any] = {"policy": POLICY, "sha256": POLICY_SHA256, "mode": "not started"}
_SLOW_LIMIT = 3
_SLOW_MEMORY = 500


def status() -> dict[str, Any]:
    """What the policy is doing: mode, decisions, faults, and why it is off if it is."""
    live = _STATUS.get("evictor")
    out = {key: value for key, value in _STATUS.items() if key != "evictor"}
    if live is not None:
        out.update(live.counts())
    return out


def Scheduler(*args: Any, **kwargs: Any) -> Any:  # noqa: N802 - named by --scheduler-cls
    """Make vLLM's scheduler with the policy in it; asynchronous exactly when the engine is."""
    base = _stock_class(kwargs["vllm_config"] if "vllm_config" in kwargs else args[0])
    reason = _answer(_reason_to_stand_aside)
    # Made once, whatever comes: it may bind ports and start a connector.
    scheduler = (make_scheduler_class(base) if reason is None else base)(*args, **kwargs)
    if reason is None:
        reason = _answer(_attach, scheduler)
    if reason is None:
        _STATUS.update(mode="active", evictor=scheduler.tanren)
        _LOG.info(
            "tanren: policy %s (%s) decides evictions, numba %s", POLICY, POLICY_SHA256[:12], HAVE_NUMBA
        )
    else:
        _STATUS.update(mode=reason, evictor=None)
        _LOG.warning("tanren: policy %s stands aside, vLLM's own order holds: %s", POLICY, reason)
    return scheduler


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


def _attach(scheduler: Any) -> str | None:
    reason = _reason_not_to_attach(scheduler)
    if reason is None:
        scheduler.tanren = Evictor(scheduler)
    return reason


def in_one_line(error: Exception) -> str:
    """The error for the log; compilers write pages."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def settings() -> tuple[float, list[float]]:
    """The operator's: seconds that a decision may take, and the knobs in the policy's own scale."""
    knobs = [_number(f"TANREN_KNOB_{name.upper()}", default, scale) for name, scale, default in KNOBS]
    return _number("TANREN_BUDGET_MS", 0.02, 1e-3), knobs


def _number(name: str, default: float, scale: float) -> float:
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
    import vllm

    if os.environ.get("TANREN_DISABLE") == "1":
        return "TANREN_DISABLE=1"
    version = vllm.__version__.split("+")[0]
    if version not in FITS and os.environ.get("TANREN_FORCE") != "1":
        return f"vLLM {version} is not one of {', '.join(FITS)} (TANREN_FORCE=1 overrides)"
    if SHAPE == "identity" and os.environ.get("TANREN_NO_IDENTITY") != "1":
        return "pass-through: this policy's order is vLLM's own"
    return None


def _reason_not_to_attach(scheduler: Any) -> str | None:
    manager = scheduler.kv_cache_manager
    if not manager.enable_caching:
        return "prefix caching is off, nothing to decide"
    if manager.num_kv_cache_groups != 1:
        return f"{manager.num_kv_cache_groups} KV cache groups, this file handles one"
    if type(manager.block_pool.free_block_queue).__name__ != "FreeKVCacheBlockQueue":
        return "another free queue is already in place"
    return None


def make_scheduler_class(base: Any) -> Any:
    """The scheduler of vLLM with the two moments marked at which time is frozen."""

    class TanrenScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; freezes the moment at the top of a step, nothing else."""

        tanren: Any = None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is None or not evictor.on:
                return super().schedule(*args, **kwargs)
            evictor.guarded(evictor.step_begins)
            output = super().schedule(*args, **kwargs)
            evictor.tokens += output.total_num_scheduled_tokens
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            evictor = self.tanren
            if evictor is not None and evictor.on:
                evictor.guarded(evictor.freeze_now)
            return super().update_from_output(*args, **kwargs)

    return TanrenScheduler


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
            victims = self.tanren.choose(n) if n > 0 else None
            if victims is None:
                return base.popleft_n(self, n)
            for block in victims:
                base.remove(self, block)
            return victims

        def remove(self, block: Any) -> None:
            self.tanren.guarded(self.tanren.left, block.block_id)
            base.remove(self, block)

        def append(self, block: Any) -> None:
            base.append(self, block)
            self.tanren.guarded(self.tanren.released, [block], False)

        def append_n(self, blocks: Any) -> None:
            base.append_n(self, blocks)
            self.tanren.guarded(self.tanren.released, blocks, False)

        def prepend_n(self, blocks: Any) -> None:
            base.prepend_n(self, blocks)
            self.tanren.guarded(self.tanren.released, blocks, True)

    return TanrenQueue


class HashNumbers:
    """Small numbers for the hashes in use, so that arrays can count by hash."""

    def __init__(self, most: int) -> None:
        self.number: dict[Any, int] = {}
        self.key: list[Any] = [None] * most
        self.holders = [0] * most
        self.spare = list(range(most - 1, -1, -1))

    def hold(self, key: Any) -> int:
        """The hash's number; one holder more."""
        number = self.number.get(key)
        if number is None:
            number = self.spare.pop()
            self.number[key] = number
            self.key[number] = key
        self.holders[number] += 1
        return number

    def let_go(self, number: int) -> None:
        """One holder less; with the last one the number is free again."""
        self.holders[number] -= 1
        if self.holders[number] == 0:
            del self.number[self.key[number]]
            self.key[number] = None
            self.spare.append(number)


class Ghosts:
    """Uses of the hashes behind the last so many evictions."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.uses: dict[Any, tuple[int, float]] = {}
        self.line: list[Any] = [None] * most

    def remember(self, key: Any, uses: float) -> None:
        """The hash is evicted with so many uses; the eviction `most` before this one is forgotten."""
        slot = self.count % self.most
        old = self.line[slot]
        if old is not None and self.uses[old][0] == self.count - self.most:
            del self.uses[old]
        self.uses[key] = (self.count, uses)
        self.line[slot] = key
        self.count += 1

    def recall(self, key: Any) -> float:
        """Remembered uses of a hash, 0 if there are none."""
        return self.uses[key][1] if key in self.uses else 0.0


class Evictor:
    """The policy at work: a mirror of the free queue and the signals, in flat arrays by block id."""

    def __init__(self, scheduler: Any) -> None:
        self.on = True
        self.scheduler = scheduler
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.queue = self.pool.free_block_queue
        self.blocks = self.pool.blocks
        count = len(self.blocks)
        self.usable = count - 1
        self.block_size = int(scheduler.block_size)
        self.unhashed_unscored = hasattr(self.queue, "prepend_n")
        self.extra = count if PERCENT is None else -int(-PERCENT * self.usable // 100)
        self.budget_s, knobs = settings()
        self.start = CLOCK()
        self.now = 0.0
        self.mark, self.tokens = 0.0, 0
        self.decisions = self.faults = 0
        self.slow = 0.0
        self.admits, self.chain = False, 0.0

        self.ring, self.pos, self.ends = new_ring(count)
        self.rows = new_rows(count)
        self.tally = np.zeros(TALLY_WIDTH)
        self.keys = np.zeros((count, KEY_COUNT))
        self.flat = self.keys.reshape(-1)
        self.scratch = np.zeros(count)
        self.plain, self.scored, self.lows = (np.zeros(count, np.uint32) for _ in range(3))
        self.decision = np.zeros(DECISION_WIDTH + len(KNOBS))
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        self.decision[DECISION_WIDTH:] = knobs

        self.numbers = HashNumbers(2 * count + 2)
        self.children = np.zeros(2 * count + 2, np.int32)
        self.block_hash = np.full(count, -1, np.int32)
        self.block_parent = np.full(count, -1, np.int32)
        self.hash_key: list[Any] = [None] * count
        self.ghosts = Ghosts(self.usable)

        for block in self.queue.get_all_free_blocks():
            ring_push_back(self.ring, self.pos, self.ends, block.block_id, UNSCORED)
        self._warm_up()
        self._attach()

    # -- what the engine tells us ------------------------------------------------

    def freeze_now(self) -> None:
        """Hold the clock still until the next step or output; one that was set back goes on from here."""
        clock = CLOCK()
        self.start = min(self.start, clock - int(self.now))
        self.now = float(clock - self.start)
        self.decision[NOW] = self.now

    def step_begins(self) -> None:
        """Freeze everything that is *as of this step*."""
        self.freeze_now()
        scheduler, decision = self.scheduler, self.decision
        if self.now > self.mark:
            if self.tokens > 0:
                moving_mean(self.tally, 4, self.tokens / (self.now - self.mark), RATES)
            self.mark, self.tokens = self.now, 0
        decision[KV_FREE] = self.queue.num_free_blocks / self.usable
        decision[MEAN_GAP] = self.tally[0]
        decision[HIT_RATE] = self.tally[2]
        decision[SERVICE_RATE] = self.tally[4]
        if "waiting" in READS or "running" in READS:
            decision[WAITING] = float(sum(len(queue) for queue in self._waiting()))
            decision[RUNNING] = float(len(scheduler.running))
        if "oldest_wait" in READS:
            first = min(
                (request.arrival_time for queue in self._waiting() for request in queue), default=None
            )
            arrival = self.now if first is None else float(round(first * 1e6) - self.start)
            decision[OLDEST_WAIT] = max(0.0, self.now - arrival)

    def _waiting(self) -> list[Any]:
        names = ("waiting", "skipped_waiting", "kv_holding_waiting")
        queues = [getattr(self.scheduler, name) for name in names if hasattr(self.scheduler, name)]
        return [getattr(queue, "_heap", queue) for queue in queues]  # iterating a priority queue sorts it

    def admitting(self, request: Any, hit: Any) -> None:
        """A waiting request got its blocks."""
        looked_up = (request.num_tokens - 1) // self.block_size
        if looked_up > 0:
            hits = 0 if hit is None else len(hit.blocks[0])
            moving_mean(self.tally, 2, hits / looked_up, HIT_RATES)

    def used(self, blocks: Any) -> None:
        """An admission hits these blocks, in chain order."""
        ids = np.array([block.block_id for block in blocks if not block.is_null], np.uint32)
        rows_used(self.rows, ids, self.now, self.chain, self.decision[MEAN_GAP], self.tally)

    def written(self, request: Any, blocks: Any, first: int, last: int) -> None:
        """Blocks first to last - 1 of the request's chain may have got their hash."""
        prompt = request.num_prompt_tokens
        for i, block in enumerate(blocks[first:last], first):
            b = block.block_id
            if block.is_null or block.block_hash is None:
                continue
            if self.block_hash[b] >= 0:
                self._forget(b)
            key = request.block_hashes[i]
            parent = request.block_hashes[i - 1] if i > 0 else None
            self.block_hash[b] = self.numbers.hold(key)
            self.hash_key[b] = key
            if parent is not None:
                self.block_parent[b] = self.numbers.hold(parent)
                self.children[self.block_parent[b]] += 1
            ghost = self.ghosts.recall(key)
            generated = 1.0 if (i + 1) * self.block_size > prompt else 0.0
            row_written(self.rows, b, self.now, float(i * self.block_size), float(prompt), ghost)
            self.rows[b, GENERATED] = generated

    def evicted(self, block: Any) -> None:
        """A block lost its hash."""
        b = block.block_id
        if self.block_hash[b] < 0:
            return
        if "ghost_uses" in READS:
            self.ghosts.remember(self.hash_key[b], float(self.rows[b, USES] + self.rows[b, GHOST_USES]))
        self._forget(b)
        if self.pos[b] != -1:
            self._left_unhashed(b)

    def released(self, blocks: Any, to_front: bool) -> None:
        """Blocks enter the free queue, in this order, at its back or (the first as head) its front."""
        for block in reversed(blocks) if to_front else blocks:
            b = block.block_id
            hashed = 1 if block.block_hash is not None else 0
            row_released(self.rows, b, self.now, hashed)
            mark = UNSCORED if not hashed and self.unhashed_unscored else 0
            if to_front:
                ring_push_front(self.ring, self.pos, self.ends, b, mark)
            else:
                ring_push_back(self.ring, self.pos, self.ends, b, mark)

    def reset(self) -> None:
        """All hashes are gone."""
        for b in range(len(self.blocks)):
            if self.block_hash[b] >= 0:
                self._forget(b)
                if self.pos[b] != -1:
                    self._left_unhashed(b)
        self.ghosts = Ghosts(self.usable)

    def left(self, b: int) -> None:
        """A block leaves the free queue otherwise than as a victim: it is hit."""
        if self.pos[b] != -1:
            ring_remove(self.ring, self.pos, self.ends, b)

    # -- the decision ------------------------------------------------------------

    def choose(self, n: int) -> list[Any] | None:
        """The n blocks to take, best victim first; None: take vLLM's own."""
        if not self.on:
            return None
        began = time.perf_counter()
        try:
            victims = self._victims(n)
        except Exception as error:
            self.off(in_one_line(error))
            return None
        late = time.perf_counter() - began > self.budget_s
        self.slow += late - self.slow / _SLOW_MEMORY  # a rare pause of the machine is forgotten
        if self.slow > _SLOW_LIMIT - 0.5:
            self.off(f"{_SLOW_LIMIT} decisions over {self.budget_s * 1e3:g} ms (TANREN_BUDGET_MS)")
        return victims

    def _victims(self, n: int) -> list[Any]:
        free = self.queue.num_free_blocks
        if self.ends[2] != free or free < n:
            raise RuntimeError(f"{n} blocks asked for, {free} free, {self.ends[2]} in the mirror")
        queue, plain, scored = (self.ring, self.pos, self.ends), self.plain, self.scored
        plains, rated = ring_consider(*queue, n, self.extra, plain, scored)
        if plains < n:
            if "children" in READS:
                fill_children(self.rows, scored, rated, self.block_hash, self.children)
            order(self.decision, self.rows, scored, rated, self.keys, self.scratch)
            self.decisions += 1
        out = np.empty(n, np.uint32)
        fault = ring_take(
            *queue, n, plain, plains, scored, rated, self.keys, self.flat, self.lows, self.scratch, out
        )
        if fault and not self.faults:
            _LOG.warning(
                "tanren: policy %s gave a key that is not finite; vLLM's own order then holds", POLICY
            )
        self.faults += fault
        victims = [self.blocks[b] for b in out.tolist()]
        if any(block.ref_cnt != 0 or block.next_free_block is None for block in victims):
            raise RuntimeError("the mirror of the free queue is out of step")
        return victims

    # -- the guard ---------------------------------------------------------------

    def guarded(self, action: Any, *args: Any) -> None:
        """Run one of our own steps; a failure switches the policy off and vLLM goes on."""
        if not self.on:
            return
        try:
            action(*args)
        except Exception as error:
            self.off(in_one_line(error))

    def off(self, reason: str) -> None:
        """Give every decision back to vLLM, for good, and say so once."""
        if not self.on:
            return
        self.on = False
        self.queue.__class__ = self.stock_queue
        for owner, name, original, ours in self.wrapped:
            if vars(owner).get(name) is ours:  # else another has wrapped it since
                setattr(owner, name, original)
        if _STATUS.get("evictor") is self:
            _STATUS["mode"] = f"off: {reason}"
        _LOG.error("tanren: policy %s is off, vLLM's own order holds: %s", POLICY, reason)

    def counts(self) -> dict[str, Any]:
        """Decisions scored and decisions that fell back on the engine's order."""
        return {"decisions": self.decisions, "faults": self.faults}

    # -- attaching ---------------------------------------------------------------

    def _attach(self) -> None:
        """Enter the engine; what may fail comes first, so that a failure leaves nothing behind."""
        self.wrapped = [
            self._wrapped(self.manager, "allocate_slots", self._allocate_slots),
            self._wrapped(self.pool, "touch", self._touch),
            self._wrapped(self.pool, "cache_full_blocks", self._cache_full_blocks),
            self._wrapped(self.pool, "_maybe_evict_cached_block", self._maybe_evict_cached_block),
            self._wrapped(self.pool, "reset_prefix_cache", self._reset_prefix_cache),
        ]
        self.stock_queue = type(self.queue)
        self.queue.tanren = self
        self.queue.__class__ = make_queue_class(self.stock_queue)
        for owner, name, _, ours in self.wrapped:
            setattr(owner, name, ours)

    def _wrapped(self, owner: Any, name: str, around: Any) -> tuple[Any, str, Any, Any]:
        original = getattr(owner, name)
        return owner, name, original, lambda *args, **kwargs: around(original, *args, **kwargs)

    def _allocate_slots(self, original: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        waits = request.status.name in ("WAITING", "PREEMPTED")
        self.admits, self.chain = True, float(request.num_prompt_tokens)
        result = original(request, *args, **kwargs)
        self.admits = False
        if waits and result is not None:
            hit = kwargs.get("new_computed_blocks", args[2] if len(args) > 2 else None)
            self.guarded(self.admitting, request, hit)
        return result

    def _touch(self, original: Any, blocks: Any) -> Any:
        if self.admits:  # else a connector holds blocks while it copies them
            self.guarded(self.used, blocks)
        return original(blocks)

    def _cache_full_blocks(self, original: Any, request: Any, blocks: Any, *args: Any, **kwargs: Any) -> Any:
        first = kwargs.get("num_cached_blocks", args[0] if args else 0)
        last = kwargs.get("num_full_blocks", args[1] if len(args) > 1 else 0)
        result = original(request, blocks, *args, **kwargs)
        self.guarded(self.written, request, blocks, first, last)
        return result

    def _maybe_evict_cached_block(self, original: Any, block: Any) -> Any:
        gone = original(block)
        if gone:
            self.guarded(self.evicted, block)
        return gone

    def _reset_prefix_cache(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(*args, **kwargs)
        if done:
            self.guarded(self.reset)
        return done

    # -- small parts -------------------------------------------------------------

    def _forget(self, b: int) -> None:
        parent = int(self.block_parent[b])
        if parent >= 0:
            self.children[parent] -= 1
            self.numbers.let_go(parent)
        self.numbers.let_go(int(self.block_hash[b]))
        self.block_hash[b] = self.block_parent[b] = -1
        self.hash_key[b] = None

    def _left_unhashed(self, b: int) -> None:
        last_use = self.rows[b, LAST_USE]
        row_released(self.rows, b, last_use, 0)
        if self.unhashed_unscored:
            self.ring[self.pos[b] & (len(self.ring) - 1)] = b + UNSCORED

    def _warm_up(self) -> None:
        """Compile everything now; nothing compiles on the request path."""
        ring, pos, ends = new_ring(4)
        rows, keys, scratch = new_rows(4), np.zeros((4, KEY_COUNT)), np.zeros(4)
        lists = [np.zeros(4, np.uint32) for _ in range(4)]
        ring_push_back(ring, pos, ends, 2, 0)
        ring_push_front(ring, pos, ends, 1, 0)
        row_written(rows, 1, 0.0, 0.0, 0.0, 0.0)
        row_released(rows, 1, 0.0, 1)
        row_used(rows, 1, 0.0, 0.0, 0.0)
        moving_mean(self.tally.copy(), 0, 0.0, HIT_RATES)
        rows_used(rows, lists[3][:0], 0.0, 0.0, self.decision[MEAN_GAP], self.tally)
        fill_children(rows, lists[1], 2, np.zeros(4, np.int32), np.zeros(4, np.int32))
        plains, rated = ring_consider(ring, pos, ends, 1, 4, lists[0], lists[1])
        order(self.decision, rows, lists[1], rated, keys, scratch)
        flat = keys.reshape(-1)
        ring_take(
            ring, pos, ends, 1, lists[0], plains, lists[1], rated, keys, flat, lists[2], scratch, lists[3]
        )
        ring_remove(ring, pos, ends, int(pos.argmax()))
