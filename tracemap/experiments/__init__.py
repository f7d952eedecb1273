"""Experiments on single kernels of an application: how long they take alone, and whether they are right."""
