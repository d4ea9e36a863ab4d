"""`tanren-dsl simulate`: replay a trace under eviction policies."""

from __future__ import annotations

import click

from tanren_dsl.cli.options import (
    capacity_option,
    engine_option,
    json_option,
    knob_option,
    load_policies,
    load_trace,
    trace_reading_options,
)
from tanren_dsl.cli.output import percent, print_json, print_table, say


@click.command()
@click.argument("policies", nargs=-1, required=True, metavar="POLICY...")
@click.option("--trace", "trace_name", default="chat", show_default=True, help="File, or chat.")
@engine_option
@capacity_option
@knob_option
@trace_reading_options
@json_option
def simulate(
    policies: tuple[str, ...], trace_name: str, engine: str, capacities: list[int],
    knobs: tuple[tuple[str, float], ...], block_tokens: int | None, skip_bad: bool, as_json: bool,
) -> None:  # fmt: skip
    """Replay a trace under eviction policies and count hits, in blocks.

    Replay mode: requests one by one in file order, a trace id is one full block. The numbers
    compare policies with each other and with the literature; an engine that serves many
    requests at once differs a little.

    \b
    Example:
      tanren-dsl simulate lru t_lru my.tpl --trace chat --capacity 1000,4000
    """
    loaded = load_policies(policies, knobs)

    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.sim.profiles import profile_of
    from tanren_dsl.sim.replay import MODE, check_capacity, next_uses
    from tanren_dsl.sim.replay import simulate as replay
    from tanren_dsl.sim.rule import victims_of

    profile_of(engine)
    for one in loaded:
        victims_of(one.policy, compile_ordering, max(capacities), MODE)  # refuses before anything runs
    trace = load_trace(trace_name, block_tokens, skip_bad)
    for capacity in capacities:
        check_capacity(trace, capacity)
    ahead = next_uses(trace)
    results = []
    for capacity in capacities:
        for one in loaded:
            say(f"replaying {one.policy.name} at {capacity:,} blocks")
            results.append(
                replay(trace, one.policy, compile_ordering, capacity, engine=engine, next_use=ahead)
            )
    if as_json:
        rows = [result.as_json() for result in results]
        print_json({"mode": MODE, "engine": engine, "trace": trace.name, "results": rows})
        return
    print_table(
        f"{MODE} mode, {engine}, {trace.name}: {len(trace):,} requests, {trace.block_tokens} tokens a block",
        ["policy", "capacity", "hits", "lookups", "hit rate", "evictions", "faults"],
        [
            [
                result.policy,
                f"{result.capacity:,}",
                f"{result.hits:,}",
                f"{result.lookups:,}",
                percent(result.hit_rate),
                f"{result.evictions:,}",
                f"{result.faults:,}",
            ]
            for result in results
        ],
    )
