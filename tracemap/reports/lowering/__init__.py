"""Loops of pass pipelines as text, JSON and page."""
