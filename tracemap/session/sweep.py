"""Generated operations, compiled, verified and timed: a table of them, the best of each operation first."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.errors import TargetExists, UsageInvalid
from tracemap.options.kernels import SweepOptions
from tracemap.outputs import check_files, is_stream, write_text
from tracemap.owned.home import temporary_folder
from tracemap.sanitize import csv_line, plain_cell
from tracemap.toolchain import Progress, no_progress
from tracemap.units import plural

if TYPE_CHECKING:
    from tracemap.experiments.configurations import Configuration
    from tracemap.experiments.operations import SweptOperation
    from tracemap.experiments.sweeping import Trial, TrialResult, Work

COLUMNS: Final = (
    *("Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments", "Verification", "Runtime(ms)"),
    *("GFLOPs", "q1_ms", "q3_ms", "kernels", "reason"),
)
_PROVIDER: Final = "IREE Codegen"
_KEY: Final = ("Operation", "Configuration")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep made: the text of the table, and of how many trials that were new why some were not compiled."""

    table: str
    trials: int = 0
    obstacles: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Whether a kernel of the table is wrong, or nothing could be compiled."""
        rows = csv.DictReader(io.StringIO(self.table))
        wrong = any(row["Verification"] == "FAILED" for row in rows)
        return wrong or 0 < self.trials == len(self.obstacles)

    @property
    def not_compiled(self) -> str:
        """A sentence on what was not compiled, with the first reason; "" where all was."""
        if not self.obstacles:
            return ""
        how_many = f"{len(self.obstacles)} of {plural(self.trials, 'trial')} could not be compiled"
        return f"{how_many}; the first: {_in_a_line(self.obstacles[0])}"


def sweep(kind: str, options: SweepOptions, progress: Progress = no_progress) -> Swept:
    """Do a sweep; its table is written where the options say.

    Raises:
        UsageInvalid: a size, type, epilogue, configuration or flag is none, or nothing is left to do.
        TargetExists, TargetUnwritable: the table cannot be written.
        ToolMissing: the compiler or the runtime is not installed.
    """
    if options.append and options.output is None:
        raise UsageInvalid("--append adds to a table that exists: name it with -o")
    kept = options.work or _beside(options.output)
    if options.only in ("generate", "compile") and kept is None:
        raise UsageInvalid(
            f"--only {options.only}: what it makes lies in the work folder; name that with --work, or a table with -o"
        )
    _tags(options)
    before = _rows_before(options)
    if not options.append:
        check_files(options.output, force=options.force)
    trials = _trials(kind, options)
    if kept is not None:
        return _done(trials, kept, options, before, progress)
    with temporary_folder() as folder:
        return _done(trials, folder, options, before, progress)


def _beside(table: Path | None) -> Path | None:
    """The work folder that belongs to a table; None for one that is printed."""
    return None if table is None or is_stream(table) else Path(f"{table}.work")


def _rows_before(options: SweepOptions) -> list[dict[str, str]]:
    """The rows of a table that is to be added to."""
    if not options.append or options.output is None or not options.output.is_file():
        return []
    try:
        reader = csv.DictReader(io.StringIO(options.output.read_text(encoding="utf-8")), restkey="", restval="")
        rows, names = list(reader), reader.fieldnames or ()
    except (csv.Error, UnicodeDecodeError):
        rows, names = [], ()
    if not set(COLUMNS) <= set(names) or any("" in row for row in rows):
        raise TargetExists(f"{options.output}: is no table of a sweep; choose another name")
    return [{plain_cell(name): plain_cell(cell) for name, cell in row.items()} for row in rows]


def _trials(kind: str, options: SweepOptions) -> list[Trial]:
    from tracemap.experiments.sweeping import Trial
    from tracemap.experiments.work_cache import makers
    from tracemap.mapping.compiler.compiling import check_accepted
    from tracemap.mapping.compiler.flags import compile_flags

    flags, operations, hows = (
        compile_flags("local", options.flags),
        _operations(kind, options),
        _configurations(options),
    )
    made_by = "" if options.only == "generate" else makers()
    if made_by:
        check_accepted(flags)
    found = [Trial(each, how, flags, made_by) for each in operations for how in hows]
    if not found:
        raise UsageInvalid("no operation is left: none has a name that --dispatches asks for")
    return found


def _operations(kind: str, options: SweepOptions) -> list[SweptOperation]:
    from tracemap.experiments.operations import ACCUMULATED, EPILOGUES, swept

    for name, known, given in (("type", ACCUMULATED, options.type), ("epilogue", EPILOGUES, options.epilogue)):
        for each in given:
            if each not in known:
                raise UsageInvalid(f"{each}: is no {name}; there are: {', '.join(known)}")
    sizes = _assigned(options.size, "a size is written LETTER=SIZES: M=64,128")
    try:
        patterns = [re.compile(pattern) for pattern in options.dispatches]
    except re.error as error:
        raise UsageInvalid(f"--dispatches: is no regular expression: {error}") from error
    found = swept(kind, sizes, options.type, options.epilogue)
    return [each for each in found if not patterns or any(pattern.search(each.name) for pattern in patterns)]


def _assigned(words: Sequence[str], wanted: str) -> dict[str, str]:
    """What is given as NAME=VALUE, by its name; `wanted` says how one is written."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise UsageInvalid(f"{word}: {wanted}")
        if name in found:
            raise UsageInvalid(f"{word}: {name} is given twice; {wanted}")
        found[name] = value
    return found


def _tags(options: SweepOptions) -> dict[str, str]:
    """Columns of the user's own, and what stands in them."""
    tags = _assigned(options.tag, "a tag is written NAME=VALUE")
    for name in tags:
        if name in COLUMNS:
            raise UsageInvalid(f"{name}: is a column of every sweep; give the tag another name")
    return tags


def _configurations(options: SweepOptions) -> list[Configuration]:
    from tracemap.experiments.configurations import DEFAULT, read_configuration

    specs = sorted(options.configs_from.glob("*.mlir")) if options.configs_from is not None else []
    if options.configs_from is not None and not specs:
        raise UsageInvalid(f"{options.configs_from}: holds no tuning spec (*.mlir); name a folder that does")
    texts = [*(options.config or (DEFAULT,)), *(f"spec={file}" for file in specs)]
    return [read_configuration(text) for text in dict.fromkeys(texts)]


def _done(
    trials: Sequence[Trial], folder: Path, options: SweepOptions, before: list[dict[str, str]], progress: Progress
) -> Swept:
    """What is asked for, done in a folder; the table has no rows where nothing was timed or verified."""
    from tracemap.experiments.sweeping import Work, compile_all, generate, measured_how, not_compiled

    work = Work(folder, measured_how(options))
    work.prepare("models")
    missing = _missing(trials, before, _tags(options))
    obstacles: tuple[str, ...] = ()
    generate(missing, work)
    if options.only != "generate":
        progress(f"compiling {plural(len(missing), 'trial')}")
        compile_all(missing, work, options.jobs, lambda done, of: progress(f"compiled {done} of {of}"))
        obstacles = tuple(not_compiled(missing, work))
    if options.only in ("generate", "compile"):
        return Swept(csv_line(COLUMNS), len(missing), obstacles)
    table = _table(_measured(missing, work, options, progress), before, options)
    if options.output is not None:
        write_text(table, options.output)
    return Swept(table, len(missing), obstacles)


def _missing(trials: Sequence[Trial], before: list[dict[str, str]], tags: Mapping[str, str]) -> list[Trial]:
    """The trials that a table has no row for: one with the same tags, and no others."""
    names = {name for row in before[:1] for name in row if name not in COLUMNS} | set(tags)
    own = {name: value for name, value in tags.items() if value}
    known = {
        tuple(row[name] for name in _KEY)
        for row in before
        if {name: row[name] for name in names if row.get(name)} == own
    }
    return [trial for trial in trials if (trial.operation.name, trial.configuration.text) not in known]


def _measured(
    trials: Sequence[Trial], work: Work, options: SweepOptions, progress: Progress
) -> list[tuple[Trial, TrialResult]]:
    from tracemap.experiments.sweeping import measure

    found = []
    for number, trial in enumerate(trials, 1):
        progress(f"measuring {trial.operation.name} ({number} of {len(trials)})")
        found.append((trial, measure(trial, work, options)))
    return found


def _table(measured: list[tuple[Trial, TrialResult]], before: list[dict[str, str]], options: SweepOptions) -> str:
    """The rows that there were, then the new ones: by operation, of each the fastest configuration first."""
    tags = _tags(options)
    names = [name for row in before[:1] for name in row if name not in COLUMNS]
    columns = [*COLUMNS, *dict.fromkeys([*names, *tags])]
    order = {trial.operation.name: number for number, (trial, _) in reversed(list(enumerate(measured)))}
    measured = sorted(measured, key=lambda each: (order[each[0].operation.name], each[1].time_ns or float("inf")))
    rows = [*before, *({**_row(*each), **tags} for each in measured)]
    lines = [csv_line([row.get(name, "") for name in columns]) for row in rows]
    return "".join([csv_line(columns), *lines])


def _in_a_line(reason: str) -> str:
    return " ".join(reason.split())[:300]


def _row(trial: Trial, result: TrialResult) -> dict[str, str]:
    """A trial's cells."""
    operation = trial.operation
    timed = result.time_ns > 0
    words = {"NOT_VERIFIED": "Not verified", "": "Not compiled" if result.obstacle else ""}
    return {
        "Dispatch": operation.name,
        "Provider": _PROVIDER,
        "OpKind": operation.kind,
        "Operation": operation.name,
        "Configuration": trial.configuration.text,
        "Arguments": " ".join(f"{letter}={size}" for letter, size in operation.sizes) + f" {operation.element}",
        "Verification": words.get(result.verification, result.verification),
        "Runtime(ms)": f"{result.time_ns / 1e6:.6g}" if timed else "",
        "GFLOPs": f"{operation.operations / result.time_ns:.6g}" if timed else "",
        "q1_ms": f"{result.q1_ns / 1e6:.6g}" if timed else "",
        "q3_ms": f"{result.q3_ns / 1e6:.6g}" if timed else "",
        "kernels": str(result.kernels or ""),
        "reason": _in_a_line(result.obstacle or result.reason),
    }
