"""`record` of native code: call a function of the library, or run any program that loads it, under the hook's sampler.

The time of a loop is not measured on its own: it is the loop's part of the samples, of the elapsed time of the calls.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracemap._version import __version__
from tracemap.capture.benchmark import Ending, run_program
from tracemap.capture.cache_simulation import steps_sql
from tracemap.capture.inputs import (
    SPEC,
    Input,
    dtype_of,
    generated_inputs,
    given_inputs,
    mapped_array,
    number_type,
    parsed,
    write_array,
)
from tracemap.capture.machine import geometry, line_bytes, machine_identity, measure_peaks
from tracemap.capture.native_caches import simulate_native
from tracemap.capture.noise import (
    WATCH_S,
    niceness_to_run_at,
    noise_diagnostic,
    observed_noise,
    own_niceness,
    take_snapshot,
)
from tracemap.capture.record import RecordedRun
from tracemap.capture.run_names import Reservation
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import InputInvalid, ProgramFailed, RunEmpty, ToolMissing, UsageInvalid
from tracemap.core.functions import Function, function_named
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress
from tracemap.core.units import UNKNOWN, Integer, format_share, plural
from tracemap.hook import HookSettings, HookUnavailable, environment, library_path
from tracemap.machine.native_lines import CodeParts, is_program
from tracemap.options.measure import RecordOptions
from tracemap.runs.hook.samples import OUTSIDE, HookSamples, read_samples
from tracemap.runs.model import (
    COLUMNS,
    NATIVE_DEVICE,
    SAMPLES,
    UNKNOWN_NOISE,
    UNKNOWN_PARTS,
    Clock,
    ElapsedParts,
    Invocation,
    Noise,
    RunHeader,
    nice_prefix,
)
from tracemap.runs.runfile import write_run
from tracemap.runs.sql import fill_table, open_database
from tracemap.runs.statistics import Median, median_of

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import numpy.typing as npt

_HZ: Final = 997
"""Samples per second; a prime, so that they do not fall into step with calls of a round number of microseconds."""
_WARMUP: Final = 3
_CALLER: Final = Path(__file__).with_name("native_caller.py")


@dataclass(frozen=True, slots=True)
class NativeCode:
    """The library of a bundle, and its code by kernel: outermost loops, and what is outside of them."""

    library: Path
    sha256: str
    bundle: str
    functions: Sequence[Function]
    parts: CodeParts


@dataclass(frozen=True, slots=True)
class _Executed:
    """An execution: the command, begin and end of each call, the samples, and the noise.

    `calls_ns`: shape (n, 2); None for a program that was given, whose calls are not known. `function`: "" for that.
    """

    command: tuple[str, ...]
    calls_ns: npt.NDArray[np.int64] | None
    warmup: int
    samples: HookSamples
    noise: Noise
    inputs: tuple[str, ...]
    function: str
    niceness: int


def record_native(
    code: NativeCode, options: RecordOptions, reservation: Reservation, progress: Progress, check: Callable[[], None]
) -> RecordedRun:
    """Run native code under the sampler and write the run.

    Args:
        code: the library.
        options: options of `tracemap record`; flags after `--` are a program to run instead of a function.
        reservation: the run to write.
        progress: receives a line of text per step.
        check: raises an error if the library was replaced meanwhile.

    Raises:
        UsageInvalid: an option has no meaning for native code.
        InputInvalid: the inputs do not fit the function, or it cannot be called.
        ProgramFailed: the program failed.
        RunEmpty: no sample lies in the library.
        ToolMissing: the hook is not installed.
        TargetUnwritable: the run cannot be written.
    """
    _check_options(options)
    with temporary_folder() as folder:
        program = options.runtime_flags
        simulated: tuple[Diagnostic, ...] = ()
        with open_database() as connection:
            if program:
                executed = _run_program(code, program, options, folder, progress)
            else:
                progress("generating inputs")
                call = _call(code, options, folder)
                executed = _run_function(code, call, options, folder, progress)
            progress("reading the samples")
            located = _located(code, executed)
            events = _events(connection, executed, located)
            rows = "SELECT * FROM native_rows"
            if options.cache_sim:
                steps, note = simulate_native(
                    lambda calls: call.command(folder, calls, 0, 0),
                    code.library.resolve(),
                    code.parts,
                    geometry(options.cache_geometry),
                    progress,
                )
                simulated = (note,)
                rows = f"{rows} UNION ALL BY NAME ({steps_sql(steps)})" if steps.lines else rows
            header = _header(code, executed, located, events, simulated)
            check()
            progress("writing the run")
            write_run(header, connection.sql(rows), reservation.output, force=options.force)
    return RecordedRun(reservation.output, header, events.dispatches)


def _check_options(options: RecordOptions) -> None:
    defaults = RecordOptions()
    refused = {
        "--counters": options.counters,
        "--compare-devices": options.compare_devices,
        "--keep-profile": options.keep_profile,
        "--flagfile": options.flagfile is not None,
        "--launches": options.launches != defaults.launches,
        "--precision": options.precision != defaults.precision,
    }
    for flag, is_set in refused.items():
        if is_set:
            raise UsageInvalid(f"{flag} works for modules of IREE only, and this bundle has native code: leave it out")
    if options.cache_sim and options.runtime_flags:
        raise UsageInvalid("--cache-sim simulates a call of a function, not a whole program: leave out the program")


# ---- executions


def _hook_library() -> Path:
    try:
        return library_path()
    except HookUnavailable as error:
        raise ToolMissing(f"native code cannot be called: {error}") from error


def _variables(code: NativeCode, folder: Path, hz: int, sampler: str) -> dict[str, str]:
    try:
        variables = environment(folder, HookSettings(record_calls=False, sample_hz=hz, sampler=sampler))
    except HookUnavailable as error:
        raise ToolMissing(f"native code cannot be sampled: {error}") from error
    return {**variables, "TRACEMAP_HOOK_NATIVE": str(code.library.resolve())}


def _run_program(
    code: NativeCode, program: Sequence[str], options: RecordOptions, folder: Path, progress: Progress
) -> _Executed:
    """Run a program that loads the library, until it ends."""
    progress(f"running {program[0]}")
    # A signal must not interrupt its system calls, which it may not expect.
    ending, noise = _execute(code, list(program), options, folder, "cpu-timer")
    if ending.failed:
        raise ProgramFailed(f"{program[0]} failed: {ending.explanation}")
    return _Executed(tuple(program), None, 0, _samples(folder, ending, program[0]), noise, (), "", _niceness(options))


@dataclass(frozen=True, slots=True)
class _Call:
    """A function to call: its name, and what the caller needs to know, without the number of calls."""

    entry: str
    plan: Mapping[str, Any]
    said: tuple[str, ...]

    def command(self, folder: Path, calls: int, warmup: int, seconds: float) -> list[str]:
        """The command that makes `calls` calls, or as many as fit into the time if that is 0."""
        file = folder / "plan.json"
        numbers = {"calls": calls, "warmup": warmup, "seconds": seconds}
        file.write_text(json.dumps({**self.plan, **numbers}), encoding="utf-8")
        return [sys.executable, "-I", "-S", str(_CALLER), str(file)]


def _call(code: NativeCode, options: RecordOptions, folder: Path) -> _Call:
    if is_program(code.parts.image):
        raise UsageInvalid(
            f"{code.bundle}: its code is part of a program, and functions of a program cannot be called: run the "
            "program with `tracemap record BUNDLE -- PROGRAM`"
        )
    entry = function_named(code.functions, "" if options.function is UNKNOWN else str(options.function))
    given = given_inputs(entry, options.inputs) if options.inputs else None
    inputs = generated_inputs(entry, options.dim, folder, given)
    arguments = [_argument(entry, index, value, folder) for index, value in enumerate(inputs)]
    results = [_result(entry, kind) for kind in entry.results]
    _check_count(entry, arguments, results)
    plan = {
        "library": str(code.library.resolve()),
        "symbol": f"_mlir_ciface_{entry.name}",
        "arguments": arguments,
        "results": results,
        "times": str(folder / "times"),
        "hook": str(_hook_library()),
    }
    return _Call(entry.name, plan, tuple(value.said for value in inputs))


def _run_function(code: NativeCode, call: _Call, options: RecordOptions, folder: Path, progress: Progress) -> _Executed:
    import numpy as np

    warmup = options.warmup if isinstance(options.warmup, int) else _WARMUP
    calls = options.iterations + warmup if isinstance(options.iterations, int) else 0
    progress(f"calling {call.entry}" + (f", {calls} times" if calls else f" for {options.seconds:g} s"))
    command = call.command(folder, calls, warmup, options.seconds)
    ending, noise = _execute(code, command, options, folder, "timer")
    times = folder / "times"
    if ending.failed or not times.exists():
        raise ProgramFailed(f"{call.entry} cannot be called: {ending.explanation}")
    calls_ns = np.fromfile(times, dtype=np.int64).reshape(-1, 2)
    return _Executed(
        tuple(command),
        calls_ns,
        warmup,
        _samples(folder, ending, call.entry),
        noise,
        call.said,
        call.entry,
        _niceness(options),
    )


def _niceness(options: RecordOptions) -> int:
    """The niceness of the program: the requested or best possible one, else that of this process."""
    niceness = niceness_to_run_at(options.nice)
    return niceness if isinstance(niceness, int) else own_niceness()


def _execute(
    code: NativeCode, command: list[str], options: RecordOptions, folder: Path, sampler: str
) -> tuple[Ending, Noise]:
    """Run a command with the hook; returns how it ended, and the noise."""
    hz = options.sample_hz if isinstance(options.sample_hz, int) and options.sample_hz else _HZ
    recording = folder / "samples"
    recording.mkdir()
    snapshots = []

    def watch(pid: int) -> bool:
        snapshots.append(take_snapshot(pid))
        return True

    ending = run_program(command, _variables(code, recording, hz, sampler), watch, WATCH_S, _niceness(options))
    if not snapshots:
        return ending, UNKNOWN_NOISE
    return ending, observed_noise(snapshots, snapshots[0].time_ns, snapshots[-1].time_ns)


def _samples(folder: Path, ending: Ending, name: str) -> HookSamples:
    try:
        return read_samples(folder / "samples")
    except RunEmpty as error:
        said = f" ({ending.hook_messages})" if ending.hook_messages else ""
        raise RunEmpty(f"{name} ran, but no sample was taken{said}; run it longer") from error


# ---- arguments

_MEMREF: Final = re.compile(r"memref<[^,<>]*(?:<\w+>)?>")
_FLOATS: Final = ("f32", "f64")
_REALS: Final = ("f16", "bf16", *_FLOATS)
_SCALARS: Final = ("i1", "i8", "i16", "i32", "i64", "index", *_REALS)
"""Scalar types that the caller can pass; of 16-bit floats, their bits."""


def _argument(entry: Function, index: int, given: Input, folder: Path) -> dict[str, Any]:
    """An argument for the caller: a memref's sizes and file, or a number."""
    declared = entry.arguments[index]
    shaped = parsed(declared.type)
    if shaped is not None and shaped.element in _SCALARS and shaped.sizes is None:
        number = float(given.spec) if shaped.element in _FLOATS else int(given.spec, 0)
        return {"type": shaped.element, "value": number}
    if shaped is None or not _MEMREF.fullmatch(declared.type) or not _in_memory(shaped.element):
        raise InputInvalid(_not_callable(entry, f"argument {index} ({declared.name}) has the type {declared.type}"))
    values = _values(given.spec, shaped.element)
    file = folder / f"argument{index}.bin"
    write_array(values, file)
    return {"sizes": list(values.shape), "file": str(file)}


def _result(entry: Function, kind: str) -> dict[str, Any]:
    shaped = parsed(kind)
    if shaped is not None and shaped.sizes is None and kind in _SCALARS:
        return {"type": kind}
    if shaped is None or shaped.sizes is None or not kind.startswith("memref<"):
        raise InputInvalid(_not_callable(entry, f"a result has the type {kind}"))
    return {"rank": len(shaped.sizes)}


_MOST_INTEGERS: Final = 32
_MOST_REALS: Final = 8
"""Registers for floating-point arguments; see native_call.c."""


def _check_count(entry: Function, arguments: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> None:
    """Reject a function with more arguments than can be passed.

    Raises:
        InputInvalid: it has.
    """
    reals = sum(argument.get("type") in _REALS for argument in arguments)
    by_pointer = len(results) > 1 or any("rank" in result for result in results)
    integers = len(arguments) - reals + by_pointer
    if integers > _MOST_INTEGERS:
        why = (
            f"it has {integers} arguments of memory and integers, with its results, and {_MOST_INTEGERS} can be passed"
        )
    elif reals > _MOST_REALS:
        why = f"it has {reals} floating-point arguments, and {_MOST_REALS} can be passed"
    else:
        return
    raise InputInvalid(_not_callable(entry, why))


def _not_callable(entry: Function, why: str) -> str:
    return (
        f"{entry.name} cannot be called from here: {why}; run a program that calls it: "
        "tracemap record BUNDLE -- ./program"
    )


def _in_memory(element: str) -> bool:
    """Whether numpy has arrays of these elements, as LLVM has them in memory."""
    return element in _SCALARS or bool(number_type(element))


def _values(spec: str, element: str) -> npt.NDArray[Any]:
    """The values of an input in IREE's syntax."""
    import numpy as np

    if spec.startswith("@"):
        return np.ascontiguousarray(mapped_array(Path(spec[1:])))
    match = SPEC.fullmatch(spec)
    if match is None:
        raise InputInvalid(f"the input {spec[:60]!r} has no shape and type, such as 4x8xf32=0.5")
    sizes = [int(size) for size in match[1].split("x")[:-1]]
    dtype = _dtype(element)
    text = match[3] or "0"
    if text.startswith("@"):
        return np.fromfile(text[1:], dtype=dtype).reshape(sizes)
    numbers = [float(word) for word in re.split(r"[\s,\[\]]+", text) if word]
    values = np.array(numbers, dtype=dtype).reshape(sizes if len(numbers) > 1 else ())
    return np.ascontiguousarray(np.broadcast_to(values, sizes))


def _dtype(element: str) -> np.dtype[Any]:
    import numpy as np

    integers = {"i1": "uint8", "index": "int64"}
    if name := number_type(element):
        return dtype_of(name)
    dtype: np.dtype[Any] = np.dtype(integers.get(element, f"int{element[1:]}"))
    return dtype


# ---- samples


@dataclass(frozen=True)
class _Located:
    """The samples of the measured calls: time, kernel's index in `kernels` (-1: outside), line and address.

    Shapes: all (n,).
    """

    times_ns: npt.NDArray[np.int64]
    kernel: npt.NDArray[np.int64]
    line: npt.NDArray[np.int64]
    address: npt.NDArray[np.int64]
    invocation: npt.NDArray[np.int64]
    kernels: tuple[str, ...]


def _located(code: NativeCode, executed: _Executed) -> _Located:
    """Locate the samples of measured calls in the library's lines."""
    import numpy as np

    located = executed.samples.located
    if executed.calls_ns is None:
        invocation = np.zeros(len(located), dtype=np.int64)
    else:
        located, invocation = _measured(located, executed.calls_ns, executed)
    times = located["time_ns"].astype(np.int64)
    in_library = located["executable"] != OUTSIDE
    address = np.where(in_library, located["address"].astype(np.int64), -1)
    kernel_numbers, lines = code.parts.at(address)
    return _Located(times, kernel_numbers, lines, address, invocation, code.parts.names)


def _measured(
    located: npt.NDArray[Any], calls_ns: npt.NDArray[np.int64], executed: _Executed
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The samples of measured calls, in the thread that makes them, and the index of the call of each."""
    import numpy as np

    times = located["time_ns"].astype(np.int64)
    invocation = np.searchsorted(calls_ns[:, 0], times, side="right") - 1
    inside = (invocation >= executed.warmup) & (times <= calls_ns[np.maximum(invocation, 0), 1])
    inside &= np.isin(located["tid"], [thread.tid for thread in executed.samples.threads[:1]])
    return located[inside], invocation[inside]


@dataclass(frozen=True, slots=True)
class _Events:
    """Number of rows that are not samples, and their time."""

    dispatches: int
    kernels_ns: int


_ROWS: Final = """
CREATE OR REPLACE TABLE native_rows AS
WITH counted AS (SELECT number, count(*) AS n FROM native_samples WHERE number >= 0 GROUP BY number),
summed AS (SELECT number, n, sum(n) OVER (ORDER BY number) AS upto FROM counted),
durations AS (
    SELECT invocation, number, elapsed_ns * upto // {total} - elapsed_ns * (upto - n) // {total} AS cpu_ns
    FROM native_calls, summed),
rows AS (
    SELECT 0 AS part, 'dispatch' AS kind, name AS kernel, invocation, {wall} AS duration_ns, cpu_ns,
        NULL AS start_ns, NULL AS step, NULL AS address, NULL AS {samples}
    FROM durations JOIN native_kernels USING (number)
    UNION ALL
    SELECT 1, 'step', name, invocation, NULL, NULL, time_ns, line, CASE WHEN address >= 0 THEN address END, 1
    FROM native_samples LEFT JOIN native_kernels USING (number))
SELECT {cells}, CAST({samples} AS BIGINT) AS {samples} FROM rows ORDER BY invocation, part, start_ns, kernel
"""


_MANY: Final = 20
"""Samples that cannot all be of the calling program, which spends little time between the calls."""
_LAST_CALL: Final = "its time is in a function that it calls last (docs/native.md, Limits)"
_PROGRAM_ADVICE: Final = (
    "run a program that is linked dynamically and calls this library for longer (docs/native.md, Limits)"
)


def _events(connection: duckdb.DuckDBPyConnection, executed: _Executed, located: _Located) -> _Events:
    """Make the table `native_rows`: a row for each kernel and call, and one for each sample.

    The time of a kernel in a call is the call's time, by the kernel's part of all samples.

    Raises:
        RunEmpty: no sample lies in the library.
    """
    if not (located.kernel >= 0).any():
        name = executed.function or executed.command[0]
        count = len(located.times_ns)
        taken = f"none of {plural(count, 'sample')} lies in code of the bundle" if count else "no sample was taken"
        lost = "".join(f" ({note.message})" for note in executed.samples.diagnostics[:1])
        advice = _PROGRAM_ADVICE
        if executed.function:
            advice = "call it longer (--seconds)" if count < _MANY else _LAST_CALL
        raise RunEmpty(f"{name}: {taken}{lost}; {advice}")
    if executed.calls_ns is None:
        calls = [(0, sum(thread.header["cpu_ns"] for thread in executed.samples.threads))]
    else:
        measured = executed.calls_ns[executed.warmup :]
        calls = [(index, int(end - begin)) for index, (begin, end) in enumerate(measured, executed.warmup)]
    fill_table(connection, "native_calls", {"invocation": "BIGINT", "elapsed_ns": "HUGEINT"}, calls)
    kernels = list(enumerate(located.kernels))
    fill_table(connection, "native_kernels", {"number": "BIGINT", "name": "VARCHAR"}, kernels)
    columns = {
        "time_ns": located.times_ns,
        "number": located.kernel,
        "line": located.line,
        "address": located.address,
        "invocation": located.invocation,
    }
    connection.register("native_columns", columns)
    connection.execute("CREATE OR REPLACE TEMP TABLE native_samples AS SELECT * FROM native_columns")
    connection.unregister("native_columns")
    known = {"kind", "kernel", "invocation", "duration_ns", "cpu_ns", "start_ns", "step", "address"}
    cells = ", ".join(
        f"CAST({name if name in known else 'false' if name == 'warmup' else 'NULL'} AS {kind}) AS {name}"
        for name, kind in COLUMNS.items()
    )
    wall = "NULL" if executed.calls_ns is None else "cpu_ns"
    connection.execute(_ROWS.format(total=len(located.times_ns), samples=SAMPLES, cells=cells, wall=wall))
    ((count, duration),) = connection.execute(
        "SELECT count(*), coalesce(sum(cpu_ns), 0) FROM native_rows WHERE kind = 'dispatch'"
    ).fetchall()
    return _Events(int(count), int(duration))


# ---- header


def _header(
    code: NativeCode, executed: _Executed, located: _Located, events: _Events, simulated: tuple[Diagnostic, ...]
) -> RunHeader:
    if executed.calls_ns is None:
        elapsed_ns: Integer = UNKNOWN
        iterations: Integer = UNKNOWN
        median, parts = Median(1, UNKNOWN, UNKNOWN, UNKNOWN), UNKNOWN_PARTS
    else:
        times = (executed.calls_ns[:, 1] - executed.calls_ns[:, 0])[executed.warmup :]
        elapsed_ns, iterations, median = int(times.sum()), len(times), median_of(times)
        parts = ElapsedParts(events.kernels_ns, 0, 0, 0, 0, elapsed_ns - events.kernels_ns, UNKNOWN)
    noisy = noise_diagnostic(executed.noise)
    notes = [*_notes(executed, located), *simulated, *([] if noisy is None else [noisy]), *executed.samples.diagnostics]
    return RunHeader(
        module_sha256=code.sha256,
        bundle=code.bundle,
        command=(*nice_prefix(executed.niceness), *executed.command),
        function=executed.function or UNKNOWN,
        device=NATIVE_DEVICE,
        workers=1,
        clock=Clock.HOST,
        iterations=iterations,
        warmup=executed.warmup,
        elapsed_ns=elapsed_ns,
        elapsed=parts,
        invocation=Invocation(median.value, median.low, median.high, "iterations"),
        noise=executed.noise,
        inputs=executed.inputs,
        peaks=measure_peaks(),
        programs=(),
        buffers=(),
        tools=(f"tracemap {__version__}",),
        diagnostics=tuple(notes),
        line_bytes=line_bytes(geometry(()).caches),
        machine=machine_identity(),
        events=events.dispatches,
    )


def _notes(executed: _Executed, located: _Located) -> Sequence[Diagnostic]:
    inside, count = int((located.kernel >= 0).sum()), len(located.times_ns)
    cost = f"; sampling took {100 * executed.samples.overhead:.1f} % of the time" if executed.samples.overhead else ""
    text = (
        f"{plural(count, 'sample')} of the program counter, {format_share(inside, count)} in code of the bundle{cost}. "
        "The time of a loop is its part of the samples: an estimate"
    )
    return [Diagnostic("sampled", text)]
