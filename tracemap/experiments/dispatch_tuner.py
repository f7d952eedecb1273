"""Export of AMD GPU kernels for `amdsharktuner`: one folder per dispatch, with all inputs of its command line.

The tuner reads `dispatch_benchmark.mlir`, in which exactly one operation has the attribute `root_op`. It strips the
configuration and compiles candidates from the executable's sources. Compiler flags come from a file, one per line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.codec import pretty
from tracemap.errors import TargetExists, TargetUnwritable, ToolFailed, UsageInvalid
from tracemap.experiments.model import RankedKernel, Ranking
from tracemap.ir.executables import read_executables
from tracemap.ir.parsing import MlirParser, Module, Operation, string_attribute, walk
from tracemap.mapping.compiler.compiling import BESIDES, CONFIGURED
from tracemap.mapping.compiler.messages import failed
from tracemap.outputs import check_folder_of, check_name, end_of_links
from tracemap.owned.home import beside, moved_away, take_place
from tracemap.toolchain import find_tool, run_tool
from tracemap.units import Integer, Unknown, format_ns

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle

BACKEND: Final = "rocm"
RANKING: Final = "ranking.json"
_ROOT: Final = "root_op"
_UNSAFE_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]")
_MAX_NAME_LENGTH: Final = 100
_SPEC_FLAG: Final = "--iree-codegen-tuning-spec-path"
_COMMAND: Final = (
    "python -m dispatch_tuner dispatch.mlir dispatch_benchmark.mlir --compile-flags-file=compile_flags.txt "
    '--devices="$devices" --num-candidates="$candidates"'
)
_TUNE_SCRIPT: Final = f"""#!/bin/sh
# Tune all dispatches of this folder in order: tune.sh [DEVICES [CANDIDATES]]
# Each folder gets a tuning spec, tuning-spec.mlir. To install amdsharktuner: pip install amdsharktuner
devices=${{1:-hip://0}}
candidates=${{2:-100}}
for folder in "$(dirname "$0")"/[0-9]*/; do
  (cd "$folder" && {_COMMAND}) || echo "$folder: not tuned" >&2
done
"""


@dataclass(frozen=True, slots=True)
class Dumped:
    """IREE's dumps of an executable: its source, its benchmark, and the number of `root_op` operations in it."""

    source: str
    benchmark: str
    roots: int

    @property
    def obstacle(self) -> str:
        """Why the executable cannot be tuned; "" if it can. The tuner requires exactly one root operation."""
        if not self.benchmark:
            return "IREE generates no benchmark for it, because its sizes are not known"
        return "" if self.roots == 1 else f"it has {self.roots or 'no'} root operations; the tuner requires exactly one"


def dumped(bundle: Bundle, folder: Path) -> Mapping[str, Dumped]:
    """Dump a bundle's executables; the result is keyed by kernel name.

    Raises:
        UsageInvalid: the bundle has no model to compile, or a name in it contains a slash.
        ToolFailed: the compiler fails; the message is the compiler's.
    """
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: contains no model; build it again without --no-sources")
    parser = MlirParser()
    _check_names(bundle, parser.parse(model))
    file, sources, benchmarks = folder / "model.mlir", folder / "sources", folder / "benchmarks"
    file.write_bytes(model)
    dump_flags = [f"--iree-hal-dump-executable-{path.name}-to={path}" for path in (sources, benchmarks)]
    flags = [*dump_flags, "--iree-codegen-add-tuner-attributes", f"--compile-to={CONFIGURED}"]
    target = folder / "configured.mlir"
    done = run_tool([find_tool("iree-compile"), file, *flags, "-o", target, *flags_of(bundle)])
    if done.returncode != 0:
        raise failed(ToolFailed, done.returncode, done.stderr, f"{bundle.path}: cannot be compiled: ")
    dumps = {kernel: Dumped(text, "", 0) for kernel, (text, _) in _texts_by_kernel(parser, sources).items()}
    for kernel, (text, roots) in _texts_by_kernel(parser, benchmarks).items():
        if kernel in dumps:
            dumps[kernel] = Dumped(dumps[kernel].source, text, roots)
    return dumps


def _check_names(bundle: Bundle, model: Module) -> None:
    """Refuse names with a slash: IREE builds the dumps' file names from module and kernel names without escaping."""
    operation = model.operation
    module_name = string_attribute(operation, "sym_name") if "sym_name" in operation.attributes else ""
    for name in (module_name, *(kernel.name for kernel in bundle.graph.kernels)):
        if "/" in name:
            raise UsageInvalid(f"{name}: rename it without a slash; IREE uses the name as a file name")


def _texts_by_kernel(parser: MlirParser, folder: Path) -> dict[str, tuple[str, int]]:
    """For each kernel, the text of the first file that contains it, and the number of root operations there."""
    texts: dict[str, tuple[str, int]] = {}
    for file in sorted(folder.glob("*.mlir")):
        data = file.read_bytes()
        module, executables = read_executables(parser, data)
        text, roots = data.decode(errors="replace"), _count_roots(module.operation)
        for executable in executables.values():
            for kernel in executable.exports:
                texts.setdefault(kernel, (text, roots))
    return texts


def _count_roots(operation: Operation) -> int:
    return sum(_ROOT in op.attributes for op in walk(operation))


def flags_of(bundle: Bundle) -> list[str]:
    """The bundle's compiler flags for the tuner.

    Flags that write extra files are left out. So is a tuning spec, since it would fix the configuration to be tuned.

    Raises:
        UsageInvalid: a flag contains a line break.
    """
    flags = [flag for flag in bundle.graph.module.flags if not flag.startswith((*BESIDES, _SPEC_FLAG))]
    if any(len(flag.splitlines()) != 1 for flag in flags):
        raise UsageInvalid(
            f"{bundle.path}: was built with a flag that contains a line break; build it without that flag"
        )
    return flags


def ranked(kernels: Sequence[tuple[str, Integer]], dumps: Mapping[str, Dumped]) -> tuple[RankedKernel, ...]:
    """Kernels with their folder names: a number, then the kernel's name with unsafe characters replaced.

    Args:
        kernels: names with costs in ns; the cost is unknown without a run.
        dumps: IREE's dumps by kernel name.
    """
    digits = max(2, len(str(len(kernels))))
    rows, number = [], 0
    for kernel, cost_ns in kernels:
        obstacle = dumps[kernel].obstacle if kernel in dumps else "its executable has no source of its own"
        number += not obstacle
        safe_name = _UNSAFE_CHARACTERS.sub("_", kernel)[:_MAX_NAME_LENGTH]
        folder = "" if obstacle else f"{number:0{digits}d}-{safe_name}"
        rows.append(RankedKernel(kernel, folder, cost_ns, obstacle))
    return tuple(rows)


def check_folder(target: Path, *, force: bool) -> None:
    """Refuse an unusable output folder before any work is done.

    Raises:
        TargetExists: the path exists; `force` permits replacing only folders that this module wrote.
        TargetUnwritable: the folder cannot be created.
    """
    check_name(target)
    if os.path.lexists(target):
        if not force:
            raise _target_exists(target)
        if not (target / RANKING).is_file():
            raise TargetExists(f"{target}: exists and was not written for amdsharktuner; name another folder")
    check_folder_of(end_of_links(target))


def _target_exists(target: Path) -> TargetExists:
    return TargetExists(f"{target}: exists already; pass --force to replace it, or name another folder")


def write_folder(
    target: Path, ranking: Ranking, dumps: Mapping[str, Dumped], flags: Sequence[str], *, force: bool
) -> None:
    """Write the folder atomically; with `force` it replaces an earlier one.

    Raises:
        TargetExists: another program has created the folder meanwhile.
        TargetUnwritable: the folder cannot be written.
    """
    final_path = end_of_links(target)
    try:
        with beside(final_path) as folder:
            folder.mkdir()
            for kernel in ranking.kernels:
                if kernel.folder:
                    _write_dispatch(folder / kernel.folder, dumps[kernel.kernel], flags)
            (folder / RANKING).write_text(pretty(ranking), encoding="utf-8")
            (folder / "README.md").write_text(_readme(ranking), encoding="utf-8")
            (folder / "tune.sh").write_text(_TUNE_SCRIPT, encoding="utf-8")
            (folder / "tune.sh").chmod(0o755)
            if not force:
                take_place(folder, final_path)
                return
            with moved_away(final_path):
                folder.rename(final_path)
    except FileExistsError as error:
        raise _target_exists(target) from error
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error


def _write_dispatch(folder: Path, dump: Dumped, flags: Sequence[str]) -> None:
    folder.mkdir()
    (folder / "dispatch.mlir").write_text(dump.source, encoding="utf-8")
    (folder / "dispatch_benchmark.mlir").write_text(dump.benchmark, encoding="utf-8")
    (folder / "compile_flags.txt").write_text("".join(f"{flag}\n" for flag in flags), encoding="utf-8")


def _readme(ranking: Ranking) -> str:
    """Text of README.md. Folder names are its only text from the model, and they contain no unsafe characters."""
    rows = [f"| {kernel.folder} | {_cost(kernel)} |" for kernel in ranking.kernels if kernel.folder]
    left_out = sum(not kernel.folder for kernel in ranking.kernels)
    order = "sorted by cost in a run of the application" if _has_costs(ranking) else "in program order"
    return "\n".join(
        [
            "# Dispatches for amdsharktuner",
            "",
            f"Dispatches are {order}. To tune one, run in its folder:",
            "",
            "```",
            "python -m dispatch_tuner dispatch.mlir dispatch_benchmark.mlir --compile-flags-file=compile_flags.txt \\",
            "    --devices=hip://0 --num-candidates=100",
            "```",
            "",
            "`./tune.sh [DEVICES [CANDIDATES]]` tunes all of them in order.",
            *([f"{left_out} left out; see `{RANKING}` for the reasons."] if left_out else []),
            "",
            "| folder | cost in the run |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _has_costs(ranking: Ranking) -> bool:
    return isinstance(ranking.run, str)


def _cost(kernel: RankedKernel) -> str:
    return "not known" if isinstance(kernel.cost_ns, Unknown) else format_ns(kernel.cost_ns)
