"""Block touches a second of the replay kernel beside libCacheSim's C LRU, on the same stream.

Ours is the general kernel with every signal kept, LRU by its pass-through shortcut, in
replay mode (prefix hits, pins); theirs is its plain LRU over the flat stream of ids,
object size 1, with a hash table of the size that suits the stream. Both are timed without
reading the file and without making the cache, in turn, in one process, each on the second
of two runs in a row.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tanren_dsl.backends.numba import compile_ordering
from tanren_dsl.check import loads
from tanren_dsl.sim.replay import Replay
from tanren_dsl.sim.rule import stock, victims_of
from tanren_dsl.trace.table import RequestTable
from tests.speed.data import seconds, spread, verdict

CAPACITIES = (1_000, 10_000, 30_000)
ROUNDS = 41
TARGET = 5.0


def measure(trace: RequestTable) -> None:
    """Print the table; the ratio is the median over rounds of the ratio within a round."""
    if find_spec("libcachesim") is None:
        print("LRU against libCacheSim: libcachesim is not installed (pip install 'tanren-dsl[bench]')")
        return
    print(f"LRU replay of {trace.name}: {trace.lookups:,} block touches, medians of {ROUNDS} rounds")
    lru = loads("policy lru : evict order by last_use candidates 10%")
    unused = np.zeros(trace.lookups)
    with tempfile.TemporaryDirectory() as folder:
        stream = Path(folder, "stream.oracleGeneral")
        _write_stream(trace, stream)
        for capacity in CAPACITIES:
            if capacity < trace.longest():
                continue
            scan = victims_of(lru, compile_ordering, capacity, "replay", use_shortcuts=False)
            ours, theirs, scans = [], [], []
            for turn in range(ROUNDS):
                ours.append(
                    _second(lambda capacity=capacity: Replay(trace, capacity, stock(), next_use=unused).run)
                )
                theirs.append(_second(lambda capacity=capacity: _libcachesim(stream, capacity)))
                if turn < 5:
                    scans.append(seconds(Replay(trace, capacity, scan, next_use=unused).run))
            ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
            rate = trace.lookups / statistics.median(ours) / 1e6
            print(f"  {capacity:>7,} blocks  ours {spread(ours)}, {rate:.0f} M touches/s")
            print(f"                  libCacheSim {spread(theirs)}")
            print(f"                  LRU by scanning 10 % {spread(scans)}")
            print(f"                  ratio {ratio:.2f}: {verdict(ratio, TARGET, at_least=True)}")


def _second(make: Callable[[], Callable[[], object]]) -> float:
    """Seconds of the second of two runs, so that neither side finds its memory cold."""
    seconds(make())
    return seconds(make())


def _libcachesim(stream: Path, capacity: int) -> Callable[[], object]:
    import libcachesim

    reader = libcachesim.TraceReader(str(stream), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache = libcachesim.LRU(cache_size=capacity, hashpower=18)
    return lambda: cache.process_trace(reader)


def _write_stream(trace: RequestTable, path: Path) -> None:
    row = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    table = np.zeros(trace.lookups, row)
    table["time"] = np.arange(trace.lookups)
    table["id"] = trace.ids.astype(np.uint64) + 1
    table["size"] = 1
    table["next"] = -1
    table.tofile(path)
