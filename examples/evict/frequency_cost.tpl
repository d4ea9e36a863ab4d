policy frequency_cost : evict
"Keep what is hit often and costs much to compute again."

# Source: https://github.com/vllm-project/vllm/issues/27539
# Formula: priority = hits * cost, ties by last access. Attention makes a later block dearer
# to compute, so its cost is taken as the tokens up to and with it.
let cost = depth + block_size

order by uses * cost, last_use
