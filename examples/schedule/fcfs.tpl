policy fcfs : schedule
"First come, first served: vLLM's own order."

# Source: the textbook rule, https://github.com/vllm-project/vllm/issues/19057
# Formula: priority = arrival; the lowest is served first.
order by arrival
