"""Compare two models and their costs: match ops, and find significant changes."""
