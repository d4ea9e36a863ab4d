"""The knee of a running server: each capacity that the search asks for is served and measured once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tanren_dsl.bench.comparison import Comparison, at_capacity, comparison
from tanren_dsl.bench.knee import Knee, Sample, Tolerance, find_knee
from tanren_dsl.bench.results import arm_row
from tanren_dsl.bench.run import measured_arms
from tanren_dsl.bench.wish import Wish
from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import RequestTable


@dataclass(frozen=True)
class Search:
    """Where the search ended, and what was searched: vLLM's version, tokens of a block, the largest."""

    knee: Knee
    version: str | None
    block_size: int
    largest: int

    def left_by(self, blocks: int) -> tuple[str, ...]:
        """By which quantities a measured capacity has left the largest one's."""
        samples = self.knee.samples
        return Tolerance().departures(samples[blocks], samples[self.largest])

    def as_json(self) -> dict[str, Any]:
        """The one object that the command prints; `samples` from the largest capacity down."""
        rows = [
            {
                "capacity": blocks,
                "ttft_p50_ms": sample.ttft_p50_ms,
                "ttft_p99_ms": sample.ttft_p99_ms,
                "hit_rate": sample.hit_rate,
                "errors": sample.errors,
                "left_by": list(self.left_by(blocks)),
            }
            for blocks, sample in sorted(self.knee.samples.items(), reverse=True)
        ]
        return {
            "engine_version": self.version,
            "block_size": self.block_size,
            "knee": self.knee.blocks,
            "above": self.knee.above,
            "left_by": list(self.knee.left_by),
            "samples": rows,
        }


def search_knee(
    wish: Wish, trace: RequestTable, out: Path, say: Callable[[str], None],
    step: Callable[[int, Sample], None], *, largest: int, smallest: int | None, resolution: float,
) -> Search:  # fmt: skip
    """Search the knee of the default.

    Args:
        wish: what is asked; its capacities are not used.
        trace: the requests.
        out: a folder for each capacity goes there; what is in it is not measured again.
        say: takes lines of progress.
        step: takes each sample.
        largest: usable blocks that are plenty.
        smallest: usable blocks to go down to; None: those of the longest request.
        resolution: share by which the upper bound may exceed the knee.

    Raises:
        TanrenError: the servers run already, the requests do not fit, or a server fails.
    """
    if wish.urls:
        raise TanrenError("a knee needs servers that are started here", hint="--device cpu or --serve MODEL")
    whole = comparison(replace(wish, capacities=(largest,)), [], trace, out)
    longest = max(
        int((load.table.prompt_tokens + load.table.output_tokens).max()) for load in whole.plan.loads
    )
    block_size = whole.serving.block_size
    least = -(-longest // block_size)
    smallest = least if smallest is None else smallest
    if smallest < least:
        raise TanrenError(
            f"the longest request has {longest} tokens: {least} blocks, found --smallest {smallest}"
        )
    limit = least * block_size  # the same at every capacity, so that only the capacity differs
    whole = comparison(replace(wish, capacities=(largest,), max_model_len=limit), [], trace, out)

    def measure(blocks: int) -> Sample:
        sample = _sample(at_capacity(whole, blocks, out / f"{blocks}-blocks"), blocks, say)
        step(blocks, sample)
        return sample

    found = find_knee(measure, largest, smallest, resolution=resolution)
    return Search(found, whole.serving.version, block_size, largest)


def _sample(one: Comparison, blocks: int, say: Callable[[str], None]) -> Sample:
    rounds = one.measure(say)
    (default,) = measured_arms(one.plan, one.store, rounds, blocks, one.plan.loads[0], None)
    row = arm_row(default)
    if row["ttft_p99_ms"] is None:
        raise TanrenError(f"no request ended well at {blocks} blocks: {row['first_error']}")
    return Sample(row["ttft_p50_ms"], row["ttft_p99_ms"], row["hit_rate"] or 0.0, row["errors"])
