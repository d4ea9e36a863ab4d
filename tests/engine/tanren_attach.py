"""pytest plugin: puts the emitted file `tanren_policy.py` into every scheduler that a test makes.

It runs inside the vLLM environment and imports nothing of this package. vLLM's tests make
their schedulers and cache managers themselves, not through `--scheduler-cls`, so
the moment after `Scheduler.__init__` stands for the file's factory: the class that
`make_scheduler_class` makes, then `_attach`. A cache manager that a test makes alone gets a
stand-in for its scheduler, which has just what an evict policy reads of one. What is no manager's
(a bare block pool, a bare free queue) stays as it is and is counted.

The counts, and every event that must not happen, go to the file that TANREN_ATTACHED names.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tanren_policy as policy

COUNTS: Counter[str] = Counter()
ASIDE: Counter[str] = Counter()
PER_FILE: dict[str, Counter[str]] = {}
PARTS = {"tanren": policy.EVICTS, "tanren_line": policy.SCHEDULES}
WRONG: list[str] = []
"""What must not happen: attaching failed, or the guard switched the policy off."""

_live: list[Any] = []
_classes: dict[type, type] = {}
_inside = 0
_test = "collection"


class Alone:
    """Stands for the scheduler of a cache manager that has none; the file freezes time in its steps."""

    def __init__(self, manager: Any) -> None:
        self.kv_cache_manager = manager
        self.block_size = manager.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        self.max_num_running_reqs = 16
        self.max_num_scheduled_tokens = 8192
        self.running: list[Any] = []
        self.waiting: list[Any] = []

    def schedule(self) -> Any:
        return SimpleNamespace(total_num_scheduled_tokens=1)

    def update_from_output(self) -> None:
        """Nothing: the file's subclass freezes the moment."""


class Ear(logging.Handler):
    """Hears the one line that the guard says when it switches the policy off."""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if " is off, " in line:
            WRONG.append(f"{_test}: {line}")


def pytest_configure() -> None:
    """Enter vLLM, before any test is imported."""
    reason = policy._reason_to_stand_aside()
    if reason is not None:
        pytest.exit(f"the policy stands aside everywhere: {reason}", returncode=3)
    log = logging.getLogger("vllm.tanren")
    log.addHandler(Ear())
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
    from vllm.v1.core.sched.scheduler import Scheduler

    _after_init(Scheduler, "schedulers", _enter_scheduler)
    _after_init(KVCacheManager, "managers alone", _enter_manager)
    _after_init(BlockPool, "bare pools", _stay_plain)
    _after_init(FreeKVCacheBlockQueue, "bare queues", _stay_plain)
    _before(KVCacheManager, "get_computed_blocks", "schedule")
    _before(KVCacheManager, "free", "update_from_output")


def pytest_runtest_logstart(nodeid: str) -> None:
    global _test
    _test = nodeid


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Add up what the test's policies did, and let go of them."""
    here = PER_FILE.setdefault(nodeid.split("::")[0], Counter())
    for part in _live:
        counts = part.counts()
        decisions = counts.get("decisions", counts.get("orderings"))
        here.update(attached=1, decisions=decisions, faults=counts["faults"])
    _live.clear()


def pytest_sessionfinish() -> None:
    total: Counter[str] = sum(PER_FILE.values(), Counter())
    told = {"counts": COUNTS + total, "aside": ASIDE, "files": PER_FILE, "wrong": WRONG}
    Path(os.environ["TANREN_ATTACHED"]).write_text(json.dumps(told), encoding="utf-8")


def _after_init(owner: type, name: str, enter: Callable[[Any], None]) -> None:
    """Call `enter` with each new object that no other of these classes makes for itself."""
    original = owner.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes one
        global _inside
        _inside += 1
        try:
            original(self, *args, **kwargs)
        finally:
            _inside -= 1
        if _inside == 0:
            COUNTS[name] += 1
            enter(self)

    owner.__init__ = __init__


def _enter_scheduler(scheduler: Any) -> None:
    base = type(scheduler)
    attached = [_attached(scheduler, name) for name, there in PARTS.items() if there]  # each of them
    if any(attached):
        if base not in _classes:
            _classes[base] = policy.make_scheduler_class(base)
        scheduler.__class__ = _classes[base]


def _enter_manager(manager: Any) -> None:
    if not policy.EVICTS:
        return
    if Alone not in _classes:
        _classes[Alone] = policy.make_scheduler_class(Alone)
    stand_in = _classes[Alone](manager)
    if _attached(stand_in, "tanren"):
        manager.tanren_stand_in = stand_in


def _stay_plain(_: Any) -> None:
    """No manager, so no policy."""


def _attached(scheduler: Any, name: str) -> bool:
    began = time.perf_counter()
    try:
        reason = policy._attach(scheduler, name)
    except Exception as error:
        WRONG.append(f"{_test}: attaching failed: {type(error).__name__}: {error}")
        return False
    finally:
        COUNTS["attaching ms"] += round(1e3 * (time.perf_counter() - began))
    if reason is not None:
        ASIDE[reason] += 1
        return False
    _live.append(getattr(scheduler, name))
    return True


def _before(owner: type, name: str, moment: str) -> None:
    """Let time pass for the stand-in before this method of a manager alone."""
    original = getattr(owner, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        stand_in = vars(self).get("tanren_stand_in")
        if stand_in is not None:
            getattr(stand_in, moment)()
        return original(self, *args, **kwargs)

    setattr(owner, name, method)
