"""Recordings of the CUDA library: what ran on a process's devices, and the calls that submitted it."""
