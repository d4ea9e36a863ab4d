"""Latency profiles: how long a step of an engine takes, from what the step does.

A step has requests with new tokens to compute. Take one with `n` new tokens behind `c` computed
ones. It is a *decode sequence* if `n == 1` and `c` is at least the number of its prompt tokens;
it then reads a context of `c + 1` tokens. Otherwise its `n` tokens are *prefill*, and attend to
`n * c + n * (n + 1) / 2` (query, key) pairs: each to all before it and to itself. A request that
was preempted and computes its own output anew is prefill, by this rule, until its last token.

The time of a step is a sum, in microseconds:

    base        every step that has tokens: the weights are read, kernels are launched, and the
                engine's Python runs between two steps
    prefill     each prefill token
    attention   each million of (query, key) pairs of prefill
    decode      each decode sequence
    context     each thousand tokens of context that decode sequences read
    empty       the whole of a step without tokens; none of the above

A sum is a plain model. It adds where an accelerator overlaps (reading weights for the decode
sequences of a step hides behind its prefill), so its error belongs with it: `calibrate` in `bench`
fits the six numbers to a real engine and writes the error on held-out steps into `residual`.

This module keeps no time and knows no engine: it reads profiles and evaluates them.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tanren_dsl.errors import TanrenError
from tanren_dsl.kernels.jit import inlined

BASE, PREFILL, ATTENTION, DECODE, CONTEXT, EMPTY = range(6)
"""Places in a coefficient vector."""

LATENCY_WIDTH = 6
TERMS = ("base", "prefill", "attention", "decode", "context", "empty")
"""Names of the places, as keys of a profile's table `microseconds`."""

BASES = ("measured", "estimate")
"""What the numbers of a profile rest on."""

_LARGEST = 1e9
"""Microseconds of a unit; more is a mistake, and times of steps stay far inside 64 bits."""

_TOP_KEYS = ("name", "source", "basis", "residual", "microseconds")


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency profile; the meaning of the numbers stands in the module's docstring.

    Attributes:
        name: how it is named on the command line.
        source: where the numbers come from, free text.
        basis: "measured" or "estimate".
        base_us: microseconds of a step that has tokens.
        prefill_us: microseconds of a prefill token.
        attention_us: microseconds of a million (query, key) pairs of prefill.
        decode_us: microseconds of a decode sequence.
        context_us: microseconds of a thousand tokens of context that decode sequences read.
        empty_us: microseconds of a step without tokens.
        residual: how far the sum is from measured steps, as text; None if nobody looked.

    Raises:
        TanrenError: a number is not from 0 to 1e9, or `basis` is another word.
    """

    name: str
    source: str
    basis: str
    base_us: float
    prefill_us: float
    attention_us: float
    decode_us: float
    context_us: float
    empty_us: float
    residual: str | None = None

    def __post_init__(self) -> None:
        if self.basis not in BASES:
            raise _wrong(f"latency {self.name}", "basis", " or ".join(BASES), self.basis)
        for term in TERMS:
            _checked(getattr(self, f"{term}_us"), f"latency {self.name}", term)

    @property
    def coefficients(self) -> npt.NDArray[np.float64]:
        """[6] the numbers, in microseconds, at the places `BASE` to `EMPTY`."""
        return np.array([getattr(self, f"{term}_us") for term in TERMS], np.float64)

    @property
    def summary(self) -> str:
        """One line for an output that rests on this profile: its name, its basis, its error."""
        error = "not held against an engine" if self.residual is None else self.residual
        return f"{self.name} ({self.basis}; {error})"


def constant(step_us: float) -> Latency:
    """Steps that all take `step_us` microseconds, whatever they do.

    Raises:
        TanrenError: `step_us` is not from 0 to 1e9.

    >>> constant(20_000).coefficients.tolist()
    [20000.0, 0.0, 0.0, 0.0, 0.0, 20000.0]
    """
    _checked(step_us, "a constant step", "step_us")
    source = f"every step takes {step_us:g} microseconds"
    return Latency("constant", source, "estimate", step_us, 0.0, 0.0, 0.0, 0.0, step_us)


@inlined
def step_time(
    coefficients: npt.NDArray[np.float64],
    tokens: int,
    prefill_tokens: int,
    pairs: float,
    decodes: int,
    context: float,
) -> int:
    """Whole microseconds of a step; at least 1 where there are tokens.

    The order of the operations is fixed: a copy of these lines in plain Python gives the same bits.

    Args:
        coefficients: [6] as `Latency.coefficients`.
        tokens: of the step, prefill and decode.
        prefill_tokens: of the step.
        pairs: (query, key) pairs of its prefill, not millions.
        decodes: its decode sequences.
        context: tokens that they read, not thousands.
    """
    if tokens == 0:
        value = coefficients[EMPTY]
    else:
        value = coefficients[BASE] + coefficients[PREFILL] * prefill_tokens
        value = value + coefficients[ATTENTION] * (pairs / 1e6)
        value = value + coefficients[DECODE] * decodes
        value = value + coefficients[CONTEXT] * (context / 1e3)
    whole: int = math.floor(value + 0.5)
    return max(1 if tokens else 0, whole)


def profiles() -> dict[str, Path]:
    """The profiles that come with the package, by name."""
    root = Path(str(files("tanren_dsl.examples")), "latency")
    return {path.stem: path for path in sorted(root.glob("*.toml"))}


def read_latency(name_or_path: str | Path) -> Latency:
    """A profile from a TOML file, or one that comes with the package by its name.

    Raises:
        TanrenError: there is neither, or the file is not a profile: names the file and the key,
            what was expected and what was found.
    """
    known = profiles()
    path = Path(name_or_path)
    if not path.exists() and str(name_or_path) in known:
        path = known[str(name_or_path)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        names = ", ".join(known)
        raise TanrenError(
            f"no latency profile {str(name_or_path)!r}, and no such file", hint=f"known profiles: {names}"
        ) from None
    except OSError as error:
        raise TanrenError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TanrenError(f"{path}: not UTF-8: byte 0x{error.object[error.start]:02x}") from None
    return parse_latency(text, str(path))


def parse_latency(text: str, place: str) -> Latency:
    """The profile of a text; `place` names it in errors. Unknown keys are refused.

    Raises:
        TanrenError: as `read_latency`.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TanrenError(f"{place}: not TOML: {error}") from None
    except (ValueError, RecursionError):
        raise TanrenError(f"{place}: not TOML: a number or the nesting is too big") from None
    _refuse_unknown(data, _TOP_KEYS, place, "")
    basis = _text(data, "basis", place)
    if basis not in BASES:
        raise _wrong(place, "basis", " or ".join(BASES), basis)
    numbers = data.get("microseconds")
    if not isinstance(numbers, dict):
        raise _wrong(place, "microseconds", f"a table with {', '.join(TERMS)}", numbers)
    _refuse_unknown(numbers, TERMS, place, "microseconds.")
    found = {f"{term}_us": _checked(numbers.get(term), place, f"microseconds.{term}") for term in TERMS}
    return Latency(
        name=_text(data, "name", place),
        source=_text(data, "source", place),
        basis=basis,
        residual=_text(data, "residual", place) if "residual" in data else None,
        **found,
    )


def latency_text(latency: Latency) -> str:
    """The profile as TOML, which `parse_latency` reads back as it was."""
    texts = {"name": latency.name, "source": latency.source, "basis": latency.basis}
    if latency.residual is not None:
        texts["residual"] = latency.residual
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in texts.items()]
    lines += ["", "[microseconds]"]
    lines += [f"{term} = {float(getattr(latency, f'{term}_us'))!r}" for term in TERMS]
    return "\n".join(lines) + "\n"


def _text(data: Mapping[str, Any], key: str, place: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _wrong(place, key, "a text", value)
    return value


def _checked(value: object, place: str, key: str) -> float:
    """A number of microseconds from a file or a caller, as it must be."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value <= _LARGEST:  # type: ignore[operator]
        raise _wrong(place, key, f"microseconds from 0 to {_LARGEST:g}", value)
    return float(value)  # type: ignore[arg-type]


def _refuse_unknown(data: Mapping[str, Any], known: tuple[str, ...], place: str, prefix: str) -> None:
    for key in data:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}"
            raise TanrenError(f"{place}: {prefix}{key}: unknown key", hint=hint)


def _wrong(place: str, key: str, expected: str, found: object) -> TanrenError:
    text = "nothing" if found is None else repr(found)
    return TanrenError(f"{place}: {key}: expected {expected}, found {text[:60]}")
