"""A comparison from its plan to its results: rounds in a balanced order, each kept when it ends.

Between two rounds the cache is emptied, the server warmed up with prompts of its own, and the cache
emptied again. A round that is on disk is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tanren_dsl.bench.client import Request, completion, replay
from tanren_dsl.bench.cores import pinned
from tanren_dsl.bench.fleet import Fleet
from tanren_dsl.bench.metrics import Metrics
from tanren_dsl.bench.prompts import prompts, warm_up_prompts
from tanren_dsl.bench.results import Measured, results_of
from tanren_dsl.bench.schedule import Turn, turns
from tanren_dsl.bench.server import Server
from tanren_dsl.bench.store import Counted, Report, Round, Store
from tanren_dsl.errors import TanrenError
from tanren_dsl.ir import Policy
from tanren_dsl.trace.table import RequestTable

_WARM_UP_TOKENS = 200
_WARM_UP_OUTPUT = 8
_STILL_S = 2.0
"""A share of the round before may still be on its way into the counters; they are read when they rest."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A side of the comparison; `policy` None is the engine's own order."""

    name: str
    policy: Policy | None


@dataclass(frozen=True, slots=True)
class Load:
    """The trace at one pace. `rate` is in requests per second, None as in the trace."""

    name: str
    rate: float | None
    table: RequestTable


@dataclass(frozen=True)
class Plan:
    """Everything that is measured.

    `vocabulary` bounds the token ids, `timeout_s` is for a request, `warm_up` counts requests,
    `cores` are the client's. With `serial`, loads have no pace: one request is in flight. After
    `limit_s` no round begins that would be likely to end later.
    """

    arms: Sequence[Arm]
    loads: Sequence[Load]
    capacities: Sequence[int | None]
    rounds: int
    vocabulary: int
    warm_up: int
    timeout_s: float
    seed: int
    serial: bool = False
    cores: str | None = None
    limit_s: float | None = None


Predict = Callable[[Arm, Load, int | None, float | None], int | None]
"""Hit tokens of an arm under a load at a capacity, given the time of a step in seconds if one is known."""


def measure(plan: Plan, fleet: Fleet, store: Store, say: Callable[[str], None]) -> int:
    """Run every round that is not on disk; the number of rounds that all arms now have.

    Raises:
        TanrenError: a server does not start, does not answer, or refuses the warm-up.
    """
    began = time.monotonic()
    requests: dict[tuple[str, str], list[Request]] = {}
    try:
        for capacity in plan.capacities:
            for turn in turns(len(plan.arms), len(plan.loads), plan.rounds):
                spent_s = time.monotonic() - began
                if turn.round and _would_be_late(plan, store, capacity, turn, spent_s):
                    say(f"no time for round {turn.round + 1}")
                    return turn.round
                _turn(plan, fleet, store, say, capacity, turn, requests)
    finally:
        fleet.close()
    return plan.rounds


def collect(
    plan: Plan, store: Store, rounds: int, settings: Mapping[str, Any], predict: Predict | None
) -> list[dict[str, Any]]:
    """Results of what is on disk, in the form that `results.py` describes; `settings` go into each config."""
    found = []
    for capacity in plan.capacities:
        for load in plan.loads:
            measured = measured_arms(plan, store, rounds, capacity, load, predict)
            config = {
                **settings,
                "load": load.name,
                "rate": load.rate,
                "capacity": capacity,
                "rounds": rounds,
            }
            found += results_of(config, measured, plan.seed)
    return found


def measured_arms(
    plan: Plan, store: Store, rounds: int, capacity: int | None, load: Load, predict: Predict | None
) -> list[Measured]:
    """All arms of one configuration, from disk."""
    name = config_name(capacity, load)
    arms = [
        (arm, [store.read_round(name, arm.name, number) for number in range(rounds)]) for arm in plan.arms
    ]
    step_s = None if plan.serial else _step_s(arms[0][1])
    return [_measured(store, arm, done, capacity, load, step_s, predict) for arm, done in arms]


def config_name(capacity: int | None, load: Load) -> str:
    """The folder of a configuration."""
    return f"{'own' if capacity is None else capacity}-blocks_{load.name}"


def _turn(
    plan: Plan, fleet: Fleet, store: Store, say: Callable[[str], None], capacity: int | None, turn: Turn,
    requests: dict[tuple[str, str], list[Request]],
) -> None:  # fmt: skip
    arm = plan.arms[turn.arm]
    for number in turn.loads:
        load = plan.loads[number]
        config = config_name(capacity, load)
        title = f"{config}, {arm.name}, round {turn.round + 1} of {plan.rounds}"
        if store.has_round(config, arm.name, turn.round):
            say(f"{title}: on disk")
            continue
        server, report = fleet.use(capacity, turn.arm)
        key = (server.model, load.name)
        if key not in requests:
            requests[key] = _requests(server.model, load, plan.vocabulary)
        _warm_up(plan, server)
        done = _round(plan, server, report, requests[key])
        store.write_round(config, arm.name, turn.round, done)
        say(f"{title}: {_summary(done)}")


def _requests(model: str, load: Load, vocabulary: int) -> list[Request]:
    table = load.table
    return [
        completion(model, prompt, int(table.output_tokens[r]), float(table.arrival_us[r]) / 1e6)
        for r, prompt in enumerate(prompts(table, vocabulary))
    ]


def _warm_up(plan: Plan, server: Server) -> None:
    server.reset_prefix_cache()
    made = warm_up_prompts(plan.warm_up, _WARM_UP_TOKENS, plan.vocabulary)
    sent = [completion(server.model, prompt, _WARM_UP_OUTPUT) for prompt in made]
    failed = [one.error for one in replay(server.url, sent, timeout_s=plan.timeout_s) if one.error]
    if failed:
        raise TanrenError(f"{server.url}: the warm-up failed: {failed[0]}")
    server.reset_prefix_cache()


def _round(plan: Plan, server: Server, report: str | None, requests: Sequence[Request]) -> Round:
    before = _resting(server)
    began = time.monotonic()
    with pinned(plan.cores):
        records = replay(server.url, requests, timeout_s=plan.timeout_s, serial=plan.serial)
    duration_s = time.monotonic() - began
    try:
        after = _resting(server)
    except TanrenError:  # the server is gone; the errors of its requests say so
        return Round(records, Counted(None, None, None, report, duration_s))
    counted = Counted(
        queried_tokens=after.prefix_queries - before.prefix_queries,
        hit_tokens=after.prefix_hits - before.prefix_hits,
        preemptions=after.preemptions - before.preemptions,
        server=report,
        duration_s=duration_s,
    )
    return Round(records, counted)


def _resting(server: Server) -> Metrics:
    """The counters, once two readings are the same."""
    deadline = time.monotonic() + _STILL_S
    found = server.metrics()
    while time.monotonic() < deadline:
        time.sleep(0.1)
        again = server.metrics()
        if again == found:
            break
        found = again
    return found


def _would_be_late(plan: Plan, store: Store, capacity: int | None, turn: Turn, spent_s: float) -> bool:
    """At the start of a round: whether it would end after the limit if it takes as long as the one before."""
    if plan.limit_s is None or turn.arm != (len(plan.arms) - 1 if turn.round % 2 else 0):
        return False
    before = [
        store.read_round(config_name(capacity, load), arm.name, turn.round - 1).counted.duration_s + 4.0
        for arm in plan.arms
        for load in plan.loads
    ]
    return spent_s + sum(before) > plan.limit_s


def _measured(
    store: Store, arm: Arm, done: Sequence[Round], capacity: int | None, load: Load, step_s: float | None,
    predict: Predict | None,
) -> Measured:  # fmt: skip
    names = sorted({one.counted.server for one in done if one.counted.server is not None})
    reports = [store.read_report(name) for name in names]
    return Measured(
        name=arm.name,
        is_default=arm.policy is None,
        rounds=done,
        faults=_faults(reports),
        predicted_hit_tokens=None if predict is None else predict(arm, load, capacity, step_s),
        notes=_notes(reports),
    )


def _faults(reports: Sequence[Report | None]) -> int | None:
    """All faults of an arm's servers; None if one of them is not known."""
    known = [report.faults for report in reports if report is not None and report.faults is not None]
    return sum(known) if reports and len(known) == len(reports) else None


def _notes(reports: Sequence[Report | None]) -> tuple[str, ...]:
    lines = [line for report in reports if report is not None for line in report.policy_lines]
    return tuple(dict.fromkeys(line for line in lines if "stands aside" in line or " is off" in line))


def _step_s(done: Sequence[Round]) -> float | None:
    """The mean time of an output token, as a step under load takes it."""
    values = [tpot for one in done for record in one.records if (tpot := record.tpot_s) is not None]
    return sum(values) / len(values) if values else None


def _summary(done: Round) -> str:
    times = sorted(r.ttft_s for r in done.records if r.error is None and r.ttft_s is not None)
    middle = f", median TTFT {1000 * times[len(times) // 2]:.0f} ms" if times else ""
    failed = [record.error for record in done.records if record.error is not None]
    errors = f", {len(failed)} failed ({failed[0]})" if failed else ""
    return f"{len(done.records)} requests in {done.counted.duration_s:.0f} s{middle}{errors}"
