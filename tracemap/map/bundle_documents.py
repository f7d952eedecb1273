"""Documents next to the map in a bundle: compile time, estimates, data flow, inputs and remarks."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, field

from tracemap.core.codec import Count, Document, Positive, Record, encode
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.locations import UNKNOWN_LOCATION, Location
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.map.model import OpId, TraceGraph

if TYPE_CHECKING:
    import numpy as np


# ---- compiled
#
# The compiler's time: a bundle's `compiled.json`.
#
# It is a file of its own because the same model must always give the same map, byte for byte.


class CompileTimes(Document, frozen=True, kw_only=True):
    """The time of iree-compile in `build`: two runs, which also write dumps of the compiler's phases.

    `elapsed_ns`: wall time; `cpu_ns`: time of all processors, in steps of 10 ms.
    """

    schema_version: Literal[1] = 1
    kind: Literal["compiled"] = "compiled"
    elapsed_ns: Integer = UNKNOWN
    cpu_ns: Integer = UNKNOWN


UNKNOWN_TIMES: Final = CompileTimes()
"""The times of a bundle without `compiled.json`."""


# ---- timing
#
# The compiler's time by kernel and pass: a bundle's `timing.json`, with `build --timing`.


class KernelTiming(Record, frozen=True):
    """The compiler's time for a kernel, with one thread.

    `translation_ns`: MLIR's passes; `optimization_ns`: LLVM's passes on IR; `generation_ns`: LLVM's passes on machine
    code, and the file of an executable without other kernels.
    """

    kernel: str
    translation_ns: Count
    optimization_ns: Count
    generation_ns: Count

    @property
    def duration_ns(self) -> int:
        """The sum."""
        return self.translation_ns + self.optimization_ns + self.generation_ns


class PassTiming(Record, frozen=True):
    """The time of a compiler pass, over all kernels and functions. `tool`: the library that it belongs to."""

    pass_name: str = field(name="pass")
    tool: Literal["MLIR", "LLVM"]
    duration_ns: Count


class OtherTiming(Record, frozen=True):
    """The compiler's time for work on executables that belongs to no kernel. `name`: the work."""

    name: str
    duration_ns: Count


class BuildTiming(Document, frozen=True, kw_only=True):
    """The compiler's time, measured with one thread: to configured kernels, and from there to the module.

    `elapsed_ns`: wall time of both runs; `peak_bytes`: the most memory of either; `executables_ns`: time in which
    executables were translated, linked and written: the sum of `kernels` and `others`. The slowest is first.
    """

    schema_version: Literal[1] = 1
    kind: Literal["timing"] = "timing"
    elapsed_ns: Count
    peak_bytes: Integer = UNKNOWN
    executables_ns: Count
    others: tuple[OtherTiming, ...]
    kernels: tuple[KernelTiming, ...]
    passes: tuple[PassTiming, ...]


def check_timing(timing: BuildTiming, graph: TraceGraph) -> None:
    """Check that kernels are those of the map, and that parts add up to the whole.

    Raises:
        ValueError: they do not fit.
    """
    for kernel in timing.kernels:
        if kernel.kernel not in graph.kernel_by_name:
            raise ValueError(f"there is no kernel {kernel.kernel[:80]!r} in the map")
    if len({kernel.kernel for kernel in timing.kernels}) < len(timing.kernels):
        raise ValueError("a kernel is there twice")
    parts_ns = sum(own.duration_ns for own in timing.kernels) + sum(own.duration_ns for own in timing.others)
    if parts_ns != timing.executables_ns:
        raise ValueError("the times of its executables do not add up")
    if timing.executables_ns > timing.elapsed_ns:
        raise ValueError("its executables took longer than the whole")


# ---- estimates
#
# Estimated costs of kernels from their machine code: a bundle's `estimates.json`, once they are computed.
#
# It is a file of its own because the same model must always give the same map, byte for byte.


class LineEstimate(Record, frozen=True):
    """The estimated cost of a line of a kernel's text in one call; line 0 is code of no op.

    `hundredths`: hundredths of a cycle; `least`: its lower bound; `most`: its upper bound. They differ if execution
    counts depend on data.
    """

    line: Count
    hundredths: Count
    least: Count
    most: Count


class CacheLatency(Record, frozen=True):
    """The speed of a cache.

    `bytes`: its size; `line_hundredths`: how long loading a line from the next level takes, in hundredths of a cycle.
    """

    bytes: Positive
    line_hundredths: Positive


class KernelEstimate(Record, frozen=True):
    """The cost of a kernel in a call with a number of workgroups in each dimension, by line of its text.

    `site`: the dispatch site if the kernel's sizes depend on the program's arguments, otherwise ""; `sizes`: the
    dynamic sizes of these arguments, in order; `lines`: the costs of lines; `with_code`: the lines that have machine
    code; `factor`: the factor by which an op's cost may be off. Without lines, the code cannot be estimated.
    """

    kernel: str
    workgroups: tuple[Positive, ...]
    site: str = ""
    sizes: tuple[Count, ...] = ()
    lines: tuple[LineEstimate, ...] = ()
    with_code: tuple[Count, ...] = ()
    factor: float = 1.0


class StoredEstimates(Document, frozen=True, kw_only=True):
    """The estimates so far for the module with this SHA-256 on a machine with these caches.

    `method`: the version of the estimator; estimates of other versions are not used.
    """

    schema_version: Literal[1] = 1
    kind: Literal["estimates"] = "estimates"
    method: Count = 0
    module_sha256: str = ""
    caches: tuple[CacheLatency, ...] = ()
    kernels: tuple[KernelEstimate, ...] = ()


# ---- flow
#
# A model as a data-flow graph of ops and arguments. Two models are matched by it.
#
# Call ops are transparent: ops in a function read the arguments of the call, and users of the call read the function's
# results. So an op reads the same values inside a function and outside.

OWN_TEXT: Final = "-"
"""The file of a location that the model does not state: it is the op's position in the model's own text."""


class FlowNode(msgspec.Struct, frozen=True):
    """An op, or an argument of an entry point.

    `op` is unknown for arguments. `exact` is equal for nodes with the same name, attributes, types and parts, in all
    models that were numbered together; `loose` for those with the same name and as many operands and results. `reads`:
    for each operand the indices of the nodes that may produce it; several if a function has several calls. `holder`:
    the index of the op that a terminator ends, or of the function that a call calls; otherwise -1.
    `passes_on`: whether it is a transparent call, or a return to one. `where`: its scope.

    The rest compares programs across dialects. `word`: a dialect-independent name of the computation, "" for structural
    ops; `shape`: of the first result; `location`: as the model states it, with the file `OWN_TEXT` for positions in the
    model's own text.
    """

    op: OpId | Unknown
    name: str
    exact: int
    loose: int
    reads: tuple[tuple[int, ...], ...]
    holder: int = -1
    passes_on: bool = False
    where: tuple[str, ...] = ()
    word: str = ""
    shape: tuple[Integer, ...] = ()
    location: Location = UNKNOWN_LOCATION

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument of a function, not an op."""
        return self.op is UNKNOWN


Flow = tuple[FlowNode, ...]
"""The nodes of a model in its order; nodes come after their operands, except for the results of functions."""


# ---- kept
#
#     call.json      the function, its inputs in order, and parameter files by scope
#     inputs/        a numpy array for each argument
#     parameters/    parameter files for IREE's runtime
#
# `call.json` refers to parameters that the user named, without a copy. A bundle made from a model's file has no
# `call.json`, since such a file states only the types of arguments.

CALL_NAME: Final = "call.json"
INPUTS_FOLDER: Final = "inputs"
PARAMETERS_FOLDER: Final = "parameters"


class StoredInput(Record, frozen=True):
    """The array of an argument: the program's name for the argument, and the file in `inputs/`."""

    name: str
    file: str


class StoredParameters(Record, frozen=True):
    """A parameter file, and the scope in which the module looks it up ("": none).

    `file`: its name in `parameters/`, "" for a file outside the bundle; `path`: the path of such a file, else "".
    """

    scope: str
    file: str
    path: str


class StoredCall(Document, frozen=True, kw_only=True):
    """The call that the bundle keeps; as JSON it is a `call.json` of version 2, which can refer to parameters.

    `function`: the function that takes the inputs; without `inputs`, runs generate the inputs that nobody passes.
    """

    schema_version: Literal[2] = 2
    kind: Literal["call"] = "call"
    function: str
    inputs: tuple[StoredInput, ...] = ()
    parameters: tuple[StoredParameters, ...] = ()


@dataclass(frozen=True, slots=True)
class CallToKeep:
    """The call that a bundle should keep: arrays with the names of their arguments, and parameter files by scope.

    `references`: parameter files that are not copied; they replace those of the same scope.
    """

    function: str = ""
    inputs: tuple[tuple[str, np.ndarray[Any, Any]], ...] = ()
    parameters: tuple[tuple[str, Path], ...] = ()
    references: tuple[tuple[str, Path], ...] = ()

    def store(self, folder: Path) -> None:
        """Write the call into the folder of a bundle, if there is anything to keep."""
        import numpy as np

        if not self.inputs and not self.parameters and not self.references:
            return
        referenced_scopes = {scope for scope, _ in self.references}
        copied = [(scope, path) for scope, path in self.parameters if scope not in referenced_scopes]
        inputs = tuple(StoredInput(name, f"{index}.npy") for index, (name, _) in enumerate(self.inputs))
        copies = tuple(
            StoredParameters(scope, f"{index}{path.suffix}", "") for index, (scope, path) in enumerate(copied)
        )
        references = tuple(StoredParameters(scope, "", str(path.absolute())) for scope, path in self.references)
        call = StoredCall(function=self.function, inputs=inputs, parameters=(*copies, *references))
        (folder / CALL_NAME).write_bytes(encode(call))
        (folder / INPUTS_FOLDER).mkdir()
        for stored, (_, values) in zip(inputs, self.inputs, strict=True):
            np.save(folder / INPUTS_FOLDER / stored.file, values, allow_pickle=False)
        (folder / PARAMETERS_FOLDER).mkdir()
        for copy, (_, path) in zip(copies, copied, strict=True):
            shutil.copyfile(path, folder / PARAMETERS_FOLDER / copy.file)


# ---- remarks
#
# Remarks of the compiler, by line of a kernel's text: a bundle's `remarks.json`.
#
# It exists only after `build --remarks`, and is read only on demand.

STATISTICS_PASSES: Final = frozenset(
    {"asm-printer", "prolog-epilog", "size-info", "stack-frame-layout", "target-features"}
)
"""Passes that print statistics and do not report an optimisation as done or missed."""


class Remark(Record, frozen=True):
    """A remark of a compiler pass; equal remarks for a line are one, said `count` times.

    `line` is the line of the kernel's text; `ops` are the ops of this line, or all ops of the kernel's dispatches if
    the line has none. (Such a remark is about the kernel itself or the stores of its results.) `pass`, `name` and
    `kind` (`passed`, `missed` or `analysis`) are LLVM's, unknown if the remark's text does not say.
    `cost_share`: the share of a run's cost that these ops have in this kernel, null without a run.
    """

    kernel: Text
    line: Integer
    ops: tuple[OpId, ...]
    pass_name: Text = field(name="pass")
    name: Text
    kind: Text
    text: str
    count: Positive
    cost_share: Annotated[float, Meta(ge=0)] | None = None


class Remarks(Document, frozen=True, kw_only=True):
    """All remarks of a compilation; `elsewhere` counts those without a line of a kernel.

    `run`: the run of `cost_share`; `metric`: its metric.
    """

    schema_version: Literal[1] = 1
    kind: Literal["remarks"] = "remarks"
    run: Text = UNKNOWN
    metric: Text = UNKNOWN
    remarks: tuple[Remark, ...]
    elsewhere: Count
    diagnostics: tuple[Diagnostic, ...] = ()


def remarks_at(remarks: Remarks, graph: TraceGraph, names: Collection[str]) -> tuple[Remark, ...]:
    """The remarks for ops, kernels, and kernels of dispatch sites, selected by id or name."""
    kernels = {*names, *(graph.site_by_id[name].kernel for name in names if name in graph.site_by_id)}
    ops = set(names)
    return tuple(remark for remark in remarks.remarks if remark.kernel in kernels or not ops.isdisjoint(remark.ops))


def check_remarks(remarks: Remarks, graph: TraceGraph) -> None:
    """Check that all remarks name kernels and ops of the map.

    Raises:
        ValueError: a remark names a kernel or an op that is not in the map.
    """
    for remark in remarks.remarks:
        if isinstance(remark.kernel, str) and remark.kernel not in graph.kernel_by_name:
            raise ValueError(f"there is no kernel {remark.kernel[:80]!r} in the map")
        for op in remark.ops:
            if op not in graph.op_by_id:
                raise ValueError(f"there is no op {op[:80]!r} in the map")
