"""The version of tracemap, in a file of its own so that nothing has to import the package root to know it."""

__version__ = "0.1.0"
