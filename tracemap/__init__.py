"""tracemap: which of my operations, on which line of my model, costs this time and these cache misses?"""

from tracemap._version import __version__

__all__ = ["__version__"]
