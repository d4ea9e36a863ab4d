"""Windows of a trace, for training and for validation, and the cache sizes tried on each.

A window is a run of consecutive requests, replayed from an empty cache. Training and
validation share no request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import RequestTable

Role: TypeAlias = Literal["train", "validation"]
ROLES: tuple[Role, ...] = ("train", "validation")


@dataclass(frozen=True, slots=True)
class Cut:
    """A range of requests: by number if both ends are whole numbers, else by share of the trace."""

    start: int | float
    stop: int | float

    def requests(self, count: int) -> tuple[int, int]:
        """Number of the first request and one past that of the last, in a trace of `count`.

        >>> Cut(0.25, 1.0).requests(1000), Cut(10, 20).requests(1000)
        ((250, 1000), (10, 20))
        """
        if isinstance(self.start, int) and isinstance(self.stop, int):
            return self.start, self.stop
        return round(self.start * count), round(self.stop * count)


@dataclass(frozen=True, slots=True)
class Capacities:
    """Cache sizes: blocks, or shares of a window's distinct blocks."""

    blocks: tuple[int, ...] = ()
    fractions: tuple[float, ...] = ()

    def of(self, table: RequestTable) -> tuple[tuple[str, int], ...]:
        """Label and size in blocks of each, for one window."""
        absolute = [(f"{blocks:,} blocks", blocks) for blocks in self.blocks]
        distinct = table.distinct_blocks
        shares = [(f"{100 * share:g} %", math.ceil(share * distinct)) for share in self.fractions]
        return (*absolute, *shares)


@dataclass(frozen=True, eq=False)
class Window:
    """Requests of one role with the cache sizes tried on them."""

    role: Role
    label: str
    table: RequestTable
    capacities: tuple[tuple[str, int], ...]


def cut_windows(
    trace: RequestTable, train: Sequence[Cut], validation: Sequence[Cut], capacities: Capacities
) -> tuple[Window, ...]:
    """The windows of both roles, training first.

    Raises:
        TanrenError: a window is empty or too long, the roles overlap, a request does not fit,
            or a window or a size is given twice.
    """
    ranges = {
        (role, number): _range(trace, f"windows.{role}[{number}]", cut)
        for role, cuts in zip(ROLES, (train, validation), strict=True)
        for number, cut in enumerate(cuts)
    }
    _refuse_overlap(ranges)
    _refuse_twice("windows", [f"{role} {start:,} to {stop:,}" for (role, _), (start, stop) in ranges.items()])
    windows = []
    for (role, _), (start, stop) in ranges.items():
        table = trace.slice(start, stop)
        label = f"requests {start:,} to {stop - 1:,}"
        sizes = capacities.of(table)
        _refuse_twice("capacities", [name for name, _ in sizes])
        for name, blocks in sizes:
            if blocks < table.longest():
                raise TanrenError(
                    f"capacities: {name} ({blocks:,} blocks) is smaller than a request of "
                    f"{table.longest():,} blocks in the {role} window, {label}",
                    hint=f"use {table.longest():,} blocks or more",
                )
        windows.append(Window(role, label, table, sizes))
    return tuple(windows)


def _range(trace: RequestTable, path: str, cut: Cut) -> tuple[int, int]:
    start, stop = cut.requests(len(trace))
    if not 0 <= start < stop <= len(trace):
        raise TanrenError(
            f"{path}: requests {start:,} to {stop:,} are no window of {trace.name}, which has {len(trace):,}"
        )
    return start, stop


def _refuse_overlap(ranges: dict[tuple[Role, int], tuple[int, int]]) -> None:
    for (role, number), (start, stop) in ranges.items():
        for (other, of_other), (low, high) in ranges.items():
            if role == "train" and other == "validation" and max(start, low) < min(stop, high):
                raise TanrenError(
                    f"windows.train[{number}] and windows.validation[{of_other}] share requests "
                    f"{max(start, low):,} to {min(stop, high) - 1:,}",
                    hint="a score on what was trained on says nothing",
                )


def _refuse_twice(path: str, labels: Sequence[str]) -> None:
    """A configuration is known by its labels; one that stands twice would count twice."""
    for place, label in enumerate(labels):
        if label in labels[:place]:
            raise TanrenError(f"{path}: {label} stands there twice", hint="leave one out")
