"""What a vLLM server counts: the few of its Prometheus metrics that a comparison needs.

Counters start at zero with the server, and a reset of the prefix cache leaves them; so what
happened in between is the difference of two readings. 0.19.1 counts a query each time it tries to
admit a request, 0.32.0 once for each request: rates of the two are not to be compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tanren_dsl.errors import TanrenError

_NAMES = {
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
}
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Metrics:
    """One reading, summed over the engines of the server.

    `prefix_queries` and `prefix_hits` are tokens that were looked up and found, `preemptions`,
    `prompt_tokens` and `generation_tokens` are counts as well, all since the server's start;
    `running` and `waiting` are requests, as of the engine's last step.
    """

    prefix_queries: float
    prefix_hits: float
    preemptions: float
    running: float
    waiting: float
    prompt_tokens: float
    generation_tokens: float

    def hit_rate_since(self, earlier: Metrics) -> float | None:
        """Share of looked-up tokens that were found between two readings; None if none were looked up."""
        queries = self.prefix_queries - earlier.prefix_queries
        return (self.prefix_hits - earlier.prefix_hits) / queries if queries > 0 else None


def parse_metrics(text: str) -> Metrics:
    """Read the text of `/metrics`.

    Raises:
        TanrenError: one of the metrics is missing, so this is no vLLM server that keeps them.
    """
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    missing = [name for name in _NAMES.values() if name not in sums]
    if missing:
        raise TanrenError(
            f"the server's /metrics has no {missing[0]}",
            hint="it must be a vLLM server, started without --disable-log-stats",
        )
    return Metrics(**{field: sums[name] for field, name in _NAMES.items()})
