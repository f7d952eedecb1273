"""Dispatch sites and their ops: evidence, costs, lines of kernel IR, schedules."""

from __future__ import annotations
