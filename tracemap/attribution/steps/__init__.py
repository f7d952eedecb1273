"""What was seen inside of kernels (samples, simulated counts), brought from lines and addresses to sites and members.

A step that is of ops gives them what was seen at it; where it is of several members of a site, to each the same. A step
of no op (index arithmetic, loop control, moves of registers) gives it to the ops of the innermost loop of the machine
code around it, in proportion to what was seen of them in that loop; what no loop has an op for stays a share of nobody.
Sites of one kernel run the same code: where little was seen at one, what was seen at all of them decides.
"""
