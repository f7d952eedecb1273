"""Numpy reference for kernels, evaluated from their IR before code generation."""

from __future__ import annotations
