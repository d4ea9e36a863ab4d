"""Drive the real scheduler and the simulator over one workload and set them side by side.

The engine gets the emitted file, so three things are held against each other at once:
the simulator's copy of the engine, the policy's machine code in it, and the file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tanren_dsl.conform.harness import EngineSpec, TokenTable, compare, run_engine
from tanren_dsl.conform.vllm_env import check_env
from tanren_dsl.conform.worker import Worker
from tanren_dsl.errors import TanrenError
from tanren_dsl.ir import Policy
from tanren_dsl.kernels.abi import CompileOrdering
from tanren_dsl.sim.engine import MODE, EngineLimits, EngineResult, EngineRun
from tanren_dsl.sim.latency import Latency
from tanren_dsl.sim.profiles import profile_of
from tanren_dsl.sim.rule import stock, victims_of
from tanren_dsl.sim.service import by_priority, first_come, service_of
from tanren_dsl.trace.blocks import engine_blocks, output_token_ids, prompt_token_ids
from tanren_dsl.trace.load import compress
from tanren_dsl.trace.table import Ints, RequestTable

_PATIENCE_S = 2.0
"""Mean time after which an aborted request's client gives up."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that decides a conformance run. Sizes in blocks, sequences, tokens; step in milliseconds.

    `capacity` None means the least number of blocks in which the longest request fits, plus
    a fifth: so short that blocks are evicted all the time. `aborts` is the share of requests
    whose client gives up, at a random (seeded) time within some seconds of its arrival.
    `scheduling` is the engine's own policy, `fcfs` or `priority`; with `priority`, and with a
    schedule policy, each request gets a random (seeded) priority of 0 to 3. A step takes
    `step_ms` unless there is a latency profile. The first `skip` requests are left out, and
    time runs `load` times as fast.
    """

    engine: str
    capacity: int | None = None
    block_size: int = 16
    rate: float | None = None
    outputs: int | None = None
    requests: int | None = None
    asynchronous: bool = False
    step_ms: float = 20.0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    identity: bool = True
    aborts: float = 0.0
    scheduling: str = "fcfs"
    long_prefill_token_threshold: int = 0
    caching: bool = True
    guard: bool = True
    skip: int = 0
    load: float | None = None
    latency: Latency | None = None


@dataclass(frozen=True)
class Conformance:
    """The outcome; `events` are the engine's own lines."""

    policy: str
    setting: Setting
    version: str
    requests: int
    steps: int
    evictions: int
    preemptions: int
    aborts: int
    hit_tokens: int
    decisions: int
    faults: int
    orderings: int
    order_faults: int
    rescued: int
    divergences: int
    first: str | None
    events: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """The one object that the command prints, the settings echoed."""
        own = {key: value for key, value in vars(self).items() if key not in ("setting", "events")}
        settings = asdict(self.setting)
        settings["latency"] = None if self.setting.latency is None else self.setting.latency.name
        return {"engine": settings.pop("engine"), "mode": MODE, **own, "settings": settings}


def conform(
    policies: Sequence[Policy], trace: RequestTable, setting: Setting, engine: Path | Worker, *,
    emit: Any, compile_ordering: CompileOrdering, environment: Mapping[str, str] | None = None,
    limit_s: float = 3600.0,
) -> Conformance:  # fmt: skip
    """Run both and compare step by step.

    Args:
        policies: an evict policy, a schedule policy or one of each; none is the engine's own
            orders, without any file.
        trace: the requests.
        setting: the engine's sizes, and how the trace is cut down.
        engine: interpreter of the engine's environment, or a worker that runs there and stays.
        emit: makes the engine's file from an evict and a schedule policy, one of which may be None.
        compile_ordering: makes the simulator's machine code.
        environment: extra variables for the engine process.
        limit_s: seconds of wall clock that the engine may take.

    Raises:
        TanrenError: no such environment, another version than the profile's, or a run that failed.
    """
    profile = profile_of(setting.engine)
    if isinstance(engine, Path):
        check_env(engine, profile.version)
    trace = prepared(trace, setting)
    setting = replace(setting, capacity=_capacity(trace, setting), requests=len(trace))
    blocks = engine_blocks(trace, setting.block_size)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    limits = EngineLimits(
        usable_blocks=setting.capacity or 0,
        max_num_seqs=setting.max_num_seqs,
        max_num_batched_tokens=setting.max_num_batched_tokens,
        max_model_len=longest + 1,
        step_us=round(setting.step_ms * 1000),
        asynchronous=setting.asynchronous,
        long_prefill_token_threshold=setting.long_prefill_token_threshold,
        enable_prefix_caching=setting.caching,
    )
    evict, schedule = (one_of(policies, kind) for kind in ("evict", "schedule"))
    victims = (
        stock()
        if evict is None or not setting.caching
        else victims_of(evict, compile_ordering, limits.usable_blocks, MODE, use_shortcuts=setting.identity)
    )
    if schedule is not None:
        service = service_of(schedule, compile_ordering, guard=setting.guard)
    else:
        service = by_priority() if setting.scheduling == "priority" else first_come()
    asks = schedule is not None or setting.scheduling == "priority"
    tokens = replace(
        tokens_of(trace),
        abort_us=abort_times(trace, setting.aborts),
        priority=priorities(trace) if asks else None,
    )
    simulated = EngineRun(
        blocks, trace.arrival_us, limits, victims, setting.engine, tokens.aborts,
        service=service, latency=setting.latency, priority=tokens.priority,
    )  # fmt: skip
    simulated.run()
    variables = dict(environment or {})
    if not setting.identity:
        variables["TANREN_NO_IDENTITY"] = "1"
    if not setting.guard:
        variables["TANREN_NO_GUARD"] = "1"
    with tempfile.TemporaryDirectory(prefix="tanren-conform-") as folder:
        file = None
        if policies:
            file = Path(folder, "tanren_policy.py")
            file.write_text(emit(evict, schedule), encoding="utf-8")
        spec = EngineSpec(
            block_size=setting.block_size,
            usable_blocks=limits.usable_blocks,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_model_len=limits.max_model_len,
            step_us=limits.step_us,
            asynchronous=limits.asynchronous,
            policy_file=file,
            enable_prefix_caching=setting.caching,
            long_prefill_token_threshold=setting.long_prefill_token_threshold,
            scheduling_policy=setting.scheduling,
            latency=setting.latency,
        )
        if isinstance(engine, Worker):
            real = engine.run(spec, tokens, limit_s, variables)
        else:
            real = run_engine(engine, spec, tokens, limit_s, variables)
    ours = simulated.result()
    comparison = compare(real.events, ours.events)
    status = real.summary["policy"] or {}
    if evict is not None and setting.caching:
        check_policy_ran(evict, status)
    orders = status.get("schedule") or {}
    if schedule is not None:
        check_policy_ran(schedule, orders)
        _check_same_work(orders, ours)
    return Conformance(
        policy=" + ".join(policy.name for policy in policies) or f"stock {setting.scheduling}",
        setting=setting,
        version=str(real.summary["version"]),
        requests=len(trace),
        steps=int(real.summary["steps"]),
        evictions=int(real.summary["evictions"]),
        preemptions=int(real.summary["preemptions"]),
        aborts=int(real.summary["aborts"]),
        hit_tokens=int(real.summary["hit_tokens"]),
        decisions=int(status.get("decisions", 0)),
        faults=int(status.get("faults", 0)),
        orderings=int(orders.get("orderings", 0)),
        order_faults=int(orders.get("faults", 0)),
        rescued=int(orders.get("rescued", 0)),
        divergences=comparison.divergences,
        first=comparison.first,
        events=real.events,
    )


def prepared(trace: RequestTable, setting: Setting) -> RequestTable:
    """The trace as a setting wants it: cut to a window, paced, outputs capped and at least 1."""
    if setting.skip:
        trace = trace.slice(setting.skip, len(trace))
    if setting.requests is not None:
        trace = trace.head(setting.requests)
    if len(trace) == 0:
        raise TanrenError(f"{trace.name}: no requests")
    if setting.rate is not None:
        trace = trace.with_rate(setting.rate)
    if setting.load is not None:
        trace = compress(trace, setting.load)
    if setting.outputs is not None:
        trace = trace.with_outputs(setting.outputs)
    return replace(trace, output_tokens=np.maximum(trace.output_tokens, 1))


def tokens_of(trace: RequestTable) -> TokenTable:
    """The requests with the token ids that the engine sees."""
    prompts = [prompt_token_ids(trace, r) for r in range(len(trace))]
    outputs = [output_token_ids(r, int(trace.output_tokens[r])) for r in range(len(trace))]
    return TokenTable(
        trace.arrival_us,
        _offsets(prompts),
        np.concatenate(prompts),
        _offsets(outputs),
        np.concatenate(outputs),
    )


def abort_times(trace: RequestTable, share: float) -> Ints:
    """[R] when each request's client gives up, in microseconds; -1 for never, which is all but `share`."""
    rng = np.random.default_rng(0)
    chosen = rng.random(len(trace)) < share
    delay_us = rng.exponential(_PATIENCE_S * 1e6, len(trace)).astype(np.int64)
    return np.where(chosen, trace.arrival_us + delay_us, -1)


def priorities(trace: RequestTable) -> Ints:
    """[R] priorities of 0 to 3, drawn with a fixed seed; lower is more urgent."""
    return np.random.default_rng(0).integers(0, 4, len(trace))


def one_of(policies: Sequence[Policy], kind: str) -> Policy | None:
    """The policy of that kind, if there is one."""
    return next((policy for policy in policies if policy.kind == kind), None)


def _check_same_work(orders: Mapping[str, Any], ours: EngineResult) -> None:
    """What the file counted is what the simulator counted."""
    found = [int(orders.get(name, 0)) for name in ("orderings", "faults", "rescued")]
    wanted = [ours.orderings, ours.order_faults, ours.rescued]
    if found != wanted:
        raise TanrenError(
            f"the file counted {found} orderings, faults and rescued requests, the simulator {wanted}"
        )


def log_text(events: Sequence[Mapping[str, Any]]) -> str:
    """The engine's events as JSON lines."""
    return "".join(json.dumps(event) + "\n" for event in events)


def _capacity(trace: RequestTable, setting: Setting) -> int:
    if setting.capacity is not None:
        return setting.capacity
    computed = trace.prompt_tokens + trace.output_tokens - 1
    longest = int((-(-computed // setting.block_size)).max())
    return longest + longest // 5


def _offsets(parts: Sequence[np.ndarray[Any, Any]]) -> Any:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum([len(part) for part in parts])))


def check_policy_ran(policy: Policy | None, status: Mapping[str, Any] | None) -> None:
    """Raise TanrenError unless the emitted file decided, or its order is the engine's own."""
    mode = str((status or {}).get("mode", ""))
    if policy is not None and mode != "active" and not mode.startswith("pass-through"):
        raise TanrenError(f"the engine did not run the policy: {mode or 'no status'}")
