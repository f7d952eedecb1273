"""Sweeps: compile generated operations with many configurations in parallel, then verify and time them.

Results are cached in a work folder, under a hash of all inputs. An interrupted sweep resumes where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracemap.core.codec import Count, Record
from tracemap.core.errors import ModelInvalid, ToolFailed
from tracemap.core.process.limits import usable_processors
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.ir.executables import executables_of, read_dispatches
from tracemap.ir.parsing import MlirParser, Module
from tracemap.kernels.bench import verify_call
from tracemap.kernels.bench_cases import Case, group_into_cases
from tracemap.kernels.benchmark_module import benchmark_module_text, compile_benchmark_module
from tracemap.kernels.configurations import Configuration, apply_configuration
from tracemap.kernels.model import Status
from tracemap.kernels.operations import SweptOperation
from tracemap.kernels.runner_jobs import (
    FailedCall,
    Job,
    WorkFolder,
    flag_parts,
    key_of,
    run_job,
    was_killed,
    write_atomically,
    written_path,
)
from tracemap.map.build.compiler.failure_messages import failure_message
from tracemap.map.build.compiler.library import CONFIGURED
from tracemap.runs.statistics import quartiles

if TYPE_CHECKING:
    from tracemap.options.kernels import SweepOptions


_LIMIT_S: Final = 60.0
_BATCH_FACTOR: Final = 3
"""Allowance of the time limit: extra batches to find the batch size, and the factor by which a batch may exceed the
minimum time."""

_KILLED: Final = "the compiler was killed, probably because memory ran out; run the same command again to retry"


@dataclass(frozen=True, slots=True)
class Trial:
    """An operation with a configuration and compiler flags; `makers` identifies compiler, processor and tracemap."""

    operation: SweptOperation
    configuration: Configuration
    flags: tuple[str, ...]
    makers: str

    @property
    def key(self) -> str:
        """Hash of everything that the result depends on, including the content of a tuning spec."""
        flags = flag_parts([*self.flags, *self.configuration.flags])
        return key_of(self.operation.text(), self.configuration.text, self.makers, *flags)


class TrialResult(Record, frozen=True):
    """Result of a trial.

    `obstacle`: why it was not compiled; "" if it was. Times cover one call of all kernels of the trial, in ns; 0 if not
    measured.
    """

    kernels: Count = 0
    obstacle: str = ""
    verification: str = ""
    reason: str = ""
    time_ns: float = 0.0
    q1_ns: float = 0.0
    q3_ns: float = 0.0


@dataclass(frozen=True, slots=True)
class SweepFolder(WorkFolder):
    """The work folder of a sweep; `measured_how` says whether results are verified and how they are timed."""

    measured_how: str

    def model(self, trial: Trial) -> Path:
        """File of the trial's program."""
        return self.path / "models" / f"{trial.operation.name}.mlir"

    def configured(self, trial: Trial) -> Path:
        """File of the configured module before code generation."""
        return self.path / "modules" / f"{trial.key}.mlir"


def measurement_key(options: SweepOptions) -> str:
    """File name part for the measurement options that a result depends on."""
    verification = "unverified" if options.no_verify else "verified"
    # A tag marks a circumstance that may change times.
    tag = f"-{key_of(*sorted(options.tag))}" if options.tag else ""
    if options.only == "verify":
        return f"{verification}{tag}"
    return f"{verification}-{options.repetitions}x{options.min_time:g}ms{tag}"


def write_programs(trials: Sequence[Trial], work: SweepFolder) -> None:
    """Write the missing programs."""
    for trial in trials:
        file = work.model(trial)
        text = trial.operation.text().encode()
        if not file.is_file() or file.read_bytes() != text:
            write_atomically(file, text)


def compile_all(trials: Sequence[Trial], work: SweepFolder, jobs: int, tell: Callable[[int, int], None]) -> None:
    """Compile the missing trials in parallel; a trial that cannot be compiled is recorded as a result.

    `tell` receives the number of finished trials and the total.
    """
    missing = [
        trial for trial in trials if not work.module(trial.key).is_file() and work.read(trial.key, TrialResult) is None
    ]
    workers = jobs or usable_processors()
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_compile, trial, work) for trial in missing]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                tell(done, len(missing))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def compile_failures(trials: Sequence[Trial], work: SweepFolder) -> Iterator[str]:
    """The reasons of all trials that were not compiled, in trial order."""
    for trial in trials:
        if not work.module(trial.key).is_file():
            result = work.read(trial.key, TrialResult)
            yield _KILLED if result is None else result.obstacle


def _compile(trial: Trial, work: SweepFolder) -> None:
    with temporary_folder() as folder:
        try:
            configured = _configured(trial, work, folder)
            module = MlirParser().parse(configured, printed=True)
            text = benchmark_module_text(module, [case.dispatch for case in _cases(module)])
            compiled = compile_benchmark_module(text, [*trial.flags, *trial.configuration.flags], folder)
        except (ToolFailed, ModelInvalid) as error:
            if not was_killed(error):
                work.write(trial.key, TrialResult(obstacle=str(error)))
            return
        write_atomically(work.configured(trial), configured)
        # Last, so that its presence marks a complete trial.
        write_atomically(work.module(trial.key), compiled.read_bytes())


def _configured(trial: Trial, work: SweepFolder, folder: Path) -> bytes:
    """The operation before code generation, with the trial's configuration.

    Raises `ToolFailed` if no kernel can be configured, `ModelInvalid` if IREE has no such pipeline.
    """
    target = folder / "configured.mlir"
    program, flags = find_tool("iree-compile"), [*trial.flags, *trial.configuration.flags]
    done = run_tool([program, work.model(trial), f"--compile-to={CONFIGURED}", "-o", target, *flags])
    if done.returncode != 0:
        raise ToolFailed(failure_message(done.returncode, done.stderr))
    parser = MlirParser()
    module = parser.parse(target.read_bytes(), printed=True)
    executables = executables_of(module).values()
    changed = [apply_configuration(trial.configuration, executable, parser) for executable in executables]
    if not any(changed):
        raise ToolFailed(f"{trial.configuration.text}: no kernel has tiles to change")
    text: str = module.operation.get_asm()
    return text.encode()


def _cases(module: Module) -> list[Case]:
    """The cases of a module; they live as long as it does."""
    return group_into_cases(module, read_dispatches(module, lambda *_: 1), {})


def measure(trial: Trial, work: SweepFolder, options: SweepOptions) -> TrialResult:
    """Verify and time a compiled trial; return the cached result if there is one."""
    for how in ("", work.measured_how):
        if (cached := work.read(trial.key, TrialResult, how)) is not None:
            return cached
    if not work.module(trial.key).is_file():
        return TrialResult(obstacle=_KILLED)
    with temporary_folder() as folder:
        result = _run_trial(trial, work, options, folder)
    work.write(trial.key, result, work.measured_how)
    return result


def _run_trial(trial: Trial, work: SweepFolder, options: SweepOptions, folder: Path) -> TrialResult:
    module = MlirParser().parse(work.configured(trial).read_bytes(), printed=True)
    cases = _cases(module)
    calls = tuple(case.call(number) for number, case in enumerate(cases))
    verify = not options.no_verify
    repetitions = 0 if options.only == "verify" else options.repetitions
    job = Job(
        (written_path(work.module(trial.key)),),
        calls=calls,
        outputs=written_path(folder) if verify else "",
        repetitions=repetitions,
        least_ns=max(1, round(options.min_time * 1e6)),
    )
    times: list[tuple[float, ...]] = []
    limit_s = _LIMIT_S + _BATCH_FACTOR * (repetitions + _BATCH_FACTOR) * options.min_time / 1e3
    for answer in run_job(job, folder, limit_s):
        if isinstance(answer, FailedCall):
            status = Status.NOT_VERIFIED if answer.for_memory else Status.FAILED
            return TrialResult(len(cases), verification=status.value, reason=answer.text)
        if verify:
            verification = verify_call(cases[answer.call], calls[answer.call], folder, answer)
            if verification.status is not Status.SUCCESS:
                return TrialResult(len(cases), verification=verification.status.value, reason=verification.reason)
        times.append(answer.warm.call_ns)
    status = Status.SUCCESS if verify else Status.NOT_VERIFIED
    totals = [sum(kernel_times) for kernel_times in zip(*times, strict=True)]
    q1, median, q3 = (round(time_ns, 3) for time_ns in quartiles(totals)) if totals else (0.0, 0.0, 0.0)
    return TrialResult(len(cases), "", status.value, "", median, q1, q3)
