"""Work of the commands and of the Python API, one file per command.

Commands and API call the same functions with the same options. The functions print nothing: they return the results,
and write only output files.
"""
