"""Tests of `tracemap/ir/`."""
