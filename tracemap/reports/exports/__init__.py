"""Costs in the formats of other tools: one file per format, each made of the same charges.

`charges` says who is charged with what, once for all formats; a format only says it in its own words. The sums of each
are those of the attribution, to the unit: what has no op is there by its reason.
"""
