"""Many generated operations, each with many configurations: compiled in parallel, verified, timed, and kept.

What was done is kept in a folder, each thing under a name that stands for all that it was made of: after an end of any
kind the same sweep goes on where it was, and does nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.codec import Count, Record
from tracemap.errors import ModelInvalid, ToolFailed
from tracemap.experiments.bench import verified
from tracemap.experiments.cases import Case, dispatched
from tracemap.experiments.configurations import Configuration, apply
from tracemap.experiments.jobs import Ended, Job, run_job, written_path
from tracemap.experiments.model import Status
from tracemap.experiments.operations import SweptOperation
from tracemap.experiments.work_cache import WorkFolder, flag_parts, keep, keep_record, kept_record, key_of, was_killed
from tracemap.experiments.wrapping import compile_wrapped, wrapped
from tracemap.ir.executables import executables_of, read_dispatches
from tracemap.ir.parsing import MlirParser
from tracemap.mapping.compiler.compiling import CONFIGURED
from tracemap.mapping.compiler.messages import failure
from tracemap.measurements.medians import quartiles
from tracemap.owned.home import temporary_folder
from tracemap.processors import usable_processors
from tracemap.toolchain import find_tool, run_tool

if TYPE_CHECKING:
    from tracemap.options.kernels import SweepOptions

_DEVICE: Final = "local-sync"
_LIMIT_S: Final = 60.0
_LOOKS: Final = 3
"""A batch may take so many times as long as it has to, and is tried so often before it is large enough."""

_KILLED: Final = "the compiler was killed, as it is where memory is short; the same command tries it again"


@dataclass(frozen=True, slots=True)
class Trial:
    """An operation with a configuration, the flags that it is compiled with, and what that is done by."""

    operation: SweptOperation
    configuration: Configuration
    flags: tuple[str, ...]
    makers: str

    @property
    def key(self) -> str:
        """Stands for all that the result depends on, the content of a tuning spec included."""
        flags = flag_parts([*self.flags, *self.configuration.flags])
        return key_of(self.operation.text(), self.configuration.text, self.makers, *flags)


class TrialResult(Record, frozen=True):
    """What became of a trial.

    `obstacle`: why it was not compiled, "" where it was. Times are of one call of all of its kernels, in ns; 0 where
    they were not taken.
    """

    kernels: Count
    obstacle: str
    verification: str
    reason: str
    time_ns: float
    q1_ns: float
    q3_ns: float


@dataclass(frozen=True, slots=True)
class Work(WorkFolder):
    """The folder in which a sweep keeps what was done; `measured_how`: whether it verifies, and how it takes times."""

    measured_how: str

    def model(self, trial: Trial) -> Path:
        """The program."""
        return self.path / "models" / f"{trial.operation.name}.mlir"

    def configured(self, trial: Trial) -> Path:
        """The module before code generation, configured."""
        return self.path / "modules" / f"{trial.key}.mlir"

    def measured(self, trial: Trial) -> Path:
        """What became of it; measured otherwise, it is another result."""
        return self.result(trial.key, self.measured_how)


def measured_how(options: SweepOptions) -> str:
    """A word for what a result depends on besides its module."""
    verified = "unverified" if options.no_verify else "verified"
    # A tag stands for something that was done besides, which may change times.
    tagged = f"-{key_of(*sorted(options.tag))}" if options.tag else ""
    if options.only == "verify":
        return f"{verified}{tagged}"
    return f"{verified}-{options.repetitions}x{options.min_time:g}ms{tagged}"


def generate(trials: Sequence[Trial], work: Work) -> None:
    """Write the programs that are not there yet."""
    for trial in trials:
        file = work.model(trial)
        text = trial.operation.text().encode()
        if not file.is_file() or file.read_bytes() != text:
            keep(file, text)


def compile_all(trials: Sequence[Trial], work: Work, jobs: int, tell: Callable[[int, int], None]) -> None:
    """Compile what is not compiled yet, several at once; what cannot be compiled is kept as a result.

    `tell` is told how many are done, of how many.
    """
    missing = [trial for trial in trials if not _is_done(trial, work)]
    workers = jobs or usable_processors()
    with ThreadPoolExecutor(workers) as pool:
        waiting = [pool.submit(_compile, trial, work) for trial in missing]
        try:
            for done, each in enumerate(as_completed(waiting), 1):
                each.result()
                tell(done, len(missing))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def not_compiled(trials: Sequence[Trial], work: Work) -> Iterator[str]:
    """Why trials were not compiled, of each that was not, in their order."""
    for trial in trials:
        if not work.module(trial.key).is_file():
            known = kept_record(work.result(trial.key), TrialResult)
            yield _KILLED if known is None else known.obstacle


def _is_done(trial: Trial, work: Work) -> bool:
    key = trial.key
    return work.module(key).is_file() or kept_record(work.result(key), TrialResult) is not None


def _compile(trial: Trial, work: Work) -> None:
    """One operation to a module that calls its kernels."""
    with temporary_folder() as folder:
        try:
            configured = _configured(trial, work, folder)
            parser = MlirParser()
            cases = _cases(parser, configured)
            text = wrapped(parser.parse(configured, printed=True), [case.dispatch for case in cases])
            module = compile_wrapped(text, [*trial.flags, *trial.configuration.flags], folder)
        except (ToolFailed, ModelInvalid) as error:
            if not was_killed(error):
                keep_record(work.result(trial.key), _not_compiled(str(error)))
            return
        keep(work.configured(trial), configured)
        keep(work.module(trial.key), module.read_bytes())  # the last: where it is, all is


def _not_compiled(obstacle: str) -> TrialResult:
    return TrialResult(0, obstacle, "", "", 0.0, 0.0, 0.0)


def _configured(trial: Trial, work: Work, folder: Path) -> bytes:
    """The operation before code generation, with the configuration that is tried.

    Raises:
        ToolFailed: the compiler does not take it, or there is nothing to configure.
        ModelInvalid: IREE has no such pipeline.
    """
    target = folder / "configured.mlir"
    program, flags = find_tool("iree-compile"), [*trial.flags, *trial.configuration.flags]
    done = run_tool([program, work.model(trial), f"--compile-to={CONFIGURED}", "-o", target, *flags])
    if done.returncode != 0:
        raise ToolFailed(failure(done.returncode, done.stderr))
    parser = MlirParser()
    module = parser.parse(target.read_bytes(), printed=True)
    applied = [apply(trial.configuration, each, parser) for each in executables_of(module).values()]
    if not any(applied):
        raise ToolFailed(f"{trial.configuration.text}: no kernel has tiles to change")
    text: str = module.operation.get_asm()
    return text.encode()


def _cases(parser: MlirParser, configured: bytes) -> list[Case]:
    module = parser.parse(configured, printed=True)
    return dispatched(module, read_dispatches(module, lambda *_: 1), {})


def measure(trial: Trial, work: Work, options: SweepOptions) -> TrialResult:
    """Verify and time a compiled trial, once; what is kept already is not done again."""
    for file in (work.result(trial.key), work.measured(trial)):
        known = kept_record(file, TrialResult)
        if known is not None:
            return known
    if not work.module(trial.key).is_file():
        return _not_compiled(_KILLED)
    with temporary_folder() as folder:
        result = _measured(trial, work, options, folder)
    keep_record(work.measured(trial), result)
    return result


def _measured(trial: Trial, work: Work, options: SweepOptions, folder: Path) -> TrialResult:
    parser = MlirParser()
    configured = work.configured(trial).read_bytes()
    module = parser.parse(configured, printed=True)  # operations of the cases live no longer than their module
    cases = dispatched(module, read_dispatches(module, lambda *_: 1), {})
    calls = tuple(case.call(number) for number, case in enumerate(cases))
    timed, verify = options.only != "verify", not options.no_verify
    repetitions = options.repetitions if timed else 0
    least_ns = max(1, round(options.min_time * 1e6))
    module, outputs = written_path(work.module(trial.key)), written_path(folder) if verify else ""
    job = Job((module,), _DEVICE, calls, outputs, repetitions, least_ns, 0)
    times: list[tuple[float, ...]] = []
    limit_s = _LIMIT_S + _LOOKS * (repetitions + _LOOKS) * options.min_time / 1e3
    for answer in run_job(job, folder, limit_s, lambda _: None):
        if isinstance(answer, Ended):
            status = Status.NOT_VERIFIED if answer.for_memory else Status.FAILED
            return TrialResult(len(cases), "", status.value, answer.text, 0.0, 0.0, 0.0)
        if verify:
            found = verified(cases[answer.call], calls[answer.call], folder, answer)
            if found.status is not Status.SUCCESS:
                return TrialResult(len(cases), "", found.status.value, found.reason, 0.0, 0.0, 0.0)
        times.append(answer.warm.call_ns)
    status = Status.SUCCESS if verify else Status.NOT_VERIFIED
    totals = [sum(each) for each in zip(*times, strict=True)]
    return TrialResult(len(cases), "", status.value, "", *_quartiles(totals))


def _quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The median and the quartiles; zeros of nothing."""
    if not times:
        return 0.0, 0.0, 0.0
    q1, median, q3 = quartiles(times)
    return round(median, 3), round(q1, 3), round(q3, 3)
