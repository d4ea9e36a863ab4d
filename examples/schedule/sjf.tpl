policy sjf : schedule
"Shortest job first, by the length of the prompt."

# Source: https://github.com/vllm-project/vllm/issues/29406
# Formula: priority = prompt length, ties by arrival.
order by prompt_tokens, arrival
