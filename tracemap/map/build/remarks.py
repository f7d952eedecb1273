"""LLVM's remarks: asked for, and brought to ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.core.errors import ModelInvalid, check_limits
from tracemap.core.toolchain import run_tool
from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.parsing import MlirParser
from tracemap.map.build.compiler.compilation import OUTPUT_FLAG_PREFIXES, Compiler
from tracemap.map.build.compiler.failure_messages import failure_message
from tracemap.map.build.compiler.remarks import NO_THREADS, NUMBERED_FILE, Origin, PrintedRemark, read_mlir_remarks
from tracemap.map.build.tagging import write_numbered
from tracemap.map.bundle import KERNELS_FOLDER
from tracemap.map.bundle_documents import Remark, Remarks
from tracemap.map.model import Kernel, OpId, TraceGraph, sort_ops

# ---- remarking
#
# A separate compilation for MLIR's remarks, which passes emit long before kernels have lines of their own.
#
# Remarks name only file locations, so every operation gets a location with its index.

_TARGETS: Final = ("--iree-hal-target-device", "--iree-hal-target-backends", "--iree-hal-local-target-device-backends")
_FOR_CPUS: Final = frozenset({"local", "llvm-cpu"})


def is_for_cpus(flags: Sequence[str]) -> bool:
    """Whether flags name only CPU targets, for which IREE 3.13 has no MLIR remarks."""
    pairs = [flag.split("=", 1) for flag in flags if flag.startswith(_TARGETS)]
    return all(len(pair) == 2 and _FOR_CPUS.issuperset(pair[1].split(",")) for pair in pairs)


def mlir_remarks(compiler: Compiler, tagged: Path, folder: Path) -> list[PrintedRemark]:
    """The remarks of MLIR's passes; their file is `NUMBERED_FILE`, and their line the index of an operation.

    Args:
        compiler: the compiler with the flags of the bundle.
        tagged: the model.
        folder: for temporary files.

    Raises:
        ModelInvalid: this compilation fails, or the remarks cannot be read.
    """
    model, remarks_file = write_numbered(MlirParser(), tagged, NUMBERED_FILE, folder), folder / "remarks.yaml"
    user_flags = [
        flag
        for flag in compiler.flags
        if not flag.startswith((*OUTPUT_FLAG_PREFIXES, "--remarks-")) and flag != NO_THREADS
    ]
    remark_flags = (
        NO_THREADS,
        "--remarks-filter=.*",
        f"--remarks-output-file={remarks_file}",
        "-o",
        folder / "numbered.vmfb",
    )
    result = run_tool([compiler.program, model, *remark_flags, *user_flags])
    if result.returncode != 0:
        raise ModelInvalid(failure_message(result.returncode, result.stderr))
    try:
        return list(read_mlir_remarks(remarks_file.read_text(encoding="utf-8", errors="replace")))
    except (OSError, ValueError) as error:
        check_limits(error)
        raise ModelInvalid(f"MLIR's remarks cannot be read: {error}") from error


# ---- remarks


def place_remarks(said: Iterable[PrintedRemark], graph: TraceGraph) -> Remarks:
    """Assign remarks to lines of kernel IR and ops; remarks without a kernel or an op are only counted.

    Args:
        said: the remarks as printed. Their file is the name of a kernel's text, with or without its folder, or
            `NUMBERED_FILE`, which stands for the model with indices of operations as lines.
        graph: the map, whose kernels have texts.
    """
    kernel_of = {kernel.text: kernel for kernel in graph.kernels if isinstance(kernel.text, str)}
    counts: Counter[_RemarkPlace] = Counter()
    elsewhere = 0
    for remark in said:
        kernel = kernel_of.get(remark.file.removeprefix(f"{KERNELS_FOLDER}/"))
        if kernel is not None:
            counts[_RemarkPlace(kernel.name, remark.line, "", remark.origin, remark.text)] += 1
        elif remark.file == NUMBERED_FILE and (op := OpId.of(remark.line)) in graph.op_by_id:
            counts[_RemarkPlace(_only_kernel(op, graph), 0, op, remark.origin, remark.text)] += 1
        else:
            elsewhere += 1
    ops_of = {place.kernel: _ops_by_line(graph.kernel_by_name[place.kernel], graph) for place in counts if place.kernel}
    kernel_order = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    ordered = sorted(counts, key=lambda place: (kernel_order.get(place.kernel, -1), place.line, place.op, place.text))
    return Remarks(
        remarks=tuple(_remark(place, counts[place], ops_of.get(place.kernel, {})) for place in ordered),
        elsewhere=elsewhere,
    )


@dataclass(frozen=True, slots=True)
class _RemarkPlace:
    """A remark and its place: a line of a kernel's text (0: the whole kernel), or an op. An op that runs in several
    kernels has the kernel "".
    """

    kernel: str
    line: int
    op: str
    origin: Origin
    text: str


def _only_kernel(op: OpId, graph: TraceGraph) -> str:
    kernels = {graph.site_by_id[site].kernel for site in graph.sites_of_op.get(op, ())}
    return kernels.pop() if len(kernels) == 1 else ""


def _remark(place: _RemarkPlace, count: int, ops: Mapping[Integer, tuple[OpId, ...]]) -> Remark:
    line: Integer = place.line or UNKNOWN
    return Remark(
        kernel=place.kernel or UNKNOWN,
        line=line,
        ops=(OpId(place.op),) if place.op else ops.get(line, ops[UNKNOWN]),
        pass_name=place.origin.pass_name,
        name=place.origin.name,
        kind=place.origin.kind,
        text=place.text,
        count=count,
    )


def _ops_by_line(kernel: Kernel, graph: TraceGraph) -> dict[Integer, tuple[OpId, ...]]:
    """The ops of each line; at `UNKNOWN` the ops of the whole kernel, for lines without ops of their own."""
    members = {member.op for site in kernel.sites for member in graph.site_by_id[site].members}
    of_kernel = sort_ops(members)
    return {UNKNOWN: of_kernel, **{step.line: step.ops for step in kernel.steps if step.ops}}
