"""`tanren-dsl windows`: which classic wins where on a trace."""

from __future__ import annotations

from typing import Any

import click

from tanren_dsl.cli.options import json_option, trace_reading_options
from tanren_dsl.cli.output import print_json, print_table
from tanren_dsl.cli.score import runs_of, settings_of, settings_options, title_of


@click.command()
@settings_options
@trace_reading_options
@json_option
def windows(skip_bad: bool, as_json: bool, **options: Any) -> None:
    """Show which classic schedule policy wins which window of a trace, simulated.

    Scores every packaged schedule policy on windows spread over the trace, as `score` does, and
    picks a spread of them: windows that different policies win, then those whose winning scores
    differ most. `score` uses these unless its settings name windows.

    \b
    Example:
      tanren-dsl windows --trace requests.csv --no-guard
    """
    from tanren_dsl.backends.numba import compile_ordering
    from tanren_dsl.scoring.arms import classic_arms
    from tanren_dsl.scoring.picker import pick, survey
    from tanren_dsl.scoring.windows import window_length
    from tanren_dsl.sim.serving import MODE

    settings = settings_of(**options)
    runs = runs_of(settings, skip_bad)
    found = survey(runs, classic_arms(compile_ordering, settings))
    picked = pick(found, settings.windows)
    requests = window_length(runs.trace, settings)
    if as_json:
        results = [{**one.as_json(), "picked": one.start in picked} for one in found]
        print_json(
            {
                "mode": MODE,
                "engine": settings.engine,
                "trace": runs.trace.name,
                "notes": list(runs.trace.notes),
                "profile": {"name": runs.latency.name, "basis": runs.latency.basis},
                "settings": settings.as_json(),
                "requests": requests,
                "picked": list(picked),
                "results": results,
            }
        )
        return
    rows = []
    for one in found:
        shape = one.statistics
        rows.append(
            [
                f"{one.start:,}",
                f"{shape['requests_per_s']:,.2f}",
                f"{one.saturation:,.2f}",
                f"{shape['gap_cv']:,.2f}",
                f"{shape['prompt_tokens_mean']:,.0f}",
                f"{shape['prompt_tokens_p99']:,.0f}",
                f"{shape['output_tokens_mean']:,.0f}",
                f"{100 * shape['infinite_hit_rate']:.1f} %",
                one.winner,
                f"{one.score:+.3f}",
                f"{one.margin:.3f}",
                "picked" if one.start in picked else "",
            ]
        )
    loads = ", ".join(f"{load:g}" for load in settings.loads)
    print_table(
        f"{title_of(runs)}\n{len(found)} windows of {requests:,} requests, scores summed over loads {loads}",
        [
            "first request", "requests/s", "at most", "gap cv", "prompt mean", "p99", "output mean",
            "reuse", "won by", "score", "margin", "",
        ],
        rows,
    )  # fmt: skip
