"""The trace graph: the ops of a model, the compiled program, the links between them, and the bundle on disk.

From the bottom up: `model` (ops, program and their graph), `references` (consistency checks), `query`, `audit` and
`lowering` (results about ops outside of the map), `map_json` and `documents` (formats), `bundle` (the folder).
"""

from __future__ import annotations
