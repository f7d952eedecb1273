"""What is kept: the ops of a model, the compiled program, and both in one trace graph.

From the bottom up: `ops` and `program`, `model` (the graph of both), `references` (that what it names is in it),
`query` (questions to it), `audit` and `lowering` (what is said of ops beside it), `bundle` (on disk).
"""
