"""Exports of costs to other tools, one file per format.

`charges` assigns costs to call stacks, once for all formats. The sums of a format equal those of the attribution
exactly; unattributed costs are included, with their reasons.
"""
