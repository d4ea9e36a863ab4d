"""The vLLM target: one self-contained file that vLLM loads by `--scheduler-cls`.

The file holds the policy's text and hash, the kernel functions, the policy's own
`settle` and `order` functions as the python backend writes them, and the runtime of
the other `vllm_*.py`. It imports numpy, numba (a vLLM dependency; it runs without) and
vLLM, nothing of this package.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Mapping
from types import ModuleType

from tanren_dsl import __version__
from tanren_dsl.backends import (
    vllm_choice,
    vllm_evictor,
    vllm_hashes,
    vllm_kernels,
    vllm_runtime,
    vllm_state,
    vllm_warm,
)
from tanren_dsl.backends.python import emit_function
from tanren_dsl.backends.python_helpers import helpers_source
from tanren_dsl.errors import UnsupportedError
from tanren_dsl.ir import Policy
from tanren_dsl.kernels import block_rows, free_ring, static_heap
from tanren_dsl.kernels.abi import DECISION_WIDTH
from tanren_dsl.passes.order import FIXED_SIGNALS, analyze
from tanren_dsl.passes.provides import require_signals
from tanren_dsl.passes.settle import Split, split
from tanren_dsl.signals import STORED, USED_AT, VLLM, column_of, columns_for
from tanren_dsl.units import MICROSECONDS_PER_SECOND, Number

FITS = ("0.19.1", "0.32.0")
"""vLLM versions against which the file was shown to decide as the simulator does."""

_BY_HASH = frozenset({"children", "ghost_uses", "waiting_refs"})
"""Signals that are counted by hash."""
_BY_USE = frozenset({"uses", "chain", "gap", "spaced_uses", USED_AT})
"""Columns that a hit changes."""

_OF_STEP = frozenset({"spaced_uses", "waiting_refs"})
"""Per-block signals that need something *as of this step*."""

_MARKER = "# ======== runtime ========\n"
_KERNEL_MODULES = (free_ring, static_heap, block_rows)
_RUNTIME_MODULES = (vllm_runtime, vllm_state, vllm_kernels, vllm_choice, vllm_hashes, vllm_warm, vllm_evictor)


def emit(evict: Policy) -> str:
    """Text of the file for an evict policy.

    Raises:
        UnsupportedError: the policy reads a signal that vLLM's block pool cannot provide.
    """
    if evict.kind != "evict":
        raise UnsupportedError(f"{evict.name}: the vllm target does not take schedule policies yet")
    require_signals(evict, VLLM, "the vllm target")
    halves = split(evict, evict.order)
    books = tuple(name for name in columns_for("evict", evict.signals()) if name not in halves.filled)
    places = {name: place for place, name in enumerate(books)}
    places |= {name: place for place, name in enumerate(halves.filled, len(halves.kept))}
    parts = [
        _header(evict),
        _IMPORTS,
        _constants(evict, books, halves),
        _JIT,
        *(_kernel_source(module, places) for module in _KERNEL_MODULES),
        _jitted(helpers_source(halves.settled, halves.moving)),
        "@_jit\n" + (emit_function(evict, halves.settled, "settle", books) if halves.kept else _NOTHING),
        "@_jit\n" + emit_function(evict, halves.moving, "order", (*halves.kept, *halves.filled)),
        *(inspect.getsource(module).split(_MARKER, 1)[1].strip() for module in _RUNTIME_MODULES),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def _header(policy: Policy) -> str:
    text = policy.text.rstrip()
    quoted = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    quoted = quoted.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return (
        f'"""vLLM scheduler with the eviction policy `{policy.name}`, emitted by tanren-dsl {__version__}.\n'
        "\n"
        f"Fits vLLM {', '.join(FITS)}; on any other it says so in one line and vLLM's own order holds.\n"
        "On:   put this file on PYTHONPATH and start vLLM with --scheduler-cls FILE_STEM.Scheduler\n"
        "Off:  drop the flag (or set TANREN_DISABLE=1)\n\n"
        f"The policy:\n\n{quoted}\n"
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
from operator import attrgetter
from typing import Any

import numpy as np

try:
    import numba
except Exception:  # missing, or at odds with NumPy: the same functions run as plain Python
    numba = None
"""

_JIT = """\
HAVE_NUMBA = numba is not None and os.environ.get("TANREN_NO_NUMBA") != "1"


def _jit(function):
    return numba.njit(error_model="numpy", _nrt=False)(function) if HAVE_NUMBA else function

"""


_NOTHING = """\
def settle(decision, rows, ids, n, keys, scratch):
    return
"""


def _constants(policy: Policy, columns: tuple[str, ...], halves: Split) -> str:
    reads = frozenset(policy.signals())
    shape = analyze(policy).shape
    numbered = bool(_BY_HASH & reads)
    changing = bool(reads - FIXED_SIGNALS - set(STORED["evict"])) or not reads.isdisjoint(_OF_STEP)
    heap = shape != "dynamic"
    knobs = tuple(
        (knob.name, MICROSECONDS_PER_SECOND**knob.type.unit.time, knob.default)
        for knob in policy.knobs
        if isinstance(knob.type, Number)
    )
    digest = hashlib.sha256(policy.text.encode()).hexdigest()
    return "\n".join(
        (
            f"POLICY = {policy.name!r}",
            f"POLICY_SHA256 = {digest!r}",
            f"FITS = {FITS!r}",
            f"MADE_BY = {__version__!r}",
            f"SHAPE = {shape!r}",
            f"HEAP = {heap}",
            f"AHEAD = {not heap and not numbered}",
            f"PERCENT = {policy.percent!r}",
            f"KEY_COUNT = {len(policy.order.keys)}",
            f"KNOBS = {knobs!r}",
            f"READS = frozenset({sorted(reads)!r})",
            f"WRITES = {numbered or bool(set(columns) - {'last_use'})}",
            f"USES_MATTER = {bool(_BY_USE & set(columns))}",
            f"NUMBERED = {numbered}",
            f"AS_OF_STEP = {changing}",
            f"ROW_WIDTH = {max(1, len(columns))}",
            f"SETTLED = {len(halves.kept)}",
            f"SETTLED_WIDTH = {max(1, len(halves.kept) + len(halves.filled))}",
            f"DECISION_WIDTH = {DECISION_WIDTH}",
        )
    )


def _kernel_source(module: ModuleType, places: Mapping[str, int]) -> str:
    """The module's constants, by value, and its functions, compiled as this file compiles.

    Columns of the object rows become the places of this file, or -1 where it keeps none.
    """
    source = inspect.getsource(module)
    kept = {column_of("evict", name): place for name, place in places.items()}
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
