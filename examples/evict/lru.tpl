policy lru : evict
"Least recently used: vLLM's own order."

# Source: https://docs.vllm.ai/en/latest/design/prefix_caching/
# Formula: priority = last access; the lowest is evicted first.
order by last_use
