"""Experiments on single kernels: benchmarks, verification, sweeps, tuning and replacement."""

from __future__ import annotations
