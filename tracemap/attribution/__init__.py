"""From a run and a map to costs per op.

`join` finds the site of each event, `engine` runs the SQL, `rules` split, `model` is the result.
"""
