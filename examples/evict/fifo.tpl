policy fifo : evict
"First in, first out: the block written first goes first, however often it was used."

# Source: the textbook rule, as in SGLang's eviction policies,
# https://docs.sglang.io/docs/advanced_features/radix_eviction_policy
# Formula: priority = time of writing.
order by created
candidates all
