"""Runs programs under a recorder and writes runs."""
