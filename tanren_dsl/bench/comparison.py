"""A comparison put together: from a wish, policies and a trace to its plan, its servers and results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tanren_dsl import __version__
from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.backends.vllm import emit
from tanren_dsl.bench.fleet import Fleet, GivenFleet, StartedFleet, check_urls
from tanren_dsl.bench.model import make_model
from tanren_dsl.bench.predict import Engine, predict_hits
from tanren_dsl.bench.prompts import Sizes, fitted, paced
from tanren_dsl.bench.run import Arm, Load, Plan, Predict, collect, measure
from tanren_dsl.bench.serving import Serving, serving_of
from tanren_dsl.bench.store import Store
from tanren_dsl.bench.wish import QUICK_S, Wish, resolved
from tanren_dsl.errors import TanrenError
from tanren_dsl.files import write_whole
from tanren_dsl.ir import Policy
from tanren_dsl.sim.profiles import PROFILES
from tanren_dsl.trace.table import RequestTable

DEFAULT = "default"
_KEEPS = ("urls", "keep_up", "quick", "python", "rates", "capacities", "aa", "rounds")
_STEP_S = 0.02
"""Guess of a step where none was measured."""


@dataclass(frozen=True)
class Comparison:
    """Ready to be run; nothing has been started."""

    plan: Plan
    serving: Serving
    store: Store
    settings: Mapping[str, Any]
    files: Mapping[str, str]
    """Name of each arm that has a policy, and the text of its file for the engine."""

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Measure what is missing, and write and return `{"settings": ..., "results": [...]}`.

        Raises:
            TanrenError: the folder holds something else, or a server fails.
        """
        rounds = self.measure(say)
        facts = self.settings["config"]
        results = collect(self.plan, self.store, rounds, facts, self.predict)
        found = {"settings": self.settings, "results": results}
        self.store.write_results(found)
        return found

    def measure(self, say: Callable[[str], None]) -> int:
        """Measure what is missing; the number of rounds there are."""
        self.store.open(self.settings)
        return measure(self.plan, self._fleet(say), self.store, say)

    @property
    def predict(self) -> Predict | None:
        """What the simulator says, or None where it does not know the engine or the time is short."""
        serving, wish = self.serving, self.serving.wish
        profile = next((name for name, row in PROFILES.items() if row.version == serving.version), None)
        if profile is None or (wish.quick and not wish.serial):
            return None
        engine = Engine(
            profile, serving.block_size, wish.max_num_seqs, wish.max_num_batched_tokens,
            serving.max_model_len, serving.asynchronous,
        )  # fmt: skip

        def predicted(arm: Arm, load: Load, capacity: int | None, step_s: float | None) -> int | None:
            if capacity is None:
                return None
            step_us = None if self.plan.serial else max(1, round(1e6 * (step_s or _STEP_S)))
            return predict_hits(arm.policy, load.table, engine, capacity, compile_ordering, step_us=step_us)

        return predicted

    def _fleet(self, say: Callable[[str], None]) -> Fleet:
        wish, arms = self.serving.wish, self.plan.arms
        if wish.urls:
            return GivenFleet(check_urls(wish.urls, len(arms)))
        if wish.device is not None and self.serving.model is not None:
            make_model(self.serving.model)
        folder = self.store.folder / "policies"
        folder.mkdir(exist_ok=True)
        places = {name: folder / f"{name}.py" for name in self.files}
        for name, text in self.files.items():
            write_whole(places[name], text)
        return StartedFleet(
            [arm.name for arm in arms],
            lambda capacity, arm: self.serving.spec(capacity, places.get(arms[arm].name)),
            self.store,
            say,
            keep_up=wish.keep_up,
        )


def comparison(wish: Wish, policies: Sequence[Policy | None], trace: RequestTable, out: Path) -> Comparison:
    """Put a comparison together; on the CPU, the environment is made if it is missing.

    Args:
        wish: what is asked.
        policies: those that are held against the default, None being the default again (A/A).
        trace: the requests; only as many as are asked for are taken.
        out: folder of the comparison.

    Raises:
        TanrenError: the wish contradicts itself, a request is too long, a policy does not fit vLLM.
    """
    wish = resolved(wish, trace.block_tokens)
    arms = named_arms(policies)
    files = {arm.name: _file_of(arm.policy) for arm in arms if arm.policy is not None}
    if wish.urls:
        check_urls(wish.urls, len(arms))
    serving = serving_of(wish, out / "model")
    sizes = Sizes(
        serving.vocabulary, serving.max_model_len, wish.tokens_per_id, wish.outputs, wish.cap_prompt
    )
    count = wish.requests or len(trace)
    table = fitted(trace if count >= len(trace) else trace.head(count), sizes)
    loads = [
        Load(_load_name(wish, rate), rate, paced(table, rate, wish.arrivals, wish.seed))
        for rate in wish.rates
    ]
    plan = Plan(
        arms=arms,
        loads=loads,
        capacities=wish.capacities,
        rounds=wish.rounds or 1,
        vocabulary=serving.vocabulary,
        warm_up=wish.warm_up or 0,
        timeout_s=wish.timeout_s,
        seed=wish.seed,
        serial=wish.serial,
        cores=serving.client_cores,
        limit_s=QUICK_S if wish.quick else None,
    )
    return Comparison(plan, serving, Store(out), _settings(plan, serving, table, files), files)


def _file_of(policy: Policy) -> str:
    return emit(policy) if policy.kind == "evict" else emit(None, policy)


def named_arms(policies: Sequence[Policy | None]) -> list[Arm]:
    """The default and the others, each with a name of its own."""
    arms: list[Arm] = []
    for policy in (None, *policies):
        name = DEFAULT if policy is None else policy.name
        same = sum(arm.name.rpartition("-")[0] == name or arm.name == name for arm in arms)
        arms.append(Arm(name if same == 0 else f"{name}-{same + 1}", policy))
    return arms


def at_capacity(one: Comparison, capacity: int, folder: Path) -> Comparison:
    """The same comparison at another capacity, in a folder of its own."""
    settings = {**one.settings, "capacities": [capacity]}
    return replace(
        one, plan=replace(one.plan, capacities=(capacity,)), store=Store(folder), settings=settings
    )


def _load_name(wish: Wish, rate: float | None) -> str:
    if wish.serial:
        return "serial"
    return "trace-pace" if rate is None else f"rate-{rate:g}"


def _settings(plan: Plan, serving: Serving, table: RequestTable, files: Mapping[str, str]) -> dict[str, Any]:
    """What decides the measurement; `config` is repeated with every result."""
    wish = {name: value for name, value in asdict(serving.wish).items() if name not in _KEEPS}
    config = {
        "engine": "vllm",
        "engine_version": serving.version,
        "trace": table.name,
        "requests": len(table),
        "tokens_per_id": table.block_tokens,
        "prompt_tokens": int(table.prompt_tokens.sum()),
        "output_tokens": int(table.output_tokens.sum()),
        "block_size": serving.block_size,
        "max_model_len": serving.max_model_len,
        "max_num_seqs": serving.wish.max_num_seqs,
        "max_num_batched_tokens": serving.wish.max_num_batched_tokens,
        "arrivals": serving.wish.arrivals,
        "serial": plan.serial,
        "client_cores": serving.client_cores,
        "engine_cores": serving.engine_cores,
        "seed": plan.seed,
    }
    return {
        "made_by": f"tanren-dsl {__version__}",
        "config": config,
        "arms": [
            {"name": arm.name, "file_sha256": _hash(files.get(arm.name, "").encode())} for arm in plan.arms
        ],
        "rates": [load.rate for load in plan.loads],
        "capacities": list(plan.capacities),
        "rounds": plan.rounds,
        "content_sha256": _hash(b"".join(_bytes(load.table) for load in plan.loads)),
        "options": wish,
    }


def _bytes(table: RequestTable) -> bytes:
    columns = (table.arrival_us, table.prompt_tokens, table.output_tokens, table.offsets, table.ids)
    return b"".join(np.ascontiguousarray(column).tobytes() for column in columns)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def check_arms(policies: Sequence[Policy | None]) -> None:
    """Refuse a comparison of the default with nothing.

    Raises:
        TanrenError: so it is.
    """
    if not policies:
        raise TanrenError(
            "expected something to compare the default with", hint="--policy FILE, or --aa for its noise"
        )
