"""`tanren-dsl knee`: the cache size at which a load begins to suffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tanren_dsl.cli.bench_options import COUNT, RATE, serving_options, wish_of
from tanren_dsl.cli.options import json_option, load_trace, trace_reading_options
from tanren_dsl.cli.output import percent, print_json, print_table, say


@click.command()
@click.option("--rate", type=RATE, help="Requests per second.  [default: as in the trace; --device cpu 2]")
@click.option("--largest", type=COUNT, default=2048, show_default=True, help="Usable blocks that are plenty.")
@click.option("--smallest", type=COUNT, help="Usable blocks to go down to.  [default: the longest request's]")
@click.option(
    "--resolution",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.15,
    show_default=True,
    help="Share by which the bracket's upper bound may exceed the knee.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/knee"),
    show_default=True,
    help="Folder; an interrupted search goes on.",
)
@serving_options
@trace_reading_options
@json_option
def knee(
    rate: float | None, largest: int, smallest: int | None, resolution: float, out: Path, trace_name: str,
    block_tokens: int | None, skip_bad: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Find the capacity below which the engine's default begins to suffer (the knee).

    Starts the default at ever fewer blocks (--num-gpu-blocks-override) until its p99 TTFT, its
    hit rate or its errors have left those of the largest capacity, then halves the gap. Below the
    knee a policy has something to decide.

    \b
    Example:
      tanren-dsl knee --device cpu --rate 2 --largest 1024
    """
    from tanren_dsl.bench.knee import Sample
    from tanren_dsl.bench.search import search_knee

    wish = wish_of(options, rates=() if rate is None else (rate,), rounds=1)
    trace = load_trace(trace_name, block_tokens, skip_bad)

    def step(blocks: int, sample: Sample) -> None:
        say(
            f"{blocks:,} blocks: TTFT p50 {sample.ttft_p50_ms:.0f} ms, p99 {sample.ttft_p99_ms:.0f} ms, "
            f"hit rate {percent(sample.hit_rate)}, {sample.errors} errors"
        )

    found = search_knee(
        wish, trace, out, say, step, largest=largest, smallest=smallest, resolution=resolution
    )
    if as_json:
        print_json(found.as_json())
        return
    rows = [
        [
            f"{blocks:,}",
            f"{sample.ttft_p50_ms:,.1f}",
            f"{sample.ttft_p99_ms:,.1f}",
            percent(sample.hit_rate),
            f"{sample.errors:,}",
            ", ".join(found.left_by(blocks)) or "-",
        ]
        for blocks, sample in sorted(found.knee.samples.items(), reverse=True)
    ]
    print_table(
        f"vLLM {found.version}, {trace.name}, default, blocks of {found.block_size} tokens",
        ["blocks", "TTFT p50", "p99 (ms)", "hit rate", "errors", "left by"],
        rows,
    )
    if found.knee.blocks is None:
        click.echo(f"no knee down to {found.knee.above:,} blocks: nothing suffers")
    else:
        why = ", ".join(found.knee.left_by)
        click.echo(f"the knee is between {found.knee.blocks:,} and {found.knee.above:,} blocks (by {why})")
