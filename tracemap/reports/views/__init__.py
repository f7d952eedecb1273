"""Costs as tables for people, before anything is drawn: a view for each thing that a row can be, with its columns."""
