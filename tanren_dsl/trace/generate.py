"""The embedded chat trace: seeded, prefix-consistent, made in memory.

It is a stand-in for demonstrations and tests, not a measurement. Two kinds of
client share a few system prompts: conversations whose every turn repeats the whole
history, and batch jobs that send long documents once. Nothing is tuned towards a
policy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from tanren_dsl.errors import TanrenError
from tanren_dsl.trace.table import Ints, RequestTable, relabel

_Doubles = NDArray[np.float64]
CHAT_REQUESTS = 4000
CHAT_BLOCK = 16
_MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ChatShape:
    """What the generated traffic looks like.

    Lengths imitate public chat logs (log-normal, medians of tens of tokens in and a
    few hundred out). Prompts average about 2,000 tokens: Mooncake's conversation trace,
    about 12,000, is too long for a demonstration on a small cache.
    """

    system_prompts: int = 8
    system_median_tokens: float = 600.0
    system_sigma: float = 0.5
    system_zipf: float = 1.0
    """Popularity of the k-th system prompt is proportional to `k ** -system_zipf`."""

    turns_mean: float = 4.0
    """Turns of a conversation, geometric."""
    message_median_tokens: float = 60.0
    message_sigma: float = 1.2
    output_median_tokens: float = 220.0
    output_sigma: float = 0.8
    think_median_s: float = 20.0
    think_sigma: float = 1.4
    """Time between a reply and the next message, log-normal: its tail reaches hours."""
    decode_tokens_per_s: float = 40.0
    """How fast replies are written; the next message waits for the last reply."""

    sessions_per_s: float = 0.5
    """Conversations and batch jobs that begin, together."""
    arrival_cv: float = 1.4
    """Variation of the gaps between them (gamma; 1 is Poisson, more is bursty)."""

    job_share: float = 0.06
    """Part of the arrivals that are batch jobs."""
    job_documents_mean: float = 8.0
    """Documents of a job, geometric."""
    job_gap_s: float = 1.5
    document_median_tokens: float = 3500.0
    document_sigma: float = 0.6
    document_output_tokens: float = 120.0

    most_prompt_tokens: int = 16_384
    """A conversation ends before a prompt would exceed this; documents are cut to it."""
    most_output_tokens: int = 2_048

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name.endswith("_mean") or isinstance(field.default, int) else 0
            share = field.name == "job_share"
            if not (least <= value < float("inf")) or (share and value > 1) or (value == 0 and not share):
                wanted = (
                    "a share from 0 to 1" if share else f"a number {'of at least 1' if least else 'above 0'}"
                )
                raise TanrenError(f"chat shape: expected {field.name} to be {wanted}, found {value!r}")


def generate_chat(
    seed: int = 0,
    requests: int = CHAT_REQUESTS,
    *,
    block_tokens: int = CHAT_BLOCK,
    shape: ChatShape | None = None,
) -> RequestTable:
    """The first `requests` requests of a chat service, in order of arrival.

    A turn's prompt is the last prompt, the last reply and a new message, so its full
    blocks extend the earlier chain; a partial last block is distinct per turn, as its
    content is. The same arguments give the same table on every machine with the same
    NumPy.

    Raises:
        TanrenError: a number is out of range.
    """
    if not 1 <= requests <= _MOST_REQUESTS:
        raise TanrenError(f"expected 1 to {_MOST_REQUESTS} requests, found {requests!r}")
    if block_tokens < 1 or seed < 0:
        raise TanrenError(
            f"expected block_tokens of at least 1 and a seed of at least 0, found "
            f"{block_tokens!r} and {seed!r}"
        )
    shape = shape or ChatShape()
    rng = np.random.default_rng(seed)
    system_tokens = _lengths(rng, shape.system_median_tokens, shape.system_sigma, shape.system_prompts)
    # every arrival brings at least one request, so the last arrival lies past the cut
    turns = _turns(rng, shape, requests, system_tokens)
    order = np.argsort(turns.arrival_us, kind="stable")[:requests]
    turns = replace(turns, **{name: column[order] for name, column in vars(turns).items()})
    offsets, ids = _blocks(turns, system_tokens, block_tokens)
    return RequestTable(
        name=f"chat:{seed}:{requests}",
        block_tokens=block_tokens,
        arrival_us=turns.arrival_us - turns.arrival_us[0],
        prompt_tokens=turns.prompt_tokens,
        output_tokens=turns.output_tokens,
        session=relabel(turns.session).astype(np.int64),
        offsets=offsets,
        ids=ids,
        notes=(f"format: generated chat, seed {seed}", f"block size: {block_tokens} tokens (as made)"),
    )


@dataclass(frozen=True)
class _Turns:
    """One entry per request, all int64 of one length."""

    arrival_us: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    session: Ints
    system: Ints


def _turns(rng: Generator, shape: ChatShape, arrivals: int, system_tokens: Ints) -> _Turns:
    start_s = np.cumsum(_gaps(rng, shape, arrivals))
    is_job = rng.random(arrivals) < shape.job_share
    popularity = np.arange(1, shape.system_prompts + 1) ** -shape.system_zipf
    system = rng.choice(shape.system_prompts, size=arrivals, p=popularity / popularity.sum())
    mean = np.where(is_job, shape.job_documents_mean, shape.turns_mean)
    count = rng.geometric(1 / mean)

    arrival = np.repeat(np.arange(arrivals), count)
    first = np.cumsum(count) - count
    job = is_job[arrival]
    total = len(arrival)
    message = np.where(
        job,
        _lengths(rng, shape.document_median_tokens, shape.document_sigma, total),
        _lengths(rng, shape.message_median_tokens, shape.message_sigma, total),
    )
    base = system_tokens[system[arrival]]
    message = np.where(job, np.minimum(message, np.maximum(1, shape.most_prompt_tokens - base)), message)
    output = np.where(
        job,
        _lengths(rng, shape.document_output_tokens, shape.output_sigma, total),
        _lengths(rng, shape.output_median_tokens, shape.output_sigma, total),
    )
    output = np.minimum(output, shape.most_output_tokens)
    think_s = shape.think_median_s * np.exp(shape.think_sigma * rng.standard_normal(total))
    reply_s = output / shape.decode_tokens_per_s
    gap_s = np.where(job, rng.exponential(shape.job_gap_s, total), think_s + reply_s)

    history = _before(message + output, first, count)
    prompt = base + message + np.where(job, 0, history)
    arrival_us = _microseconds(start_s)[arrival] + _before(_microseconds(gap_s), first, count)
    # documents of a job are strangers to each other, turns of a conversation are not
    session = np.where(job, np.arange(total), first[arrival])
    turns = _Turns(arrival_us, prompt, output, session, system[arrival].astype(np.int64))
    first_turn = np.arange(total) == first[arrival]
    fits = (prompt <= shape.most_prompt_tokens) | first_turn
    return replace(turns, **{name: column[fits] for name, column in vars(turns).items()})


def _blocks(turns: _Turns, system_tokens: Ints, block: int) -> tuple[Ints, NDArray[np.int32]]:
    """Offsets and dense ids: blocks wholly in a system prompt belong to it, the rest to the session."""
    rows = len(turns.prompt_tokens)
    count = -(-turns.prompt_tokens // block)
    offsets = np.concatenate(([0], np.cumsum(count)))
    request = np.repeat(np.arange(rows), count)
    place = np.arange(offsets[-1]) - offsets[request]
    system = turns.system[request]
    shared = (place + 1) * block <= system_tokens[system]
    partial = (place + 1) * block > turns.prompt_tokens[request]
    # one range of places per owner: system prompts, then sessions, then partial blocks by request
    owner = np.where(shared, system, len(system_tokens) + relabel(turns.session)[request])
    owner = np.where(partial, len(system_tokens) + rows + request, owner)
    return offsets, relabel(owner * (int(count.max()) + 1) + place)


def _lengths(rng: Generator, median: float, sigma: float, size: int) -> Ints:
    return np.maximum(1, np.rint(median * np.exp(sigma * rng.standard_normal(size)))).astype(np.int64)


def _microseconds(seconds: _Doubles) -> Ints:
    return np.rint(seconds * 1e6).astype(np.int64)


def _gaps(rng: Generator, shape: ChatShape, size: int) -> _Doubles:
    steadiness = shape.arrival_cv**-2
    return rng.gamma(steadiness, 1 / (steadiness * shape.sessions_per_s), size)


def _before(values: Ints, first: Ints, count: Ints) -> Ints:
    """Sum of the earlier values of the same group, per value."""
    running = np.cumsum(values) - values
    return running - np.repeat(running[first], count)
