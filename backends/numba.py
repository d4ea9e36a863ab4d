"""Machine code by the LLVM that Numba brings along: a policy becomes a function address.

The search compiles thousands of candidates, so this goes straight from assembly
text to code: no Numba front end, no passes but the code generator's, one engine a function,
freed with its `CompiledOrdering`.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Mapping
from threading import RLock
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from tanren_dsl.backends.base import pack
from tanren_dsl.backends.llvm import emit
from tanren_dsl.backends.llvm_runtime import NAMES, module_text
from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.kernels.abi import CompiledOrdering

NAME = "numba"
CACHE_SIZE = 64
"""Functions kept for a repeated request (by their assembly text, so by exact bits)."""


class NumbaScorer:
    """Calls the machine code of one ordering on inputs by name."""

    def __init__(self, policy: Policy, ordering: Ordering, *, quick: bool = False) -> None:
        self.policy = policy
        self.compiled = compile_ordering(policy, ordering, quick=quick)
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_void_p] * 2)(
            self.compiled.address
        )

    def score(
        self,
        decision: Mapping[str, float],
        columns: Mapping[str, NDArray[np.float64]],
        n: int,
        knobs: Mapping[str, float] | None = None,
    ) -> NDArray[np.float64]:
        """Keys of n objects, shape `(n, keys)`; arguments as in `interp.evaluate`."""
        packed = pack(self.policy, self.compiled.ordering, decision, columns, n, knobs)
        self._call(
            packed.decision.ctypes.data,
            packed.rows.ctypes.data,
            packed.ids.ctypes.data,
            n,
            packed.keys.ctypes.data,
            packed.scratch.ctypes.data,
        )
        return packed.keys


class NumbaBackend:
    """The backend as a value."""

    name = NAME

    def scorer(self, policy: Policy, ordering: Ordering) -> NumbaScorer:
        """Machine code of the ordering, callable by name."""
        return NumbaScorer(policy, ordering)


def compile_ordering(policy: Policy, ordering: Ordering, *, quick: bool = False) -> CompiledOrdering:
    """Machine code of an ordering of a policy (its kind and knobs say where inputs lie).

    The code is freed when the result and every copy of it are gone (and the cache has
    dropped it). `quick` halves the time to compile and makes scoring about a half
    slower, bits unchanged: it pays below about a million scored objects.

    Raises:
        UnsupportedError: an operator that this backend lacks.
    """
    return _MACHINE.compile(emit(policy, ordering, _MACHINE.addresses), ordering, quick)


class _Machine:
    """This process's LLVM: set up on first use, functions by assembly text, oldest dropped first."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._cache: OrderedDict[tuple[str, bool], Any] = OrderedDict()
        self._runtime: Any = None
        self._addresses: dict[str, int] = {}
        self._target: Any = None
        self._cpu = ""
        self._features = ""

    @property
    def addresses(self) -> dict[str, int]:
        """Addresses of `llvm_runtime.NAMES`; they live as long as the process."""
        with self._lock:
            if not self._addresses:
                self._start()
                self._runtime = self._engine(module_text(), optimize=True)
                self._addresses = {name: self._runtime.get_function_address(name) for name in NAMES}
            return self._addresses

    def compile(self, text: str, ordering: Ordering, quick: bool) -> CompiledOrdering:
        """Code of a module text with a function `score`."""
        with self._lock:
            engine = self._cache.pop((text, quick), None) or self._engine(text, level=0 if quick else 2)
            self._cache[text, quick] = engine
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        return CompiledOrdering(ordering, engine.get_function_address("score"), len(ordering.keys), engine)

    def _start(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._target = llvm.Target.from_default_triple()
        self._cpu = llvm.get_host_cpu_name()
        self._features = llvm.get_host_cpu_features().flatten()

    def _engine(self, text: str, level: int = 2, optimize: bool = False) -> Any:
        machine = self._target.create_target_machine(cpu=self._cpu, features=self._features, opt=level)
        module = llvm.parse_assembly(text)
        module.triple = self._target.triple
        module.data_layout = str(machine.target_data)
        if optimize:
            builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
            builder.getModulePassManager().run(module, builder)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        return engine


_MACHINE = _Machine()
