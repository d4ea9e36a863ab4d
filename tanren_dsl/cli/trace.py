"""`tanren-dsl trace`: look at a trace, or make one."""

from __future__ import annotations

import click

from tanren_dsl.cli.options import BLOCK_TOKENS, json_option, load_trace, trace_reading_options
from tanren_dsl.cli.output import print_json, print_table, say


@click.group()
def trace() -> None:
    """Look at a trace, or make one.

    \b
    Example:
      tanren-dsl trace show chat:7:2000
    """


@trace.command()
@click.argument("trace_name", metavar="TRACE")
@trace_reading_options
@json_option
def show(trace_name: str, block_tokens: int | None, skip_bad: bool, as_json: bool) -> None:
    """Print the statistics of a trace; what the reader assumed goes to standard error.

    TRACE is a file (Mooncake JSONL or Azure CSV), or chat, chat:SEED or chat:SEED:REQUESTS for the generator.

    \b
    Example:
      tanren-dsl trace show conversation.jsonl --json
    """
    from tanren_dsl.trace.statistics import statistics

    table = load_trace(trace_name, block_tokens, skip_bad)
    found = statistics(table)
    if as_json:
        print_json({"trace": table.name, "notes": list(table.notes), "statistics": found})
        return
    rows = [
        [name.replace("_", " "), f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"]
        for name, value in found.items()
    ]
    print_table(table.name, ["", "value"], rows)


@trace.command()
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; gzip for names in .gz.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--requests", type=click.IntRange(1, 1_000_000), default=4000, show_default=True)
@click.option("--block-tokens", type=BLOCK_TOKENS, default=16, show_default=True, help="Tokens of a block.")
def generate(output: str, seed: int, requests: int, block_tokens: int) -> None:
    """Write a seeded chat trace as Mooncake JSONL.

    It is a stand-in for demonstrations and tests, not a measurement.

    \b
    Example:
      tanren-dsl trace generate -o chat.jsonl --seed 7 --requests 2000
    """
    from tanren_dsl.trace.generate import generate_chat
    from tanren_dsl.trace.mooncake import write_mooncake

    table = generate_chat(seed, requests, block_tokens=block_tokens)
    write_mooncake(table, output)
    say(
        f"{output}: {len(table):,} requests, {table.lookups:,} block lookups, blocks of {block_tokens} tokens"
    )
