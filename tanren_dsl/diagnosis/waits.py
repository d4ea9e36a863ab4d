"""Requests that waited longer than first come, first served (FCFS) would have had them wait.

The regret of a request is its time to first token (TTFT) under the policy less that under FCFS. Both
serve the same requests with the same server. Requests are compared by what was known of them when the
policy first ranked them; what they waited behind is told by the requests that arrived later and were
admitted before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tanren_dsl.diagnosis.diagnosis import Case, Diagnosis, Sample, top, verdict_of
from tanren_dsl.diagnosis.features import Doubles, Features, features_of, in_units
from tanren_dsl.diagnosis.overtakes import Waits, at_first, at_overtaking, compare, steps_of
from tanren_dsl.diagnosis.patterns import find_patterns
from tanren_dsl.diagnosis.queue import Ints, View, views
from tanren_dsl.diagnosis.separation import contrasts, separations
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.signals import signals_of
from tanren_dsl.sim.latency import Latency
from tanren_dsl.sim.service import GUARD_SEED_S, by_priority, service_of
from tanren_dsl.sim.serving import MODE, STARTS, Served, Server, serve
from tanren_dsl.trace.table import RequestTable

LISTED = 10
"""Requests that are listed."""
BASE = "fcfs"
TAIL = 99.0


def diagnose_schedule(
    table: RequestTable, policy: Policy, compile_ordering: CompileOrdering, server: Server, latency: Latency,
    *, guard: bool = True, guard_seed_s: float = GUARD_SEED_S,
) -> Diagnosis:  # fmt: skip
    """The requests that a schedule policy kept waiting longer than FCFS does, in serving mode.

    Args:
        table: R requests, each with an output of at least one token, at the load that is meant.
        policy: a schedule policy.
        compile_ordering: the backend.
        server: sizes.
        latency: what a step takes.
        guard: serve first what waits far longer than the mean.
        guard_seed_s: mean wait that the guard starts from, in seconds.

    Raises:
        TanrenError: no requests, or one that the engine refuses or can never hold.
        UnsupportedError: the policy evicts, or reads a signal that engine mode does not provide.
    """
    service = service_of(policy, compile_ordering, guard=guard, seed_s=guard_seed_s)
    own = serve(table, server, latency, service=service, keep_steps=True)
    base = serve(table, server, latency)
    work = table.prompt_tokens + table.output_tokens
    oracle = serve(table, server, latency, service=by_priority(), priority=work)
    waits = compare(table, own, base)
    begins = own.steps[:, STARTS]
    joined = np.searchsorted(begins, table.arrival_us)
    passed = steps_of(begins, own, waits.first)
    chosen = set(joined.tolist()) | set(passed[passed >= 0].tolist())
    worst = top(waits.regret_s, LISTED)
    chosen |= {int(step) for step in steps_of(begins, own, waits.last)[worst] if step >= 0}
    seen = views(table, server, latency, service, {step: int(begins[step]) for step in chosen})

    values, means = at_first(seen, joined)
    features = features_of("schedule", values, means)
    regret, right = waits.regret_s, waits.regret_s <= 0
    separated = separations(features, regret > 0, right)
    patterns = find_patterns(features, regret, right)
    overtaken, overtaking = at_overtaking(seen, passed, own, table)
    totals = _totals(waits, oracle, table)

    def case(request: int) -> Case:
        return _case(request, waits, table, seen, begins, values, features)

    extra = [one.example for one in patterns]
    missing = {int(step) for step in steps_of(begins, own, waits.last)[extra] if step >= 0} - chosen
    seen |= views(table, server, latency, service, {step: int(begins[step]) for step in missing})
    return Diagnosis(
        kind="schedule",
        policy=policy.name,
        against=BASE,
        mode=MODE,
        engine=server.engine,
        trace=table.name,
        unit="s",
        totals=totals,
        summary=_summary(totals, policy.name, server.engine),
        verdict=verdict_of(regret, right, separated, patterns, BASE),
        separations=separated,
        preferred="When the first later request passed them, the regretted against those admitted",
        contrasts=contrasts("schedule", overtaken, overtaking, regret > 0),
        patterns=patterns,
        worst=tuple(case(request) for request in worst),
        examples=tuple(case(request) for request in extra),
        sample=Sample(
            features,
            regret,
            right,
            np.asarray(table.arrival_us / 1e6),
            {
                "ttft_s": own.ttft_s,
                "base_ttft_s": base.ttft_s,
                "prompt_tokens": table.prompt_tokens.astype(float),
                "wait_s": own.wait_s,
                "base_wait_s": base.wait_s,
                "overtakers": waits.overtakers.astype(float),
                "preemptions": own.preemptions.astype(float),
            },
        ),
    )


def _totals(waits: Waits, oracle: Served, table: RequestTable) -> dict[str, float]:
    own, base, regret = waits.own.ttft_s, waits.base.ttft_s, waits.regret_s
    lost, tail = np.maximum(regret, 0), float(np.percentile(own, TAIL))
    beyond = own >= tail
    losing, worst_first = int((regret > 0).sum()), np.sort(lost)[::-1]
    unavoidable = np.minimum(lost, np.maximum(oracle.ttft_s - base, 0))
    return {
        "requests": len(table),
        "mean_s": float(own.mean()),
        "base_mean_s": float(base.mean()),
        "p99_s": tail,
        "base_p99_s": float(np.percentile(base, TAIL)),
        "oracle_mean_s": float(oracle.ttft_s.mean()),
        "seconds_gained": float(np.maximum(-regret, 0).sum()),
        "requests_gaining": int((regret < 0).sum()),
        "seconds_lost": float(lost.sum()),
        "requests_losing": losing,
        "worst_tenth_seconds_lost": float(worst_first[: -(-losing // 10)].sum()),
        "seconds_lost_by_oracle_too": float(unavoidable.sum()),
        "requests_overtaken": int((waits.overtakers > 0).sum()),
        "preemptions": int(waits.own.preemptions.sum()),
        "base_preemptions": int(waits.base.preemptions.sum()),
        "rescued": waits.own.totals.rescued,
        "tail_requests": int(beyond.sum()),
        "tail_also_in_base_tail": int((base[beyond] >= np.percentile(base, TAIL)).sum()),
        "tail_median_prompt_tokens": float(np.median(table.prompt_tokens[beyond])),
        "median_prompt_tokens": float(np.median(table.prompt_tokens)),
        "tail_median_overtakers": float(np.median(waits.overtakers[beyond])),
        "tail_preempted": int((waits.own.preemptions[beyond] > 0).sum()),
    }


def _summary(totals: dict[str, float], name: str, engine: str) -> tuple[str, ...]:
    t = totals
    n = {key: f"{value:,.0f}" for key, value in totals.items()}
    s = {key: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for key, value in totals.items()}

    def against(key: str) -> str:
        own, base = t[key], t[f"base_{key}"]
        return f"{s[key]} s against {s[f'base_{key}']} s ({100 * (own / base - 1) if base else 0.0:+.1f} %)"

    lines = [
        f"{name} against {BASE}, {MODE} mode, {engine}, {n['requests']} requests: mean TTFT "
        f"{against('mean_s')}, p99 {against('p99_s')}.",
        f"Gained {s['seconds_gained']} s in {n['requests_gaining']} requests, lost {s['seconds_lost']} s in "
        f"{n['requests_losing']}; {n['requests_overtaken']} requests were overtaken. Preemptions "
        f"{n['preemptions']} against {n['base_preemptions']}; the guard rescued {n['rescued']}.",
        f"The p99 is made by {n['tail_requests']} requests of {n['tail_median_prompt_tokens']} prompt "
        f"tokens in the median (all: {n['median_prompt_tokens']}), overtaken by "
        f"{n['tail_median_overtakers']}; {n['tail_also_in_base_tail']} of them make that of {BASE} too, "
        f"{n['tail_preempted']} were preempted.",
    ]
    if t["seconds_lost"]:
        share = 100 * t["seconds_lost_by_oracle_too"] / t["seconds_lost"]
        tenth = 100 * t["worst_tenth_seconds_lost"] / t["seconds_lost"]
        lines.append(
            f"The worst tenth of the losing requests lost {tenth:.0f} % of the seconds. Hard to avoid: "
            f"shortest work first with the outputs known (mean {s['oracle_mean_s']} s) loses {share:.0f} % "
            "of these seconds at the same requests."
        )
    return tuple(lines)


def _case(
    request: int, waits: Waits, table: RequestTable, seen: dict[int, View], begins: Ints,
    values: dict[str, Doubles], features: Features,
) -> Case:  # fmt: skip
    """One request in words and as data."""
    rows = signals_of("schedule")
    own, base, at = waits.own.ttft_s[request], waits.base.ttft_s[request], table.arrival_us[request] / 1e6
    count, tokens = int(waits.overtakers[request]), int(waits.overtaking_tokens[request])
    steps = {
        name: _overtaking(request, int(which[request]), waits.own, seen, begins)
        for name, which in (("first", waits.first), ("last", waits.last))
        if which[request] >= 0
    }
    pushed = int(waits.own.preemptions[request])
    text = (
        f"request {request:,}, arrived at {at:,.1f} s, {table.prompt_tokens[request]:,} prompt tokens: TTFT "
        f"{own:,.3g} s against {base:,.3g} s; waited {waits.own.wait_s[request]:,.3g} s"
    )
    if count:
        text += f" while {count:,} later ones ({tokens:,} prompt tokens) went before it; " + "; ".join(
            f"{name} {one['request']:,} ({one['prompt_tokens']:,.0f} tokens, waited {one['wait_s']:,.3g} s) "
            f"after {one['own_wait_s']:,.3g} s, {one['waiting']:,.0f} waiting, {one['running']:,.0f} "
            f"running, kv_free {one['kv_free']:.2g}"
            for name, one in steps.items()
        )
    else:
        text += ", overtaken by nobody"
    text += f"; preempted {pushed:,} times" if pushed else ""
    facts = {
        "request": request,
        "arrival_s": float(at),
        "regret_s": float(waits.regret_s[request]),
        "ttft_s": float(own),
        "base_ttft_s": float(base),
        "wait_s": float(waits.own.wait_s[request]),
        "base_wait_s": float(waits.base.wait_s[request]),
        "prompt_tokens": int(table.prompt_tokens[request]),
        "output_tokens": int(table.output_tokens[request]),
        "overtakers": count,
        "overtaking_prompt_tokens": tokens,
        "first_overtaker": steps.get("first"),
        "last_overtaker": steps.get("last"),
        "preemptions": pushed,
        "signals": {
            name: in_units(float(column[request]), rows[name].type) for name, column in values.items()
        },
        "relative": {
            row.text: float(features.values[request, k])
            for k, row in enumerate(features.rows)
            if row.text not in values
        },
    }
    return Case(request, float(waits.regret_s[request]), text, facts)


def _overtaking(request: int, other: int, own: Served, seen: dict[int, View], begins: Ints) -> dict[str, Any]:
    """A later request and the one that it overtook, when it was admitted."""
    view = seen[int(np.searchsorted(begins, own.first_scheduled_us[other]))]
    signals, mine, its = view.signals(), view.place(request), view.place(other)
    return {
        "request": other,
        "at_s": view.decision["now"] / 1e6,
        "prompt_tokens": float(signals["prompt_tokens"][its]),
        "max_tokens": float(signals["max_tokens"][its]),
        "cached_tokens": float(signals["cached_tokens"][its]),
        "wait_s": float(signals["wait"][its]) / 1e6,
        "own_wait_s": float(signals["wait"][mine]) / 1e6,
        "own_cached_tokens": float(signals["cached_tokens"][mine]),
        "waiting": view.decision["waiting"],
        "running": view.decision["running"],
        "kv_free": view.decision["kv_free"],
    }
