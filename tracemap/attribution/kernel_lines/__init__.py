"""Measurements inside kernels (samples, simulated counts), assigned from lines and addresses to sites and ops.

The cost of a line that belongs to ops goes to them; if it belongs to several ops of a site, each gets the same. Some
lines belong to no op: index arithmetic, loop control, register moves. Their cost goes to the ops of the innermost loop
of machine code around them, in proportion to the ops' costs there. Without an op in any loop, it is unattributed.
Dispatch sites of one kernel run the same code: a site with few samples uses those of all sites.
"""

from __future__ import annotations
