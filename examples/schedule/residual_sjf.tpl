policy residual_sjf : schedule
"Shortest job first, by the blocks left to prefill; resumed and overdue requests go before."

# Source: https://github.com/vllm-project/vllm/pull/51375
# Formula: resumed requests first, then those that waited longer than max_wait, both by arrival;
# then priority = ceil(tokens not yet cached / block size), ties by arrival.
knob max_wait : time = 10

let overdue = resumed or wait > max_wait
let blocks = -floor(-uncached_tokens / block_size)

order by 0 if resumed else 1 if overdue else 2, 0 if overdue else blocks, arrival
