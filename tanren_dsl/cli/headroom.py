"""`tanren-dsl headroom`: how much any eviction policy could gain on a trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from tanren_dsl.cli.options import (
    capacity_option,
    engine_option,
    json_option,
    load_trace,
    trace_reading_options,
)
from tanren_dsl.cli.output import percent, print_json, print_table, say

if TYPE_CHECKING:
    from tanren_dsl.trace.table import RequestTable

PERCENT = 10.0
"""The considered set of the bounded row: the language's default."""


@dataclass(frozen=True, slots=True)
class Row:
    """Bounds at one capacity; everything counts blocks."""

    capacity: int
    lookups: int
    lru_hits: int
    belady_window_hits: int
    belady_hits: int
    infinite_hits: int

    def points(self, hits: int) -> float:
        """Hits beyond LRU's, in percent of the lookups."""
        return 100 * (hits - self.lru_hits) / self.lookups if self.lookups else 0.0


@click.command()
@click.argument("trace_name", metavar="TRACE")
@engine_option
@capacity_option
@trace_reading_options
@json_option
def headroom(
    trace_name: str,
    engine: str,
    capacities: list[int],
    block_tokens: int | None,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Bound what any eviction policy can gain over LRU on a trace (replay mode).

    Belady knows the future; in the window it chooses, as a policy with `candidates 10%` does,
    among the n + 10 % longest unused blocks only. The infinite cache never forgets.

    \b
    Example:
      tanren-dsl headroom chat --capacity 1000,2000,4000
    """
    from tanren_dsl.sim.profiles import profile_of
    from tanren_dsl.sim.replay import MODE, check_capacity

    profile_of(engine)
    trace = load_trace(trace_name, block_tokens, skip_bad)
    for capacity in capacities:
        check_capacity(trace, capacity)
    rows = []
    for capacity in capacities:
        say(f"bounds at {capacity:,} blocks")
        rows.append(bounds(trace, capacity, engine))
    verdict = _verdict(rows)
    if any("not prefix-consistent" in note for note in trace.notes):
        verdict += " The trace is not prefix-consistent: Belady is not proven optimal on it."
    if as_json:
        results = [asdict(row) for row in rows]
        print_json(
            {"mode": MODE, "engine": engine, "trace": trace.name, "results": results, "verdict": verdict}
        )
        return
    print_table(
        f"{MODE} mode, {engine}, {trace.name}: hit rate, and points beyond LRU",
        ["capacity", "LRU", "Belady, 10 % window", "Belady", "infinite cache"],
        [
            [
                f"{row.capacity:,}",
                _share(row, row.lru_hits),
                *(
                    f"{_share(row, hits)}  {row.points(hits):+.2f}"
                    for hits in (row.belady_window_hits, row.belady_hits, row.infinite_hits)
                ),
            ]
            for row in rows
        ],
    )
    click.echo(verdict)


def bounds(trace: RequestTable, capacity: int, engine: str) -> Row:
    """The four counts at one capacity."""
    from tanren_dsl.sim.replay import simulate_belady, simulate_stock
    from tanren_dsl.sim.rule import considered_extra
    from tanren_dsl.trace.statistics import infinite_hits

    window = considered_extra(PERCENT, capacity)
    return Row(
        capacity=capacity,
        lookups=trace.lookups,
        lru_hits=simulate_stock(trace, capacity, engine=engine).hits,
        belady_window_hits=simulate_belady(trace, capacity, engine=engine, window=window).hits,
        belady_hits=simulate_belady(trace, capacity, engine=engine).hits,
        infinite_hits=infinite_hits(trace),
    )


def _share(row: Row, hits: int) -> str:
    return percent(hits / row.lookups if row.lookups else 0.0)


def _verdict(rows: list[Row]) -> str:
    best = max(rows, key=lambda row: row.points(row.belady_hits))
    gain, windowed = best.points(best.belady_hits), best.points(best.belady_window_hits)
    if gain <= 0.0:
        return "No eviction policy can gain anything over LRU on this trace at these capacities."
    where = "" if len(rows) == 1 else ", where there is most to gain"
    return (
        f"At {best.capacity:,} blocks{where}, no eviction policy gains more than {gain:.2f} points of "
        f"hit rate over LRU; confined to the default `candidates 10%`, Belady gains {windowed:.2f}."
    )
