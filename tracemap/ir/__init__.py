"""Readers of input models and of iree-compile's phase dumps: from `iree.compiler.ir` to typed records."""

import importlib.util

from tracemap.core.errors import ToolMissing

try:
    _BINDINGS = importlib.util.find_spec("iree.compiler")
except ModuleNotFoundError:
    _BINDINGS = None
if _BINDINGS is None:
    raise ToolMissing("IREE's compiler is not installed; install it with: pip install iree-base-compiler")
