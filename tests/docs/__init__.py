"""Tests of the docs."""
