policy hrrn : schedule
"Highest response ratio next: short prompts first, and the longer a wait the more it counts."

# Source: https://github.com/sgl-project/sglang/pull/32911
# Formula: priority = -(wait + S) / S = -(1 + wait / S), ties by arrival. S, the time of service, is
# taken as the tokens not yet cached over one rate for all, and that rate cannot change the order.
order by -(wait / uncached_tokens), arrival
