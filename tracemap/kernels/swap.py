"""Kernels replaced, and the changes between paired recordings."""

from __future__ import annotations

import io
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tracemap.core.errors import ModelInvalid, ModelUnreadable, QueryInvalid, ToolFailed, UsageInvalid
from tracemap.core.files import read_stored_file
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.core.units import Unknown, join_names
from tracemap.ir.executables import Executable, executable_text, executables_of, formats_of, read_executables
from tracemap.ir.parsing import MlirParser
from tracemap.kernels.model import OpChange, Ratio
from tracemap.machine.code_figures import same_code
from tracemap.machine.images import read_images
from tracemap.map.build.compiler.failure_messages import compiler_error, missing_library_message
from tracemap.map.build.compiler.library import CONFIGURED
from tracemap.map.build.tagging import Tags, unused_prefix, write_tagged
from tracemap.map.model import Op, TraceGraph
from tracemap.map.query import kernels_named
from tracemap.runs.statistics import drift_ratio

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle


# ---- paired changes
#
# Paired recordings of two bundles, and the ops whose cost changed.


Costs = Mapping[str, float]
"""Cost per invocation in ns, by op id."""

_LEAST_SHARE: Final = 0.01
"""Least significant change, as a share of the longer invocation."""


def ratio_of(before: Sequence[float], after: Sequence[float]) -> Ratio | None:
    """After over before, pair by pair; None if all costs before are 0."""
    ratios = [after_ns / before_ns for before_ns, after_ns in zip(before, after, strict=True) if before_ns > 0]
    if not ratios:
        return None
    return Ratio(*(round(ratio, 4) for ratio in (statistics.median(ratios), min(ratios), max(ratios))))


def total_ratio(before: Sequence[Costs], after: Sequence[Costs]) -> Ratio | None:
    """The change of the sum of all ops; None without recordings."""
    return ratio_of(list(map(_sum, before)), list(map(_sum, after)))


@dataclass(frozen=True, slots=True)
class ReplacedKernels:
    """The replaced kernels by name, and the threshold of a significant change in percent.

    `same`: kernels with identical machine code in both bundles.
    """

    kernels: Set[str]
    threshold: float
    same: Set[str] = frozenset()


def changes(
    graph: TraceGraph, touched: ReplacedKernels, before: Sequence[Costs], after: Sequence[Costs]
) -> tuple[OpChange, ...]:
    """Changes of the ops that occur in all recordings: significant ones first, then by change of an invocation.

    Args:
        graph: the map of either bundle.
        touched: the replaced kernels and the threshold.
        before: costs in recordings of the first bundle.
        after: costs in recordings of the second bundle, paired with `before` by index.
    """
    common = [op_id for op_id in (before[0] if before else {}) if all(op_id in costs for costs in (*before, *after))]
    replaced = {op_id for op_id in common if touched.kernels & _kernels_of(graph, graph.op_by_id[op_id])}
    untouched = [op_id for op_id in common if op_id not in replaced]
    drifts = [_drift(first, second, untouched) for first, second in zip(before, after, strict=True)]
    invocations_ns = [statistics.median(map(_sum, recordings)) for recordings in (before, after) if recordings]
    least_ns = _LEAST_SHARE * max(invocations_ns, default=0.0)
    op_changes = []
    for op_id in common:
        costs_before = [costs[op_id] for costs in before]
        costs_after = [costs[op_id] / drift for costs, drift in zip(after, drifts, strict=True)]
        ratio = ratio_of(costs_before, costs_after)
        if ratio is not None:
            before_ns, after_ns = statistics.median(costs_before), statistics.median(costs_after)
            material = abs(after_ns - before_ns) >= least_ns
            differs = len(costs_before) > 1 and material and _is_clear(ratio, touched.threshold)
            op, medians = graph.op_by_id[op_id], (round(before_ns, 1), round(after_ns, 1))
            same = _kernels_of(graph, op) <= touched.same
            flags = {"named": differs and not same, "unchanged_code": differs and same, "replaced": op_id in replaced}
            op_changes.append(OpChange(op.id, op.name, op.line, *medians, ratio, **flags))
    return tuple(sorted(op_changes, key=lambda op: (not op.named, -abs(op.after_ns - op.before_ns))))


def same_kernels(before: Path, after: Path) -> frozenset[str]:
    """The kernels with identical machine code in two modules."""
    return frozenset(name for name, same in same_code(before, after).items() if same)


def _kernels_of(graph: TraceGraph, op: Op) -> Set[str]:
    return {graph.site_by_id[site].kernel for site in graph.sites_of_op.get(op.id, ())}


def _is_clear(ratio: Ratio, threshold: float) -> bool:
    """Whether all pairs differ by more than the threshold, in the same direction."""
    limit = 1 + threshold / 100
    return ratio.low > limit or ratio.high < 1 / limit


def _drift(before: Costs, after: Costs, untouched: Sequence[str]) -> float:
    """Slowdown of the machine within a pair, from untouched ops; 1 if these are too few or too small a part."""
    slowdown = drift_ratio([(before[op_id], after[op_id]) for op_id in untouched], (_sum(before), _sum(after)))
    return 1.0 if isinstance(slowdown, Unknown) else slowdown


def _sum(costs: Costs) -> float:
    return sum(costs.values())


# ---- swapping
#
# Replace kernels of a bundle: dump a kernel for editing, check the edited file, build IREE's flags.
#
# IREE can substitute an executable's source, configuration or object with a file. It only warns if a name matches
# nothing, and crashes on objects that do not fit, so such files are refused here.


Stage = Literal["source", "configuration", "object"]
_PHASES: Final[Mapping[str, str]] = {
    "source": "executable-sources",
    "configuration": CONFIGURED,
    "object": "executable-targets",
}
"""The compiler phase that dumps each stage."""
_FLAG = "--iree-hal-substitute-executable-"
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Swap:
    """Replacement of an executable: its name, its kernels, the replacing file, and the compiler stage of that file."""

    executable: str
    kernels: tuple[str, ...]
    file: Path
    stage: str

    @property
    def flag(self) -> str:
        """The flag for `iree-compile`."""
        return f"{_FLAG}{self.stage}={self.executable}={self.file}"


class SwappableExecutables:
    """The replaceable executables of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._parser = MlirParser()
        self._module = self._parser.parse(bundle.configured())
        self._executables = executables_of(self._module)

    def named(self, name: str) -> Executable:
        """The executable with this name, or with the kernel that a text names or that runs what it names.

        Raises:
            QueryInvalid: nothing has this name, or several executables do; the message lists them.
        """
        if name in self._executables:
            return self._executables[name]
        by_kernel = {kernel: executable for executable in self._executables.values() for kernel in executable.exports}
        kernels = [name] if name in by_kernel else kernels_named(self._bundle.graph, name, self._bundle.source_text)
        executables = {by_kernel[kernel].name: by_kernel[kernel] for kernel in kernels if kernel in by_kernel}
        if len(executables) != 1:
            raise QueryInvalid(f"{name}: runs in {len(executables)} kernels; name one of {join_names(kernels)}")
        return next(iter(executables.values()))

    def swap(self, name: str, file: Path) -> Swap:
        """Check a replacement file and pair it with its executable.

        Raises:
            QueryInvalid: the bundle has no such kernel.
            ModelUnreadable: the file cannot be read.
            UsageInvalid: the file cannot replace the executable; the message says why.
        """
        original = self.named(name)
        data = read_stored_file(file, ModelUnreadable)
        if data.startswith(_ELF):
            raise UsageInvalid(_object_fault(file, data, original, self._bundle.module_path))
        try:
            _module, executables = read_executables(self._parser, data)
        except ModelInvalid as error:
            raise UsageInvalid(f"{file}: is neither MLIR nor an object: {error}") from error
        new = executables.get(original.name)
        if new is None:
            names = join_names(list(executables)) or "none"
            raise UsageInvalid(
                f"{file}: contains no executable {original.name} (it contains: {names}); dump one with --dump"
            )
        for export in original.exports:
            if export not in new.exports or export not in new.functions:
                raise UsageInvalid(f"{file}: has no code for the entry point {export} of {original.name}")
        if other := formats_of(new) - formats_of(original):
            formats = ", ".join(sorted(formats_of(original)))
            raise UsageInvalid(f"{file}: is for {', '.join(sorted(other))}, but {original.name} is for {formats}")
        return Swap(original.name, original.exports, file.resolve(), new.stage)

    def folder_swaps(self, folder: Path, stage: Stage) -> list[Swap]:
        """Replacements at a stage by the files of a folder; a file is named after its executable.

        Raises:
            UsageInvalid: the folder has no such file, or a file is of another stage; also as `swap`.
        """
        files = {file.stem: file for file in sorted(folder.glob("*.mlir"))}
        by_name = {name: [files[stem] for stem in _stems(name, stage) if stem in files] for name in self._executables}
        swaps = [self.swap(name, candidates[0]) for name, candidates in by_name.items() if candidates]
        if not swaps:
            raise UsageInvalid(f"{folder}: contains no file named after an executable of the bundle")
        for swap in swaps:
            if swap.stage != stage:
                raise UsageInvalid(f"{swap.file}: is of the stage {swap.stage}, not of {stage}")
        return swaps

    def dumped(self, name: str, stage: Stage, folder: Path) -> str:
        """The text of an executable at a stage, with locations that identify its ops.

        Raises:
            QueryInvalid: there is no such kernel.
            UsageInvalid: the bundle has no model to compile.
            ToolFailed: the compiler fails; the message is the compiler's.
        """
        executable = self.named(name)
        # In code compiled from the tagged model, locations name ops. In the bundle's kernels they are lines of text.
        if stage == "object":
            source, start_flags = folder / "configured.mlir", [f"--compile-from={CONFIGURED}"]
            source.write_bytes(self._bundle.configured())
        else:
            source, start_flags = self._tagged(folder), []
        target = folder / "stage.mlir"
        flags = (*self._bundle.graph.module.flags, *start_flags, f"--compile-to={_PHASES[stage]}")
        done = run_tool([find_tool("iree-compile"), source, *flags, "--mlir-print-debuginfo", "-o", target])
        failure = f"{name}: cannot be dumped at the stage {stage}: "
        if done.returncode != 0:
            raise compiler_error(ToolFailed, done.returncode, done.stderr, failure)
        if load_failure := missing_library_message(done.stderr):
            raise ToolFailed(f"{failure}{load_failure}")
        _module, executables = read_executables(self._parser, target.read_bytes())
        if executable.name not in executables:
            raise ToolFailed(
                f"{name}: has no code of its own at the stage {stage}; the compiler linked it with other kernels"
            )
        return executable_text(executables[executable.name])

    def _tagged(self, folder: Path) -> Path:
        model = self._bundle.model()
        if not model:
            raise UsageInvalid(
                "the bundle contains no model to dump the kernel from; build it again without --no-sources"
            )
        name = self._bundle.graph.sources[0].name
        return write_tagged(self._parser.parse(model), Tags(unused_prefix(model)), name, folder)


def _stems(executable: str, stage: Stage) -> tuple[str, ...]:
    """Possible file stems of an executable at a stage, likeliest first.

    IREE's own dumps also contain the module's name, all in one folder: module_NAME, configured_module_NAME.
    """
    plain = (executable, f"module_{executable}")
    configured = tuple(f"configured_{stem}" for stem in plain)
    return (*configured, *plain) if stage == "configuration" else (*plain, *configured)


def _object_fault(file: Path, data: bytes, original: Executable, module: Path) -> str:
    """Why an object file is refused: it does not fit, or IREE accepts none for this target."""
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(data))
        machine = str(elf["e_machine"])
        symbols = {symbol.name for section in elf.iter_sections("SHT_SYMTAB") for symbol in section.iter_symbols()}
    except Exception:  # pyelftools checks little: a damaged file can raise any kind of error
        return f"{file}: is a damaged object file"
    machines = {image.machine for image in read_images(module)}
    if machine not in machines:
        targets = " or ".join(sorted(machines)) or "a CPU: the bundle has no CPU code"
        return f"{file}: is an object for {machine}, not for {targets}"
    missing = [export for export in original.exports if export not in symbols]
    if missing:
        return f"{file}: defines no {missing[0]}, the entry point of {original.name}"
    return (
        f"{file}: IREE's compiler crashes on object files for CPUs; "
        "pass the MLIR (LLVM dialect) that `--dump object` writes"
    )


def flags_with_swaps(flags: Sequence[str], swaps: Sequence[Swap]) -> tuple[str, ...]:
    """A bundle's flags plus the replacements; earlier replacements of the same executables are dropped."""
    names = {swap.executable for swap in swaps}
    other_flags = [flag for flag in flags if not (flag.startswith(_FLAG) and flag.split("=")[1] in names)]
    return (*other_flags, *(swap.flag for swap in swaps))
