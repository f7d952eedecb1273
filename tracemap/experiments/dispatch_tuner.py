"""Kernels of AMD GPUs as `amdsharktuner` takes them: one dispatch a folder, with what its command line needs.

It reads `dispatch_benchmark.mlir`, in which one operation has the attribute `root_op`, takes the configuration out and
compiles candidates of it from its sources on, with the flags of a file that has one a line.
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
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST: Final = 100
_SPEC_FLAG: Final = "--iree-codegen-tuning-spec-path"
_COMMAND: Final = (
    "python -m dispatch_tuner dispatch.mlir dispatch_benchmark.mlir --compile-flags-file=compile_flags.txt "
    '--devices="$devices" --num-candidates="$candidates"'
)
_LOOP: Final = f"""#!/bin/sh
# Tunes the dispatches of this folder, the first first: tune.sh [DEVICES [CANDIDATES]]
# In each folder a tuning spec is written, tuning-spec.mlir; amdsharktuner is installed by: pip install amdsharktuner
devices=${{1:-hip://0}}
candidates=${{2:-100}}
for folder in "$(dirname "$0")"/[0-9]*/; do
  (cd "$folder" && {_COMMAND}) || echo "$folder: not tuned" >&2
done
"""


@dataclass(frozen=True, slots=True)
class Dumped:
    """What IREE dumps of an executable: its sources, its benchmark, and how many operations in it are roots."""

    source: str
    benchmark: str
    roots: int

    @property
    def obstacle(self) -> str:
        """Why it cannot be tuned, "" where it can: the tuner takes one root, no more and no less."""
        if not self.benchmark:
            return "IREE makes no benchmark of it, as its sizes are not known"
        return "" if self.roots == 1 else f"{self.roots or 'no'} operations of it are roots; the tuner takes one"


def dumped(bundle: Bundle, folder: Path) -> Mapping[str, Dumped]:
    """The dumps of a bundle's executables, by the names of their kernels.

    Raises:
        UsageInvalid: the bundle has no model to compile, or names in it would lead its dumps elsewhere.
        ToolFailed: the compiler fails; the message is its own.
    """
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not keep its model (--no-sources); build it again with its text")
    parser = MlirParser()
    _check_names(bundle, parser.parse(model))
    file, sources, benchmarks = folder / "model.mlir", folder / "sources", folder / "benchmarks"
    file.write_bytes(model)
    dumps = [f"--iree-hal-dump-executable-{name.name}-to={name}" for name in (sources, benchmarks)]
    ours = [*dumps, "--iree-codegen-add-tuner-attributes", f"--compile-to={CONFIGURED}"]
    target = folder / "configured.mlir"
    done = run_tool([find_tool("iree-compile"), file, *ours, "-o", target, *flags_of(bundle)])
    if done.returncode != 0:
        raise failed(ToolFailed, done.returncode, done.stderr, f"{bundle.path}: cannot be compiled: ")
    found = {kernel: Dumped(text, "", 0) for kernel, (text, _) in _by_kernel(parser, sources).items()}
    for kernel, (text, roots) in _by_kernel(parser, benchmarks).items():
        if kernel in found:
            found[kernel] = Dumped(found[kernel].source, text, roots)
    return found


def _check_names(bundle: Bundle, model: Module) -> None:
    """Refuse names with a slash: IREE calls its dumps after module and kernel, as they are."""
    operation = model.operation
    of_module = string_attribute(operation, "sym_name") if "sym_name" in operation.attributes else ""
    for name in (of_module, *(kernel.name for kernel in bundle.graph.kernels)):
        if "/" in name:
            raise UsageInvalid(f"{name}: IREE makes a file name of it, which a slash would lead elsewhere; rename it")


def _by_kernel(parser: MlirParser, folder: Path) -> dict[str, tuple[str, int]]:
    """Of each kernel the text of the first file that it is in, and how many roots that has."""
    found: dict[str, tuple[str, int]] = {}
    for file in sorted(folder.glob("*.mlir")):
        data = file.read_bytes()
        module, executables = read_executables(parser, data)
        text, roots = data.decode(errors="replace"), _roots(module.operation)
        for each in executables.values():
            for kernel in each.exports:
                found.setdefault(kernel, (text, roots))
    return found


def _roots(operation: Operation) -> int:
    return sum(_ROOT in each.attributes for each in walk(operation))


def flags_of(bundle: Bundle) -> list[str]:
    """The bundle's flags without those that write something besides; a spec would decide what the tuner is to find.

    Raises:
        UsageInvalid: one of them cannot be a line of a file.
    """
    flags = [flag for flag in bundle.graph.module.flags if not flag.startswith((*BESIDES, _SPEC_FLAG))]
    if any(len(flag.splitlines()) != 1 for flag in flags):
        raise UsageInvalid(f"{bundle.path}: a flag that it was built with has line breaks, and cannot be handed on")
    return flags


def ranked(kernels: Sequence[tuple[str, Integer]], dumps: Mapping[str, Dumped]) -> tuple[RankedKernel, ...]:
    """Kernels with the folders that they get: numbers first, of the names what is harmless.

    Args:
        kernels: their names, each with its cost in ns, unknown without a run.
        dumps: what is known of them.
    """
    digits = max(2, len(str(len(kernels))))
    found, number = [], 0
    for kernel, cost_ns in kernels:
        obstacle = dumps[kernel].obstacle if kernel in dumps else "its executable has no source of its own"
        number += not obstacle
        folder = "" if obstacle else f"{number:0{digits}d}-{_ODD.sub('_', kernel)[:_LONGEST]}"
        found.append(RankedKernel(kernel, folder, cost_ns, obstacle))
    return tuple(found)


def check_folder(target: Path, *, force: bool) -> None:
    """Refuse a folder before any work is done.

    Raises:
        TargetExists: there is something already; with `force` only what this module wrote is replaced.
        TargetUnwritable: it cannot be made.
    """
    check_name(target)
    if os.path.lexists(target):
        if not force:
            raise _taken(target)
        if not (target / RANKING).is_file():
            raise TargetExists(f"{target}: exists and was not written for amdsharktuner; name another folder")
    check_folder_of(end_of_links(target))


def _taken(target: Path) -> TargetExists:
    return TargetExists(f"{target}: exists already; pass --force to replace it, or name another folder")


def write_folder(
    target: Path, ranking: Ranking, dumps: Mapping[str, Dumped], flags: Sequence[str], *, force: bool
) -> None:
    """Write the folder, there whole or not at all; with `force` it takes the place of an earlier one.

    Raises:
        TargetExists: another program has made it meanwhile.
        TargetUnwritable: it cannot be written.
    """
    place = end_of_links(target)
    try:
        with beside(place) as made:
            made.mkdir()
            for each in ranking.kernels:
                if each.folder:
                    _write_dispatch(made / each.folder, dumps[each.kernel], flags)
            (made / RANKING).write_text(pretty(ranking), encoding="utf-8")
            (made / "README.md").write_text(_readme(ranking), encoding="utf-8")
            (made / "tune.sh").write_text(_LOOP, encoding="utf-8")
            (made / "tune.sh").chmod(0o755)
            if not force:
                take_place(made, place)
                return
            with moved_away(place):
                made.rename(place)
    except FileExistsError as error:
        raise _taken(target) from error
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror}") from error


def _write_dispatch(folder: Path, dump: Dumped, flags: Sequence[str]) -> None:
    folder.mkdir()
    (folder / "dispatch.mlir").write_text(dump.source, encoding="utf-8")
    (folder / "dispatch_benchmark.mlir").write_text(dump.benchmark, encoding="utf-8")
    (folder / "compile_flags.txt").write_text("".join(f"{flag}\n" for flag in flags), encoding="utf-8")


def _readme(ranking: Ranking) -> str:
    """For people; of hostile texts it has only what folders are called by."""
    rows = [f"| {each.folder} | {_share(each)} |" for each in ranking.kernels if each.folder]
    left_out = sum(not each.folder for each in ranking.kernels)
    order = "by what they cost in a run of the application" if _is_costed(ranking) else "in the order of the program"
    return "\n".join(
        [
            "# Dispatches for amdsharktuner",
            "",
            f"The dispatches stand {order}. In each folder:",
            "",
            "```",
            "python -m dispatch_tuner dispatch.mlir dispatch_benchmark.mlir --compile-flags-file=compile_flags.txt \\",
            "    --devices=hip://0 --num-candidates=100",
            "```",
            "",
            "`./tune.sh [DEVICES [CANDIDATES]]` does so in all of them, one after the other.",
            *([f"Left out: {left_out}; `{RANKING}` says why."] if left_out else []),
            "",
            "| folder | cost in the run |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _is_costed(ranking: Ranking) -> bool:
    return isinstance(ranking.run, str)


def _share(each: RankedKernel) -> str:
    return "not known" if isinstance(each.cost_ns, Unknown) else format_ns(each.cost_ns)
