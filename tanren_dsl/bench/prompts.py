"""From a trace to the exact prompts that are sent: token ids from block ids, within a vocabulary.

Token j of block X is a fixed hash of (X, j), so equal blocks give equal tokens and different ones
differ with overwhelming probability (two blocks agree in d tokens with chance `size ** -d`). One id
may stand for a smaller block than in the trace: every full block then has `tokens_per_id` tokens and
a partial last block its proportion, rounded up, so reuse between requests stays what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.blocks import FIRST_TOKEN, output_token_ids, prompt_token_ids
from tanren_dsl.trace.table import RequestTable, relabel

Arrivals: TypeAlias = Literal["trace", "even", "poisson"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a trace is made to fit a server.

    Attributes:
        vocabulary: token ids are from `FIRST_TOKEN` to one below this.
        max_model_len: tokens of the longest text that the server takes, prompt and output.
        tokens_per_id: tokens that a full block of the trace stands for; None: as many as in the trace.
        output_cap: most tokens generated for a request; None: as in the trace. At least 1 is.
        cap_prompt: cut prompts that are too long, instead of refusing them.
    """

    vocabulary: int
    max_model_len: int
    tokens_per_id: int | None = None
    output_cap: int | None = None
    cap_prompt: bool = False


def fitted(table: RequestTable, sizes: Sizes) -> RequestTable:
    """The trace as it is sent: lengths in tokens of the server, `block_tokens` those of an id.

    Raises:
        TanrenError: no requests, a size is out of range, or requests are too long for the server.
    """
    per_id = table.block_tokens if sizes.tokens_per_id is None else sizes.tokens_per_id
    if len(table) == 0:
        raise TanrenError(f"{table.name}: no requests")
    if per_id < 1 or sizes.vocabulary <= FIRST_TOKEN + 1:
        raise TanrenError(
            f"expected at least 1 token an id and a vocabulary above {FIRST_TOKEN + 1}, "
            f"found {per_id} and {sizes.vocabulary}"
        )
    full, rest = np.divmod(table.prompt_tokens, table.block_tokens)
    prompt = full * per_id - (-rest * per_id // table.block_tokens)
    output = np.maximum(table.output_tokens, 1)
    if sizes.output_cap is not None:
        output = np.minimum(output, max(1, sizes.output_cap))
    table = replace(table, block_tokens=per_id, prompt_tokens=prompt, output_tokens=output)
    return _within(table, sizes)


def paced(table: RequestTable, rate: float | None, arrivals: Arrivals, seed: int) -> RequestTable:
    """The same requests at `rate` a second on average; None leaves the trace's own times.

    `trace` stretches the trace's own gaps, which keeps its bursts, `even` spaces evenly, `poisson`
    draws the gaps.

    Raises:
        TanrenError: the rate is not above 0, or the trace has no gaps to stretch.
    """
    if rate is None:
        return table
    if arrivals != "trace":
        return table.with_rate(rate, seed if arrivals == "poisson" else None)
    span_us = int(table.arrival_us[-1])
    if not (np.isfinite(rate) and rate > 0) or (span_us == 0 and len(table) > 1):
        raise TanrenError(
            f"cannot stretch {table.name}, {span_us / 1e6:g} s long, to {rate!r} requests per second",
            hint="a rate above 0, or evenly spaced arrivals (--arrivals even)",
        )
    factor = (len(table) - 1) / rate / (span_us / 1e6) if span_us else 1.0
    arrival_us = np.rint(table.arrival_us * factor).astype(np.int64)
    note = f"arrivals stretched to {rate:g} requests/s"
    return replace(table, arrival_us=arrival_us, notes=(*table.notes, note))


def prompts(table: RequestTable, vocabulary: int) -> list[list[int]]:
    """Token ids of every request of a table made by `fitted`, R lists of P ids."""
    return [prompt_token_ids(table, request, vocabulary).tolist() for request in range(len(table))]


def warm_up_prompts(count: int, tokens: int, vocabulary: int) -> list[list[int]]:
    """So many prompts of so many token ids, unlike one another and every prompt of a trace."""
    return [output_token_ids(number, tokens, vocabulary).tolist() for number in range(count)]


def _within(table: RequestTable, sizes: Sizes) -> RequestTable:
    """The table if every request fits the server, or with prompts cut so that they do."""
    limit = sizes.max_model_len
    long = table.prompt_tokens + table.output_tokens > limit
    if not long.any():
        return table
    first = int(np.argmax(long))
    if not sizes.cap_prompt or int(table.output_tokens.max()) >= limit:
        raise TanrenError(
            f"{table.name}: {int(long.sum()):,} of {len(table):,} requests are longer than the server's "
            f"max_model_len {limit}: the first is request {first + 1} with {int(table.prompt_tokens[first])} "
            f"prompt and {int(table.output_tokens[first])} output tokens",
            hint="smaller blocks (--tokens-per-id), shorter outputs (--outputs), a longer --max-model-len "
            "with enough blocks, or --cap-prompt to cut prompts",
        )
    prompt = np.minimum(table.prompt_tokens, limit - table.output_tokens)
    counts = -(-prompt // table.block_tokens)
    place = np.arange(table.lookups) - np.repeat(table.offsets[:-1], np.diff(table.offsets))
    kept = table.ids[place < np.repeat(counts, np.diff(table.offsets))]
    return replace(
        table,
        prompt_tokens=prompt,
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        ids=relabel(kept),
        notes=(*table.notes, f"{int(long.sum()):,} prompts cut to fit max_model_len {limit}"),
    )
