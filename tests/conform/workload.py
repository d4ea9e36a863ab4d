"""Seeded conversations that keep a small cache short of memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tanren_dsl.conform.harness import TokenTable


def conversations(seed: int, requests: int = 300) -> TokenTable:
    """Turns of 40 sessions under four system prompts; every turn's prompt repeats the talk so far.

    Some prompts end on a block boundary, some requests arrive together, and prompts of
    up to 700 tokens need several chunks of a 256-token budget.
    """
    rng = np.random.default_rng(seed)
    systems = [rng.integers(0, 50_000, int(rng.integers(20, 120))) for _ in range(4)]
    talks: dict[int, np.ndarray] = {}
    arrivals, prompts, outputs, now = [], [], [], 0
    for _ in range(requests):
        if rng.random() < 0.7:
            now += int(rng.exponential(30_000))
        session = int(rng.integers(0, 40))
        talk = talks.get(session)
        if talk is None or len(talk) > 500:
            talk = systems[session % 4]
        prompt = np.concatenate([talk, rng.integers(0, 50_000, int(rng.integers(1, 120)))])
        if rng.random() < 0.1:
            prompt = prompt[: max(1, len(prompt) // 16 * 16)]
        output = rng.integers(0, 50_000, int(rng.integers(1, 70)))
        talks[session] = np.concatenate([prompt, output])
        arrivals.append(now)
        prompts.append(prompt)
        outputs.append(output)
    return table_of(arrivals, prompts, outputs)


def with_aborts(table: TokenTable, seed: int) -> TokenTable:
    """Every sixth client gives up within a second of its arrival, some at once."""
    rng = np.random.default_rng(seed)
    delays = rng.integers(0, 1_000_000, len(table)) * rng.integers(0, 2, len(table))
    return replace(table, abort_us=np.where(np.arange(len(table)) % 6 == 0, table.arrival_us + delays, -1))


def table_of(arrivals: list[int], prompts: list[np.ndarray], outputs: list[np.ndarray]) -> TokenTable:
    """A request table from one array of tokens a request. Arrivals in microseconds."""
    return TokenTable(
        arrival_us=np.array(arrivals, np.int64),
        prompt_offsets=_offsets(prompts),
        prompt_tokens=np.concatenate(prompts).astype(np.int32),
        output_offsets=_offsets(outputs),
        output_tokens=np.concatenate(outputs).astype(np.int32),
    )


def _offsets(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
