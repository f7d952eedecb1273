"""Runs iree-compile on a tagged model and reads the phase dumps."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Protocol

from tracemap.core.errors import ModelInvalid, ToolFailed, TracemapError, UsageInvalid
from tracemap.core.process.children import end, log_command, start
from tracemap.core.process.forked import ForkedWork, fork_work, others_run
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.core.units import UNKNOWN, Integer, Unknown, sum_of
from tracemap.ir.allocations import BEFORE_LAYOUT, dumped_functions, layout_flags, read_dump_files, without_dumps
from tracemap.ir.executables import KernelText, set_line_locations
from tracemap.ir.parsing import BYTECODE_MAGIC, MlirParser, parsing_limit_s
from tracemap.ir.source_model import TEXT_FILE
from tracemap.ir.text_checks import nesting_fault
from tracemap.map.build.compiler.failure_messages import (
    compiler_error,
    failure_message,
    flags_complaint,
    is_ended_from_outside,
    missing_library_message,
)
from tracemap.map.build.compiler.flags import PRINT_LOCATIONS, drop_location_flags, has_flag, missing_locations_error
from tracemap.map.build.compiler.library import (
    CONFIGURED,
    CONSTANT,
    OWN_KERNELS_REJECTED,
    Kernels,
    LibraryFiles,
    TaggedModel,
    compile_with_library,
    has_worker_threads,
    is_library_of,
    write_module,
)
from tracemap.map.build.compiler.remarks import NO_THREADS, REMARK_FLAGS, PrintedRemark, read_remarks
from tracemap.map.build.compiler.timing import (
    KERNEL_TIMING_FLAGS,
    PASS_TIMING_FLAGS,
    TIMING_FLAG_PREFIXES,
    TimedKernel,
    build_timing,
    read_pass_times,
    read_stamped,
    without_report,
)
from tracemap.map.bundle_documents import BuildTiming, CompileTimes
from tracemap.map.model import PHASES

# ---- running


_MEASURED_EXEC: Final = Path(__file__).with_name("measured_exec.py")


class _Process(Protocol):
    """A child process: a `subprocess.Popen`, or a `ForkedWork`."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run: the one that it makes, and the folder for its dumps of phases."""

    target: Path
    phases: Path

    @property
    def output(self) -> Path:
        """The file for the output of the run."""
        return self.phases.with_name(f"stderr-{self.target.name}.txt")

    @property
    def measured(self) -> Path:
        """The result of `measured_exec`, if that starts the compiler."""
        return self.phases.with_name(f"measured-{self.target.name}.txt")


class Run:
    """A run of the compiler that has just been started. Several threads may wait for it."""

    def __init__(self, name: str, files: RunFiles, process: _Process, kill: Callable[[], object]) -> None:
        self.elapsed_ns: Integer = UNKNOWN
        """Its wall time; unknown until it has ended."""
        self.cpu_ns: Integer = UNKNOWN
        """Its processor time, in steps of 10 ms; unknown until it has ended."""
        self.files = files
        self._name, self._process, self._kill = name, process, kill
        self._start_ns = time.perf_counter_ns()
        self._exit_status: int | None = None
        self._end_lock = threading.Lock()

    @classmethod
    def of_program(cls, arguments: Sequence[str | Path], files: RunFiles, *, measuring: str = "") -> Run:
        """Start iree-compile.

        `measuring`: `pass` to measure its memory, `stamp` to write the times of its output as well; "" for neither.
        """
        program, source, *flags = arguments
        prefix: list[str | Path] = [sys.executable, "-I", "-S", _MEASURED_EXEC, files.measured, measuring]
        with files.output.open("wb") as stderr:
            process = start(
                [*(prefix if measuring else []), program, source, "-o", files.target, *flags],
                stdout=stderr,
                stderr=stderr,
            )
        return cls(str(program), files, process, lambda: end(process))

    def dump(self, number: int) -> Path | None:
        """The dump of a phase, once the compiler has begun it."""
        dumps = sorted(self.files.phases.glob(f"*.{number}.*.mlir"))
        return next((dump for dump in dumps if dump.name.rsplit(".", 3)[1] == str(number)), None)

    @property
    def said(self) -> str:
        """The messages of the compiler so far."""
        return without_dumps(without_report(self.reported))

    @property
    def reported(self) -> str:
        """The whole output of the compiler so far."""
        return self.files.output.read_text(encoding="utf-8", errors="replace")

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        with self._end_lock:
            if self._exit_status is None and self._has_ended(os.WNOHANG):
                self.elapsed_ns = time.perf_counter_ns() - self._start_ns
                self.cpu_ns = _cpu_ns(self._process.pid)
                self._exit_status = self._process.poll()
            return self._exit_status

    def wait(self) -> int:
        """Wait for its end; returns its exit status.

        Raises:
            ToolFailed: it succeeded, but wrote no output.
        """
        self._has_ended(0)
        if self.status == 0 and not self.files.target.exists():
            raise ToolFailed(
                f"{self._name} ended with status 0 and wrote no output; check that it is iree-compile, or a "
                "script that passes on all its arguments"
            )
        return self.status

    @property
    def status(self) -> int:
        """The exit status; waits until the run has ended."""
        while (exit_status := self.poll()) is None:
            self._has_ended(0)
        return exit_status

    def _has_ended(self, options: int) -> bool:
        """Whether it has ended; leaves the zombie, so that its processor time can still be read."""
        with suppress(ChildProcessError):  # another thread has reaped it
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | options) is not None
        return True

    def end(self) -> None:
        """Kill the run if it has not ended."""
        self._kill()


def _cpu_ns(pid: int) -> Integer:
    """The processor time of an ended process that is not yet reaped (proc(5), `stat`)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return UNKNOWN


# ---- accepted
#
# Checks once whether iree-compile accepts flags, so that many compilations need not fail for them.


def check_flags(flags: Sequence[str]) -> None:
    """Reject flags that iree-compile does not know, flags with invalid values, and flags that only print something.

    Raises:
        UsageInvalid: there is such a flag; the message quotes the compiler.
        ToolMissing: there is no compiler.
    """
    with temporary_folder() as folder:
        source, target = folder / "empty.mlir", folder / "read.mlir"
        source.write_text("module {}\n", encoding="utf-8")
        result = run_tool([find_tool("iree-compile"), source, "--compile-to=input", "-o", target, *flags])
        if result.returncode < 0:
            raise compiler_error(UsageInvalid, result.returncode, result.stderr, "with these flags ")
        if result.returncode != 0:
            raise UsageInvalid(f"iree-compile rejects {flags_complaint(flags, result.stderr)}")
        if not target.is_file():
            raise UsageInvalid("with these flags iree-compile only prints something and compiles nothing; omit them")


# ---- compiling

_NUMBER_OF = dict(zip(PHASES, (1, 2, 3, 4, 5, 6, 7, 11), strict=True))
"""The numbers of the phases in the names of their dumps; those between stream and hal are not read."""

_EXECUTABLE_DUMPS = "--iree-hal-dump-"
OUTPUT_FLAG_PREFIXES = (_EXECUTABLE_DUMPS, "--dump-", "--mlir-print-", "--print-")
"""Prefixes of flags that write files or output other than the module."""
_RELOCATING = tuple(f"--iree-hal-dump-executable-{kind}-to" for kind in ("sources", "configurations", "files"))
"""Flags that replace the locations of operations by positions in dumps, which loses the ops."""
LINKERS = tuple(f"--iree-llvmcpu-{kind}-linker-path" for kind in ("embedded", "system", "wasm"))
"""Flags that name programs to run."""
_LAST_OF_FIRST = _NUMBER_OF["stream"]
"""Later phases are read from the dumps of the second run."""

_TUNING_SPEC = "--iree-codegen-tuning-spec-path"
_PRINTING = (PRINT_LOCATIONS, "--mlir-elide-elementsattrs-if-larger=16", "--mlir-elide-resource-strings-if-larger=16")
_POLL_S, _LONGEST_POLL_S = 0.005, 0.05
_PARSING_POLL_S = 0.002


def compiler_version() -> str:
    """The release of the compiler in tracemap's own environment.

    Raises:
        ImportError: there is none.
    """
    from iree.compiler import version

    return str(version.VERSION)


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler's program, and the flags that decide what it compiles."""

    program: Path
    flags: tuple[str, ...]

    @classmethod
    def installed(cls, flags: tuple[str, ...]) -> Compiler:
        """The compiler in tracemap's own environment.

        Raises:
            ToolMissing: there is none.
        """
        return cls(find_tool("iree-compile"), flags)

    def for_remarks(self) -> Compiler:
        """The compiler with remarks, and without flags that write anything but the module."""
        return Compiler(self.program, (*self.lacking(*REMARK_FLAGS, NO_THREADS), *self.without_output().flags))

    def without_output(self) -> Compiler:
        """The compiler without flags that write anything but the module."""
        return Compiler(self.program, tuple(flag for flag in self.flags if not flag.startswith(OUTPUT_FLAG_PREFIXES)))

    def for_timing(self) -> Compiler:
        """The compiler that reports its times, without flags that write anything else."""
        dropped = (*OUTPUT_FLAG_PREFIXES, *TIMING_FLAG_PREFIXES, NO_THREADS)
        flags = tuple(flag for flag in self.flags if not flag.startswith(dropped))
        return Compiler(self.program, (*flags, *KERNEL_TIMING_FLAGS))

    def lacking(self, *flags: str) -> tuple[str, ...]:
        """Those of some flags that the compiler does not have yet, with whatever value."""
        return tuple(flag for flag in flags if not has_flag(self.flags, flag.split("=", 1)[0]))

    def for_tracing(self) -> Compiler:
        """The compiler without dumps of executables if they would replace the locations."""
        if not has_flag(self.flags, *_RELOCATING):
            return self
        return Compiler(self.program, tuple(flag for flag in self.flags if not flag.startswith(_EXECUTABLE_DUMPS)))

    @property
    def flags_to_run(self) -> tuple[str, ...]:
        """The flags, with threading disabled if a tuning spec could deadlock the compiler.

        With threads, one may hold the lock of the tuning spec (IREE 3.13:
        `IREECodegenDialect::getOrLoadTransformLibraryModule`), wait, and meanwhile run work that needs the same lock.
        """
        may_deadlock = has_flag(self.flags, _TUNING_SPEC) and not has_flag(self.flags, NO_THREADS)
        return (NO_THREADS, *self.flags) if may_deadlock else self.flags

    def with_printing(self) -> tuple[str, ...]:
        """The flags for a run with complete and small dumps."""
        flags = drop_location_flags(self.flags_to_run)
        return (*(flag for flag in _PRINTING if not has_flag(flags, flag.split("=", 1)[0])), *flags)


class Phases(Protocol):
    """The dumps of a compilation's phases.

    `is_own`: whether tracemap ran the compilation, so that the model was parsed already.
    """

    is_own: bool

    def has(self, phase: str) -> bool:
        """Whether a dump of a phase exists, or will exist."""

    def wait_for(self, phase: str) -> str:
        """Wait for the complete text of a phase's dump."""

    def kernels(self) -> tuple[KernelText, ...]:
        """The texts of the kernels if the machine code's debug lines are lines of them; else none."""

    def allocations(self) -> str:
        """The functions of the host program ahead of the layout of their memory, as a module's text; "" if unknown."""


_TO_STREAM = "--compile-to=stream"
_CONFIGURE = (f"--compile-to={CONFIGURED}",)
_GENERATE = (f"--compile-from={CONFIGURED}",)
_BYTECODE = ("--emit-mlir-bytecode",)
_GENERIC = "--mlir-print-op-generic"
_LARGE_CONSTANT = re.compile(rb'dense_resource<|dense<"0x|dense<\[[^>]{400}|torch_tensor_')
"""In a model that seems to contain large constants; the compiler may create some in other models, too."""
_PARSED_NAME = "parsed"
_PRINTS_OTHERWISE = re.compile(r"--?mlir-(?:print-(?!ir-|debuginfo)|use-nameloc)")
"""Flags for how all of a process prints IR, so that the library would also print the texts of kernels otherwise."""


class _Cancelled(Exception):
    """The compilation was cancelled."""


class Compilation:
    """Compiles tagged bytecode, dumps the phases, and sets the kernels' debug lines to lines of their texts.

    Where it can, one forked process does all of this with the compiler's library. Otherwise iree-compile runs twice, up
    to configured kernels and on from there: a compiler of another package, flags that only iree-compile has, and
    measuring the compiler's own time. Between these runs, a thread sets the lines. If that fails, the second run
    compiles the whole model, and `no_kernels` says why there are no texts.

    The flags that keep dumps small also elide large constants from the first run's result. If the model has any, that
    part is compiled again without dumps. Its result is text, since bytecode loses the data of constants in IREE's own
    attributes, which hold it as text.

    Remarks come from another run next to the second half, whose module is dropped, so the bundle's module is compiled
    as usual. Times of kernels come from another run after the second one, since reporting them takes time. Likewise a
    separate run writes the user's dumps of executables if these would replace the locations.

    As a context manager, it kills the compiler if it is left early.
    """

    is_own = True

    def __init__(
        self,
        compiler: Compiler,
        model: TaggedModel,
        folder: Path,
        *,
        remarks: bool = False,
        timing: bool = False,
    ) -> None:
        self.module = folder / "module.vmfb"
        self.configured = folder / "lined.mlir"
        self.no_kernels = ""
        self._all_flags = compiler
        self._compiler = compiler.for_tracing()
        self._model = model
        self._folder = folder
        self._kernels: tuple[KernelText, ...] = ()
        self._cancelled = False
        self._start_lock = threading.Lock()
        self._runs: list[Run] = []
        self._layout_folder = folder / "layout"
        self._layout_flags = layout_flags(self._layout_folder, model.content, self._compiler.flags)
        self._constants_run: Run | None = None
        self._second_run: Run | None = None
        self._dump_run: Run | None = None
        self._wants_remarks = remarks
        self._remarks_run: Run | None = None
        self._wants_timing = timing
        self._timed_run: Run | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run_thread, daemon=True)
        self._work: ForkedWork | None = None
        self._forked = ExitStack()
        self._write_bytecode: Callable[[], Path] | None = None
        forked = None if timing else self._fork()
        if forked is not None:
            self._first_run = forked

    def _fork(self) -> Run | None:
        """Start a process with the compiler's library; None if that is impossible."""
        content = self._model.content
        if not content.startswith(BYTECODE_MAGIC) and nesting_fault(content):
            return None
        if any("\0" in flag for flag in self._compiler.flags):  # refused where a program starts
            return None
        if any(_PRINTS_OTHERWISE.match(flag) for flag in self._compiler.flags):
            return None
        if others_run() or has_worker_threads() or not is_library_of(self._compiler.program):
            return None
        files = RunFiles(self.module, self._folder / "phases")
        library_files = LibraryFiles(
            self.module, files.phases, files.output, self._folder / _PARSED_NAME, self.configured
        )
        flags = (*self._layout_flags, *self._compiler.with_printing())
        files.output.touch()
        try:
            work = self._forked.enter_context(
                fork_work(partial(compile_with_library, self._model, flags, library_files))
            )
        except OSError:  # iree-compile says which limit it is
            return None
        run = Run(self._compiler.program.name, files, work, work.kill)
        self._runs.append(run)
        self._work = work
        log_command([self._compiler.program, TEXT_FILE, "-o", self.module, *flags])
        return run

    def has_parsed(self) -> bool:
        """Wait until the compiler's library has parsed the model; False if it is not used, or fails or hangs."""
        if self._work is None:
            return False
        deadline = time.monotonic() + parsing_limit_s(len(self._model.content))
        parsed = self._folder / _PARSED_NAME
        while not parsed.exists() and self._first_run.poll() is None and time.monotonic() < deadline:
            time.sleep(_PARSING_POLL_S)
        if not parsed.exists():
            self._work.kill()
            self._work = None
        return self._work is not None

    def go_on(self, write_bytecode: Callable[[], Path]) -> None:
        """Compile the model, which has been parsed.

        Args:
            write_bytecode: writes the tagged model for iree-compile, if that runs.
        """
        self._write_bytecode = write_bytecode
        if self._work is None:
            self._first_run = self._start_first_run()
        if self._compiler is not self._all_flags:
            self._dump_run = self._start_dump_run(self._all_flags)
        self._thread.start()

    @cached_property
    def bytecode(self) -> Path:
        """The tagged model."""
        assert self._write_bytecode is not None
        return self._write_bytecode()

    def _start_first_run(self) -> Run:
        timed = self._compiler.lacking(NO_THREADS, *PASS_TIMING_FLAGS) if self._wants_timing else ()
        flags = (*_CONFIGURE, *_BYTECODE, *timed)
        run = self._run(self.bytecode, "configured.mlirbc", flags, measuring="pass" if self._wants_timing else "")
        if _LARGE_CONSTANT.search(self._model.content):
            self._constants_run = self._with_constants()
        return run

    def _with_constants(self) -> Run:
        flags = (*_CONFIGURE, *self._compiler.lacking(PRINT_LOCATIONS, _GENERIC))
        return self._run(self.bytecode, "configured.mlir", flags, dumps=False)

    def _start_dump_run(self, compiler: Compiler) -> Run:
        flags = compiler.lacking(PRINT_LOCATIONS)  # so that the ops are known if the user substitutes a dump
        return self._run(self.bytecode, "dumped.vmfb", flags, dumps=False, compiler=compiler)

    def _run(
        self,
        source: Path,
        target: str,
        flags: Sequence[str],
        *,
        dumps: bool = True,
        compiler: Compiler | None = None,
        measuring: str = "",
    ) -> Run:
        """Start a run, unless the compilation was cancelled."""
        with self._start_lock:
            if self._cancelled:
                raise _Cancelled
            phases = self._folder / f"phases-{target}"
            # Dumps are without large constants.
            compiler = compiler or self._compiler
            dumping = (f"--dump-compilation-phases-to={phases}", *self._layout_flags, *compiler.with_printing())
            arguments: list[str | Path] = [
                compiler.program,
                source,
                *flags,
                *(dumping if dumps else compiler.flags_to_run),
            ]
            run = Run.of_program(arguments, RunFiles(self._folder / target, phases), measuring=measuring)
            self._runs.append(run)
            return run

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *unused: object) -> None:
        with self._start_lock:
            self._cancelled = True
        for run in self._runs:
            run.end()
        if self._thread.ident is not None:
            self._thread.join()
        self._forked.close()

    def _run_thread(self) -> None:
        """The thread: compile, and wait for the end."""
        try:
            if self._work is not None:
                self._finish_fork(self._work)
                if not _is_crash(self._first_run.status):
                    return
                self._work = None
                self._first_run = self._start_first_run()
            if self._first_run.wait() == 0:
                self._second_run = self._generate()
                if self._second_run.wait() != 0 and not self.no_kernels:
                    self.no_kernels = OWN_KERNELS_REJECTED
                    self._second_run = self._compile_whole()
                    self._second_run.wait()
                if self._wants_timing and not self.no_kernels:
                    # Alone, so that no other run of the compiler slows it down.
                    flags, compiler = _GENERATE, self._compiler.for_timing()
                    self._timed_run = self._run(
                        self.configured, "timed.vmfb", flags, dumps=False, compiler=compiler, measuring="stamp"
                    )
                    self._timed_run.wait()
        except BaseException as error:  # raised again in `wait`
            self._error = error

    def _finish_fork(self, work: ForkedWork) -> None:
        """Wait for the compiler's library."""
        if self._wants_remarks:
            while not self.configured.exists() and self._first_run.poll() is None:
                time.sleep(_POLL_S)
            if self.configured.exists():
                self._remarks_run = self._start_remarks_run()
        result = work.told()
        if self._first_run.status == 0:
            if not result:  # the status is unknown, since this program ignores SIGCHLD
                raise compiler_error(ModelInvalid, 1, self._first_run.said)
            kernels = Kernels.of(result)
            self._kernels, self.no_kernels = kernels.texts, kernels.unknown
            if self.no_kernels:
                self._second_run = self._compile_whole()
                self._second_run.wait()

    def _generate(self) -> Run:
        parser = MlirParser()
        try:
            module = parser.parse(self._configured(), printed=True)
            self._kernels = set_line_locations(parser, module)
        except (ModelInvalid, ValueError) as error:
            self.no_kernels = f"the configured kernels cannot be read: {error}"
            return self._compile_whole()
        write_module(module, self.configured, as_text=self._constants_run is not None)
        second = self._run(self.configured, self.module.name, _GENERATE)
        if self._wants_remarks:
            self._remarks_run = self._start_remarks_run()
        return second

    def _start_remarks_run(self) -> Run:
        commented = self._compiler.for_remarks()
        return self._run(self.configured, "remarks.vmfb", _GENERATE, dumps=False, compiler=commented)

    def _configured(self) -> bytes:
        """The module after the first run, with all its constants.

        Raises:
            ModelInvalid: the compiler failed in the run with constants.
        """
        # The compiler may have made large constants for a model that seemed to have none, which shows only now.
        bytecode = (self._folder / "configured.mlirbc").read_bytes()
        if self._constants_run is None and CONSTANT in bytecode:
            self._constants_run = self._with_constants()
        if self._constants_run is None:
            return bytecode
        if self._constants_run.wait() != 0:
            raise ModelInvalid(failure_message(self._constants_run.status, self._constants_run.said))
        return (self._folder / "configured.mlir").read_bytes()

    def _compile_whole(self) -> Run:
        self._kernels = ()
        return self._run(self.bytecode, self.module.name, ())

    def has(self, phase: str) -> bool:
        """Whether a phase is among the known ones, all of which are dumped."""
        return phase in _NUMBER_OF

    def kernels(self) -> tuple[KernelText, ...]:
        """Wait for the end; returns the texts of the kernels, none if `no_kernels` has a reason."""
        self.wait()
        return self._kernels

    def allocations(self) -> str:
        """The functions of the host program ahead of the layout of their memory."""
        stream = self.wait_for("stream")
        dumps = read_dump_files(self._layout_folder, stream)
        if not dumps:
            compiler = self._compiler.without_output()
            printing = (_TO_STREAM, *compiler.lacking(*_PRINTING), BEFORE_LAYOUT)
            run = self._run(self.bytecode, "stream.mlir", printing, dumps=False, compiler=compiler)
            dumps = run.reported if run.wait() == 0 else ""
        return dumped_functions(dumps)

    def remarks(self) -> Iterator[PrintedRemark]:
        """Wait for the end; returns LLVM's remarks.

        Raises:
            ModelInvalid: the kernels have no debug lines, or the run for remarks failed.
        """
        self.wait()
        if self._remarks_run is None or self.no_kernels:
            raise ModelInvalid(self.no_kernels or "there are no kernels")
        if self._remarks_run.wait() != 0:
            raise ModelInvalid(failure_message(self._remarks_run.status, self._remarks_run.said))
        with self._remarks_run.files.output.open(encoding="utf-8", errors="replace", newline="\n") as said:
            yield from read_remarks(line.rstrip("\n") for line in said)

    def timing(self) -> BuildTiming:
        """Wait for the end; returns the compiler's time by kernel and pass.

        Raises:
            ModelInvalid: the kernels have no debug lines, or the run for times failed.
        """
        self.wait()
        if self._timed_run is None:
            raise ModelInvalid(self.no_kernels or "there are no kernels")
        runs = (self._first_run, self._timed_run)
        first, second = (read_stamped(run.files.measured.read_text(encoding="utf-8", errors="replace")) for run in runs)
        if self._timed_run.status != 0:
            raise ModelInvalid(failure_message(self._timed_run.status, second.text))
        elapsed_ns, peaks = sum_of(run.elapsed_ns for run in runs), (first.peak_bytes, second.peak_bytes)
        if isinstance(elapsed_ns, Unknown):
            raise ModelInvalid("the time of iree-compile is unknown")
        peak_bytes = max((peak for peak in peaks if not isinstance(peak, Unknown)), default=UNKNOWN)
        kernels = [TimedKernel(text.kernel, text.executable, text.file) for text in self._kernels]
        return build_timing(read_pass_times(self._first_run.reported), second, elapsed_ns, peak_bytes, kernels)

    def took(self) -> CompileTimes:
        """Wait for the end; returns the total time of the runs that made the module."""
        self.wait()
        runs = [run for run in (self._first_run, self._second_run) if run is not None]
        return CompileTimes(
            elapsed_ns=sum_of(run.elapsed_ns for run in runs), cpu_ns=sum_of(run.cpu_ns for run in runs)
        )

    def wait_for(self, phase: str) -> str:
        """Wait for a phase's complete dump, which shows in the start of the next dump or the end of the run.

        Raises:
            ModelInvalid: the compiler failed.
            UsageInvalid: one of the user's flags keeps it from printing locations.
        """
        number = _NUMBER_OF[phase]
        pause_s = _POLL_S
        while self._complete_dump(number) is None and self._may_come(number):
            time.sleep(pause_s)
            pause_s = min(1.1 * pause_s, _LONGEST_POLL_S)  # poll slow phases less often
        # If the compiler failed, report its own message instead of a missing dump.
        if self._first_run.poll() or not self._thread.is_alive():
            self.wait()
        path = self._complete_dump(number)
        if path is None:
            self.wait()  # a program that wrote nothing at all is named as such
            raise ModelInvalid(f"iree-compile wrote no dump of the phase {phase}; a flag may stop it earlier")
        text = path.read_text(encoding="utf-8", errors="replace")
        if "loc(" not in text:
            raise missing_locations_error(self._compiler.flags)
        return text

    def _complete_dump(self, number: int) -> Path | None:
        """The dump of a phase if it is final: the next dump has begun, or the run has ended."""
        for run in self._runs_with(number):
            dump = run.dump(number)
            if dump is not None and (run.dump(number + 1) is not None or run.poll() is not None):
                return dump
        return None

    def _runs_with(self, number: int) -> Iterator[Run]:
        """The runs that reach a phase. The first one of two also dumps later phases, but has not run them."""
        if number <= _LAST_OF_FIRST or self._work is not None:
            yield self._first_run
        if self._second_run is not None:
            yield self._second_run

    def _may_come(self, number: int) -> bool:
        """Whether some run still may write the dump of a phase."""
        return self._thread.is_alive() if number > _LAST_OF_FIRST else self._first_run.poll() is None

    def wait(self) -> str:
        """Wait for the compiler's end; returns its output (warnings).

        Raises:
            ModelInvalid: it failed; the message is the compiler's.
            SystemLimit: a limit of the shell ended it.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        runs = [run for run in (self._first_run, self._second_run, self._dump_run) if run is not None]
        for run in runs:
            if run.status != 0:
                raise compiler_error(ModelInvalid, run.status, run.said)
            if missing_library := missing_library_message(run.said):
                raise ModelInvalid(missing_library)
        return "\n".join(dict.fromkeys(run.said for run in runs if run.said))


def _is_crash(status: int) -> bool:
    """Whether the compiler's library crashed. iree-compile may not, since it checks the program after every pass."""
    return status < 0 and not is_ended_from_outside(status)


def compile_error(compiler: Compiler, model: Path, output: Path) -> TracemapError | None:
    """iree-compile's own error for a model, with line and caret; None if it accepts the model."""
    result = run_tool([compiler.program, model, "-o", output, *compiler.flags_to_run])
    return None if result.returncode == 0 else compiler_error(ModelInvalid, result.returncode, result.stderr)


_SMALL_MODEL = """func.func @sum(%x: tensor<4xf32>) -> tensor<4xf32> {
  %sum = arith.addf %x, %x : tensor<4xf32>
  return %sum : tensor<4xf32>
}
"""


def flags_error(compiler: Compiler, flags: Sequence[str], folder: Path) -> UsageInvalid | None:
    """The error for flags if iree-compile does not even compile a small model with them; None if it does.

    Args:
        compiler: the compiler with all flags.
        flags: those of the user.
        folder: folder for the model.
    """
    if not flags:
        return None
    source = folder / "sum.mlir"
    source.write_text(_SMALL_MODEL, encoding="utf-8")
    result = run_tool([compiler.program, source, "-o", source.with_suffix(".vmfb"), *compiler.flags_to_run])
    if result.returncode == 0 or is_ended_from_outside(result.returncode):
        return None
    return UsageInvalid(f"iree-compile rejects {flags_complaint(flags, result.stderr)}")
