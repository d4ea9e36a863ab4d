"""What a request may cost at most, and whether the caps leave room for it."""

from __future__ import annotations

import json

from tanren_dsl.evolve.llm.calls import Spent, Worst
from tanren_dsl.evolve.llm.dialects import Body
from tanren_dsl.evolve.llm.settings import Caps, ModelSettings

CAP = "the cap of"
"""How every refusal begins."""
_TEMPLATE_TOKENS = 256
"""What a server's chat template may add to a prompt."""


def cost_of(settings: ModelSettings, tokens_in: int, tokens_out: int) -> float:
    """US dollars; 0 where prices are not known, which no cap on money allows."""
    prices = (settings.price_in or 0.0, settings.price_out or 0.0)
    return (tokens_in * prices[0] + tokens_out * prices[1]) / 1e6


def worst_of(settings: ModelSettings, body: Body, tokens_out: int, seconds: float) -> Worst:
    """The most that a request may cost.

    A token holds at least one byte, so a prompt has no more tokens than bytes. That is some four
    times what English takes; it only matters for the last call before a cap.
    """
    read = [body.get(name) for name in ("messages", "input", "tools")]  # elsewhere a grammar is no prompt
    tokens_in = len(json.dumps(read, ensure_ascii=False).encode("utf-8", "replace")) + _TEMPLATE_TOKENS
    return Worst(tokens_in, tokens_out, cost_of(settings, tokens_in, tokens_out), seconds)


def refusal(caps: Caps, spent: Spent, worst: Worst) -> str | None:
    """Why the next request is not sent, or None: with it at its worst no cap may be passed."""
    if (reached := cap_reached(caps, spent)) is not None:
        return reached
    tokens = spent.tokens_in + spent.tokens_out
    if caps.tokens is not None and tokens + worst.tokens_in + worst.tokens_out > caps.tokens:
        return (
            f"{CAP} {caps.tokens:,} tokens leaves {caps.tokens - tokens:,}, and the next call may take "
            f"{worst.tokens_in + worst.tokens_out:,}"
        )
    if caps.usd is not None and spent.usd + worst.usd > caps.usd:
        return (
            f"{CAP} {caps.usd:g} USD leaves {caps.usd - spent.usd:.4f}, and the next call may cost "
            f"{worst.usd:.4f}"
        )
    return None


def cap_reached(caps: Caps, spent: Spent) -> str | None:
    """Which cap nothing is left of, in words."""
    if caps.calls is not None and spent.calls >= caps.calls:
        return f"{CAP} {caps.calls:,} calls is reached"
    if caps.tokens is not None and spent.tokens_in + spent.tokens_out >= caps.tokens:
        return f"{CAP} {caps.tokens:,} tokens is reached"
    if caps.usd is not None and spent.usd >= caps.usd > 0.0:  # at 0 what is free may go on
        return f"{CAP} {caps.usd:g} USD is reached"
    if caps.wall_s is not None and spent.wall_s >= caps.wall_s:
        return f"{CAP} {caps.wall_s:g} s is reached"
    return None
