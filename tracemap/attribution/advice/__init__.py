"""Advice by rules: what to change next, with figures, a command and the expected gain."""
