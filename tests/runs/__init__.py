"""Tests of `tracemap/runs/`."""
