"""Runs IREE's compiler and reads its dumps: compilations, passes, kernels for the simulator."""

from __future__ import annotations
