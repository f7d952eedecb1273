"""Readers of other tools' outputs: a file becomes the events and the header of a run."""

from __future__ import annotations
