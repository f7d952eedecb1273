"""What the commands and the Python API do, without printing: one file per command.

Both call these functions with the same options, so that both do the same. What a command would print is returned; what
goes to a file is written here.
"""
