"""Shares of ops, unattributed costs with reasons, and diagnostics, from totals per place; whole numbers only."""
