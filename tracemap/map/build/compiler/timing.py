"""The compiler's time by kernel and pass: the flags that request it, and the parsing of what the compiler prints.

The compiler runs with one thread, so that times add up:

* MLIR's own timing (`--mlir-timing`) has all passes, merged over kernels.
* Lines ahead of and after passes bound the translation of each executable, their linking, and the writing of each.
* LLVM prints each pass on IR with its function ahead of running it. A remark ends the machine code of each function;
  it names the function by its debug information, which is the file of the kernel's text.
* Time of an executable that is of no function belongs to its kernels, unless kernels of several share it.

What is printed is stamped with the time of its arrival, and with the compiler's processor time, so that other programs
do not make a kernel slow. The output makes LLVM slower, most of all for small programs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from tracemap.core.errors import ModelInvalid
from tracemap.core.locations import STRING, unescape
from tracemap.core.units import UNKNOWN, Integer, split_by_largest_remainder
from tracemap.map.build.compiler.remarks import NO_THREADS
from tracemap.map.bundle_documents import BuildTiming, KernelTiming, OtherTiming, PassTiming

PASS_TIMING_FLAGS: Final = ("--mlir-timing", "--mlir-timing-display=tree")
_EXECUTABLE_PASS_NAMES: Final = ",".join(
    f"iree-hal-{work}-all-executables" for work in ("translate", "link", "serialize")
)
KERNEL_TIMING_FLAGS: Final = (
    NO_THREADS,
    *PASS_TIMING_FLAGS,
    f"--mlir-print-ir-before={_EXECUTABLE_PASS_NAMES}",
    f"--mlir-print-ir-after={_EXECUTABLE_PASS_NAMES}",
    "--mlir-print-skip-regions",
    "--print-pass-numbers",
    "--pass-remarks-analysis=asm-printer",
)
TIMING_FLAG_PREFIXES: Final = ("--mlir-timing", "--mlir-output-format", "--time-passes", "--pass-remarks")
"""Flags of users that would change what is parsed here."""

_REPORT = re.compile(r"^===-+===\n\s+\.\.\. Execution time report \.\.\.", re.MULTILINE)
_TOTAL = re.compile(r"^  Total Execution Time: (\d+\.\d+) seconds", re.MULTILINE)
_ROW = re.compile(r"^ +(?:\d+\.\d+ \( *\d+\.\d+%\) +)?(\d+\.\d+) \( *\d+\.\d+%\)  ( *)(\S.*)$", re.MULTILINE)
_NOT_PASSES: Final = frozenset({"Total", "Rest"})
_CONTAINERS: Final = frozenset(
    {
        "AutoInputConversionPipelinePass",
        "ConfigureTargetExecutableVariantsPass",
        "FixedPointIteratorPass",
        "LLVMCPULowerExecutableTargetPass",
        "LinkAllExecutablesPass",
        "SerializeAllExecutablesPass",
        "TranslateAllExecutablesPass",
        "TranslateTargetExecutableVariantsPass",
        "mlir::iree_compiler::detail::OpPipelineAdaptorPass",
    }
)
"""Passes that only run pipelines, whose passes MLIR lists a second time elsewhere."""
_EXECUTABLE_PASSES: Final = ("TranslateAllExecutablesPass", "LinkAllExecutablesPass", "SerializeAllExecutablesPass")
_SERIALIZATION: Final = "SerializeTargetExecutablesPass"
"""The pass that runs LLVM and the linker."""
_LINKING_NAME, _MACHINE_CODE = "linking", "machine code generation"
"""Names for work of LLVM that is no single pass."""


def without_report(output: str) -> str:
    """The compiler's messages without the report of `PASS_TIMING_FLAGS`, which is last."""
    found = _REPORT.search(output)
    return output[: found.start()] if found else output


# ---- passes


@dataclass(frozen=True, slots=True)
class PassTimes:
    """The time of each pass in a run, without passes that only run others, and the run's time.

    `executables_ns`: of the passes that translate, link and write executables.
    """

    total_ns: int
    passes: Mapping[str, int]
    executables_ns: int


def read_pass_times(output: str) -> PassTimes:
    """Read the report of `PASS_TIMING_FLAGS`.

    Raises:
        ModelInvalid: there is none.
    """
    report, total = _REPORT.search(output), _TOTAL.search(output)
    if report is None or total is None:
        raise ModelInvalid("iree-compile printed no execution times; a flag may keep it from that")
    rows = [(len(indent) // 2, name, _ns(seconds)) for seconds, indent, name in _ROW.findall(output, report.end())]
    if not any(name not in _NOT_PASSES for _, name, _ in rows):
        raise ModelInvalid("iree-compile printed execution times in an unknown form; its release may be too new")
    own, whole = Counter[str](), Counter[str]()
    enclosing: list[str] = []
    for depth, name, duration in rows:
        del enclosing[depth:]
        if enclosing:
            own[enclosing[-1]] -= duration
        enclosing.append(name)
        own[name] += duration
        whole[name] += duration
    ignored = _CONTAINERS | _NOT_PASSES
    # Rounding to 0.1 ms may make a pass a little shorter than what is nested in it.
    passes = {name: ns for name, ns in own.items() if name not in ignored and not name.startswith("'") and ns > 0}
    return PassTimes(_ns(total[1]), passes, sum(whole[name] for name in _EXECUTABLE_PASSES))


def _ns(seconds: str) -> int:
    whole, _, fraction = seconds.partition(".")
    return int(whole) * 1_000_000_000 + int(fraction.ljust(9, "0")[:9])


# ---- kernels


@dataclass(frozen=True, slots=True)
class StampedOutput:
    """The output of a run, and the peak of its memory.

    `lines`: the time at which each line was complete, how long the program had waited until then, and the text.
    """

    lines: tuple[tuple[int, int, str], ...]
    peak_bytes: Integer

    @property
    def text(self) -> str:
        """The output without times."""
        return "\n".join(line for _, _, line in self.lines)


def read_stamped(text: str) -> StampedOutput:
    """Read what `measured_exec` wrote. The program may still run, or have ended early."""
    lines: list[tuple[int, int, str]] = []
    peak: Integer = UNKNOWN
    for line in text.splitlines():
        stamp, _, rest = line.partition(" ")
        if stamp == "peak" and rest.isdigit():
            peak = int(rest)
        elif stamp.startswith("@") and stamp[1:].isdigit():
            cpu, _, line_text = rest.partition(" ")
            if cpu.isdigit():
                lines.append((int(stamp[1:]), int(cpu), line_text))
    return StampedOutput(tuple(_waited(lines)), peak)


def _waited(lines: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int, str]]:
    """The lines with the time that the program had waited, instead of its processor time.

    Linux counts the processor time of a running program in steps of some milliseconds, so what it had waited is at most
    the rest of the time; and it never becomes less. The least from a line on is right at each step.
    """
    least = [stamp - cpu for stamp, cpu, _ in lines]
    for index in range(len(lines) - 2, -1, -1):
        least[index] = min(least[index], least[index + 1])
    return ((stamp, waited, text) for (stamp, _, text), waited in zip(lines, least, strict=True))


_PASS_LINE = re.compile(r"// -----// IR Dump (Before|After) (\w+)Pass")
_EXECUTABLE = re.compile(rf"hal\.executable \w+ @(?:({STRING})|([\w.$-]+))")
_PASS = re.compile(r"^ Running pass \d+ (\S+) on (.*)$")
_FUNCTION_END = re.compile(r"^remark: (.*?):\d+:\d+: \d+ instructions in function")
_IN_FUNCTION = re.compile(r"^loop .* in function (.*)$")


class _Event(Enum):
    """The work that begins or ends at a line."""

    TRANSLATION_BEGINS = auto()
    LINKING_BEGINS = auto()
    WRITING_BEGINS = auto()
    WRITING_ENDS = auto()
    PASS_BEGINS = auto()
    FUNCTION_ENDS = auto()
    OTHER_WORK = auto()


_EVENT_OF_LINE: Final = {
    ("Before", "TranslateAllExecutables"): _Event.TRANSLATION_BEGINS,
    ("After", "TranslateAllExecutables"): _Event.OTHER_WORK,
    ("Before", "LinkAllExecutables"): _Event.LINKING_BEGINS,
    ("After", "LinkAllExecutables"): _Event.OTHER_WORK,
    ("Before", "SerializeAllExecutables"): _Event.WRITING_BEGINS,
    ("After", "SerializeAllExecutables"): _Event.WRITING_ENDS,
}
_NAMED: Final = (_Event.TRANSLATION_BEGINS, _Event.WRITING_BEGINS)
"""Events whose next line names the executable."""


class _Clocked:
    """The processor time between events, by what the compiler did. Time that it waits is apart."""

    def __init__(self, lines: Iterable[tuple[int, int, str]]) -> None:
        self.translation, self.optimization, self.generation = Counter[str](), Counter[str](), Counter[str]()
        """Times by executable, by function, and by file of debug information."""
        self.writing: dict[str, Counter[str]] = defaultdict(Counter)
        """Times of no function, by executable and work."""
        self.linking_ns = self.waiting_ns = 0
        self.passes = Counter[str]()
        """LLVM's passes on IR."""
        begin, waited, last, name, pass_name, executable = 0, 0, _Event.OTHER_WORK, "", "", ""
        for stamp, waited_until, event, next_name, next_pass in _events(lines):
            waiting = waited_until - waited
            if event is _Event.WRITING_ENDS or last is _Event.OTHER_WORK:
                waiting = 0  # the linker is a process of its own
            self.waiting_ns += waiting
            self._add(stamp - begin - waiting, last, event, name, next_name, pass_name, executable)
            begin, waited, last, name, pass_name = stamp, waited_until, event, next_name, next_pass
            if event is _Event.WRITING_BEGINS:
                executable = name

    def _add(
        self, ns: int, event: _Event, next_event: _Event, name: str, next_name: str, pass_name: str, executable: str
    ) -> None:
        """Add the time from an event to the next one."""
        if next_event is _Event.FUNCTION_ENDS:
            self.generation[next_name] += ns
        elif next_event is _Event.WRITING_ENDS:
            self.writing[executable][_OBJECTS] += ns
        elif event is _Event.TRANSLATION_BEGINS:
            self.translation[name] += ns
        elif event is _Event.LINKING_BEGINS:
            self.linking_ns += ns
        elif event is _Event.WRITING_BEGINS:
            self.writing[executable][_TO_LLVM] += ns
        elif event is _Event.PASS_BEGINS:
            self.passes[pass_name] += ns
            if name == _WHOLE_MODULE:
                self.writing[executable][_WHOLE_PASSES] += ns
            else:
                self.optimization[name] += ns


def _events(lines: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, _Event, str, str]]:
    """The time of each event, how long the program had waited, the event, what it is about, and the pass."""
    unnamed: _Event | None = None
    for stamp, waited, line in lines:
        if unnamed is not None and (named := _EXECUTABLE.match(line)):
            yield stamp, waited, unnamed, unescape(named[1]) if named[1] else named[2], ""
            unnamed = None
        elif found := _PASS_LINE.match(line):
            event = _EVENT_OF_LINE.get((found[1], found[2]), _Event.OTHER_WORK)
            unnamed = event if event in _NAMED else None
            yield stamp, waited, _Event.OTHER_WORK if unnamed else event, "", ""
        elif found := _PASS.match(line):
            yield stamp, waited, _Event.PASS_BEGINS, _function(found[2]), found[1]
        elif found := _FUNCTION_END.match(line):
            yield stamp, waited, _Event.FUNCTION_ENDS, found[1], ""


def _function(where: str) -> str:
    """The function that a pass of LLVM works on: `(name)` is a component of the call graph."""
    if found := _IN_FUNCTION.match(where):
        return found[1]
    return where[1:-1] if where.startswith("(") and where.endswith(")") and "," not in where else where


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel ahead of code generation: its executable, and the file of its text in debug information."""

    kernel: str
    executable: str
    file: str


def build_timing(
    first: PassTimes, second: StampedOutput, elapsed_ns: int, peak_bytes: Integer, kernels: Sequence[TimedKernel]
) -> BuildTiming:
    """The compiler's time by kernel and pass.

    Args:
        first: the passes of the run up to configured kernels.
        second: the output of the run from there.
        elapsed_ns: the wall time of both.
        peak_bytes: the larger peak of their memory.
        kernels: all kernels. Those of one executable share its translation.

    Raises:
        ModelInvalid: the compiler printed no times, or none for some kernels.
    """
    last = read_pass_times(second.text)
    clocked = _Clocked(second.lines)
    translation = _by_kernel(clocked.translation, kernels)
    executables = {own.executable for own in kernels}
    own_writing = {name: works.total() for name, works in clocked.writing.items() if name in executables}
    writing = _by_kernel(own_writing, kernels)
    timings = [
        KernelTiming(
            own.kernel,
            translation[own.kernel],
            clocked.optimization[own.kernel],
            clocked.generation[own.file] + writing[own.kernel],
        )
        for own in kernels
    ]
    # On a busy machine, lines may arrive together, so that a kernel's time is 0.
    if missing := next((own.kernel for own in kernels if own.executable not in clocked.translation), ""):
        raise ModelInvalid(f"iree-compile printed no times for {missing}; a flag may keep it from that")
    timings.sort(key=lambda timing: (-timing.duration_ns, timing.kernel))
    names = {own.kernel for own in kernels} | {own.file for own in kernels}
    others = Counter({LIBRARY_FUNCTIONS: 0, _LINKING: clocked.linking_ns, _WAITING: clocked.waiting_ns})
    for counter in (clocked.optimization, clocked.generation):
        others[LIBRARY_FUNCTIONS] += sum(ns for name, ns in counter.items() if name not in names)
    for name, works in clocked.writing.items():
        if name not in executables:
            others.update(works)
    known_ns = sum(timing.duration_ns for timing in timings) + others.total()
    # The two clocks may differ by some microseconds.
    executables_ns = min(elapsed_ns, max(last.executables_ns, known_ns))
    others[_UNATTRIBUTED] = executables_ns - known_ns
    return BuildTiming(
        elapsed_ns=elapsed_ns,
        peak_bytes=peak_bytes,
        executables_ns=executables_ns,
        others=tuple(
            OtherTiming(name, ns) for name, ns in sorted(others.items(), key=lambda own: (-own[1], own[0])) if ns
        ),
        kernels=tuple(timings),
        passes=tuple(_passes(first, last, clocked)),
    )


_WHOLE_MODULE: Final = "[module]"
"""LLVM's name for all functions of an executable."""
LIBRARY_FUNCTIONS: Final = "library functions"
_LINKING: Final = "combining kernels to executables"
_TO_LLVM: Final = "translation to LLVM IR"
_WHOLE_PASSES: Final = "LLVM passes on whole executables"
_OBJECTS: Final = "object files and linker"
_WAITING: Final = "waiting for a processor"
_UNATTRIBUTED: Final = "unattributed: between the compiler's lines"
"""Names for work of no kernel."""


def _by_kernel(translation: Mapping[str, int], kernels: Sequence[TimedKernel]) -> Mapping[str, int]:
    """The translation of each kernel. Kernels of one executable are translated together, and share the time evenly."""
    own: dict[str, list[str]] = defaultdict(list)
    for kernel in kernels:
        own[kernel.executable].append(kernel.kernel)
    return {
        name: part
        for executable, names in own.items()
        for name, part in zip(
            names, split_by_largest_remainder(translation.get(executable, 0), [1] * len(names)), strict=True
        )
    }


def _passes(first: PassTimes, last: PassTimes, clocked: _Clocked) -> list[PassTiming]:
    """All passes, slowest first. LLVM's replace the pass of MLIR that runs them."""
    mlir = Counter(first.passes)
    mlir.update(last.passes)
    serialization = mlir.pop(_SERIALIZATION, 0)
    llvm = Counter(clocked.passes)
    llvm[_MACHINE_CODE] = clocked.generation.total()
    llvm[_LINKING_NAME] = max(0, serialization - llvm.total())
    timings = [
        PassTiming(name, tool, ns)  # type: ignore[arg-type]  # the tools are those of the type
        for tool, passes in (("MLIR", mlir), ("LLVM", llvm))
        for name, ns in passes.items()
        if ns
    ]
    return sorted(timings, key=lambda timing: (-timing.duration_ns, timing.pass_name, timing.tool))
