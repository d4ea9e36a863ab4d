policy aged_sjf : schedule
"Shortest job first with ageing: every second of waiting counts like so many tokens less."

# Source: https://github.com/sgl-project/sglang/issues/30806
# Formula: priority = tokens not yet cached - rate * wait, ties by arrival.
knob rate : tokens/time = 1000

order by uncached_tokens - rate * wait, arrival
