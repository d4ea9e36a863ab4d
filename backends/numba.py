"""Machine code by the LLVM that Numba brings along: a policy becomes a function address.

The search compiles thousands of candidates, so this goes straight from assembly
text to code: no Numba front end, a short list of passes, one engine a function,
freed with its `CompiledOrdering`.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from tanren_dsl.backends.base import pack
from tanren_dsl.backends.llvm import emit
from tanren_dsl.ir import Ordering, Policy
from tanren_dsl.kernels.abi import CompiledOrdering

NAME = "numba"
CACHE_SIZE = 64
"""Functions kept for a repeated request (by their assembly text, so by exact bits)."""

_SELECT = """\
define double @select_rank(ptr noalias %v, i64 %n, i64 %k) nounwind {
entry:
  %last = sub i64 %n, 1
  br label %scan
scan:
  %s = phi i64 [ 0, %entry ], [ %s.next, %scan.go ]
  %s.at = getelementptr double, ptr %v, i64 %s
  %s.value = load double, ptr %s.at
  %s.nan = fcmp uno double %s.value, 0.0
  br i1 %s.nan, label %nan, label %scan.go
scan.go:
  %s.next = add i64 %s, 1
  %s.more = icmp slt i64 %s.next, %n
  br i1 %s.more, label %scan, label %narrow
nan:
  ret double %s.value
narrow:
  %low = phi i64 [ 0, %scan.go ], [ %low.next, %choose ]
  %high = phi i64 [ %last, %scan.go ], [ %high.next, %choose ]
  %seed = phi i64 [ 1, %scan.go ], [ %seed.next, %choose ]
  %wide = icmp slt i64 %low, %high
  br i1 %wide, label %pick, label %found
pick:
  %seed.mul = mul i64 %seed, 1103515245
  %seed.add = add i64 %seed.mul, 12345
  %seed.next = and i64 %seed.add, 2147483647
  %span = sub i64 %high, %low
  %size = add i64 %span, 1
  %off = urem i64 %seed.next, %size
  %pivot.i = add i64 %low, %off
  %pivot.at = getelementptr double, ptr %v, i64 %pivot.i
  %pivot = load double, ptr %pivot.at
  br label %up
up:
  %i = phi i64 [ %low, %pick ], [ %i.up, %up.go ], [ %i.swap, %swap.go ]
  %j.held = phi i64 [ %high, %pick ], [ %j.held, %up.go ], [ %j.swap, %swap.go ]
  %i.at = getelementptr double, ptr %v, i64 %i
  %i.value = load double, ptr %i.at
  %i.less = fcmp olt double %i.value, %pivot
  br i1 %i.less, label %up.go, label %down
up.go:
  %i.up = add i64 %i, 1
  br label %up
down:
  %j = phi i64 [ %j.held, %up ], [ %j.down, %down.go ]
  %j.at = getelementptr double, ptr %v, i64 %j
  %j.value = load double, ptr %j.at
  %j.more = fcmp ogt double %j.value, %pivot
  br i1 %j.more, label %down.go, label %meet
down.go:
  %j.down = sub i64 %j, 1
  br label %down
meet:
  %crossed = icmp sgt i64 %i, %j
  br i1 %crossed, label %choose, label %swap
swap:
  store double %j.value, ptr %i.at
  store double %i.value, ptr %j.at
  %i.swap = add i64 %i, 1
  %j.swap = sub i64 %j, 1
  %again = icmp sle i64 %i.swap, %j.swap
  br i1 %again, label %swap.go, label %choose
swap.go:
  br label %up
choose:
  %i.end = phi i64 [ %i, %meet ], [ %i.swap, %swap ]
  %j.end = phi i64 [ %j, %meet ], [ %j.swap, %swap ]
  %left = icmp sle i64 %k, %j.end
  %right = icmp sge i64 %k, %i.end
  %high.next = select i1 %left, i64 %j.end, i64 %high
  %low.right = select i1 %right, i64 %i.end, i64 %low
  %low.next = select i1 %left, i64 %low, i64 %low.right
  %either = or i1 %left, %right
  br i1 %either, label %narrow, label %found
found:
  %k.at = getelementptr double, ptr %v, i64 %k
  %k.value = load double, ptr %k.at
  %plain = fadd double %k.value, 0.0
  ret double %plain
}
"""


class NumbaScorer:
    """Calls the machine code of one ordering on inputs by name."""

    def __init__(self, policy: Policy, ordering: Ordering) -> None:
        self.policy = policy
        self.compiled = compile_ordering(policy, ordering)
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


def compile_ordering(policy: Policy, ordering: Ordering) -> CompiledOrdering:
    """Machine code of an ordering of a policy (its kind and knobs say where inputs lie).

    The code is freed when the result and every copy of it are gone.

    Raises:
        UnsupportedError: an operator that this backend lacks.
    """
    return _MACHINE.compile(emit(policy, ordering, _MACHINE.select_address), ordering)


class _Machine:
    """This process's LLVM: set up on first use, functions by assembly text, oldest dropped first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._cache: OrderedDict[str, CompiledOrdering] = OrderedDict()
        self._target: Any = None
        self._select: Any = None
        self._cpu = ""
        self._features = ""

    @property
    def select_address(self) -> int:
        """Address of the rank selection, which lives as long as the process."""
        with self._lock:
            if self._select is None:
                self._start()
                self._select = self._engine(_SELECT)
            return int(self._select.get_function_address("select_rank"))

    def compile(self, text: str, ordering: Ordering) -> CompiledOrdering:
        """Code of a module text with a function `score`."""
        with self._lock:
            if text in self._cache:
                self._cache.move_to_end(text)
                return self._cache[text]
            engine = self._engine(text)
            address = int(engine.get_function_address("score"))
            compiled = CompiledOrdering(ordering, address, len(ordering.keys), engine)
            self._cache[text] = compiled
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
            return compiled

    def _start(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._target = llvm.Target.from_default_triple()
        self._cpu = llvm.get_host_cpu_name()
        self._features = llvm.get_host_cpu_features().flatten()

    def _engine(self, text: str) -> Any:
        machine = self._target.create_target_machine(cpu=self._cpu, features=self._features, opt=2)
        module = llvm.parse_assembly(text)
        module.triple = self._target.triple
        module.data_layout = str(machine.target_data)
        builder = llvm.create_pass_builder(machine, _tuning())
        _passes(builder).run(module, builder)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        return engine


def _tuning() -> Any:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    return options


def _passes(builder: Any) -> Any:
    return builder.getModulePassManager()


_MACHINE = _Machine()
