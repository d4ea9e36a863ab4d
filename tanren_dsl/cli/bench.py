"""`tanren-dsl bench`: policies against the engine's default on running servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tanren_dsl.cli.bench_options import COUNT, RATE, serving_options, wish_of
from tanren_dsl.cli.options import json_option, knob_option, load_policies, load_trace, trace_reading_options
from tanren_dsl.cli.output import percent, print_json, print_table, say

if TYPE_CHECKING:
    from tanren_dsl.ir import Policy

_DEFAULT = "default"


@click.command()
@click.option(
    "--policy",
    "names",
    multiple=True,
    metavar="POLICY",
    help="Held against the default; may be repeated. `default` is the default again (A/A).",
)
@click.option("--aa", is_flag=True, help="Also the default against itself: how much is noise.")
@click.option(
    "--url", "urls", multiple=True, metavar="URL", help="A running server: the default's, then each arm's."
)
@click.option("--rate", "rates", type=RATE, multiple=True, help="Requests per second; may be repeated.")
@click.option(
    "--capacity", "capacities", type=COUNT, multiple=True, help="Usable blocks of the cache; may be repeated."
)
@click.option("--rounds", type=COUNT, help="Times that every arm is measured.  [default: 2: A B B A]")
@click.option("--serial", is_flag=True, help="One request at a time: are the hits as predicted?")
@click.option("--keep-up", is_flag=True, help="Leave the servers of all arms up, not one at a time.")
@click.option(
    "--quick",
    is_flag=True,
    help="A first look, in three minutes: 24 requests at 3 a second, 8 tokens each, all servers kept up.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/bench"),
    show_default=True,
    help="Folder; an interrupted comparison goes on.",
)
@serving_options
@knob_option
@trace_reading_options
@json_option
def bench(
    names: tuple[str, ...], aa: bool, out: Path, trace_name: str, knobs: tuple[tuple[str, float], ...],
    block_tokens: int | None, skip_bad: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Measure policies against the engine's default on running servers.

    Sends a trace to each server, open loop, with exact prompts and fixed output lengths, the arms
    interleaved A B B A. Every request is kept in --out. The result for each rate and capacity is
    the difference of the time to first token (TTFT) with its 95 % interval.

    \b
    Examples:
      tanren-dsl bench --device cpu --aa --rate 1 --rate 2 --rate 3
      tanren-dsl bench --device cpu --policy t_lru --serial --capacity 300
    """
    from tanren_dsl.bench.comparison import check_arms, comparison

    wish = wish_of(options, aa=aa)
    policies: list[Policy | None] = [None] if aa else []
    loaded = iter(load_policies([name for name in names if name != _DEFAULT], knobs))
    policies += [None if name == _DEFAULT else next(loaded).policy for name in names]
    check_arms(policies)
    trace = load_trace(trace_name, block_tokens, skip_bad)
    found = comparison(wish, policies, trace, out).run(say)
    if as_json:
        print_json(found)
        return
    for config in _grouped(found["results"]):
        _print(config)
    click.echo(f"every request: {out}")


def _grouped(results: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Entries of one configuration together."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in results:
        groups.setdefault((entry["config"]["capacity"], entry["config"]["load"]), []).append(entry)
    return list(groups.values())


def _print(entries: Sequence[Mapping[str, Any]]) -> None:
    config = entries[0]["config"]
    blocks = "own" if config["capacity"] is None else f"{config['capacity']:,}"
    title = (
        f"vLLM {config['engine_version'] or '?'}, {config['trace']}: {config['requests']:,} requests, "
        f"{config['load']}, {blocks} blocks of {config['block_size']} tokens, {config['rounds']} rounds"
    )
    rows = [_row(entries[0]["arms"][0], None)] + [_row(entry["arms"][1], entry) for entry in entries]
    columns = [
        "policy", "TTFT mean", "p50", "p90", "p99 (ms)", "p99 against default", "TPOT (ms)", "E2E (ms)",
        "hit rate", "errors", "faults",
    ]  # fmt: skip
    print_table(title, columns, rows)
    for entry in entries:
        name = entry["arms"][1]["policy"]
        click.echo(f"{name}: {entry['verdict']}")
        for text in _spreads(entry):
            click.echo(f"  {text}")
    hits = [entries[0]["arms"][0], *(entry["arms"][1] for entry in entries)]
    for arm in hits:
        click.echo(_hits(arm, serial=config["serial"]))


def _row(arm: Mapping[str, Any], entry: Mapping[str, Any] | None) -> list[str]:
    delta = ""
    if entry is not None and entry["interval"] is not None:
        low, high = entry["interval"]
        delta = f"{entry['delta_p99']:+.1f} % [{low:+.1f}, {high:+.1f}]"
    times = [arm[f"ttft_{name}_ms"] for name in ("mean", "p50", "p90", "p99")]
    return [
        arm["policy"],
        *(_ms(value) for value in times),
        delta,
        _ms(arm["tpot_mean_ms"]),
        _ms(arm["e2e_mean_ms"]),
        "?" if arm["hit_rate"] is None else percent(arm["hit_rate"]),
        f"{arm['errors']:,}",
        "?" if arm["faults"] is None else f"{arm['faults']:,}",
    ]


def _spreads(entry: Mapping[str, Any]) -> list[str]:
    found = []
    for name, delta in entry["deltas"].items():
        low, high = delta["interval"]
        text = f"{name} {delta['percent']:+.1f} % [{low:+.1f}, {high:+.1f}]"
        if entry["round_noise"] is not None:
            text += f"; between rounds {entry['round_noise'][name]:.1f} %"
        if entry["noise_floor"] is not None:
            text += f"; noise floor {entry['noise_floor'][name]['percent']:.1f} %"
        found.append(text)
    return found


def _hits(arm: Mapping[str, Any], *, serial: bool) -> str:
    measured = ", ".join("?" if hits is None else f"{hits:,.0f}" for hits in arm["hit_tokens"])
    text = f"{arm['policy']}: {measured} hit tokens measured by round"
    predicted = arm["predicted_hit_tokens"]
    if predicted is None:
        return text
    if not serial:
        return f"{text}, {predicted:,} simulated (a guess: live arrivals jitter)"
    same = all(hits == predicted for hits in arm["hit_tokens"])
    return f"{text}, {predicted:,} predicted: {'the same' if same else 'DIFFERENT'}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"
