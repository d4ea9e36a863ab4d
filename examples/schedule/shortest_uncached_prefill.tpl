policy shortest_uncached_prefill : schedule
"Shortest prefill first, by the tokens that the cache does not hold."

# Source: https://github.com/vllm-project/vllm/pull/21558
# Formula: priority = tokens not yet cached, ties by arrival.
order by uncached_tokens, arrival
