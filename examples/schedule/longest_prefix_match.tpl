policy longest_prefix_match : schedule
"Longest cached prefix first; first come, first served while the queue is long."

# Source: https://github.com/sgl-project/sglang/issues/31954
# Formula: priority = -tokens of the longest cached prefix, ties by arrival; with more than `crowd`
# requests waiting, arrival alone.
knob crowd : requests = 128

order by 0 if waiting > crowd else -cached_tokens, arrival
