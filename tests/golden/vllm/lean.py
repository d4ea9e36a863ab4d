"""vLLM scheduler with the scheduling policy `lean`, emitted by tanren-dsl 0.1.0.

Fits vLLM 0.19.1, 0.32.0; on any other it says so in one line and vLLM's own order holds.
On:   put this file on PYTHONPATH and start vLLM with --scheduler-cls FILE_STEM.Scheduler
Off:  drop the flag (or set TANREN_DISABLE=1)

The policy:

    policy lean : schedule
    knob patience : time = 2
    param lean = 1.5 in [0, 4]
    let crowd = min(1, waiting / max_running)
    order by 0 if resumed else 1, crowd * lean * uncached_tokens / mean(uncached_tokens) - wait / patience
    preempt by wait
"""


from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import time
from collections import deque
from itertools import islice
from typing import Any

import numpy as np

try:
    import numba
except Exception:  # missing, or at odds with NumPy: the same functions run as plain Python
    numba = None


FITS = ('0.19.1', '0.32.0')
MADE_BY = '0.1.0'
DECISION_WIDTH = 12


EVICTS = False
POLICY = POLICY_SHA256 = SHAPE = ""
KNOBS = ()
HEAP = False
Evictor = make_evicting_class = None


SCHEDULES = True
LINE_POLICY = 'lean'
LINE_SHA256 = '97dc67b3ebc83f6be8ef70d3e916f144543a26adc5610fc36308a7c3c21ad43b'
LINE_KNOBS = (('patience', 1000000.0, 2000000.0),)
LINE_READS = frozenset(['max_running', 'resumed', 'uncached_tokens', 'wait', 'waiting'])
LINE_WIDTH = 4
ORDER_KEYS = 2
PREEMPT_KEYS = 1
REFRESHES = True
REFRESHED = 32
EVERY_STEP = False
GUARD = True


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


ARRIVAL = 0
PROMPT_TOKENS = -1
CACHED_TOKENS = 1
UNCACHED_TOKENS = 2
COMPUTED_TOKENS = -1
OUTPUT_TOKENS = -1
MAX_TOKENS = -1
ATTAINED_TOKENS = -1
PREEMPTIONS = -1
USER_PRIORITY = -1
RESUMED = 3
TIMES = 20.0
WAITS = 256.0
SHORT_RUN = 12
LARGEST = 1.7976931348623157e+308


@_jit
def goes_before(keys, a, b):
    """Whether the keys of object a are lower than those of b."""
    for k in range(keys.shape[1]):
        if keys[a, k] != keys[b, k]:
            return keys[a, k] < keys[b, k]
    return False


@_jit
def sort_places(keys, n, places, spare):
    """Sort the n objects named by `places` by their keys, in place and stably; `spare` is room for n.

    Runs that are in order already cost one comparison.
    """
    for low in range(0, n, SHORT_RUN):
        for i in range(low + 1, min(low + SHORT_RUN, n)):
            moving = places[i]
            j = i
            while j > low and goes_before(keys, moving, places[j - 1]):
                places[j] = places[j - 1]
                j -= 1
            places[j] = moving
    width = SHORT_RUN
    while width < n:
        for low in range(0, n - width, 2 * width):
            middle = low + width
            high = min(middle + width, n)
            if not goes_before(keys, places[middle], places[middle - 1]):
                continue
            for i in range(width):
                spare[i] = places[low + i]
            left = 0
            right = middle
            at = low
            while left < width:
                if right < high and goes_before(keys, places[right], spare[left]):
                    places[at] = places[right]
                    right += 1
                else:
                    places[at] = spare[left]
                    left += 1
                at += 1
        width *= 2


@_jit
def has_fault(keys, n):
    """Whether a key of the first n objects is not finite."""
    for j in range(n):
        for k in range(keys.shape[1]):
            if not abs(keys[j, k]) <= LARGEST:
                return True
    return False


@_jit
def line_up(keys, n, now, mean_wait, since, ids, places, spare, overdue, out):
    """Who is served first, into `out`: those that waited too long, then the others by their keys.

    `keys` [>= n, k] are those of the objects `ids[:n]`, which stand in the engine's own order;
    `mean_wait` is the running mean of waits at admission, in microseconds (negative: no guard);
    `since` has, by id, the moment since when one waits; `places` and `spare` are room for n;
    `overdue` gets, by id, 1 for one that is served ahead of its keys.

    Returns 1 if a key was not finite, so that the engine's own order holds; else 0.
    """
    fault = has_fault(keys, n)
    for j in range(n):
        places[j] = j
    if not fault:
        sort_places(keys, n, places, spare)
    ahead = 0
    if mean_wait >= 0.0:
        for j in range(n):
            late = now - since[ids[j]] > TIMES * mean_wait
            overdue[ids[j]] = 1 if late else 0
            if late:
                out[ahead] = ids[j]
                ahead += 1
    if ahead == 0:
        for j in range(n):
            out[j] = ids[places[j]]
    else:
        for j in range(n):
            if overdue[ids[places[j]]] == 0:
                out[ahead] = ids[places[j]]
                ahead += 1
    return 1 if fault else 0


@_jit
def victims_last(keys, n, ids, places, spare, out):
    """The running requests into `out` so that the lowest keys come last: first to be pushed out.

    Among equals the one added last comes last. Returns 1 if a key was not finite: then all are equal.
    """
    fault = has_fault(keys, n)
    for j in range(n):
        places[j] = n - 1 - j
    if not fault:
        sort_places(keys, n, places, spare)
    for j in range(n):
        out[n - 1 - j] = ids[places[j]]
    return 1 if fault else 0


@_jit
def div(x, y):
    """`x / y`, and 0 when `y` is 0."""
    if y == 0.0:
        return 0.0
    return x / y


@_jit
def minimum(x, y):
    """The second if it is less, else the first."""
    if y < x:
        return y
    return x


@_jit
def rank(decision, rows, ids, n, keys, scratch):
    # key 1: 0 if resumed else 1
    # key 2: (((min(1, waiting / max_running) * lean) * uncached_tokens) / mean(uncached_tokens)) - (wait / patience)
    if n == 0:
        return
    now = float(decision[0])
    knob_patience = float(decision[12])
    param_lean = 1.5
    waiting = float(decision[1])
    max_running = float(decision[3])
    t1 = minimum(1.0, div(waiting, max_running)) * param_lean
    mean_of_uncached_tokens = 0.0
    for j in range(n):
        i = ids[j]
        uncached_tokens = float(rows[i, 2])
        mean_of_uncached_tokens = mean_of_uncached_tokens + uncached_tokens
    mean_of_uncached_tokens = mean_of_uncached_tokens / float(n)
    for j in range(n):
        i = ids[j]
        resumed = float(rows[i, 3])
        uncached_tokens = float(rows[i, 2])
        wait = now - float(rows[i, 0])
        t2 = div(t1 * uncached_tokens, mean_of_uncached_tokens) - div(wait, knob_patience)
        keys[j, 0] = 0.0 if (resumed != 0.0) else 1.0
        keys[j, 1] = t2


@_jit
def rank_running(decision, rows, ids, n, keys, scratch):
    # key 1: wait
    if n == 0:
        return
    now = float(decision[0])
    for j in range(n):
        i = ids[j]
        wait = now - float(rows[i, 0])
        keys[j, 0] = wait


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


@_jit
def still_waiting(line, lined, waits_now):
    """Drop from `line` those that no longer wait. Returns how many do."""
    n = 0
    for i in range(lined):
        if waits_now[line[i]] != 0:
            line[n] = line[i]
            n += 1
    return n


@_jit
def take_number(line, lined, number):
    """Put a number into the ascending `line`, unless it stands there. Returns how many do."""
    at = lined
    while at > 0 and line[at - 1] > number:
        at -= 1
    if at > 0 and line[at - 1] == number:
        return lined
    for i in range(lined, at, -1):
        line[i] = line[i - 1]
    line[at] = number
    return lined + 1


@_jit
def dispatch(
    decision, rows, line, n, keys, scratch, places, spare, since, overdue, out, now, mean_wait
):  # fmt: skip
    """The waiting requests in order of service, into `out`. Returns 1 for a fault."""
    rank(decision, rows, line, n, keys, scratch)
    return line_up(keys, n, now, mean_wait, since, line, places, spare, overdue, out)


@_jit
def to_be_pushed_out(decision, rows, ids, n, keys, scratch, places, spare, out):
    """The running requests into `out`, those to be pushed out first at its end. Returns 1 for a fault."""
    rank_running(decision, rows, ids, n, keys, scratch)
    return victims_last(keys, n, ids, places, spare, out)


_ROOM = 1024
_GROUP = (0).to_bytes(4, "big")


def make_dispatching_class(base: Any) -> Any:
    """The scheduler of vLLM, which tells the schedule policy who comes and who is pushed out."""

    class DispatchingScheduler(base):  # type: ignore[misc]
        """vLLM's scheduler; what its methods do is its own.

        `schedule()` is not among them: while nobody waits, it is vLLM's, without a detour.
        """

        tanren_line: Any = None

        def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            answer = super().add_request(request, *args, **kwargs)
            dispatcher = self.tanren_line
            if dispatcher is not None and dispatcher.on:
                try:
                    dispatcher.joined(request)
                except Exception as error:
                    dispatcher.failed(error)
            return answer

        def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            dispatcher = self.tanren_line
            if dispatcher is not None and dispatcher.on:
                try:
                    dispatcher.pushed_out(request)
                except Exception as error:
                    dispatcher.failed(error)
            return super()._preempt_request(request, *args, **kwargs)

        def shutdown(self, *args: Any, **kwargs: Any) -> Any:
            if self.tanren_line is not None:
                say_farewell(self.tanren_line)
            return super().shutdown(*args, **kwargs)

    return DispatchingScheduler


def make_waiting_class(base: Any) -> Any:
    """The waiting queue of vLLM, which counts how often it was changed and tells when it is entered."""

    class TanrenWaiting(base):  # type: ignore[misc]
        """vLLM's queue; what it holds is not touched here."""

        changes: int
        tanren: Any

        def add_request(self, request: Any) -> None:
            self.changes += 1
            base.add_request(self, request)
            self.tanren.wake()

        def pop_request(self) -> Any:
            self.changes += 1
            return base.pop_request(self)

        def prepend_request(self, request: Any) -> None:
            self.changes += 1
            base.prepend_request(self, request)
            self.tanren.wake()

        def prepend_requests(self, requests: Any) -> None:
            self.changes += 1
            base.prepend_requests(self, requests)
            self.tanren.wake()

        def remove_request(self, request: Any) -> None:
            self.changes += 1
            base.remove_request(self, request)

        def remove_requests(self, requests: Any) -> None:
            self.changes += 1
            base.remove_requests(self, requests)

    return TanrenWaiting


class Requests:
    """The requests that the policy may order, in flat arrays, numbered as they were added."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.block_size = int(scheduler.block_size)
        manager = scheduler.kv_cache_manager
        self.pool, self.caches = manager.block_pool, bool(manager.enable_caching)
        self.cached: Any = None  # what the prefix cache holds, taken anew in each step
        self.start = CLOCK()
        self.now, self.frozen = 0.0, False
        self.number: dict[str, int] = {}
        self.requests: list[Any] = []  # by number; None for one that is over
        self.hashes: list[Any] = []  # by number; what a waiting one looks up in the cache
        self.fresh: list[int] = []  # numbers queued since the last step
        self.waits = 0  # requests in `line` that still wait
        self.lined = 0
        self.changes = 0  # of the waiting queue, as far as they are accounted for
        self._make_room(_ROOM)

    def freeze_now(self) -> None:
        """Hold the clock still until the next step; one that was set back goes on from here."""
        if self.frozen:
            return
        now = CLOCK() - self.start
        if now < self.now:
            self.start += now - int(self.now)
            now = int(self.now)
        self.now, self.frozen = float(now), True

    def _number_of(self, request: Any) -> int:
        number = self.number.get(request.request_id)
        if number is not None and self.requests[number] is request:
            return number
        self._let_go(request.request_id)  # of another one of that name, which is over
        if len(self.requests) == len(self.rows):
            self._forget_gaps()
        number = self.number[request.request_id] = len(self.requests)
        self.requests.append(request)
        self.hashes.append(None)
        self.attained[number] = self.hits[number] = 0
        self.overdue[number] = self.waits_now[number] = 0
        self.arrival[number] = self._arrival_of(request)
        return number

    def _numbers_of(self, requests: Any) -> list[int]:
        for request in requests:  # numbering one may number all anew, so that comes first
            self._number_of(request)
        return [self.number[request.request_id] for request in requests]

    def _arrival_of(self, request: Any) -> float:
        """By our clock; the frontend's may be ahead of it, on another machine."""
        return min(float(round(request.arrival_time * 1e6) - self.start), self.now)

    def _queue(self, number: int, since: float) -> None:
        self.changes += 1
        self.waits += 1 - int(self.waits_now[number])
        self.waits_now[number] = 1
        self.since[number] = since
        self.fresh.append(number)
        self.lined = take_number(self.line, self.lined, number)

    def _fill(self, number: int) -> None:
        """Bring the row of a request that came to wait up to date; it changes no more while it waits."""
        request, row = self.requests[number], self.rows[number]
        if ARRIVAL >= 0:
            row[ARRIVAL] = self.arrival[number]
        if PROMPT_TOKENS >= 0:
            row[PROMPT_TOKENS] = request.num_prompt_tokens
        if MAX_TOKENS >= 0:
            row[MAX_TOKENS] = request.max_tokens
        if USER_PRIORITY >= 0:
            row[USER_PRIORITY] = request.priority
        if OUTPUT_TOKENS >= 0:
            row[OUTPUT_TOKENS] = request.num_output_tokens
        if COMPUTED_TOKENS >= 0:
            row[COMPUTED_TOKENS] = 0.0
        if ATTAINED_TOKENS >= 0:
            row[ATTAINED_TOKENS] = self.attained[number]
        if PREEMPTIONS >= 0:
            row[PREEMPTIONS] = request.num_preemptions
        if RESUMED >= 0:
            row[RESUMED] = 1.0 if request.num_preemptions else 0.0
        if REFRESHES:
            self.hashes[number] = None
            self._look_up(number)

    def _take_cache(self) -> None:
        """The dictionary of what is cached; vLLM replaces it when the cache is reset."""
        if self.caches:
            found = self.pool.cached_block_hash_to_block
            self.cached = getattr(found, "_cache", None)
            if self.cached is None:
                self.cached = _Found(found.get_one_block)

    def _look_up(self, number: int) -> None:
        """Count the leading tokens that are cached; the last token never is looked up."""
        request, row, hits = self.requests[number], self.rows[number], 0
        if self.cached is not None and not request.skip_reading_prefix_cache:
            keys = self.hashes[number]
            if keys is None:
                keys = self.hashes[number] = []
            cached, digests = self.cached, request.block_hashes
            most = (request.num_tokens - 1) // self.block_size
            while hits < most:
                if hits == len(keys):  # made as far as they are looked up
                    keys.append(digests[hits] + _GROUP)
                if keys[hits] not in cached:
                    break
                hits += 1
        tokens = hits * self.block_size
        row[CACHED_TOKENS] = tokens
        if UNCACHED_TOKENS >= 0:
            row[UNCACHED_TOKENS] = request.num_tokens - tokens

    def _forget_over(self) -> None:
        """Let go of the requests that are over; while nobody waits, steps pass in which nobody looks."""
        known = self.scheduler.requests
        over = list(self.scheduler.finished_req_ids)
        if len(self.number) > len(known):
            over = list(self.number)
        for name in over:
            number = self.number.get(name)
            if number is not None and known.get(name) is not self.requests[number]:
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        number = self.number.pop(name, None)
        if number is not None:
            self.requests[number] = self.hashes[number] = None
            self.waits -= int(self.waits_now[number])
            self.waits_now[number] = 0

    def _look_again(self, waiting: Any) -> None:
        """The queue is not as it was left, for vLLM moves requests in ways of its own: take it as it is."""
        numbers = np.array(self._numbers_of(waiting), np.int64)
        if len(numbers) != self.waits or not self.waits_now[numbers].all():
            left = self.waits_now.copy()
            left[numbers] = 0
            self.waits_now[left > 0] = 0
            for number in np.sort(numbers).tolist():
                if not self.waits_now[number]:
                    self._queue(number, self.now)
            self.waits = len(numbers)
        self.changes = waiting.changes

    def _forget_gaps(self) -> None:
        """Number the requests anew, without those that are over, and make room for as many again."""
        kept = [number for number, request in enumerate(self.requests) if request is not None]
        old = {name: getattr(self, name) for name in _BY_NUMBER}
        line = self.line[: self.lined]
        line = line[self.waits_now[line] > 0]
        self._make_room(max(_ROOM, 4 * len(kept)))
        for name, values in old.items():
            getattr(self, name)[: len(kept)] = values[kept]
        anew = {number: place for place, number in enumerate(kept)}
        self.lined = len(line)
        self.line[: self.lined] = [anew[number] for number in line.tolist()]
        self.fresh = [anew[number] for number in self.fresh if number in anew]
        self.number = {name: anew[number] for name, number in self.number.items()}
        self.requests = [self.requests[number] for number in kept]
        self.hashes = [self.hashes[number] for number in kept]

    def _make_room(self, room: int) -> None:
        self.rows = np.zeros((room, LINE_WIDTH))
        self.arrival, self.since = np.zeros(room), np.zeros(room)
        self.attained, self.hits = np.zeros(room), np.zeros(room)
        self.overdue, self.waits_now = np.zeros(room, np.uint8), np.zeros(room, np.uint8)
        self.line, self.out = np.zeros(room, np.uint32), np.zeros(room, np.uint32)
        self.keys = np.zeros((room, ORDER_KEYS))
        self.run_keys = np.zeros((room, max(1, PREEMPT_KEYS)))
        self.scratch = np.zeros(room)
        self.places, self.spare = np.zeros(room, np.int64), np.zeros(room, np.int64)


_BY_NUMBER = ("rows", "arrival", "since", "attained", "hits", "overdue", "waits_now")


class _Found:
    """Membership of the prefix cache where its dictionary is not at hand."""

    def __init__(self, find: Any) -> None:
        self.find = find

    def __contains__(self, key: Any) -> bool:
        return self.find(key) is not None


_GUARD_SEED_US = 1e6
_LENGTH = deque.__len__
_ALWAYS = EVERY_STEP or PREEMPT_KEYS > 0  # there is something to do in every step


class Dispatcher(Part, Requests):
    """The policy at work: once a step, the requests in order of service."""

    status = _LINE_STATUS
    noun = "steps"

    @staticmethod
    def reason_not_to_attach(scheduler: Any) -> str | None:
        """Why this engine is none that the file can serve; None if it is one."""
        if type(scheduler.waiting).__name__ != "FCFSRequestQueue":
            return "the engine has a scheduling policy of its own (drop --scheduling-policy)"
        manager = scheduler.kv_cache_manager
        if REFRESHES and manager.enable_caching and manager.num_kv_cache_groups != 1:
            return f"{manager.num_kv_cache_groups} KV cache groups, this policy's signals are of one"
        return None

    def __init__(self, scheduler: Any) -> None:
        Part.__init__(self)
        Requests.__init__(self, scheduler)
        pool = scheduler.kv_cache_manager.block_pool
        self.free_queue, self.usable = pool.free_block_queue, len(pool.blocks) - 1
        self.mark, self.tokens, self.ran = 0.0, 0, 0
        self.orderings = self.faults = self.rescued = 0
        self.tally = np.zeros(6)
        guards = GUARD and os.environ.get("TANREN_NO_GUARD") != "1"
        self.seed_us = number_of("TANREN_GUARD_SEED_S", _GUARD_SEED_US, 1e6)
        if self.seed_us < 0:
            raise ValueError("TANREN_GUARD_SEED_S is below 0")
        self.mean_wait = np.array([self.seed_us, 1.0]) if guards else None
        self.decision = np.zeros(DECISION_WIDTH + len(LINE_KNOBS))
        self.decision[CAPACITY] = float(self.usable * self.block_size)
        self.decision[BLOCK_SIZE] = float(self.block_size)
        self.decision[MAX_RUNNING] = float(scheduler.max_num_running_reqs)
        self.decision[TOKEN_BUDGET] = float(scheduler.max_num_scheduled_tokens)
        self.decision[DECISION_WIDTH:] = knob_values(LINE_KNOBS)

        self._warm_up()
        self.awake, self.ours = False, self.schedule
        self.stock_waiting = type(scheduler.waiting)
        scheduler.waiting.changes, scheduler.waiting.tanren = 0, self
        scheduler.waiting.__class__ = make_waiting_class(self.stock_waiting)
        if _ALWAYS:
            self.wake()

    # -- what the engine tells us ------------------------------------------------

    def joined(self, request: Any) -> None:
        """The request was added; it is ours to order if it stands in the queue that we order."""
        if self.scheduler.requests.get(request.request_id) is not request:
            return  # more input for one that is there
        self.frozen = False
        self.freeze_now()
        number, waiting = self._number_of(request), self.scheduler.waiting
        if waiting and waiting[-1] is request:
            self._queue(number, self.now)
        self.frozen = False

    def pushed_out(self, request: Any) -> None:
        """The request is about to be pushed out, and will wait again."""
        self.freeze_now()
        number = self._number_of(request)
        if ATTAINED_TOKENS >= 0:
            self.attained[number] += request.num_computed_tokens - self.hits[number]
        self._queue(number, self.now)

    def wake(self) -> None:
        """Somebody came to wait: stand before the engine's `schedule()`."""
        if self.on and not self.awake:
            self.awake, self.other = True, vars(self.scheduler).get("schedule")
            self.scheduler.schedule = self.ours

    def rest(self) -> None:
        """Nobody waits: step aside, unless another has put itself before us."""
        if vars(self.scheduler).get("schedule") is self.ours:
            self.awake = False
            if self.other is None:
                del self.scheduler.schedule
            else:
                self.scheduler.schedule = self.other

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's `schedule()`, with the requests in order before it."""
        self.frozen = False
        if self.on:
            try:
                self.step_begins()
            except Exception as error:
                self.failed(error)
        if self.other is not None:
            output = self.other(*args, **kwargs)
        else:
            output = type(self.scheduler).schedule(self.scheduler, *args, **kwargs)
        if self.on:
            try:
                self.step_ends(output)
                self.frozen = False
                if not (_ALWAYS or _LENGTH(self.scheduler.waiting)):
                    self.rest()
            except Exception as error:
                self.failed(error)
        return output

    def step_begins(self) -> None:
        """Put the waiting requests into order, and the running ones if the policy says who is pushed out."""
        scheduler = self.scheduler
        waiting, running = scheduler.waiting, scheduler.running
        self.ran = len(running)
        self._forget_over()
        if EVERY_STEP:
            self._measure_rate()
        if waiting or (PREEMPT_KEYS and self.ran > 1):
            began = time.perf_counter()
            self._order(waiting, running)
            self.spent(time.perf_counter() - began)

    def step_ends(self, output: Any) -> None:
        """What the step did is known: who was admitted, after what wait."""
        self.tokens += output.total_num_scheduled_tokens
        running = self.scheduler.running
        for request in running[self.ran :]:  # a step that pushes out admits nobody
            self._admitted(request, output.num_scheduled_tokens.get(request.request_id, 0))

    # -- the decision ------------------------------------------------------------

    def _order(self, waiting: Any, running: Any) -> None:
        self.freeze_now()
        if waiting.changes != self.changes or len(waiting) != self.waits:
            self._look_again(waiting)
        if REFRESHES:
            self._take_cache()
            for request in islice(waiting, REFRESHED):
                self._look_up(self.number[request.request_id])
        for number in self.fresh:
            if self.waits_now[number]:
                self._fill(number)
        self.fresh.clear()
        n = self.lined = still_waiting(self.line, self.lined, self.waits_now)
        if n > 1 or (PREEMPT_KEYS and self.ran > 1):
            self._freeze_signals(n)
        if n > 1:
            mean_wait = -1.0 if self.mean_wait is None else max(self.mean_wait[0], self.seed_us)
            fault = dispatch(
                self.decision, self.rows, self.line, n, self.keys, self.scratch, self.places, self.spare,
                self.since, self.overdue, self.out, self.now, mean_wait,
            )  # fmt: skip
            self._count(fault)
            if n != len(waiting):
                raise RuntimeError(f"{len(waiting)} requests wait, {n} are known")
            first = list(map(self.requests.__getitem__, self.out[:n].tolist()))
            waiting.clear()
            waiting.extend(first)
        if PREEMPT_KEYS and self.ran > 1:
            self._order_running(running)

    def _order_running(self, running: Any) -> None:
        n = len(running)
        ids = np.sort(np.array(self._numbers_of(running), np.uint32))
        requests = list(map(self.requests.__getitem__, ids.tolist()))
        rows = self.rows
        if COMPUTED_TOKENS >= 0:
            rows[ids, COMPUTED_TOKENS] = [request.num_computed_tokens for request in requests]
        if OUTPUT_TOKENS >= 0:
            rows[ids, OUTPUT_TOKENS] = [request.num_output_tokens for request in requests]
        if UNCACHED_TOKENS >= 0:
            rows[ids, UNCACHED_TOKENS] = [request.num_tokens for request in requests]
            rows[ids, UNCACHED_TOKENS] -= rows[ids, CACHED_TOKENS]
        if ATTAINED_TOKENS >= 0:
            computed = [request.num_computed_tokens for request in requests]
            rows[ids, ATTAINED_TOKENS] = self.attained[ids] + computed - self.hits[ids]
        if PREEMPTIONS >= 0:
            rows[ids, PREEMPTIONS] = [request.num_preemptions for request in requests]
        if RESUMED >= 0:
            rows[ids, RESUMED] = 0.0
        fault = to_be_pushed_out(
            self.decision, rows, ids, n, self.run_keys, self.scratch, self.places, self.spare, self.out
        )
        self._count(fault)
        running[:] = map(self.requests.__getitem__, self.out[:n].tolist())

    def _count(self, fault: int) -> None:
        self.orderings += 1
        if fault:
            self.faults += 1
            if self.faults == 1:
                _LOG.warning("tanren: policy %s gave a key that is not finite; %s", LINE_POLICY, _OWN_ORDER)

    def _freeze_signals(self, waiting: int) -> None:
        decision, scheduler = self.decision, self.scheduler
        decision[NOW] = self.now
        if "waiting" in LINE_READS:
            decision[WAITING] = float(scheduler.get_request_counts()[1])
        if "running" in LINE_READS:
            decision[RUNNING] = float(self.ran)
        if "kv_free" in LINE_READS:
            decision[KV_FREE] = self.free_queue.num_free_blocks / max(1, self.usable)
        if "hit_rate" in LINE_READS:
            decision[HIT_RATE] = self.tally[2]
        if "service_rate" in LINE_READS:
            decision[SERVICE_RATE] = self.tally[4]
        if "oldest_wait" in LINE_READS:
            oldest = min(self.now, self.arrival[self.line[:waiting]].min()) if waiting else self.now
            decision[OLDEST_WAIT] = self.now - oldest

    def _measure_rate(self) -> None:
        self.freeze_now()
        if self.now > self.mark:
            if self.tokens > 0:
                moving_mean(self.tally, 4, self.tokens / (self.now - self.mark), RATES)
            self.mark, self.tokens = self.now, 0

    def _admitted(self, request: Any, tokens: int) -> None:
        number = self._number_of(request)
        hits = request.num_computed_tokens - tokens
        self.hits[number] = hits
        if not self.waits_now[number]:  # it came from another queue of vLLM's
            self._fill(number)
            if CACHED_TOKENS >= 0:
                self.rows[number, CACHED_TOKENS] = hits
            if UNCACHED_TOKENS >= 0:
                self.rows[number, UNCACHED_TOKENS] = request.num_tokens - hits
            return
        self.changes += 1
        self.waits_now[number] = 0
        self.waits -= 1
        self.hashes[number] = None
        if self.mean_wait is not None:
            moving_mean(self.mean_wait, 0, self.now - self.since[number], WAITS)
            self.rescued += int(self.overdue[number])
            self.overdue[number] = 0
        asked = (request.num_tokens - 1) // self.block_size
        if "hit_rate" in LINE_READS and asked > 0:
            moving_mean(self.tally, 2, hits // self.block_size / asked, HIT_RATES)

    def _warm_up(self) -> None:
        """Compile everything now; nothing compiles on the request path."""
        for number in (1, 0):
            take_number(self.line, 1, number)
        still_waiting(self.line, 2, self.waits_now)
        args = (self.keys, self.scratch, self.places, self.spare)
        dispatch(self.decision, self.rows, self.line, 2, *args, self.since, self.overdue, self.out, 0.0, -1.0)
        if PREEMPT_KEYS:
            to_be_pushed_out(self.decision, self.rows, self.line[:2], 2, self.run_keys, *args[1:], self.out)
        moving_mean(np.zeros(2), 0, 0.5, WAITS)

    def give_back(self) -> None:
        """VLLM's `schedule()`, and its queue in the order in which the requests were added."""
        self.rest()
        waiting, last = self.scheduler.waiting, len(self.requests)
        waiting.__class__ = self.stock_waiting
        own = sorted(waiting, key=lambda request: self.number.get(request.request_id, last))
        waiting.clear()
        waiting.extend(own)

    def counts(self) -> dict[str, Any]:
        """Orders made, those that fell back on the engine's, requests that the guard served first, cost."""
        return {
            "orderings": self.orderings,
            "faults": self.faults,
            "rescued": self.rescued,
            "errors": self.errors,
            "us_per_ordering": round(1e6 * self.spent_s / max(1, self.orderings), 1),
        }
