"""Evolution of policies: typed genetic programming over the signal table.

`problem` says what is searched, `primitives`, `generator`, `operators` and `translate`
make trees that are valid policies by construction, `fitness` and `executor` score their
texts, `store` keeps everything in a run folder, `loop` ties them together.
"""
