"""Runs of iree-compile on a tagged model, and the phase dumps that they write."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracemap.errors import ModelInvalid, ToolFailed, TracemapError, UsageInvalid
from tracemap.graph.documents import CompileTimes
from tracemap.graph.model import PHASES
from tracemap.ir.executables import KernelText, line_kernels
from tracemap.ir.parsing import MlirParser
from tracemap.mapping.compiler.flags import LOCATED, named, no_locations, without_printing
from tracemap.mapping.compiler.messages import failed, failure, not_loaded
from tracemap.mapping.compiler.remarks import IN_ORDER, REMARK_FLAGS, SaidRemark, read_remarks
from tracemap.owned.children import end, start
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import find_tool, run_tool
from tracemap.units import UNKNOWN, Integer, sum_of

# ---- running
#
# One run of iree-compile: its dumps, what it prints, and how long it takes.


class Run:
    """A run that has been started. Several threads may wait for it."""

    def __init__(self, arguments: Sequence[str | Path], target: Path, phases: Path) -> None:
        program, source, *flags = arguments
        self.elapsed_ns: Integer = UNKNOWN
        """How long it ran; unknown until it ended."""
        self.cpu_ns: Integer = UNKNOWN
        """The time of processors that it took, in hundredths of a second; unknown until it ended."""
        self._program, self._target, self._phases = str(program), target, phases
        self._ending = threading.Lock()
        self.stderr = phases.with_name(f"stderr-{target.name}.txt")
        with self.stderr.open("wb") as stderr:
            self._began = time.perf_counter_ns()
            self._process = start([program, source, "-o", target, *flags], stdout=stderr, stderr=stderr)

    def dump(self, number: int) -> Path | None:
        """Where a phase is dumped, once that has begun."""
        return next(iter(sorted(self._phases.glob(f"*.{number}.*.mlir"))), None)

    @property
    def said(self) -> str:
        """What the compiler has printed."""
        return self.stderr.read_text(encoding="utf-8", errors="replace").strip()

    def poll(self) -> int | None:
        """Its exit status, None as long as it runs."""
        with self._ending:
            if self._process.returncode is None and self._has_ended(os.WNOHANG):
                self.elapsed_ns = time.perf_counter_ns() - self._began
                self.cpu_ns = _cpu_ns(self._process.pid)
            return self._process.poll()

    def wait(self) -> int:
        """Its exit status, once it has ended.

        Raises:
            ToolFailed: it ended well, and there is nothing of what it was to write.
        """
        self._has_ended(0)
        if self.status == 0 and not self._target.exists():
            raise ToolFailed(
                f"{self._program} ended with status 0 and wrote no output; look whether it is iree-compile, or a "
                "script that passes on all its arguments"
            )
        return self.status

    @property
    def status(self) -> int:
        """The exit status of a run that has ended."""
        return self._process.wait() if (found := self.poll()) is None else found

    def _has_ended(self, how: int) -> bool:
        """Whether it has ended; what is left of it stays for whoever reads how long it took."""
        with suppress(ChildProcessError):  # another thread has seen its end
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | how) is not None
        return True

    def end(self) -> None:
        """Kill it where it still runs."""
        end(self._process)


def _cpu_ns(pid: int) -> Integer:
    """The time of processors that an ended process took, from what the kernel keeps of it (proc(5), `stat`)."""
    try:
        behind_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(behind_name[11]) + int(behind_name[12])
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return UNKNOWN


# ---- accepted
#
# Whether iree-compile takes flags at all: asked once, before many compilations would fail of them.


_TRY = re.compile(r"\s*Try: '.*'")
_MOST = 400


def check_accepted(flags: Sequence[str]) -> None:
    """Refuse flags that iree-compile does not know, whose values it does not take, or that only print something.

    Raises:
        UsageInvalid: there are such; the message has the compiler's own words.
        ToolMissing: there is no compiler.
    """
    with temporary_folder() as folder:
        source, target = folder / "empty.mlir", folder / "read.mlir"
        source.write_text("module {}\n", encoding="utf-8")
        done = run_tool([find_tool("iree-compile"), source, "--compile-to=input", "-o", target, *flags])
        if done.returncode < 0:
            raise failed(UsageInvalid, done.returncode, done.stderr, "with these flags ")
        if done.returncode != 0:
            said = " ".join(_TRY.sub("", line.removeprefix("iree-compile: ")) for line in done.stderr.splitlines())
            raise UsageInvalid(f"iree-compile does not take the flags: {said[:_MOST] or 'it does not say why'}")
        if not target.is_file():
            raise UsageInvalid("with these flags iree-compile prints something and compiles nothing; leave them out")


# ---- compiling
#
# Runs iree-compile on a tagged model, and hands out each phase dump as soon as it is complete.


_NUMBER_OF = dict(zip(PHASES, (1, 2, 3, 4, 5, 6, 7, 11), strict=True))
"""The numbers of the phases in the names of their dumps; what lies between stream and hal is not read."""

CONFIGURED = "executable-configurations"
"""The phase after which kernels are final but for the generation of their code."""
_EXECUTABLE_DUMPS = "--iree-hal-dump-"
BESIDES = (_EXECUTABLE_DUMPS, "--dump-", "--mlir-print-", "--print-")
"""Beginnings of flags that say what is written besides the module."""
_RELOCATING = tuple(f"--iree-hal-dump-executable-{kind}-to" for kind in ("sources", "configurations", "files"))
"""Flags with which operations get the places of the dumps for their locations, and nothing tells their ops any more."""
LINKERS = tuple(f"--iree-llvmcpu-{kind}-linker-path" for kind in ("embedded", "system", "wasm"))
"""Flags that name programs to start."""
_LAST_OF_FIRST = _NUMBER_OF["stream"]
"""What comes after is read from the dumps of the second run."""

_TUNING_SPEC = "--iree-codegen-tuning-spec-path"
_PRINTING = (LOCATED, "--mlir-elide-elementsattrs-if-larger=16", "--mlir-elide-resource-strings-if-larger=16")
_POLL_S, _LONGEST_POLL_S = 0.005, 0.05


@dataclass(frozen=True, slots=True)
class Compiler:
    """The program to run, and the flags that decide what is compiled."""

    program: Path
    flags: tuple[str, ...]

    @classmethod
    def installed(cls, flags: tuple[str, ...]) -> Compiler:
        """The compiler that is installed beside tracemap.

        Raises:
            ToolMissing: there is none.
        """
        return cls(find_tool("iree-compile"), flags)

    def for_remarks(self) -> Compiler:
        """With remarks, and without the user's flags for what is written besides the module."""
        own = tuple(flag for flag in self.flags if not flag.startswith(BESIDES))
        return Compiler(self.program, (*self.lacking(*REMARK_FLAGS, IN_ORDER), *own))

    def lacking(self, *wanted: str) -> tuple[str, ...]:
        """Those of some flags that are not given already, be it with other values."""
        return tuple(flag for flag in wanted if not named(self.flags, flag.split("=", 1)[0]))

    def for_tracing(self) -> Compiler:
        """Without the dumps of executables, where they would take the locations away."""
        if not named(self.flags, *_RELOCATING):
            return self
        return Compiler(self.program, tuple(flag for flag in self.flags if not flag.startswith(_EXECUTABLE_DUMPS)))

    @property
    def flags_to_run(self) -> tuple[str, ...]:
        """The flags, and the one without which the compiler may stop for ever.

        Where it reads a tuning spec for several kernels at once, a thread that holds the lock of the spec (IREE 3.13:
        `IREECodegenDialect::getOrLoadTransformLibraryModule`) waits by doing other work, which may want that very lock.
        """
        endangered = named(self.flags, _TUNING_SPEC) and not named(self.flags, IN_ORDER)
        return (IN_ORDER, *self.flags) if endangered else self.flags

    def with_printing(self) -> tuple[str, ...]:
        """The flags that make dumps complete and small, unless they are given already, and those to run it with."""
        given = without_printing(self.flags_to_run)
        return (*(flag for flag in _PRINTING if not named(given, flag.split("=", 1)[0])), *given)


class Phases(Protocol):
    """The dumps of a compilation's phases.

    `is_own`: they are of a compilation that was started here, of a model that was parsed before.
    """

    is_own: bool

    def has(self, phase: str) -> bool:
        """Whether there is, or will be, a dump of a phase."""

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump, once it is complete."""

    def kernels(self) -> tuple[KernelText, ...]:
        """The texts of the kernels, whose lines are the debug lines of the machine code; none where they are not."""


_CONFIGURE = (f"--compile-to={CONFIGURED}",)
_GENERATE = (f"--compile-from={CONFIGURED}",)
_BYTECODE = ("--emit-mlir-bytecode",)
_GENERIC = "--mlir-print-op-generic"
_CONSTANT = b"dense_resource<"
"""In bytecode only where a constant is held as text, be it that its data was taken out or is kept elsewhere."""


class _Left(Exception):
    """Nobody waits for the compiler any more."""


class Compilation:
    """Compiles tagged bytecode in two runs, up to configured kernels and from there, dumping the phases.

    Between the runs, in a thread of its own, the kernels get debug lines that are lines of their texts. Where that
    does not work, the second run is a compilation of the whole, and `no_kernels` says why there are no texts.

    The flags that keep dumps small take large constants out of the first run's result too. Where the model has any,
    it is compiled so far a second time, without dumps. Its result is text then: bytecode loses the data of constants
    in IREE's own attributes, which it holds as text.

    Remarks, where they are wanted, are those of a run beside the second one, whose module nobody keeps: the bundle's
    is compiled as ever. So is what makes dumps of executables for the user that would take the locations away.

    A context manager: leaving it early ends the compiler.
    """

    is_own = True

    def __init__(
        self, compiler: Compiler, bytecode: Path, folder: Path, *, constants: bool, remarks: bool = False
    ) -> None:
        self.module = folder / "module.vmfb"
        self.configured = folder / "lined.mlir"
        self.no_kernels = ""
        self._compiler = compiler.for_tracing()
        self._bytecode = bytecode
        self._folder = folder
        self._kernels: tuple[KernelText, ...] = ()
        self._left = False
        self._starting = threading.Lock()
        self._runs: list[Run] = []
        self._first = self._run(bytecode, "configured.mlirbc", (*_CONFIGURE, *_BYTECODE))
        self._complete: Run | None = self._with_constants() if constants else None
        self._dumping = self._dumped(compiler) if self._compiler is not compiler else None
        self._second: Run | None = None
        self._wants_remarks = remarks
        self._remarks: Run | None = None
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._go_on, daemon=True)
        self._thread.start()

    def _with_constants(self) -> Run:
        more = (*_CONFIGURE, *self._compiler.lacking(LOCATED, _GENERIC))
        return self._run(self._bytecode, "configured.mlir", more, dumps=False)

    def _dumped(self, compiler: Compiler) -> Run:
        more = compiler.lacking(LOCATED)  # so that the ops are known when a dump comes back
        return self._run(self._bytecode, "dumped.vmfb", more, dumps=False, compiler=compiler)

    def _run(
        self, source: Path, target: str, more: Sequence[str], *, dumps: bool = True, compiler: Compiler | None = None
    ) -> Run:
        """Start the compiler, unless whoever waits for it has left."""
        with self._starting:
            if self._left:
                raise _Left
            phases = self._folder / f"phases-{target}"
            arguments = self._arguments(compiler or self._compiler, source, phases, more, dumps=dumps)
            run = Run(arguments, self._folder / target, phases)
            self._runs.append(run)
            return run

    @staticmethod
    def _arguments(
        compiler: Compiler, source: Path, phases: Path, more: Sequence[str], *, dumps: bool
    ) -> list[str | Path]:
        """Of a run; `dumps`: its phases go into a folder, without large constants."""
        dumping = (f"--dump-compilation-phases-to={phases}", *compiler.with_printing())
        return [compiler.program, source, *more, *(dumping if dumps else compiler.flags_to_run)]

    def __enter__(self) -> Compilation:
        return self

    def __exit__(self, *unused: object) -> None:
        with self._starting:
            self._left = True
        for run in self._runs:
            run.end()
        self._thread.join()

    def _go_on(self) -> None:
        """What the thread does: wait for the first run, line the kernels, start the second, wait for it."""
        try:
            if self._first.wait() == 0:
                self._second = self._generate()
                if self._second.wait() != 0 and not self.no_kernels:
                    self.no_kernels = "iree-compile could not go on from its own kernels"
                    self._second = self._whole()
                    self._second.wait()
        except BaseException as error:  # handed on to whoever waits
            self._trouble = error

    def _generate(self) -> Run:
        parser = MlirParser()
        try:
            module = parser.parse(self._configured(), printed=True)
            self._kernels = line_kernels(parser, module)
        except (ModelInvalid, ValueError) as error:
            self.no_kernels = f"the kernels before code generation cannot be read: {error}"
            return self._whole()
        with self.configured.open("wb") as file:
            if self._complete is None:
                module.operation.write_bytecode(file)
            else:
                module.operation.print(file=file, binary=True, enable_debug_info=True, print_generic_op_form=True)
        second = self._run(self.configured, self.module.name, _GENERATE)
        if self._wants_remarks:
            commented = self._compiler.for_remarks()
            self._remarks = self._run(self.configured, "remarks.vmfb", _GENERATE, dumps=False, compiler=commented)
        return second

    def _configured(self) -> bytes:
        """The module after the first run, with all its constants.

        Raises:
            ModelInvalid: the compiler failed the second time.
        """
        # A model may look as if it had no large constants, and the compiler make some: then it is seen only here.
        plain = (self._folder / "configured.mlirbc").read_bytes()
        if self._complete is None and _CONSTANT in plain:
            self._complete = self._with_constants()
        if self._complete is None:
            return plain
        if self._complete.wait() != 0:
            raise ModelInvalid(failure(self._complete.status, self._complete.said))
        return (self._folder / "configured.mlir").read_bytes()

    def _whole(self) -> Run:
        self._kernels = ()
        return self._run(self._bytecode, self.module.name, ())

    def has(self, phase: str) -> bool:
        """Every phase is dumped."""
        return phase in _NUMBER_OF

    def kernels(self) -> tuple[KernelText, ...]:
        """The texts of the kernels, once the compilation has ended; none where there is a reason in `no_kernels`."""
        self.wait()
        return self._kernels

    def remarks(self) -> Iterator[SaidRemark]:
        """What LLVM had to say, once it has ended.

        Raises:
            ModelInvalid: the kernels have no lines, or could not be compiled once more.
        """
        self.wait()
        if self._remarks is None or self.no_kernels:
            raise ModelInvalid(self.no_kernels or "there are no kernels")
        if self._remarks.wait() != 0:
            raise ModelInvalid(failure(self._remarks.status, self._remarks.said))
        with self._remarks.stderr.open(encoding="utf-8", errors="replace", newline="\n") as said:
            yield from read_remarks(line.rstrip("\n") for line in said)

    def took(self) -> CompileTimes:
        """How long the runs that made the module took together, once they have ended."""
        self.wait()
        runs = [run for run in (self._first, self._second) if run is not None]
        return CompileTimes(
            elapsed_ns=sum_of(run.elapsed_ns for run in runs), cpu_ns=sum_of(run.cpu_ns for run in runs)
        )

    def wait_for(self, phase: str) -> str:
        """The text of a phase's dump, once it is complete: once the next phase's has begun, or the run ended.

        Raises:
            ModelInvalid: the compiler failed.
            UsageInvalid: a flag of the user's keeps it from printing locations.
        """
        number = _NUMBER_OF[phase]
        pause_s = _POLL_S
        while not self._is_complete(number):
            time.sleep(pause_s)
            pause_s = min(1.1 * pause_s, _LONGEST_POLL_S)  # what takes long is not asked after as often
        # Where the compiler failed, its own words are worth more than that a dump is missing.
        if self._first.poll() or not self._thread.is_alive():
            self.wait()
        run = self._first if number <= _LAST_OF_FIRST else self._second
        path = None if run is None else run.dump(number)
        if path is None:
            raise ModelInvalid(f"iree-compile wrote no dump of the phase {phase}; its flags may have cut it short")
        text = path.read_text(encoding="utf-8", errors="replace")
        if "loc(" not in text:
            raise no_locations(self._compiler.flags)
        return text

    def _is_complete(self, number: int) -> bool:
        """Whether nothing more is written to a phase's dump: the next one has begun, or no run will write any."""
        if number <= _LAST_OF_FIRST:
            return self._first.poll() is not None or self._first.dump(number + 1) is not None
        return not self._thread.is_alive() or (self._second is not None and self._second.dump(number + 1) is not None)

    def wait(self) -> str:
        """Wait for the compiler's end; returns what it had to say (warnings).

        Raises:
            ModelInvalid: it failed; the message is its own.
            SystemLimit: a limit of the shell has ended it.
        """
        self._thread.join()
        if self._trouble is not None:
            raise self._trouble
        runs = [run for run in (self._first, self._second, self._dumping) if run is not None]
        for run in runs:
            if run.status != 0:
                raise failed(ModelInvalid, run.status, run.said)
            if lost := not_loaded(run.said):
                raise ModelInvalid(lost)
        return "\n".join(dict.fromkeys(run.said for run in runs if run.said))


def compilers_own_error(compiler: Compiler, model: Path, output: Path) -> TracemapError | None:
    """What iree-compile itself says of a model that it does not accept, with line and caret; None if it accepts it."""
    done = run_tool([compiler.program, model, "-o", output, *compiler.flags_to_run])
    return None if done.returncode == 0 else failed(ModelInvalid, done.returncode, done.stderr)
