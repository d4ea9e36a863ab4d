"""Assembly text for one object or for several at once: instructions, constants, operands."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

LANES = 4
"""Objects computed at once in a loop whose expressions are dear."""


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: a double, or a truth value held as one bit; `constant` if it is known."""

    text: str
    is_bit: bool = False
    constant: float | None = None


class Assembly:
    """Lines of a function under way.

    Attributes:
        lanes: objects computed at once, 1 or `LANES`.
        f: type of a number; `i` of its bits, `b` of a truth value; `suffix` of intrinsics;
            `truth` is the constant true.
        addresses: functions that are compiled once a process, as `exp1`, `exp4`.
        made: conversions already written in this loop.
    """

    def __init__(self, addresses: Mapping[str, int]) -> None:
        self.addresses = addresses
        self.lines: list[str] = []
        self.made: dict[str, str] = {}
        self._count = 0
        self.set_lanes(1)

    def set_lanes(self, lanes: int) -> None:
        """Write for so many objects at once from here on."""
        self.lanes = lanes
        self.f, self.i, self.b = "double", "i64", "i1"
        self.suffix, self.truth = "f64", "true"
        if lanes > 1:
            self.f, self.i, self.b = (f"<{lanes} x {scalar}>" for scalar in (self.f, self.i, self.b))
            self.suffix, self.truth = f"v{lanes}f64", f"<{', '.join(['i1 true'] * lanes)}>"

    def put(self, line: str) -> None:
        """Append a line."""
        self.lines.append(f"  {line}")

    def new(self, instruction: str) -> str:
        """Append an instruction; its fresh name."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def once(self, instruction: str) -> str:
        """As `new`, but written once a loop."""
        if instruction not in self.made:
            self.made[instruction] = self.new(instruction)
        return self.made[instruction]

    def c(self, value: float) -> str:
        """A constant, in every lane."""
        text = double(value)
        return text if self.lanes == 1 else f"<{', '.join([f'double {text}'] * self.lanes)}>"

    def ci(self, value: int) -> str:
        """A 64-bit constant, in every lane."""
        return str(value) if self.lanes == 1 else f"<{', '.join([f'i64 {value}'] * self.lanes)}>"

    def number(self, value: Value) -> str:
        """The operand as a double."""
        if value.constant is not None:
            return self.c(value.constant)
        return self.once(f"uitofp {self.b} {value.text} to {self.f}") if value.is_bit else value.text

    def bit(self, value: Value) -> str:
        """The operand as a truth value."""
        if value.is_bit:
            return value.text
        return self.once(f"fcmp une {self.f} {self.number(value)}, {self.c(0.0)}")

    def call(self, name: str, x: str) -> str:
        """Call a function of one number that is compiled once a process."""
        return self.new(f"call {self.f} {self.outside(f'{name}{self.lanes}')}({self.f} {x})")

    def outside(self, name: str) -> str:
        """The callee at a known address."""
        return f"inttoptr (i64 {self.addresses[name]} to ptr)"

    def intrinsic(self, name: str, x: str) -> str:
        """Call an exact intrinsic of one number: `sqrt`, `fabs` or `floor`."""
        return self.new(f"call {self.f} @llvm.{name}.{self.suffix}({self.f} {x})")

    def least(self, x: str, y: str) -> str:
        """The second if it is less, else the first."""
        return self.select(self.new(f"fcmp olt {self.f} {y}, {x}"), y, x)

    def most(self, x: str, y: str) -> str:
        """The second if it is greater, else the first."""
        return self.select(self.new(f"fcmp ogt {self.f} {y}, {x}"), y, x)

    def select(self, bit: str, x: str, y: str) -> str:
        """The first where the bit is set, else the second."""
        return self.new(f"select {self.b} {bit}, {self.f} {x}, {self.f} {y}")


def double(value: float) -> str:
    """A double constant in LLVM's exact notation."""
    if math.isnan(value):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


DECLARATIONS = (
    "".join(
        f"declare {f} @llvm.{name}.{suffix}({f})\n"
        for name in ("sqrt", "fabs", "floor")
        for f, suffix in (("double", "f64"), (f"<{LANES} x double>", f"v{LANES}f64"))
    )
    + "declare i64 @llvm.smin.i64(i64, i64)\n"
)
"""The intrinsics, each exact or correctly rounded."""
