"""The vLLM target: one self-contained file that vLLM loads by `--scheduler-cls`.

The file holds the policies' text and hash, the kernel functions, the policies' own ordering
functions as the python backend writes them, and the runtime of the other `vllm_*.py`. It
imports numpy, numba (a vLLM dependency; it runs without) and vLLM, nothing of this package.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from types import ModuleType

from tanren_dsl import __version__
from tanren_dsl.backends import (
    vllm_choice,
    vllm_dispatcher,
    vllm_evictor,
    vllm_hashes,
    vllm_kernels,
    vllm_line,
    vllm_queue,
    vllm_requests,
    vllm_runtime,
    vllm_state,
    vllm_warm,
)
from tanren_dsl.backends.python import emit_function
from tanren_dsl.backends.python_helpers import helpers_source
from tanren_dsl.backends.vllm_constants import (
    NO_EVICT,
    NO_SCHEDULE,
    block_places,
    evict_constants,
    line_places,
    schedule_constants,
)
from tanren_dsl.errors import TanrenError, UnsupportedError
from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.kernels import block_rows, decision, free_ring, line_order, static_heap
from tanren_dsl.kernels.abi import DECISION_WIDTH
from tanren_dsl.passes.provides import require_signals
from tanren_dsl.passes.settle import split
from tanren_dsl.signals import VLLM, Kind, column_of, columns_for

FITS = ("0.19.1", "0.32.0")
"""vLLM versions against which the file was shown to decide as the simulator does."""

_MARKER = "# ======== runtime ========\n"
_EVICT_KERNELS = (free_ring, static_heap, block_rows)
_EVICT_RUNTIME = (
    vllm_queue, vllm_state, vllm_kernels, vllm_choice, vllm_hashes, vllm_warm, vllm_evictor,
)  # fmt: skip
_SCHEDULE_RUNTIME = (vllm_line, vllm_requests, vllm_dispatcher)


def emit(evict: Policy | None = None, schedule: Policy | None = None, *, guard: bool = True) -> str:
    """Text of the file for an evict policy, a schedule policy, or one of each.

    Args:
        evict: decides which block is evicted; None: vLLM does.
        schedule: decides which request is next; None: vLLM does.
        guard: requests that wait far longer than the mean are served first.

    Raises:
        TanrenError: neither is given.
        UnsupportedError: a policy is of the other kind, or reads a signal that vLLM cannot provide.
    """
    if evict is None and schedule is None:
        raise TanrenError("expected an evict or a schedule policy, found neither")
    for policy, kind in ((evict, "evict"), (schedule, "schedule")):
        if policy is not None:
            if policy.kind != kind:
                found = "an evict policy" if policy.kind == "evict" else "a schedule policy"
                raise UnsupportedError(f"{policy.name}: {found} stands where the {kind} policy belongs")
            require_signals(policy, VLLM, "the vllm target")
    halves = None if evict is None else split(evict, evict.order)
    orderings: tuple[Ordering, ...] = () if halves is None else (halves.settled, halves.moving)
    if schedule is not None:
        orderings += (schedule.order,) if schedule.preempt is None else (schedule.order, schedule.preempt)
    parts = [
        _header([policy for policy in (evict, schedule) if policy is not None]),
        _imports(evict, schedule),
        _general_constants(),
        evict_constants(evict) if evict is not None else NO_EVICT,
        schedule_constants(schedule, guard=guard) if schedule is not None else NO_SCHEDULE,
        _JIT,
        _kernel_source(decision, "evict", {}),
        *([] if evict is None else _evict_kernels(evict)),
        *([] if schedule is None else [_kernel_source(line_order, "schedule", line_places(schedule))]),
        _jitted(helpers_source(*orderings)),
        *([] if evict is None else _evict_orderings(evict)),
        *([] if schedule is None else _schedule_orderings(schedule)),
        _runtime(vllm_runtime),
        *([] if evict is None else map(_runtime, _EVICT_RUNTIME)),
        *([] if schedule is None else map(_runtime, _SCHEDULE_RUNTIME)),
    ]
    return _pruned("\n\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n")


def _pruned(text: str) -> str:
    """The file without the kernel functions that this policy never calls."""
    for module in (*_EVICT_KERNELS, decision, line_order):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.FunctionDef) and len(re.findall(rf"\b{node.name}\b", text)) == 1:
                text = re.sub(rf"(@_jit\n)?def {node.name}\(.*?\n\n\n", "", text, flags=re.DOTALL)
    return text


def _evict_kernels(policy: Policy) -> list[str]:
    places = block_places(policy)
    return [_kernel_source(module, "evict", places) for module in _EVICT_KERNELS]


def _evict_orderings(policy: Policy) -> list[str]:
    halves = split(policy, policy.order)
    books = tuple(name for name in columns_for("evict", policy.signals()) if name not in halves.filled)
    return [
        "@_jit\n" + (emit_function(policy, halves.settled, "settle", books) if halves.kept else _NOTHING),
        "@_jit\n" + emit_function(policy, halves.moving, "order", (*halves.kept, *halves.filled)),
    ]


def _schedule_orderings(policy: Policy) -> list[str]:
    columns = tuple(line_places(policy))
    texts = ["@_jit\n" + emit_function(policy, policy.order, "rank", columns)]
    if policy.preempt is not None:
        texts.append("@_jit\n" + emit_function(policy, policy.preempt, "rank_running", columns))
    else:
        texts.append("rank_running = rank")
    return texts


def _runtime(module: ModuleType) -> str:
    return inspect.getsource(module).split(_MARKER, 1)[1].strip()


def _header(policies: Sequence[Policy]) -> str:
    names = " and ".join(
        f"the {'eviction' if policy.kind == 'evict' else 'scheduling'} policy `{policy.name}`"
        for policy in policies
    )
    quoted = "\n\n".join(
        "\n".join(f"    {line}".rstrip() for line in policy.text.rstrip().splitlines()) for policy in policies
    )
    quoted = quoted.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return (
        f'"""vLLM scheduler with {names}, emitted by tanren-dsl {__version__}.\n'
        "\n"
        f"Fits vLLM {', '.join(FITS)}; on any other it says so in one line and vLLM's own order holds.\n"
        "On:   put this file on PYTHONPATH and start vLLM with --scheduler-cls FILE_STEM.Scheduler\n"
        "Off:  drop the flag (or set TANREN_DISABLE=1)\n\n"
        f"{'The policy' if len(policies) == 1 else 'The policies'}:\n\n{quoted}\n"
        '"""'
    )


_IMPORTS = """\
from __future__ import annotations

import atexit
import importlib
import logging
import math
import os
import time
%sfrom typing import Any

import numpy as np

try:
    import numba
except Exception:  # missing, or at odds with NumPy: the same functions run as plain Python
    numba = None
"""


def _imports(evict: Policy | None, schedule: Policy | None) -> str:
    needed = (
        (schedule, "from collections import deque\nfrom itertools import islice\n"),
        (evict, "from operator import attrgetter\n"),
    )
    return _IMPORTS % "".join(lines for policy, lines in needed if policy is not None)


_JIT = """\
HAVE_NUMBA = numba is not None and os.environ.get("TANREN_NO_NUMBA") != "1"


def _jit(function):
    return numba.njit(error_model="numpy", _nrt=False)(function) if HAVE_NUMBA else function

"""


_NOTHING = """\
def settle(decision, rows, ids, n, keys, scratch):
    return
"""


def _general_constants() -> str:
    lines = (f"FITS = {FITS!r}", f"MADE_BY = {__version__!r}", f"DECISION_WIDTH = {DECISION_WIDTH}")
    return "\n".join(lines)


def _kernel_source(module: ModuleType, kind: Kind, places: Mapping[str, int]) -> str:
    """The module's constants, by value, and its functions, compiled as this file compiles.

    Columns of the object rows become the places of this file, or -1 where it keeps none.
    """
    source = inspect.getsource(module)
    kept = {column_of(kind, name): place for name, place in places.items()}
    parts: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
            text = ast.get_source_segment(source, node)
            prefix = "" if node.name.startswith("new_") else "@_jit\n"
            parts.append(f"\n\n{prefix}{text}")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            value = getattr(module, name)
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "column_of":
                value = kept.get(value, -1)
            parts.append(f"{name} = {value!r}")
    return "\n".join(parts)


def _jitted(source: str) -> str:
    return (
        source.replace("\ndef ", "\n@_jit\ndef ") if not source.startswith("def ") else _jitted("\n" + source)
    )
