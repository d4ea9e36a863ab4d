"""What is asked of a comparison, as the command takes it, with the choices that were left open made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tanren_dsl.bench.prompts import Arrivals
from tanren_dsl.errors import TanrenError

QUICK_S = 165.0
"""Seconds after which a quick comparison begins no round that is likely to end later."""

_ANY: Mapping[str, Any] = {
    "requests": 200,
    "rounds": 2,
    "warm_up": 4,
    "rates": (None,),
    "capacities": (None,),
}
_CPU: Mapping[str, Any] = {"outputs": 32, "rates": (2.0,), "capacities": (512,)}
_QUICK: Mapping[str, Any] = {"requests": 24, "outputs": 8, "rates": (3.0,), "warm_up": 2, "keep_up": True}


@dataclass(frozen=True, slots=True)
class Wish:
    """Options by their names; None is left open. Exactly one of `device`, `model` and `urls` is given.

    `device` is `cpu`: a small random model is served from an environment of `vllm` (a version).
    `model` is served by `python`. `urls` run already, one for each arm. `rates` are in requests per
    second, None as in the trace; `capacities` in usable blocks, None as the server chooses.
    """

    device: str | None = None
    model: str | None = None
    urls: Sequence[str] = ()
    python: Path | None = None
    vllm: str = "0.32.0"
    serve_args: Sequence[str] = ()
    requests: int | None = None
    outputs: int | None = None
    tokens_per_id: int | None = None
    cap_prompt: bool = False
    rates: Sequence[float | None] = ()
    arrivals: Arrivals = "trace"
    capacities: Sequence[int | None] = ()
    rounds: int | None = None
    warm_up: int | None = None
    timeout_s: float = 120.0
    seed: int = 0
    serial: bool = False
    aa: bool = False
    quick: bool = False
    keep_up: bool = False
    client_cores: str | None = None
    engine_cores: str | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    vocabulary: int | None = None


def resolved(wish: Wish, block_tokens: int) -> Wish:
    """The wish with nothing left open that does not depend on the server.

    Args:
        wish: what was asked.
        block_tokens: tokens of a block of the trace; on the CPU an id stands for a quarter of it.

    Raises:
        TanrenError: the wish names no server, or several kinds, or contradicts itself.
    """
    kinds = [wish.device is not None, wish.model is not None, bool(wish.urls)]
    if sum(kinds) != 1:
        raise TanrenError(
            "expected one kind of server",
            hint="--device cpu, --serve MODEL with --python, or --url for each arm",
        )
    if wish.urls and len(wish.capacities) > 1:
        raise TanrenError("a server that runs already has one capacity, found several")
    if wish.quick and (len(wish.rates) > 1 or len(wish.capacities) > 1):
        raise TanrenError("a quick comparison takes one rate and one capacity, found several")
    open_choices = dict(_ANY)
    if wish.device is not None:
        open_choices |= {**_CPU, "tokens_per_id": max(1, block_tokens // 4)}
    if wish.quick:
        open_choices |= _QUICK
    left = {name: value for name, value in open_choices.items() if not getattr(wish, name)}
    made = replace(wish, **left)
    return replace(made, rates=(None,)) if made.serial else made
