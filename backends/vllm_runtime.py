"""How the emitted file enters vLLM: the first half of its runtime.

`backends/vllm.py` copies everything below the marker line into the file it emits,
behind the policy's constants, the kernel functions and the policy's own `order`
function; the other `vllm_*.py` follow. Above the marker stand stand-ins, so that this
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

POLICY = ""
POLICY_SHA256 = ""
FITS: tuple[str, ...] = ()
SHAPE = "dynamic"
KNOBS: tuple[tuple[str, float, float], ...] = ()
MADE_BY = ""
HAVE_NUMBA = True
HEAP = AS_OF_STEP = USES_MATTER = False
Evictor: Any = None

# ======== runtime ========


def CLOCK() -> int:  # noqa: N802 - the one injectable name of this file
    """Whole microseconds of the wall clock; a test may replace it."""
    return time.time_ns() // 1000


_LOG = logging.getLogger("vllm.tanren")
_STATUS: dict[str, Any] = {"policy": POLICY, "sha256": POLICY_SHA256, "mode": "not started"}
_OWN_ORDER = "vLLM's own order holds"
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
    name = f"policy {POLICY} ({POLICY_SHA256[:12]}, tanren-dsl {MADE_BY}, vLLM {_vllm_version()})"
    if reason is None:
        _STATUS.update(mode="active", evictor=scheduler.tanren)
        how = f"{SHAPE} order, {'heap' if HEAP else 'scan'}, {'numba' if HAVE_NUMBA else 'plain Python'}"
        _LOG.info("tanren: %s decides evictions: %s, %s", name, how, type(scheduler).__mro__[1].__name__)
        atexit.register(say_farewell, scheduler.tanren)
    else:
        _STATUS.update(mode=reason, evictor=None)
        _LOG.warning("tanren: %s stands aside, %s: %s", name, _OWN_ORDER, reason)
    return scheduler


def say_farewell(evictor: Any) -> None:
    """One line at shutdown, once."""
    if not evictor.said:
        evictor.said = True
        told = ", ".join(f"{name} {value}" for name, value in evictor.counts().items())
        _LOG.info("tanren: policy %s ends%s: %s", POLICY, "" if evictor.on else " (off)", told)


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


def _attach(scheduler: Any) -> str | None:
    reason = _reason_not_to_attach(scheduler)
    if reason is None:
        scheduler.tanren = Evictor(scheduler)
    return reason


def in_one_line(error: Exception) -> str:
    """The error for the log; compilers write pages."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def seconds_allowed() -> float:
    """What a decision may take, by the operator."""
    return _number("TANREN_BUDGET_MS", 0.02, 1e-3)


def knob_values() -> list[float]:
    """The operator's knobs in the policy's own scale; a variable that names none is said."""
    known = {f"TANREN_KNOB_{name.upper()}": (default, scale) for name, scale, default in KNOBS}
    for name in sorted(os.environ):
        if name.startswith("TANREN_KNOB_") and name not in known:
            has = ", ".join(known) or "it has none"
            _LOG.warning("tanren: %s names no knob of policy %s: %s", name, POLICY, has)
    return [_number(name, default, scale) for name, (default, scale) in known.items()]


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
    if os.environ.get("TANREN_DISABLE") == "1":
        return "TANREN_DISABLE=1"
    version = _vllm_version()
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
    if manager.block_pool.hash_block_size != scheduler.block_size:
        return "blocks and their hashes differ in size"
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
