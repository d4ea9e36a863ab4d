"""Many conformance runs: each engine in a process of its own, side by side; random policies to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from threading import Event

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.backends.vllm import emit
from tanren_dsl.check import loads
from tanren_dsl.conform.conform import Conformance, Setting, conform
from tanren_dsl.conform.worker import Worker
from tanren_dsl.evolve.generator import Generator
from tanren_dsl.evolve.primitives import build_primitives
from tanren_dsl.evolve.translate import to_syntax
from tanren_dsl.ir import Policy
from tanren_dsl.passes.order import analyze
from tanren_dsl.printer import print_policy
from tanren_dsl.trace.table import RequestTable

_HEIGHTS = (2, 5)
_PRODUCT = 0.25
"""Share of drawn policies that are products, as in a first generation of the search."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: the policies of its file, one of a kind at most (none: no file), and its setting."""

    policies: tuple[Policy, ...]
    setting: Setting


def run_all(
    jobs: Sequence[Job], trace: RequestTable, pythons: Mapping[str, Path],
    progress: Callable[[str], None] | None,
) -> list[Conformance]:  # fmt: skip
    """The outcome of every job, in their order; jobs of one engine run one after another.

    The events of a run are kept only where it is the one.

    Raises:
        TanrenError: the first run that failed; the others are given up.
    """
    done: dict[int, Conformance] = {}
    stop = Event()

    def serve(engine: str, worker: Worker) -> None:
        for number, job in enumerate(jobs):
            if job.setting.engine != engine or stop.is_set():
                continue
            try:
                result = conform(
                    job.policies, trace, job.setting, worker, emit=emit, compile_ordering=compile_ordering
                )
            except BaseException:
                stop.set()
                raise
            done[number] = result if len(jobs) == 1 else replace(result, events=[])
            if progress is not None:
                progress(f"{len(done)}/{len(jobs)} {_line(done[number])}")

    with ExitStack() as stack:
        workers = {engine: stack.enter_context(Worker(python)) for engine, python in pythons.items()}
        pool = stack.enter_context(ThreadPoolExecutor(len(workers)))
        running = [pool.submit(serve, engine, worker) for engine, worker in workers.items()]
        try:
            for one in running:
                one.result()
        except BaseException:
            stop.set()
            for worker in workers.values():
                worker.close()
            raise
    return [done[number] for number in range(len(jobs))]


def random_policies(count: int, seed: int) -> list[Policy]:
    """Different random policies, none of which is the engine's own order."""
    primitives = build_primitives()
    generator, rng = Generator(primitives), Random(seed)
    found: dict[str, Policy] = {}
    while len(found) < count:
        product = rng.random() < _PRODUCT
        tree = generator.product(rng) if product else generator.tree(rng, rng.randint(*_HEIGHTS))
        name = f"random_{seed}_{len(found)}"
        policy = loads(print_policy(to_syntax(tree, primitives, name)))
        if analyze(policy).shape != "identity":
            found.setdefault(str((policy.order, policy.percent)), policy)
    return list(found.values())


def _line(result: Conformance) -> str:
    verdict = "identical" if result.divergences == 0 else f"{result.divergences:,} DIVERGENCES"
    return (
        f"{result.policy} on {result.version}, {result.setting.capacity:,} blocks: "
        f"{result.evictions:,} evictions, {result.preemptions:,} preemptions, {verdict}"
    )
