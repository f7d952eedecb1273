"""The command line: a function per command, whose docstring is its help. The only place that prints or exits."""
