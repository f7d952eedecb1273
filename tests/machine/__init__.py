"""Tests of `tracemap/machine/`."""
