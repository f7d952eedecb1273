"""Numpy reference for kernels, evaluated from their IR before code generation.

Its files import numpy at the top, since commands import them inside functions only.
"""

from __future__ import annotations
