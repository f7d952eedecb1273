"""Tests of `tracemap/kernels/`."""
