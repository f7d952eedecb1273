"""Tests of `tracemap/commands/`."""
