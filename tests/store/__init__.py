"""Tests of `tracemap/store/`."""
