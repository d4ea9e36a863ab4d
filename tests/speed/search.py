"""Text to score of new random policies on the whole trace at one capacity, in its parts.

Policies are random trees of the search's own generator, each seen for the first time, so
nothing is cached; the kernel is loaded before the clock starts.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from random import Random

import numpy as np

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import check
from tanren_dsl.evolve.generator import Generator
from tanren_dsl.evolve.operators import Limits, fresh
from tanren_dsl.evolve.primitives import build_primitives
from tanren_dsl.evolve.translate import to_syntax
from tanren_dsl.parser import parse
from tanren_dsl.printer import print_policy
from tanren_dsl.sim.replay import simulate, simulate_stock
from tanren_dsl.source import Source
from tanren_dsl.trace.table import RequestTable
from tests.speed.data import spread, verdict

CAPACITY = 10_000
POLICIES = 100
LIMITS = Limits(nodes=40, height=8)
TARGETS_MS = {"1%": 60.0, "10%": 150.0}
PARTS = ("parse", "check", "compile", "simulate")


def measure(trace: RequestTable) -> None:
    """Print medians per part and the median of the whole."""
    simulate_stock(trace, CAPACITY)
    for percent, target in TARGETS_MS.items():
        texts = _texts(percent)
        _score(trace, texts[0])
        rows = [_score(trace, text) for text in texts[1:]]
        totals = [sum(row) for row in rows]
        print(f"text to score, {len(rows)} new random policies, {CAPACITY:,} blocks, candidates {percent}")
        for index, part in enumerate(PARTS):
            print(f"  {part:<9} {spread([row[index] for row in rows])}")
        total = statistics.median(totals) * 1e3
        print(f"  total     {spread(totals)}: {verdict(total, target, at_least=False)} ms")


def _score(trace: RequestTable, text: str) -> tuple[float, ...]:
    marks = [time.perf_counter()]
    source = Source("<bench>", text)
    tree = parse(source)
    marks.append(time.perf_counter())
    policy = check(tree, source)
    marks.append(time.perf_counter())
    compile_ordering(policy, policy.order)
    marks.append(time.perf_counter())
    simulate(trace, policy, compile_ordering, CAPACITY, use_shortcuts=False, next_use=np.zeros(0))
    marks.append(time.perf_counter())
    return tuple(after - before for before, after in pairwise(marks))


def _texts(percent: str) -> list[str]:
    """Texts of random trees, as the search makes them (height 2 to 4); new ones for each percentage."""
    primitives = build_primitives()
    generator, rng = Generator(primitives), Random(f"bench {percent}")
    texts: dict[str, None] = {}
    while len(texts) <= POLICIES:
        text = print_policy(to_syntax(fresh(generator, LIMITS, rng), primitives, "bench"))
        lines = [line for line in text.splitlines() if not line.startswith("candidates")]
        texts["\n".join([*lines, f"candidates {percent}", ""])] = None
    return list(texts)
