"""A bundle's module compiled once more with every dispatch repeated, so that what surrounds kernels weighs less.

The module as it was before code generation is compiled again from there, with the flags of the bundle: kernels are the
bundle's own. Behind each dispatch of a command buffer stand its repetitions, with barriers between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracemap.errors import ToolFailed
from tracemap.mapping.compiler.compiling import BESIDES, CONFIGURED, LINKERS
from tracemap.mapping.compiler.messages import failed
from tracemap.toolchain import find_tool, run_tool

REPEAT: Final = "--iree-hal-benchmark-dispatch-repeat-count"


def build_repeated(configured: bytes, flags: Sequence[str], folder: Path, count: int) -> Path:
    """Compile a bundle's kernels with each dispatch repeated; returns the module.

    Args:
        configured: `Bundle.configured()`.
        flags: those that the bundle was compiled with, of which those that dump files or name a linker are left out.
        folder: where the module is put, and what is needed on the way.
        count: how often each dispatch runs in a call.

    Raises:
        ToolFailed: they cannot be compiled; the message is the compiler's.
        ToolMissing: there is no compiler.
    """
    source, target = folder / "configured.mlir", folder / "repeated.vmfb"
    source.write_bytes(configured)
    own = [flag for flag in flags if not flag.startswith((*BESIDES, *LINKERS, REPEAT))]
    ours = [f"--compile-from={CONFIGURED}", f"{REPEAT}={count}", "-o", str(target)]
    done = run_tool([find_tool("iree-compile"), source, *ours, *own])
    if done.returncode != 0:
        raise failed(ToolFailed, done.returncode, done.stderr, "the kernels cannot be compiled again: ")
    return target
