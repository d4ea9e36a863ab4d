policy never_hit_first : evict
"Blocks that were never hit go first, each group in LRU order."

# Source: https://github.com/vllm-project/vllm/issues/51348
# Formula: priority = (hits > 0, last access).
order by 1 if uses > 0 else 0, last_use
