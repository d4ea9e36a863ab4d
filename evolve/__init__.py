"""The search for policies, and what its result is worth.

`problem` says what is searched; `setup` makes the windows of each role and the arena (`replay_arena`
or `serving_arena`) that measures. `primitives`, `generator`, `operators` and `translate` make trees that
are valid policies by construction, `breeding` and `tuning` make individuals of them, `llm` and `proposing`
let a language model write some. `racing` stops the poor early, `population` knows everything that was
measured, `store` keeps it. `loop` ties them together, `champion` and `gate` end a run, and `adjudicate`
opens the hold-out.
"""
