"""Tests of `tracemap/options/`."""
