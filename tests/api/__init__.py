"""Tests of the api."""
