"""What this process starts and makes besides its results, in one place: nothing of it outlives the process for long.

Children and temporary things are cleared when they are left, also where a signal ends the program; what a process could
not clear, since it was killed, the next one that starts does.
"""
