"""How many candidates a search measures a second: with and without racing, with one and two workers.

Candidates are random trees of the search's own generator, each seen for the first time. The replay
part measures on the whole conversation trace at three cache sizes, the serving part on sixteen
configurations of Azure's. Simulators are compiled and workers have started before the clock does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.evolve.candidate import Candidate, from_tree
from tanren_dsl.evolve.executor import Executor, InProcess, Job, Workers
from tanren_dsl.evolve.generator import Generator
from tanren_dsl.evolve.measures import Judge
from tanren_dsl.evolve.operators import Limits, fresh
from tanren_dsl.evolve.population import Population
from tanren_dsl.evolve.primitives import Primitives, build_primitives
from tanren_dsl.evolve.racing import run_off
from tanren_dsl.evolve.replay_arena import Loss, ReplayArena, replay_arena
from tanren_dsl.evolve.sections import Racing
from tanren_dsl.evolve.serving_arena import ServingArena, serving_arena
from tanren_dsl.evolve.store import Store
from tanren_dsl.evolve.windows import Capacities
from tanren_dsl.scoring.settings import Settings
from tanren_dsl.scoring.windows import servable
from tanren_dsl.signals import ENGINE
from tanren_dsl.trace.table import RequestTable
from tests.speed.data import verdict

SIZES = (1_000, 10_000, 30_000)
CANDIDATES = {"evict": 40, "schedule": 24}
PUBLISHED = 3_775 * 16
"""Simulations of the published search: candidates times configurations."""
LIMITS = Limits(nodes=40, height=8)
RACING = Racing()
SPEEDUP = 1.6


def measure(conversations: RequestTable, azure: RequestTable | None) -> None:
    """Print candidates a second for both kinds of policy."""
    whole = {"train": ((0, len(conversations)),)}
    replay = replay_arena(
        conversations, whole, ("train",), Capacities(SIZES), engine="vllm-0.19",  # type: ignore[arg-type]
        compile_ordering=compile_ordering, loss=Loss(), short=RACING.share,
    )  # fmt: skip
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    _measure(f"conversation trace, {sizes} blocks", replay, build_primitives())
    if azure is None:
        print("sixteen serving configurations: not measured, the trace is not there")
        return
    settings = Settings()
    trace = servable(azure, settings)
    windows = tuple((start, start + 1_500) for start in range(0, 16_000, 4_000))
    serving = serving_arena(
        trace, {"train": windows}, ("train",), settings, kind="schedule", metric="ttft",
        compile_ordering=compile_ordering, short=RACING.share,
    )  # fmt: skip
    assert len(serving.places("train", "full")) == 16
    still = {"user_priority", "max_tokens", "cached_tokens", "computed_tokens", "output_tokens"}
    primitives = build_primitives((), (), kind="schedule", mode=ENGINE, still=still)
    rate = _measure("16 serving configurations", serving, primitives)
    hours = PUBLISHED / 16 / rate / 3600
    print(
        f"  the published search, 3,775 candidates on 16 configurations each: {hours:.2f} h on one core, "
        f"projected from candidates measured in full"
    )


def _measure(title: str, arena: ReplayArena | ServingArena, primitives: Primitives) -> float:
    """Candidates a second, one process, without racing."""
    made = _candidates(primitives, CANDIDATES[arena.kind], f"{arena.kind} bench")
    judge = Judge(arena, [("train", "full"), ("train", "short")])
    alone = InProcess(arena)
    list(alone.run([_job(made[0])]))  # compiled and loaded
    print(f"candidates a second, {len(made)} new random {arena.kind} policies, {title}")
    full_s = _timed(alone, made)
    rate = len(made) / full_s
    print(f"  one core, each in full                 {rate:8.2f} /s  ({1e3 / rate:,.0f} ms each)")
    raced_s, going = _raced(judge, alone, made)
    raced = len(made) / raced_s
    print(
        f"  one core, racing                       {raced:8.2f} /s  ({going} of {len(made)} went on): "
        f"{raced / rate:.2f}x"
    )
    workers = Workers(arena, 2)
    try:
        list(workers.run([_job(made[0]), _job(made[1])]))
        both_s = _timed(workers, made)
    finally:
        workers.close()
    print(f"  two workers, each in full              {len(made) / both_s:8.2f} /s")
    speedup = full_s / both_s
    print(f"  two workers against one: {speedup:.2f}x, {verdict(speedup, SPEEDUP, at_least=True)}")
    return rate


def _timed(executor: Executor, made: Sequence[Candidate]) -> float:
    began = time.perf_counter()
    failed = [one.error for one in executor.run([_job(one) for one in made]) if one.error is not None]
    assert not failed, failed
    return time.perf_counter() - began


def _raced(judge: Judge, executor: Executor, made: Sequence[Candidate]) -> tuple[float, int]:
    """Seconds of a generation with a race, and how many went on."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "run", "")
        population = Population(judge, 0.0, store, lambda _: None, 0)
        began = time.perf_counter()
        population.measure(made, "train", "short", executor, "")
        heat = run_off(RACING, made, population)
        population.measure(heat.going, "train", "full", executor, "")
        took_s = time.perf_counter() - began
        store.close()
    return took_s, len(heat.going)


def _candidates(primitives: Primitives, count: int, seed: str) -> list[Candidate]:
    generator, rng = Generator(primitives), Random(seed)
    found: dict[str, Candidate] = {}
    while len(found) < count:
        one = from_tree(fresh(generator, LIMITS, rng), primitives, 0, "random", (), 0)
        if one.orders:
            found.setdefault(one.key, one)
    return list(found.values())


def _job(one: Candidate) -> Job:
    return Job(one.key, one.text, "train")
