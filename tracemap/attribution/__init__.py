"""Costs per op, from runs and a map.

Data flow: `join` finds the dispatch site of each event from the run's header and the map. `scan` reads the events in
SQL and adds them up per target. `steps` assigns measurements inside kernels to ops. `weights` has the weights that
costs are split by, including those of the rules that need no measurement. `result` splits costs over ops in whole
numbers. `attribute` runs all of it; `model` defines the result.
"""
