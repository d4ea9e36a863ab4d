"""What a step takes, in plain Python: the latency profile's half of the engine's oracle."""

from __future__ import annotations

import math
from typing import Any

from tanren_dsl.conform.harness import EngineSpec


def takes_us(spec: EngineSpec, batch: dict[Any, int]) -> int:
    """What a step takes that is to compute this batch, before it counts as computed."""
    profile = spec.latency
    if profile is None:
        return spec.step_us
    if not batch:
        return math.floor(profile.empty_us + 0.5)
    prefill = pairs = decodes = context = 0
    for request, new in batch.items():
        if new == 1 and request.computed >= len(request.prompt):
            decodes, context = decodes + 1, context + request.computed + 1
        else:
            prefill, pairs = prefill + new, pairs + sum(request.computed + k + 1 for k in range(new))
    value = profile.base_us + profile.prefill_us * prefill
    value += profile.attention_us * (pairs / 1e6)
    value += profile.decode_us * decodes
    return max(1, math.floor(value + profile.context_us * (context / 1e3) + 0.5))
