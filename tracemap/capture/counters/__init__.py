"""Events of the kernel's perf interface: their names, what this machine opens, how many it counts at a time."""
