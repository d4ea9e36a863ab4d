"""How the emitted file enters vLLM: the first half of its runtime.

`backends/vllm.py` copies everything below the marker line into the file it emits,
behind the policy's constants, the kernel functions and the policy's own `order`
function; `vllm_evictor.py` follows. Above the marker stand stand-ins, so that this
module can be read, linted and type-checked as it is. It never runs from here.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import time
from typing import Any

POLICY = ""
POLICY_SHA256 = ""
FITS: tuple[str, ...] = ()
SHAPE = "dynamic"
KNOBS: tuple[tuple[str, float, float], ...] = ()
HAVE_NUMBA = True
Evictor: Any = None

# ======== runtime ========


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
