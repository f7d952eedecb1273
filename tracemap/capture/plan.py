"""What to record, and how the program is called for it: flags sorted out, the function found, inputs made."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import (
    FLUSH_INTERVAL,
    SERIAL_FLAG,
    benchmark_command,
    check_flags,
    profiling_flags,
)
from tracemap.capture.enough import LEAST_WARMUP, Goal, enough_hz
from tracemap.capture.inputs import Input, array_inputs, given_inputs, made_inputs
from tracemap.capture.reserving import Reservation
from tracemap.capture.simulating import SIMULATED_DEVICE, CacheSimulation, check_device
from tracemap.errors import InputInvalid, TargetUnwritable, TracemapError, UsageInvalid
from tracemap.functions import Argument, Function, function_named
from tracemap.locations import unescape
from tracemap.options.record import RecordOptions
from tracemap.outputs import is_stream
from tracemap.toolchain import check_tool, find_tool
from tracemap.units import UNKNOWN, Text, Unknown

DEFAULT_DEVICE = "local-task"
FIXED_ITERATIONS: Final = 20
"""Measured calls where nothing else decides."""


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record: a module with its entry points, and the options, whose output and caches are decided here.

    A function or inputs that the options do not name are those of the flag file; else the only one, and made up.
    """

    module: Path
    module_sha256: Text
    bundle: Text
    functions: tuple[Function, ...]
    output: Path
    options: RecordOptions
    device: Text = UNKNOWN
    """Unknown: that of the flags, else local-task."""
    reservation: Reservation | None = None
    """The output's, where it has been taken already."""
    caches: CacheSimulation | None = None
    """A simulation of caches in one more execution; None: there is none."""
    values: tuple[object, ...] = ()
    """Inputs as Python has them, in place of those of the options; none: the options decide."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request with everything decided."""

    request: RecordRequest
    profile: Path
    entry: Function
    device: str
    inputs: tuple[Input, ...]
    flags: tuple[str, ...]
    modules: tuple[Path, ...]
    folder: Path
    """For what is needed only until the run is written."""
    sample_hz: int
    """How often a second each thread is sampled; 0: it is not."""

    @property
    def options(self) -> RecordOptions:
        """What was asked for."""
        return self.request.options

    @property
    def warmup(self) -> int:
        """How many calls are warm-up where it is said how many are made."""
        return LEAST_WARMUP if isinstance(self.options.warmup, Unknown) else self.options.warmup

    @property
    def iterations(self) -> int:
        """How many calls are measured where it is said how many, or cannot be found out."""
        return FIXED_ITERATIONS if isinstance(self.options.iterations, Unknown) else self.options.iterations

    @property
    def goal(self) -> Goal | None:
        """What is enough; None: calls are counted. Simulated counts are those of one call, however many are timed."""
        options = self.options
        if options.iterations is not UNKNOWN or options.cache_sim or self.flushes_on_timer:
            return None
        return Goal(options.precision / 100, options.seconds, self.sample_hz, options.warmup)

    @property
    def flushes_on_timer(self) -> bool:
        """Whether the profile is flushed not only after each call, so that it does not show calls as they return."""
        return any(flag.startswith(FLUSH_INTERVAL) for flag in self.flags)

    def command(self, profile: Path, calls: int, more: Sequence[str] = ()) -> list[str]:
        """The command line that makes so many calls, warm-up included, and writes this profile."""
        flags = [*self.flags, *more]
        plain = benchmark_command(self.modules, self.entry.name, self._specs, self.device, calls, flags)
        return [*plain, *profiling_flags(self.device, profile)]

    def unprofiled(self, device: str, calls: int, repetitions: int) -> list[str]:
        """The program on a device, without the profiler: so many calls, again and again."""
        entry = self.entry.name
        return benchmark_command(self.modules, entry, self._specs, device, calls, self.flags, repetitions)

    def simulated(self, module: Path, more: Sequence[str]) -> list[str]:
        """One call with another module in place of ours, on one worker and without a profile."""
        modules = [module if path == self.request.module else path for path in self.modules]
        return benchmark_command(modules, self.entry.name, self._specs, SIMULATED_DEVICE, 1, [*self.flags, *more])

    @property
    def _specs(self) -> list[str]:
        return [given.spec for given in self.inputs]


def make_plan(request: RecordRequest, profile: Path, folder: Path) -> Plan:
    """Decide everything that the request leaves open.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        UsageInvalid: flags that do not go together.
    """
    options = request.options
    _check_ends(options)
    flags = sorted_out([*(read_flags(options.flagfile) if options.flagfile else []), *options.runtime_flags])
    check_flags(options.runtime_flags)
    modules = _modules(request.module, flags.modules)
    if options.inputs:
        flags = replace(flags, inputs=options.inputs)
    check_files(flags)
    entry = _entry(request, flags.function if options.function is UNKNOWN else str(options.function))
    device = flags.device or DEFAULT_DEVICE if request.device is UNKNOWN else str(request.device)
    serial = (SERIAL_FLAG,) if options.serial else ()
    if request.caches is not None:
        check_device(device)
    try:
        inputs = tuple(_inputs(request, entry, flags.inputs, folder))
    except OSError as error:
        text = f"{folder}: inputs cannot be written ({error}); name a folder that has room by TMPDIR"
        raise TargetUnwritable(text) from error
    rest = (*flags.rest, *serial)
    hz = options.sample_hz
    if isinstance(hz, Unknown):
        hz = enough_hz(options.seconds)
    return Plan(request, profile, entry, device, inputs, rest, modules, folder, hz)


def _check_ends(options: RecordOptions) -> None:
    """Refuse a number of calls beside what decides how many.

    Raises:
        UsageInvalid: both are given.
    """
    default = RecordOptions()
    if (options.precision, options.seconds) != (default.precision, default.seconds):
        if options.iterations is not UNKNOWN:
            raise UsageInvalid("--iterations says exactly how many calls are made: leave --precision and --seconds out")
        if options.cache_sim:
            raise UsageInvalid(
                f"beside --cache-sim {FIXED_ITERATIONS} calls are timed, or --iterations: leave --precision and "
                "--seconds out, and record a run of its own for times"
            )
    if options.keep_profile and options.output is not None and is_stream(options.output):
        raise UsageInvalid("--keep-profile keeps a file beside the run: name the run's file with -o")


def _inputs(request: RecordRequest, entry: Function, specs: Sequence[str], folder: Path) -> list[Input]:
    if request.values:
        return array_inputs(entry, request.values, folder)
    return given_inputs(entry, specs) if specs else made_inputs(entry, request.options.dim, folder)


def _modules(ours: Path, named: Sequence[str]) -> tuple[Path, ...]:
    """The modules to load: ours takes the place of the only `--module`, or of that one of several that is the same.

    Raises:
        UsageInvalid: one of several cannot be read, none of them is ours, or more than one.
    """
    if len(named) <= 1:
        return (ours,)
    content = ours.read_bytes()
    try:
        same = [Path(name).read_bytes() == content for name in named]
    except OSError as error:
        raise UsageInvalid(f"the flags name several modules; {error.filename}: {error.strerror}") from error
    if sum(same) != 1:
        raise UsageInvalid(
            f"the flags name several modules, {sum(same) or 'none'} of them the bundle's; name its module.vmfb once "
            "among them"
        )
    return tuple(ours if is_ours else Path(name) for name, is_ours in zip(named, same, strict=True))


def _entry(request: RecordRequest, name: str) -> Function:
    """The function to call, its arguments' types as the compiled module declares them."""
    found = function_named(request.functions, name)
    types = declared_types(request.module).get(found.name, ())
    if len(types) != len(found.arguments):
        return found
    # The compiler may have changed types (f64 to f32); the runtime takes those that the module declares.
    pairs = zip(found.arguments, types, strict=True)
    return Function(found.name, tuple(Argument(old.name, kind, old.loop_bound) for old, kind in pairs))


# ---- what a compiled module says of its functions


_DECLARATION = re.compile(r'iree\.abi\.declaration: \w+ func @("(?:[^"\\]|\\.)*"|[^\s(]+)\((.*)$', re.MULTILINE)


def declared_types(module: Path) -> dict[str, tuple[str, ...]]:
    """The argument types of each function that declares them; none at all where the module cannot be read."""
    try:
        text = check_tool([find_tool("iree-dump-module"), "--output=metadata", module])
    except TracemapError:
        return {}
    return {
        unescape(match[1]) if match[1][0] == '"' else match[1]: _types(match[2])
        for match in _DECLARATION.finditer(text)
    }


def _types(text: str) -> tuple[str, ...]:
    """The types in `%input0: tensor<4xf32>, %input1: i32) -> (…`, up to the parenthesis that closes the list."""
    types, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            types.append(text[begin:index])
            begin = index + 1
            if letter == ")":
                break
        depth += (letter in "<([{") - (letter in ">)]}" and text[index - 1] != "-")
    return tuple(item.partition(":")[2].partition(" {")[0].strip() for item in types if item.strip())


# ---- flags of IREE's runtime tools


_MAX_NESTING = 16
_FILE_OF_INPUT = re.compile(r"(?:^|=)[@+](.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuntimeFlags:
    """What a list of runtime flags says: function, device (both "" if they say nothing), inputs, and all else."""

    function: str
    device: str
    inputs: tuple[str, ...]
    modules: tuple[str, ...]
    rest: tuple[str, ...]


def read_flags(path: Path, _nesting: int = 0) -> list[str]:
    """The flags of a flag file: one per line, `#` begins a comment, `--flagfile` brings in another one.

    Raises:
        UsageInvalid: the file cannot be read, holds a line that is no flag, or brings itself in.
    """
    if _nesting > _MAX_NESTING:
        raise UsageInvalid(f"{path}: flag files that bring each other in without end")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # a name with a NUL, or content that is no UTF-8
        raise UsageInvalid(f"{path}: the flag file cannot be read: {error}") from error
    flags: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith("--"):
            raise UsageInvalid(f"{path}, line {number}: {line!r} is no flag; flags begin with --")
        name, _, value = line.partition("=")
        flags += read_flags(Path(value), _nesting + 1) if name == "--flagfile" else [line]
    return flags


def sorted_out(flags: Sequence[str]) -> RuntimeFlags:
    """Take apart a list of flags; of several `--function` or `--device` the last counts, as in IREE."""
    values: dict[str, list[str]] = {"--function": [""], "--device": [""], "--input": [], "--module": []}
    rest = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in values:
            values[name].append(value)
        else:
            rest.append(flag)
    return RuntimeFlags(
        function=values["--function"][-1],
        device=values["--device"][-1],
        inputs=tuple(values["--input"]),
        modules=tuple(values["--module"]),
        rest=tuple(rest),
    )


def check_files(flags: RuntimeFlags) -> None:
    """Find files that are not there before the run does; relative paths start at the working folder, as in IREE.

    Raises:
        InputInvalid: a file of `--input` or `--parameters` does not exist.
    """
    for spec in flags.inputs:
        if match := _FILE_OF_INPUT.search(spec):
            _check_file("--input", match[1])
    for flag in flags.rest:
        name, _, value = flag.partition("=")
        if name == "--parameters":
            _check_file(name, value.rpartition("=")[2])


def _check_file(flag: str, path: str) -> None:
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises OSError for names that are too long
        raise InputInvalid(f"{flag}: the file {path} does not exist (looked for in {Path.cwd()})")
