policy srpt : schedule
"Shortest remaining processing time, as far as the declared cap on the output tells it."

# Source: the textbook rule; for language models https://arxiv.org/abs/2410.01035
# Formula: priority = tokens left to prefill + tokens that may still be generated, ties by arrival;
# of the running, the one with the most tokens left is preempted first. The paper predicts the length
# of the output; here its cap stands for it, and where a trace declares none that is one constant:
# then this is the shortest uncached prefill, less what a resumed request has generated.
order by uncached_tokens + (max_tokens - output_tokens), arrival
preempt by -(prompt_tokens + max_tokens - computed_tokens)
