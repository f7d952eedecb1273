"""Measurements: the model of a run (`model`) and one module per file format. Independent of IR and trace graph."""

from __future__ import annotations
