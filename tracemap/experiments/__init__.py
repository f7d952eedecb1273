"""Experiments on single kernels: benchmarks, verification, sweeps, tuning and replacement."""
