"""A separate compilation for MLIR's remarks, which passes emit long before kernels have lines of their own.

Remarks name only file locations, so every operation gets a location with its index.
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
    """Whether flags name only CPU targets, for which IREE 3.13 has no MLIR remarks."""
    pairs = [flag.split("=", 1) for flag in flags if flag.startswith(_TARGETS)]
    return all(len(pair) == 2 and _FOR_CPUS.issuperset(pair[1].split(",")) for pair in pairs)


def mlir_remarks(compiler: Compiler, tagged: Path, folder: Path) -> list[SaidRemark]:
    """The remarks of MLIR's passes; their file is `NUMBERED`, and their line the index of an operation.

    Args:
        compiler: the compiler with the flags of the bundle.
        tagged: the model.
        folder: for temporary files.

    Raises:
        ModelInvalid: this compilation fails, or the remarks cannot be read.
    """
    model, remarks_file = write_numbered(MlirParser(), tagged, NUMBERED, folder), folder / "remarks.yaml"
    user_flags = [flag for flag in compiler.flags if not flag.startswith((*BESIDES, "--remarks-")) and flag != IN_ORDER]
    remark_flags = (
        IN_ORDER,
        "--remarks-filter=.*",
        f"--remarks-output-file={remarks_file}",
        "-o",
        folder / "numbered.vmfb",
    )
    result = run_tool([compiler.program, model, *remark_flags, *user_flags])
    if result.returncode != 0:
        raise ModelInvalid(failure(result.returncode, result.stderr))
    try:
        return list(read_mlir_remarks(remarks_file.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError) as error:
        check_limits(error)
        raise ModelInvalid(f"MLIR's remarks cannot be read: {error}") from error
