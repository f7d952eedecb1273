"""Totals per place become shares of members and ops, a residual with reasons, and diagnostics; whole numbers only."""
