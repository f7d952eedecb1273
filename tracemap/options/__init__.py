"""Options of the commands: help, command line, Python API and internal requests are all derived from these records."""
