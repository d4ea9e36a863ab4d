policy t_lru : evict
"Tail-optimised LRU: free first what a conversation's next turn would not feel, then LRU."

# Source: https://arxiv.org/abs/2510.15152
# Formula: blocks at a depth >= max(0, H + Q - budget) go first, then LRU. H is the length of the
# conversation (`chain`); Q, the length of the next turn, is left to the budget of tokens that may
# be computed again without a felt delay.
knob budget : tokens = 2048

let safe = depth >= max(0, chain - budget)

order by 0 if safe else 1, last_use
