"""Measurements inside kernels (samples, simulated counts), assigned from lines and addresses to sites and ops.

The cost of a line that belongs to ops goes to them; if it belongs to several ops of a site, each gets the same. The
cost of a line of no op (index arithmetic, loop control, register moves) goes to the ops of the innermost loop of
machine code around it, in proportion to their costs in that loop. Without an op in any loop, it is unattributed.
Dispatch sites of one kernel run the same code: a site with few samples uses those of all sites.
"""
