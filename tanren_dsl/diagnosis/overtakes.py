"""Who overtook whom in the waiting queue, and what was known of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tanren_dsl.diagnosis.features import Doubles
from tanren_dsl.diagnosis.queue import DECISION, REQUEST_SIGNALS, Ints, View
from tanren_dsl.sim.serving import Served
from tanren_dsl.trace.table import RequestTable

NOBODY = -1
"""In place of the number of a request that is not there."""


@dataclass(frozen=True, eq=False)
class Waits:
    """R requests under the policy and under FCFS, and who overtook whom.

    Attributes:
        own, base: what was lived through.
        regret_s: [R] seconds of TTFT beyond FCFS's.
        overtakers: [R] requests that arrived later and were admitted at an earlier moment.
        overtaking_tokens: [R] their prompts in all.
        first, last: [R] the first and the last of them by admission; -1 for nobody.
    """

    own: Served
    base: Served
    regret_s: Doubles
    overtakers: Ints
    overtaking_tokens: Ints
    first: Ints
    last: Ints


def compare(table: RequestTable, own: Served, base: Served) -> Waits:
    """Each request under both, and who overtook it under the first. Takes R * R / 2 comparisons."""
    admitted, tokens = own.first_scheduled_us, table.prompt_tokens
    count, total = np.zeros((2, len(table)), np.int64)
    first, last = np.full((2, len(table)), NOBODY, np.int64)
    for request in range(len(table)):
        later = request + 1 + np.flatnonzero(admitted[request + 1 :] < admitted[request])
        if len(later):
            count[request], total[request] = len(later), tokens[later].sum()
            order = np.argsort(admitted[later], kind="stable")
            first[request], last[request] = later[order[0]], later[order[-1]]
    return Waits(own, base, own.ttft_s - base.ttft_s, count, total, first, last)


def steps_of(begins: Ints, own: Served, requests: Ints) -> Ints:
    """[n] the first step at the moment at which each request was admitted; -1 for nobody."""
    moments = own.first_scheduled_us[np.maximum(requests, 0)]
    return np.where(requests >= 0, np.searchsorted(begins, moments), NOBODY)


def at_first(seen: Mapping[int, View], joined: Ints) -> tuple[dict[str, Doubles], dict[str, Doubles]]:
    """Signals [R] of each request at the step that first ranks it, and their means over the waiting."""
    values = {name: np.zeros(len(joined)) for name in (*REQUEST_SIGNALS, *DECISION)}
    means = {name: np.zeros(len(joined)) for name in REQUEST_SIGNALS}
    for request, step in enumerate(joined.tolist()):
        view = seen[step]
        place = view.place(request)
        for name, column in view.signals().items():
            values[name][request], means[name][request] = column[place], column.sum() / len(column)
        for name in DECISION:
            values[name][request] = view.decision[name]
    return values, means


def at_overtaking(
    seen: Mapping[int, View], passed: Ints, own: Served, table: RequestTable
) -> tuple[dict[str, Doubles], dict[str, Doubles]]:
    """Signals [R] when the first overtaker was admitted: one's own, and the mean of those admitted then.

    `wait` is left out: who arrived later has always waited less.
    """
    names = [name for name in REQUEST_SIGNALS if name not in ("arrival", "wait")]
    overtaken, overtaking = ({name: np.full(len(table), np.nan) for name in names} for _ in range(2))
    for request in np.flatnonzero(passed >= 0).tolist():
        view = seen[int(passed[request])]
        place, now = view.place(request), view.decision["now"]
        taken = (view.requests > request) & (own.first_scheduled_us[view.requests] == now)
        signals = view.signals()
        for name in names:
            column = signals[name]
            overtaken[name][request], overtaking[name][request] = column[place], column[taken].mean()
    return overtaken, overtaking
