"""Numpy reference for kernels, evaluated from their IR before code generation."""
