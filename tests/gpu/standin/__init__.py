"""Stand-ins of NVIDIA's libraries and of its profiler."""
