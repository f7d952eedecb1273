"""From a run and a map to costs per op.

How data flows: `join` says what a run's header and the map tell of which site an event belongs to; `scan` reads the
events in SQL and sums them up per target; `steps` brings what was seen inside of kernels to ops; `weights` are what
costs are split by, by the rules where nothing was seen; `result` splits costs over ops, whole number by whole number.
`attribute` does all of it, `model` is what comes out.
"""
