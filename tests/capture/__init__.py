"""Tests of `tracemap/capture/`."""
