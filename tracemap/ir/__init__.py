"""Readers of input models and of iree-compile's phase dumps: from `iree.compiler.ir` to typed records."""
