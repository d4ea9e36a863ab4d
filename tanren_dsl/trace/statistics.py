"""What a trace looks like in a few numbers, for printing beside published ones."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tanren_dsl.trace.table import Ints, RequestTable, first_lookups

Statistics: TypeAlias = dict[str, int | float]


def statistics(table: RequestTable) -> Statistics:
    """Counts, lengths in tokens, times in seconds, shares between 0 and 1.

    `infinite_hit_rate` is the share of block lookups that an unbounded cache hits;
    `sessions` counts known ones; `median_reuse_gap_s` is the time between
    consecutive uses of a block, over all reuses (0 where nothing is reused).
    """
    span_s = int(table.arrival_us[-1]) / 1e6 if len(table) else 0.0
    found: Statistics = {
        "requests": len(table),
        "span_s": span_s,
        "requests_per_s": len(table) / span_s if span_s else 0.0,
        "block_tokens": table.block_tokens,
        "lookups": table.lookups,
        "distinct_blocks": table.distinct_blocks,
        "longest_blocks": table.longest(),
        "infinite_hit_rate": infinite_hits(table) / table.lookups if table.lookups else 0.0,
        "sessions": len(np.unique(table.session[table.session >= 0])),
        "median_reuse_gap_s": _median_reuse_gap_s(table),
    }
    for name, tokens in (("prompt", table.prompt_tokens), ("output", table.output_tokens)):
        found[f"{name}_tokens_mean"] = float(tokens.mean()) if len(tokens) else 0.0
        for percent in (50, 90, 99):
            found[f"{name}_tokens_p{percent}"] = float(np.percentile(tokens, percent)) if len(tokens) else 0.0
    return found


def infinite_hits(table: RequestTable) -> int:
    """Block lookups that an unbounded prefix cache hits: the longest prefix seen in earlier requests."""
    return int(infinite_hits_each(table).sum())


def infinite_hits_each(table: RequestTable) -> Ints:
    """[R] the same per request."""
    lookup = np.arange(table.lookups)
    missed = lookup[first_lookups(table)[table.ids] == lookup]
    # the first miss at or after a request's front, or its end
    place = np.searchsorted(missed, table.offsets[:-1])
    next_miss = np.append(missed, table.lookups)[place]
    hits: Ints = np.minimum(next_miss, table.offsets[1:]) - table.offsets[:-1]
    return hits


def _median_reuse_gap_s(table: RequestTable) -> float:
    arrival = np.repeat(table.arrival_us, np.diff(table.offsets))
    by_block = np.argsort(table.ids, kind="stable")
    again = np.diff(table.ids[by_block]) == 0
    gaps = np.diff(arrival[by_block])[again]
    return float(np.median(gaps)) / 1e6 if len(gaps) else 0.0
