"""tracemap measured: each benchmark compares side by side in one run and prints medians, quartiles and its target.

`make bench` runs them all; `python -m benchmarks build start` runs those named. A missed target is printed, it is never
a failure: speed depends on the machine and on what else it does.
"""
