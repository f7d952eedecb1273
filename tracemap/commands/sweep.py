"""`tracemap sweep`: generated operations, compiled, verified and timed."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tracemap.commands.framework import options_command
from tracemap.commands.streams import print_diagnostics, show_phases
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import TargetExists, UsageInvalid
from tracemap.core.files import check_files, is_stream, use_utf8, write_text
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.sanitize import csv_line, unescape_formula
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import plural
from tracemap.kernels.operations import KINDS
from tracemap.options.kernels import SweepOptions

if TYPE_CHECKING:
    from tracemap.kernels.configurations import Configuration
    from tracemap.kernels.operations import SweptOperation
    from tracemap.kernels.sweep import Trial, TrialResult


COLUMNS: Final = (
    *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments", "Verification", "Runtime(ms)"),
    *("GFLOPs", "q1_ms", "q3_ms", "kernels", "reason"),
)
_KEY: Final = ("Operation", "Configuration")


@dataclass(frozen=True, slots=True)
class Swept:
    """Result of a sweep: the table as CSV, the number of new trials, and the reasons of those that did not compile."""

    table: str
    trials: int = 0
    obstacles: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether a kernel in the table computes wrong results, or nothing compiles."""
        rows = csv.DictReader(io.StringIO(self.table))
        wrong = any(row["Verification"] == "FAILED" for row in rows)
        return wrong or 0 < self.trials == len(self.obstacles)

    @property
    def not_compiled(self) -> str:
        """A sentence on trials that do not compile, with the first reason; "" if there are none."""
        if not self.obstacles:
            return ""
        counts = f"{len(self.obstacles)} of {plural(self.trials, 'trial')} could not be compiled"
        return f"{counts}; the first: {_single_line(self.obstacles[0])}"


def sweep(kind: str, options: SweepOptions, progress: Progress = no_progress) -> Swept:
    """Run a sweep, and write its table if the options name an output.

    Raises:
        UsageInvalid: a size, type, epilogue, configuration or flag is invalid, or no operation is selected.
        TargetExists, TargetUnwritable: the table cannot be written.
        ToolMissing: the compiler or the runtime is not installed.
    """
    if options.append and options.output is None:
        raise UsageInvalid("--append adds rows to an existing table: name it with -o")
    printed = options.output is None or is_stream(options.output)
    work_folder = options.work or (None if printed else Path(f"{options.output}.work"))
    if options.only in ("generate", "compile") and work_folder is None:
        raise UsageInvalid(
            f"--only {options.only} writes into the work folder: name it with --work, or name a table with -o"
        )
    _tags(options)
    existing = _existing_rows(options)
    if not options.append:
        check_files(options.output, force=options.force)
    trials = _trials(kind, options)
    with temporary_folder() if work_folder is None else nullcontext(work_folder) as folder:
        return _run_trials(trials, folder, options, existing, progress)


def _existing_rows(options: SweepOptions) -> list[dict[str, str]]:
    """Rows of the existing table with `--append`; else empty."""
    if not options.append or options.output is None or not options.output.is_file():
        return []
    try:
        reader = csv.DictReader(io.StringIO(options.output.read_text(encoding="utf-8")), restkey="", restval="")
        rows, names = list(reader), reader.fieldnames or ()
    except (csv.Error, UnicodeDecodeError):
        rows, names = [], ()
    if not set(COLUMNS) <= set(names) or any("" in row for row in rows):
        raise TargetExists(f"{options.output}: is not a table of `tracemap sweep`; choose another name")
    return [{unescape_formula(name): unescape_formula(cell) for name, cell in row.items()} for row in rows]


def _trials(kind: str, options: SweepOptions) -> list[Trial]:
    from tracemap.kernels.runner_jobs import tool_identity
    from tracemap.kernels.sweep import Trial
    from tracemap.map.build.compiler.compilation import check_flags
    from tracemap.map.build.compiler.flags import compile_flags

    flags = compile_flags("local", options.flags)
    operations, configurations = _operations(kind, options), _configurations(options)
    versions = "" if options.only == "generate" else tool_identity()
    if versions:
        check_flags(flags)
    trials = [Trial(operation, config, flags, versions) for operation in operations for config in configurations]
    if not trials:
        raise UsageInvalid("no operation is selected: no name matches --dispatches")
    return trials


def _operations(kind: str, options: SweepOptions) -> list[SweptOperation]:
    from tracemap.kernels.operations import ACCUMULATOR_TYPES, EPILOGUES, generate_operations

    for name, known, values in (("type", ACCUMULATOR_TYPES, options.type), ("epilogue", EPILOGUES, options.epilogue)):
        for value in values:
            if value not in known:
                raise UsageInvalid(f"{value}: unknown {name}; choose among: {', '.join(known)}")
    sizes = _assignments(options.size, "write a size as LETTER=SIZES: M=64,128")
    try:
        patterns = [re.compile(pattern) for pattern in options.dispatches]
    except re.error as error:
        raise UsageInvalid(f"--dispatches: invalid regular expression: {error}") from error
    operations = generate_operations(kind, sizes, options.type, options.epilogue)
    return [
        operation
        for operation in operations
        if not patterns or any(pattern.search(operation.name) for pattern in patterns)
    ]


def _assignments(words: Sequence[str], syntax: str) -> dict[str, str]:
    """Parse words NAME=VALUE; `syntax` is the part of an error message with the correct form."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageInvalid(f"{word}: {syntax}")
        if name in values:
            raise UsageInvalid(f"{word}: {name} is set twice; {syntax}")
        values[name] = value
    return values


def _tags(options: SweepOptions) -> dict[str, str]:
    """The user's extra columns and their values."""
    tags = _assignments(options.tag, "write a tag as NAME=VALUE")
    for name in tags:
        if name in COLUMNS:
            raise UsageInvalid(f"{name}: every sweep has a column of this name; choose another name for the tag")
    return tags


def _configurations(options: SweepOptions) -> list[Configuration]:
    from tracemap.kernels.configurations import DEFAULT, read_configuration

    specs = sorted(options.configs_from.glob("*.mlir")) if options.configs_from is not None else []
    if options.configs_from is not None and not specs:
        raise UsageInvalid(f"{options.configs_from}: contains no tuning spec (*.mlir); name a folder with tuning specs")
    texts = [*(options.config or (DEFAULT,)), *(f"spec={file}" for file in specs)]
    return [read_configuration(text) for text in dict.fromkeys(texts)]


def _run_trials(
    trials: Sequence[Trial], folder: Path, options: SweepOptions, existing: list[dict[str, str]], progress: Progress
) -> Swept:
    """Run the sweep up to the step of `--only`; without timing and verification, the table has no rows."""
    from tracemap.kernels.sweep import (
        SweepFolder,
        compile_all,
        compile_failures,
        measure,
        measurement_key,
        write_programs,
    )

    work = SweepFolder(folder, measurement_key(options))
    work.prepare("models")
    new_trials = _new_trials(trials, existing, _tags(options))
    obstacles: tuple[str, ...] = ()
    write_programs(new_trials, work)
    if options.only != "generate":
        progress(f"compiling {plural(len(new_trials), 'trial')}")
        compile_all(new_trials, work, options.jobs, lambda done, total: progress(f"compiled {done} of {total}"))
        obstacles = tuple(compile_failures(new_trials, work))
    if options.only in ("generate", "compile"):
        return Swept(csv_line(COLUMNS), len(new_trials), obstacles)
    measured = []
    for number, trial in enumerate(new_trials, 1):
        progress(f"measuring {trial.operation.name} ({number} of {len(new_trials)})")
        measured.append((trial, measure(trial, work, options)))
    table = _table(measured, existing, options)
    if options.output is not None:
        write_text(table, options.output)
    return Swept(table, len(new_trials), obstacles)


def _new_trials(trials: Sequence[Trial], existing: list[dict[str, str]], tags: Mapping[str, str]) -> list[Trial]:
    """Trials without a row in the table; rows with other tags do not count."""
    names = {name for row in existing[:1] for name in row if name not in COLUMNS} | set(tags)
    own_tags = {name: value for name, value in tags.items() if value}
    known = {
        tuple(row[name] for name in _KEY)
        for row in existing
        if {name: row[name] for name in names if row.get(name)} == own_tags
    }
    return [trial for trial in trials if (trial.operation.name, trial.configuration.text) not in known]


def _table(measured: list[tuple[Trial, TrialResult]], existing: list[dict[str, str]], options: SweepOptions) -> str:
    """CSV of the existing rows, then the new ones by operation, the fastest configuration first."""
    tags = _tags(options)
    names = [name for row in existing[:1] for name in row if name not in COLUMNS]
    columns = [*COLUMNS, *dict.fromkeys([*names, *tags])]
    order = {trial.operation.name: index for index, (trial, _) in reversed(list(enumerate(measured)))}
    measured = sorted(measured, key=lambda pair: (order[pair[0].operation.name], pair[1].time_ns or float("inf")))
    rows = [*existing, *({**_row(*pair), **tags} for pair in measured)]
    lines = [csv_line([row.get(name, "") for name in columns]) for row in rows]
    return "".join([csv_line(columns), *lines])


def _single_line(reason: str) -> str:
    return " ".join(reason.split())[:300]


def _row(trial: Trial, result: TrialResult) -> dict[str, str]:
    """Cells of a trial's row."""
    operation = trial.operation
    timed = result.time_ns > 0
    verifications = {"NOT_VERIFIED": "Not verified", "": "Not compiled" if result.obstacle else ""}
    return {
        "Dispatch": operation.name,
        "Provider": "IREE Codegen",
        "OpKind": operation.kind,
        "Operation": operation.name,
        "Configuration": trial.configuration.text,
        "Arguments": " ".join(f"{letter}={size}" for letter, size in operation.sizes) + f" {operation.element}",
        "Verification": verifications.get(result.verification, result.verification),
        "Runtime(ms)": f"{result.time_ns / 1e6:.6g}" if timed else "",
        "GFLOPs": f"{operation.operations / result.time_ns:.6g}" if timed else "",
        "q1_ms": f"{result.q1_ns / 1e6:.6g}" if timed else "",
        "q3_ms": f"{result.q3_ns / 1e6:.6g}" if timed else "",
        "kernels": str(result.kernels or ""),
        "reason": _single_line(result.obstacle or result.reason),
    }


# ---- command line


@options_command("sweep", SweepOptions)
@click.argument("operation", metavar="OPERATION", type=click.Choice(list(KINDS)))
def command(operation: str, options: SweepOptions) -> None:
    """Generate OPERATION in many sizes, compile each size with many configurations, then verify and time them.

    OPERATION is matmul (M, N, K), batch_matmul (B, M, N, K), splitk_matmul (M, N, K in P parts), conv2d_nhwc or
    conv2d_nchw (N, H, W, C, F, R, S, stride D), or depthwise_conv2d_nhwc. Products of f16 and bf16 are accumulated in
    f32, products of i8 in i32. The table has one row per operation and configuration; the fastest configuration of an
    operation comes first. Results are stored next to the table, so the same command resumes after an interruption. The
    exit status is 1 if a result is wrong or nothing compiles.

    \b
    Example:
      tracemap sweep matmul --size M=64:256:64 --size K=512 -o matmuls.csv
      tracemap sweep matmul --type i8 --config default --config tiles=32x64
    """
    with show_phases("sweep") as progress:
        result = sweep(operation, options, progress)
    if options.output is None:
        use_utf8(sys.stdout)
        sys.stdout.write(result.table)
    if result.obstacles:
        print_diagnostics([Diagnostic("not-compiled", result.not_compiled)])
    if result.has_failed:
        sys.exit(1)
