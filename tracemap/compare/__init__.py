"""Compare two models and their costs: match ops, and find significant changes."""

from __future__ import annotations
