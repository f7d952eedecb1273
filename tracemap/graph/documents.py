"""Documents beside the map in a bundle: compile time, estimates, data flow, inputs and remarks."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, field

from tracemap.codec import Count, Document, Positive, Record, encode
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import OpId, TraceGraph
from tracemap.locations import UNKNOWN_LOCATION, Location
from tracemap.units import UNKNOWN, Integer, Text, Unknown

if TYPE_CHECKING:
    import numpy as np


# ---- compiled
#
# How long the compiler took: what a bundle's `compiled.json` holds.
#
# It lies beside the map, which is the same byte for byte whenever the same model is built.


class CompileTimes(Document, frozen=True, kw_only=True):
    """The time of iree-compile as `build` runs it: in two runs, in which it writes dumps of its phases.

    `elapsed_ns`: on the wall; `cpu_ns`: of all processors, in hundredths of a second.
    """

    schema_version: Literal[1] = 1
    kind: Literal["compiled"] = "compiled"
    elapsed_ns: Integer = UNKNOWN
    cpu_ns: Integer = UNKNOWN


NOT_KEPT: Final = CompileTimes()
"""Of a bundle that does not tell."""


# ---- estimates
#
# What kernels are estimated to cost from their machine code: what a bundle's `estimates.json` keeps, once it is made.
#
# It lies beside the map, which is the same byte for byte whenever the same model is built.


class LineEstimate(Record, frozen=True):
    """What a line of a kernel's text costs in one call; line 0: code of no op.

    `hundredths`: of a cycle, estimated; `least` and `most`: what they may be, as how often code runs depends on data.
    """

    line: Count
    hundredths: Count
    least: Count
    most: Count


class CacheLatency(Record, frozen=True):
    """How fast a cache is.

    `bytes`: how many it holds; `line_hundredths`: how long a line from behind it takes, in hundredths of a cycle.
    """

    bytes: Positive
    line_hundredths: Positive


class KernelEstimate(Record, frozen=True):
    """What a kernel costs in a call with a number of workgroups in each dimension, by line of its text.

    `site` and `sizes`: of a kernel whose sizes the program computes, where it is called, and the sizes of the
    program's arguments that are not in their types, in order; of others empty. `lines`: what they cost; `with_code`:
    the lines that have machine code; `factor`: by how much an op's cost may be off. Without lines its code cannot be
    estimated.
    """

    kernel: str
    workgroups: tuple[Positive, ...]
    site: str = ""
    sizes: tuple[Count, ...] = ()
    lines: tuple[LineEstimate, ...] = ()
    with_code: tuple[Count, ...] = ()
    factor: float = 1.0


class KeptEstimates(Document, frozen=True, kw_only=True):
    """The estimates that were made so far of the module with this SHA-256, for a machine with these caches.

    `method`: the version of the way to estimate; what another one has made is not used.
    """

    schema_version: Literal[1] = 1
    kind: Literal["estimates"] = "estimates"
    method: Count = 0
    module_sha256: str = ""
    caches: tuple[CacheLatency, ...] = ()
    kernels: tuple[KernelEstimate, ...] = ()


# ---- flow
#
# A model as a graph of values: which ops and arguments there are, and what each reads; what two models are matched by.
#
# Calls of functions of the model are seen through: what is handed to a function is read by the ops inside that use the
# argument, and what it returns by those that use the call: an op reads the same, be it in a function or not.


OWN_TEXT: Final = "-"
"""The file of a location that the model does not state: where the op stands in the model's own text."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """An op, or an argument of a function that can be called from outside.

    `op` is unknown for arguments. `exact` is equal for nodes of one name with equal attributes, types and parts, in all
    models that were numbered together; `loose` for those of one name with as many operands and results. `reads`: for
    each operand the nodes whose results it may be, by their places; several where a function is called from several
    places. `holder`: the place of what a terminator ends, or of the function that a call calls; -1 for all others.
    `passes_on`: it is a call, or a return to one, that is seen through. `where`: its scope.

    What programs of other dialects are laid beside it by: `word`, what it does in a word that all dialects have, "" of
    what only gives structure; `shape`, of its first result; `location`, as the model has it, of which a place in the
    model's own text has the file `OWN_TEXT`.
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
"""The nodes of a model in its order; what a node reads stands before it, but for what functions return."""


# ---- kept
#
# What a bundle keeps to call its module with: the arrays that a program was handed in with, and its parameters.
#
#     call.json      which function, its inputs in order, and the files of parameters by scope
#     inputs/        an array of numpy for each argument
#     parameters/    files that IREE's runtime reads parameters from
#
# Parameters that the user named are left where they lie: `call.json` refers to them. A bundle without `call.json`
# keeps nothing of the kind: a model's file says what types its arguments have, no more.


CALL_NAME: Final = "call.json"
INPUTS_FOLDER: Final = "inputs"
PARAMETERS_FOLDER: Final = "parameters"


class KeptInput(Record, frozen=True):
    """An argument's array: what the program calls the argument, and the file in `inputs/`."""

    name: str
    file: str


class KeptParameters(Record, frozen=True):
    """A file of parameters, and the scope in which the module looks for them ("": none).

    `file`: its name in `parameters/`, "" where it lies elsewhere; `path`: where that is, "" where it does not.
    """

    scope: str
    file: str
    path: str


class KeptCall(Document, frozen=True, kw_only=True):
    """What the bundle keeps of a call; as JSON it is a `call.json` of version 2, which can refer to parameters.

    `function`: whose inputs they are; without `inputs` none are kept, and they are made up where none are given.
    """

    schema_version: Literal[2] = 2
    kind: Literal["call"] = "call"
    function: str
    inputs: tuple[KeptInput, ...] = ()
    parameters: tuple[KeptParameters, ...] = ()


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is to be kept: arrays with the names of their arguments, and files of parameters with their scopes.

    `references`: parameters that are not copied; they take the place of those of the same scope.
    """

    function: str = ""
    inputs: tuple[tuple[str, np.ndarray[Any, Any]], ...] = ()
    parameters: tuple[tuple[str, Path], ...] = ()
    references: tuple[tuple[str, Path], ...] = ()

    def store(self, folder: Path) -> None:
        """Write it into the folder of a bundle; where there is nothing to keep, nothing."""
        if not self.inputs and not self.parameters and not self.references:
            return
        elsewhere = {scope for scope, _ in self.references}
        copied = [(scope, path) for scope, path in self.parameters if scope not in elsewhere]
        inputs = tuple(KeptInput(name, f"{number}.npy") for number, (name, _) in enumerate(self.inputs))
        kept = tuple(KeptParameters(scope, f"{number}{path.suffix}", "") for number, (scope, path) in enumerate(copied))
        referred = tuple(KeptParameters(scope, "", str(path.absolute())) for scope, path in self.references)
        call = KeptCall(function=self.function, inputs=inputs, parameters=(*kept, *referred))
        (folder / CALL_NAME).write_bytes(encode(call))
        self._store_inputs(folder / INPUTS_FOLDER)
        (folder / PARAMETERS_FOLDER).mkdir()
        for each, (_, path) in zip(kept, copied, strict=True):
            shutil.copyfile(path, folder / PARAMETERS_FOLDER / each.file)

    def _store_inputs(self, folder: Path) -> None:
        import numpy as np

        folder.mkdir()
        for number, (_, values) in enumerate(self.inputs):
            np.save(folder / f"{number}.npy", values, allow_pickle=False)


# ---- remarks
#
# Remarks of the compiler, each at the line of a kernel's text that it names: what a bundle's `remarks.json` holds.
#
# It lies beside the map, only where `build --remarks` asked for it, and is read when it is asked for.


FIGURES: Final = frozenset({"asm-printer", "prolog-epilog", "size-info", "stack-frame-layout", "target-features"})
"""Passes that count what there is, and say of no optimisation that it was done or not."""


class Remark(Record, frozen=True):
    """What a pass of the compiler says of a place: equal ones of a line are one, `count` times.

    `line` is that of the kernel's text; `ops` are those that its step came from, or all members of the kernel's sites
    where the step is of none: the kernel itself, what stores its results. `pass`, `name` and `kind` (`passed`, `missed`
    or `analysis`) are LLVM's, unknown where its wording does not tell. `cost_share`: the part of a run's cost that
    these ops have in this kernel, null without a run.
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
    """All remarks of a compilation; `elsewhere` counts those that name no line of a kernel.

    `run` and `metric`: what `cost_share` is of.
    """

    schema_version: Literal[1] = 1
    kind: Literal["remarks"] = "remarks"
    run: Text = UNKNOWN
    metric: Text = UNKNOWN
    remarks: tuple[Remark, ...]
    elsewhere: Count
    diagnostics: tuple[Diagnostic, ...] = ()


def remarks_at(found: Remarks, graph: TraceGraph, names: Collection[str]) -> tuple[Remark, ...]:
    """The remarks of ops, of kernels, and of the kernels of sites, by their ids and names."""
    kernels = {*names, *(graph.site_by_id[name].kernel for name in names if name in graph.site_by_id)}
    ops = set(names)
    return tuple(each for each in found.remarks if each.kernel in kernels or not ops.isdisjoint(each.ops))


def check_named(found: Remarks, graph: TraceGraph) -> None:
    """Refuse remarks of what is not in the map.

    Raises:
        ValueError: one names a kernel or an op that the map does not have.
    """
    for remark in found.remarks:
        if isinstance(remark.kernel, str) and remark.kernel not in graph.kernel_by_name:
            raise ValueError(f"there is no kernel {remark.kernel[:80]!r} in the map")
        for op in remark.ops:
            if op not in graph.op_by_id:
                raise ValueError(f"there is no op {op[:80]!r} in the map")
