"""Calling a compiled ordering, by its address, from inside a cached kernel."""

from typing import Any

from llvmlite import ir as llvm
from numba import types
from numba.extending import intrinsic


@intrinsic
def call_scorer(typing_context, address, decision, rows, ids, n, keys, scratch):  # noqa: ARG001
    """Call the scorer at `address` (see `abi.py`); arrays are passed by their data addresses."""
    signature = types.void(*([types.intp] * 7))

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        double_p = llvm.DoubleType().as_pointer()
        kinds = [double_p, double_p, llvm.IntType(32).as_pointer(), llvm.IntType(64), double_p, double_p]
        target = builder.inttoptr(args[0], llvm.FunctionType(llvm.VoidType(), kinds).as_pointer())
        values = [
            value if isinstance(kind, llvm.IntType) else builder.inttoptr(value, kind)
            for value, kind in zip(args[1:], kinds, strict=True)
        ]
        builder.call(target, values)
        return context.get_dummy_value()

    return signature, generate
