policy las : schedule
"Least attained service: who has been served the fewest tokens is served first."

# Source: https://arxiv.org/abs/2305.05920
# Formula: priority = tokens computed so far, across preemptions, ties by arrival; the most served
# is preempted first. New requests have attained nothing, so they keep their order of arrival and
# the preempted stand behind them. The paper's queues by level, and their quantum, are engine state
# that the language lacks: the running are preempted for memory only.
order by attained_tokens, arrival
preempt by -attained_tokens
