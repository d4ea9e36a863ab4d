"""Evictions that cost hits: a policy beside another one, request by request, in replay mode.

Where a request hits less than it does under the other policy, its prefix breaks at a block that was
evicted and that the other one kept. The lost hits, that block's own and those behind it, belong to the
eviction of that block: so the worst decisions are found. Many blocks behind the break were evicted as
well, and keeping the first alone would not have helped; so, where evictions are compared by their
signals, each of them bears its own block. Either way each lost hit is counted once, and hits gained
less hits lost is the difference of the two policies.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from tanren_dsl.diagnosis.compare import NEVER, Compared, Evictions, compare
from tanren_dsl.diagnosis.diagnosis import Case, Diagnosis, Sample, top, verdict_of
from tanren_dsl.diagnosis.features import Features, features_of, in_units, shown
from tanren_dsl.diagnosis.patterns import find_patterns
from tanren_dsl.diagnosis.separation import contrasts, separations
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.signals import signals_of
from tanren_dsl.sim.replay import MODE, simulate_belady
from tanren_dsl.sim.rule import Victims, belady, considered_extra, stock, victims_of
from tanren_dsl.trace.table import Ints, RequestTable

LISTED = 10
"""Decisions that are listed."""
_SHOWN = ("age", "lifetime", "depth", "chain", "uses", "children")


def diagnose_evict(
    table: RequestTable, policy: Policy, compile_ordering: CompileOrdering, capacity: int, *,
    engine: str = "vllm-0.19", against: Policy | Literal["belady"] | None = None,
) -> Diagnosis:  # fmt: skip
    """The evictions of a policy that lost hits which another policy has, in replay mode.

    Args:
        table: the trace.
        policy: an evict policy.
        compile_ordering: the backend.
        capacity: usable blocks, of the trace's block size.
        engine: whose free order and victim rule are copied.
        against: another evict policy, or Belady, who knows the future; None: the engine's own order,
            which is LRU.

    Raises:
        TanrenError: unknown engine, or a capacity smaller than one request.
        UnsupportedError: a policy schedules, or reads a signal that replay mode does not provide.
    """
    victims = victims_of(policy, compile_ordering, capacity, MODE)
    base, name = _base(against, compile_ordering, capacity)
    compared = compare(table, capacity, victims, considered_extra(policy.percent, capacity), base, engine)
    found = compared.evictions
    features = features_of("evict", found.values, found.means)
    regret, lost, right = found.missed.astype(float), found.lost.astype(float), found.wanted == NEVER
    separated = separations(features, regret > 0, right)
    patterns = find_patterns(features, regret, right, rank=lost)
    totals = _totals(table, compared, capacity, engine, policy)
    at_s = table.arrival_us[found.request] / 1e6
    return Diagnosis(
        kind="evict",
        policy=policy.name,
        against=name,
        mode=MODE,
        engine=engine,
        trace=table.name,
        unit="hits",
        totals=totals,
        summary=_summary(totals, policy, name, engine),
        verdict=verdict_of(regret, right, separated, patterns, name),
        separations=separated,
        preferred=_preferred(found),
        contrasts=contrasts("evict", found.values, found.idle_means, regret > 0),
        patterns=patterns,
        worst=tuple(_case(place, found, features, table, name) for place in top(lost, LISTED)),
        examples=tuple(_case(one.example, found, features, table, name) for one in patterns),
        sample=Sample(features, regret, right, np.asarray(at_s)),
    )


def _base(
    against: Policy | Literal["belady"] | None, compile_ordering: CompileOrdering, capacity: int
) -> tuple[Victims, str]:
    if against is None:
        return stock(), "lru"
    if isinstance(against, str):
        return belady(capacity), "belady"
    return victims_of(against, compile_ordering, capacity, MODE), against.name


def _totals(
    table: RequestTable, compared: Compared, capacity: int, engine: str, policy: Policy
) -> dict[str, float]:
    hits, base, found = compared.hits, compared.base_hits, compared.evictions
    free = confined = simulate_belady(table, capacity, engine=engine)
    if policy.percent is not None:
        window = considered_extra(policy.percent, capacity)
        confined = simulate_belady(table, capacity, engine=engine, window=window)
    lost = np.maximum(base - hits, 0)
    breaks = found.lost > 0
    later = found.wanted[breaks] - found.request[breaks]
    seconds = (table.arrival_us[found.wanted[breaks]] - table.arrival_us[found.request[breaks]]) / 1e6
    worst_first = np.sort(found.lost[breaks])[::-1]
    return {
        "capacity": capacity,
        "lookups": table.lookups,
        "hits": int(hits.sum()),
        "base_hits": int(base.sum()),
        "hits_gained": int(np.maximum(hits - base, 0).sum()),
        "requests_gaining": int((hits > base).sum()),
        "hits_lost": int(lost.sum()),
        "requests_losing": int((lost > 0).sum()),
        "evictions": len(found),
        "evictions_never_wanted": int((found.wanted == NEVER).sum()),
        "evictions_regretted": int((found.missed > 0).sum()),
        "evictions_breaking": int(breaks.sum()),
        "worst_tenth_lost": int(worst_first[: -(-len(worst_first) // 10)].sum()),
        "median_requests_until_wanted": float(np.median(later)) if len(later) else 0.0,
        "median_seconds_until_wanted": float(np.median(seconds)) if len(seconds) else 0.0,
        "belady_hits": free.hits,
        "belady_confined_hits": confined.hits,
        "hits_lost_by_belady_too": _lost_too(lost, base, free.hits_each),
        "hits_lost_by_belady_confined_too": _lost_too(lost, base, confined.hits_each),
    }


def _lost_too(lost: Ints, base: Ints, others: Ints) -> int:
    """Hits that another policy loses against the base at the same requests."""
    return int(np.minimum(lost, np.maximum(base - others, 0)).sum())


def _summary(totals: dict[str, float], policy: Policy, against: str, engine: str) -> tuple[str, ...]:
    n = {name: f"{value:,.0f}" for name, value in totals.items()}
    change = totals["hits"] - totals["base_hits"]
    lines = [
        f"{policy.name} against {against}, {MODE} mode, {engine}, {n['capacity']} blocks: {n['hits']} hits "
        f"against {n['base_hits']}, of {n['lookups']} lookups ({change:+,.0f}, "
        f"{100 * change / (totals['lookups'] or 1):+.2f} points).",
        f"Gained {n['hits_gained']} hits in {n['requests_gaining']} requests, lost {n['hits_lost']} in "
        f"{n['requests_losing']}.",
    ]
    if not totals["evictions"]:
        return (*lines, "Nothing was evicted: every block fits.")
    lines.append(
        f"{n['evictions']} evictions: {n['evictions_never_wanted']} never wanted again, "
        f"{n['evictions_regretted']} cost hits that {against} has, {n['evictions_breaking']} by breaking "
        "a prefix."
    )
    within = "" if policy.percent is None else f" within the considered set ({policy.percent:g} %)"
    if totals["hits_lost"]:
        free = f", {n['hits_lost_by_belady_too']} if free to choose" if within and against != "belady" else ""
        tenth = 100 * totals["worst_tenth_lost"] / totals["hits_lost"]
        lines.append(
            f"The worst tenth of the broken prefixes lost {tenth:.0f} % of these hits; half were wanted "
            f"again within {n['median_requests_until_wanted']} requests or "
            f"{n['median_seconds_until_wanted']} s."
        )
        lines.append(
            "Unavoidable: Belady, who knows the future, loses "
            f"{n['hits_lost_by_belady_confined_too']} of the {n['hits_lost']} too{within}{free}."
        )
    headroom = totals["belady_hits"] - totals["hits"]
    confined = f", {totals['belady_confined_hits'] - totals['hits']:+,.0f}{within}" if within else ""
    return (*lines, f"Headroom over {policy.name}: Belady {headroom:+,.0f} hits{confined}.")


def _preferred(found: Evictions) -> str:
    """What stayed while these were evicted."""
    regretted = found.missed > 0
    if not regretted.any():
        return "Nothing was kept in place of a regretted block"
    share = 100 * float((found.idle[regretted] > 0).mean())
    return (
        f"At {share:.0f} % of these decisions the considered set held blocks that were never wanted again "
        f"and stayed, {np.median(found.idle[regretted]):,.0f} in the median; the evicted against their mean"
    )


def _case(place: int, found: Evictions, features: Features, table: RequestTable, against: str) -> Case:
    """One eviction in words and as data."""
    request, wanted, block = int(found.request[place]), int(found.wanted[place]), int(found.block[place])
    at, seconds = (
        float(us) / 1e6 for us in (table.arrival_us[request], np.diff(table.arrival_us[[request, wanted]])[0])
    )
    rows = signals_of("evict")
    signals = {name: float(column[place]) for name, column in found.values.items()}
    lost, missed = int(found.lost[place]), int(found.missed[place])
    held, again = int(found.held[place]), int(found.held_wanted[place])
    values = ", ".join(f"{name} {shown(signals[name], rows[name].type)}" for name in _SHOWN)
    outcome = (
        f"{lost:,} hits lost; held instead: {held:,} blocks that {against} had not, {again:,} wanted later"
        if lost
        else f"{missed:,} hits lost at it, behind an earlier break"
    )
    text = (
        f"request {request:,} at {at:,.1f} s evicted block {block} ({values}); wanted {wanted - request:,} "
        f"requests or {seconds:,.1f} s later, {outcome}"
    )
    facts = {
        "request": request,
        "at_s": at,
        "block": block,
        "hits_lost": lost,
        "own_hits_lost": missed,
        "wanted_by_request": wanted,
        "requests_later": wanted - request,
        "seconds_later": seconds,
        "considered": int(found.considered[place]),
        "held_instead": held,
        "held_instead_wanted_again": again,
        "signals": {name: in_units(value, rows[name].type) for name, value in signals.items()},
        "relative": {
            row.text: float(features.values[place, k])
            for k, row in enumerate(features.rows)
            if row.text not in signals
        },
    }
    return Case(place, float(lost or missed), text, facts)
