policy lfu : evict
"Least frequently used, ties by recency."

# Source: https://docs.sglang.io/docs/advanced_features/radix_eviction_policy
# Formula: priority = (hits, last access).
order by uses, last_use
candidates all
