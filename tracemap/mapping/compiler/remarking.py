"""A model compiled once more for MLIR's remarks, which passes make long before kernels have lines of their own.

Remarks name places of files only; so every operation gets one that says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracemap.errors import ModelInvalid, check_limits
from tracemap.ir.parsing import MlirParser
from tracemap.mapping.compiler.compiling import BESIDES, Compiler
from tracemap.mapping.compiler.messages import failure
from tracemap.mapping.compiler.remarks import IN_ORDER, NUMBERED, SaidRemark, read_mlir_remarks
from tracemap.mapping.tagging import write_numbered
from tracemap.toolchain import run_tool

_TARGETS: Final = ("--iree-hal-target-device", "--iree-hal-target-backends", "--iree-hal-local-target-device-backends")
_FOR_CPUS: Final = frozenset({"local", "llvm-cpu"})


def is_for_cpus(flags: Sequence[str]) -> bool:
    """Whether all targets that flags name are CPUs, of which IREE 3.13 has no remarks of MLIR."""
    pairs = [flag.split("=", 1) for flag in flags if flag.startswith(_TARGETS)]
    return all(len(pair) == 2 and _FOR_CPUS.issuperset(pair[1].split(",")) for pair in pairs)


def mlir_remarks(compiler: Compiler, tagged: Path, folder: Path) -> list[SaidRemark]:
    """What MLIR's passes say; their file is `NUMBERED`, and their line the index of an operation.

    Args:
        compiler: as the model is compiled.
        tagged: the model.
        folder: for what is needed on the way.

    Raises:
        ModelInvalid: it cannot be compiled so, or what is said cannot be read.
    """
    numbered, said = write_numbered(MlirParser(), tagged, NUMBERED, folder), folder / "remarks.yaml"
    own = [flag for flag in compiler.flags if not flag.startswith((*BESIDES, "--remarks-")) and flag != IN_ORDER]
    wanted = (IN_ORDER, "--remarks-filter=.*", f"--remarks-output-file={said}", "-o", folder / "numbered.vmfb")
    done = run_tool([compiler.program, numbered, *wanted, *own])
    if done.returncode != 0:
        raise ModelInvalid(failure(done.returncode, done.stderr))
    try:
        return list(read_mlir_remarks(said.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError) as error:
        check_limits(error)
        raise ModelInvalid(f"MLIR's remarks cannot be read: {error}") from error
