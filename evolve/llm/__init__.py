"""Language models as proposers of policies, over an OpenAI-compatible API.

A model is shown the language, parents with their scores and a diagnosis, and answers with the
text of a policy, never with code. `proposer` is the way in; `settings` reads the table `[models]`
of a problem file, `prompt` writes what is asked, `dialects` says it as each server wants it,
`transport` sends it and tries again, `calls` keeps every exchange, `reply` finds the policy in an
answer and `judge` holds it against the parser, the checker and what was asked.
"""
