"""How the emitted file enters vLLM: the first part of its runtime.

`backends/vllm.py` copies everything below the marker line into the file it emits,
behind the policies' constants, the kernel functions and the policies' own ordering
functions; the other `vllm_*.py` follow. Above the marker stand stand-ins, so that this
module can be read, linted and type-checked as it is. It never runs from here.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import time
from typing import Any

POLICY = LINE_POLICY = ""
POLICY_SHA256 = LINE_SHA256 = ""
FITS: tuple[str, ...] = ()
SHAPE = "dynamic"
Knobs = tuple[tuple[str, float, float], ...]
KNOBS: Knobs = ()
LINE_KNOBS: Knobs = ()
MADE_BY = ""
HAVE_NUMBA = EVICTS = SCHEDULES = True
HEAP = False
PREEMPT_KEYS = 0
Evictor: Any = None
Dispatcher: Any = None
make_evicting_class: Any = None
make_dispatching_class: Any = None

# ======== runtime ========


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
