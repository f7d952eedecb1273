"""The command that calls a function: its flags, inputs and their sizes, parameters and device."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tracemap.capture.benchmark import SERIAL_FLAG, call_command, check_flags
from tracemap.capture.inputs import (
    NO_SAVED_INPUTS,
    SPEC,
    Input,
    SavedInputs,
    array_inputs,
    check_size,
    generated_inputs,
    given_inputs,
    mapped_array,
    refused_as,
    saved_inputs,
    specs_by_argument,
)
from tracemap.core.errors import BundleInvalid, InputInvalid, TargetUnwritable, TracemapError, UsageInvalid, start_of
from tracemap.core.files import FileFormat, format_of_file, read_stored_file, read_user_input
from tracemap.core.functions import Argument, Function, function_named
from tracemap.core.locations import STRING, unescape
from tracemap.core.toolchain import check_tool, find_tool
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown
from tracemap.options.measure import CallOptions, FunctionOptions

# ---- batches
#
# Batches of invocations, by `--batch_size` and `--batch_concurrency` of iree-benchmark-module.
#
# The tool submits all calls of a batch of an asynchronous function at once, in `--batch_concurrency` chains; within a
# chain, each call waits for the previous one. Then it waits for all calls and writes the profile. It calls a
# synchronous function once, whatever the flags say, and only divides the call's time by `--batch_size`.


_SIZE: Final = "--batch_size"
_CONCURRENCY: Final = "--batch_concurrency"
_LARGEST_BATCH: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """How a function is called.

    `calls`: invocations per batch. `flags`: the batch flags. `pieces`: pieces of a batch that the program's clock
    times. `ignored`: flags without effect, since the function is synchronous.
    """

    calls: int = 1
    flags: tuple[str, ...] = ()
    pieces: int = 1
    ignored: tuple[str, ...] = ()

    def rounded(self, calls: int) -> int:
        """The number of invocations, rounded up to whole batches.

        >>> Batch(calls=4).rounded(10)
        12
        """
        return self.count(calls) * self.calls

    def count(self, calls: int) -> int:
        """The number of batches for a number of invocations."""
        return -(-calls // self.calls)


def batch_of(flags: Sequence[str], *, asynchronous: bool) -> Batch:
    """The batch that flags ask for. Of several flags of one name, the last counts.

    Raises:
        UsageInvalid: a value is no number, or out of range.
    """
    sizes = {name: _number(name, flags) for name in (_SIZE, _CONCURRENCY)}
    batch_flags = tuple(f"{name}={number}" for name, number in sizes.items() if number != 1)
    if not asynchronous:
        return Batch(ignored=batch_flags)
    concurrency = sizes[_CONCURRENCY]
    # The program rounds up, so that every chain has the same number of calls.
    calls = -(-sizes[_SIZE] // concurrency) * concurrency
    return Batch(calls, batch_flags, 2)


def without_batches(flags: Sequence[str]) -> tuple[str, ...]:
    """Flags without the batch flags."""
    return tuple(flag for flag in flags if flag.partition("=")[0] not in {_SIZE, _CONCURRENCY})


def _number(name: str, flags: Sequence[str]) -> int:
    values = [text for flag, _, text in (flag.partition("=") for flag in flags) if flag == name]
    if not values:
        return 1
    number = int(values[-1]) if re.fullmatch("[0-9]{1,10}", values[-1]) else 0
    if not 1 <= number <= _LARGEST_BATCH:
        raise UsageInvalid(f"{name}={values[-1]}: give a whole number of invocations, from 1 to {_LARGEST_BATCH:,}")
    return number


# ---- flags
#
# Flags of IREE's runtime tools, from a flag file and from the command line: reading, sorting and checking.


_FLAG_FILE: Final = "--flagfile"
_MOST_FILES: Final = 64
_MOST_FLAGS: Final = 100_000
_LONGEST_SAID: Final = 60
_FILE_OF_INPUT = re.compile(r"(?:^|=)[@+](.+)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuntimeFlags:
    """A list of runtime flags, sorted: function and device ("" if not given), inputs, modules, and the rest."""

    function: str
    device: str
    inputs: tuple[str, ...]
    modules: tuple[str, ...]
    rest: tuple[str, ...]


def read_flags(path: Path) -> list[str]:
    """The flags of a flag file: one per line; `#` begins a comment; `--flagfile` includes another file.

    Raises:
        UsageInvalid: the file cannot be read, has a line that is no flag, or includes itself.
    """
    return with_flag_files([f"{_FLAG_FILE}={path}"])


def with_flag_files(flags: Iterable[str]) -> list[str]:
    """Replace each `--flagfile` by the flags of the file, since IREE's tools would read it repeatedly.

    Raises:
        UsageInvalid: see `read_flags`; or there are too many files or flags in all.
    """
    expanded: list[str] = []
    pending = [*flags][::-1]
    files = 0  # in all, not nested: two files that include each other twice double with each level
    while pending:
        flag = pending.pop()
        name, _, value = flag.partition("=")
        if name != _FLAG_FILE:
            expanded.append(flag)
            continue
        files += 1
        if files > _MOST_FILES:
            raise UsageInvalid(f"{value}: flag files include each other in a circle, or more than {_MOST_FILES} files")
        pending += _lines_of(Path(value))[::-1]
        if len(expanded) + len(pending) > _MOST_FLAGS:
            raise UsageInvalid(f"{value}: more than {_MOST_FLAGS:,} flags, including those of nested flag files")
    return expanded


_FLAG_WITHOUT_DASHES: Final = re.compile(r"[a-z_]+=")


def _lines_of(path: Path) -> list[str]:
    """The flags of one file; `--flagfile` is not expanded."""
    try:
        lines = read_user_input(str(path), UsageInvalid).decode().splitlines()
    except ValueError as error:
        _check_may_have_flags(path)
        raise UsageInvalid(f"{path}: the flag file cannot be read: {error}") from error
    flags: list[str] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith("--"):
            _check_may_have_flags(path)
            shown = start_of(line, _LONGEST_SAID)
            remedy = f"; write --{shown}" if _FLAG_WITHOUT_DASHES.match(line) else ""
            raise UsageInvalid(f"{path}, line {number}: {shown!r} is no flag; flags begin with --{remedy}")
        flags.append(line)
    return flags


def _check_may_have_flags(path: Path) -> None:
    """Reject a file of another kind that was named as a flag file."""
    if (kind := format_of_file(path)) not in (None, FileFormat.TEXT):
        raise UsageInvalid(f"{path}: is {kind}, not a flag file; a flag file has one flag per line, such as --input=7")


def sorted_out(flags: Sequence[str]) -> RuntimeFlags:
    """Sort a list of flags. Of several `--function`, the last counts, as in IREE.

    Of several `--device` (for a module for several devices), the last is `device`, and the others stay in `rest`.
    """
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
        rest=(*(f"--device={device}" for device in values["--device"][1:-1]), *rest),
    )


_PRINTS_ONLY: Final = (
    *("--help", "--version", "--agents_md", "--list_drivers", "--list_devices", "--dump_devices"),
    "--dump_task_topologies",
)
"""Flags that make a tool print something and exit, without a call."""


def check_undecided(flags: Iterable[str], reserved_flags: Mapping[str, str]) -> None:
    """Reject flags that tracemap sets itself: they would have no effect, or contradict an option.

    Args:
        flags: the flags after `--`.
        reserved_flags: names of such flags, with what to do instead.

    Raises:
        UsageInvalid: there is such a flag.
    """
    for flag in flags:
        name = flag.partition("=")[0]
        if name in reserved_flags:
            raise UsageInvalid(f"{name} is set by tracemap: {reserved_flags[name]}")


def check_files(flags: RuntimeFlags) -> None:
    """Check that files exist before the run; relative paths start at the working folder, as in IREE.

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
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises OSError for names that are too long
        return
    if os.path.exists(path):  # noqa: PTH110 - as above
        raise InputInvalid(f"{flag}: {path} is no regular file")
    raise InputInvalid(f"{flag}: the file {path} does not exist (looked for in {Path.cwd()})")


# ---- signatures
#
# Types of arguments and results of a compiled module's exported functions.


_EXPORTS = "Exported Functions:"
_EXPORT = re.compile(r"^ *\[ *\d+\] (.*)\([^()]*\) -> \(([^()]*)\)$", re.MULTILINE)
_DECLARATION = re.compile(rf"iree\.abi\.declaration: \w+ func @({STRING}|[^\s(]+)\((.*)$", re.MULTILINE)
_MODEL = re.compile(r"^ *iree\.abi\.model: *(\S+) *$", re.MULTILINE)
_ASYNCHRONOUS = "coarse-fences"
_ARROW = " -> ("


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a function. `arguments` is empty if it declares none, as for modules from torch.

    Then `results` are the runtime's own types, which only distinguish scalars (`i32`) from references (`!vm.ref<?>`).
    `asynchronous`: it returns before its work is done, with a fence to wait for and one to signal.
    """

    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    asynchronous: bool = False


def signatures_of(module: Path) -> dict[str, Signature]:
    """The signatures of a module's functions; empty if the module cannot be read."""
    try:
        text = check_tool([find_tool("iree-dump-module"), "--output=metadata", module])
    except TracemapError:
        return {}
    exports = text.partition(_EXPORTS)[2]
    signatures = {}
    matches = list(_EXPORT.finditer(exports))
    ends = [*(match.start() for match in matches[1:]), len(exports)][: len(matches)]
    for match, end in zip(matches, ends, strict=True):
        model = _MODEL.search(exports, match.end(), end)
        signatures[match[1]] = Signature(
            results=_types(match[2] + ")")[0], asynchronous=model is not None and model[1] == _ASYNCHRONOUS
        )
    for match in _DECLARATION.finditer(exports):
        arguments, rest = _types(match[2])
        results, _ = _types(rest.removeprefix(_ARROW)) if rest.startswith(_ARROW) else ((), "")
        name = unescape(match[1]) if match[1][0] == '"' else match[1]
        signatures[name] = Signature(arguments, results, signatures.get(name, Signature()).asynchronous)
    return signatures


def _types(text: str) -> tuple[tuple[str, ...], str]:
    """The types in `%input0: tensor<4xf32>, i32) -> (…` up to the closing parenthesis, and the rest of the text."""
    types, depth, begin = [], 0, 0
    for index, letter in enumerate(text):
        if depth == 0 and letter in ",)":
            types.append(text[begin:index])
            begin = index + 1
            if letter == ")":
                break
        depth += (letter in "<([{") - (letter in ">)]}" and text[index - 1] != "-")
    return tuple(_type(item) for item in types if item.strip()), text[begin:]


def _type(item: str) -> str:
    """The type in `%input0: tensor<4xf32> {iree.identifier = "x"}` or in `i32`."""
    name, colon, kind = item.partition(":")
    return (kind if colon and name.lstrip().startswith("%") else item).partition(" {")[0].strip()


# ---- calling
#
# How IREE's tools call a function of a module: sort the flags, find the function, prepare the inputs.
#
# `record`, `run` and `benchmark` all start here.


DEFAULT_DEVICE = "local-task"


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled module with its entry points and its device."""

    module: Path
    functions: tuple[Function, ...]
    device: Text = UNKNOWN
    """UNKNOWN: the device of the flags, else local-task."""
    kept: SavedInputs = NO_SAVED_INPUTS


@dataclass(frozen=True, slots=True)
class Call:
    """A function with everything that its program needs; modules are loaded in order, its own last.

    `results`: the result types; their number is right even if they are not declared. `folder`: the files of inputs.
    `asynchronous`: the function returns before its work is done, and signals a fence.
    """

    modules: tuple[Path, ...]
    entry: Function
    results: tuple[str, ...]
    device: str
    inputs: tuple[Input, ...]
    flags: tuple[str, ...]
    folder: Path
    asynchronous: bool = False

    def command(self, tool: str, *more: str) -> list[str]:
        """The command line of an IREE tool that calls the function; later flags win.

        Raises:
            UsageInvalid: IREE's tools cannot read a module's path.
        """
        modules = [_without_at(module, self.folder) for module in self.modules]
        specs = [given.spec for given in self.inputs]
        return [*call_command(tool, modules, self.entry.name, specs, self.device, self.flags), *more]

    def with_module(self, ours: Path, other: Path) -> Call:
        """The same call with another module in place of ours."""
        return replace(self, modules=tuple(other if path == ours else path for path in self.modules))


def make_call(program: Program, options: CallOptions, tool: str, folder: Path, values: Sequence[object] = ()) -> Call:
    """Make every choice that the options leave open: from the flag file, else by default.

    Args:
        program: the module.
        options: options of the command.
        tool: the IREE tool to start, which gets the flags after `--`.
        folder: folder for files of inputs.
        values: inputs as Python values, instead of the options' inputs; empty: the options decide.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be generated.
        UsageInvalid: flags that do not go together, or --dim without a dynamic dimension.
    """
    flags = _flags(program, options, tool)
    return _make_call(program, options, flags, _name(options, flags), folder, values)


def make_calls(
    program: Program, options: CallOptions, tool: str, folder: Path, values: Sequence[object] = ()
) -> list[Call]:
    """Like `make_call`; if none of several functions is named, all that take no inputs, as in IREE's benchmark.

    Raises:
        FunctionUnknown: no such function; or several functions, all with inputs, and none named.
    """
    flags = _flags(program, options, tool)
    name, functions = _name(options, flags), program.functions
    free = [function.name for function in functions if not function.arguments]
    chosen = free if free and len(functions) > 1 and not (name or flags.inputs or values) else [name]
    return [_make_call(program, options, flags, function_name, folder, values) for function_name in chosen]


def _name(options: FunctionOptions, flags: RuntimeFlags) -> str:
    return flags.function if options.function is UNKNOWN else str(options.function)


def _flags(program: Program, options: FunctionOptions, tool: str) -> RuntimeFlags:
    """The flags of the flag file and those after `--`; inputs of the options win over theirs."""
    command_line_flags = with_flag_files(options.runtime_flags)
    file_flags = read_flags(options.flagfile) if options.flagfile else []
    check_flags(options.runtime_flags, tool)
    for flag in [*file_flags, *command_line_flags]:
        name, _, value = flag.partition("=")
        if name in _PRINTS_ONLY and value != "false":
            raise UsageInvalid(f"{name} makes {tool} print something and exit; run {tool} {name} directly")
    if sorted_out(command_line_flags).device:  # flags after `--` name devices: those of the flag file do not count
        file_flags = [flag for flag in file_flags if not flag.startswith("--device=")]
    flags = sorted_out([*file_flags, *command_line_flags])
    _check_contradictions(program.module, options, flags.modules)
    return replace(flags, inputs=options.inputs) if options.inputs else flags


def _check_contradictions(ours: Path, options: FunctionOptions, modules: Sequence[str]) -> None:
    """Reject flags after `--` that contradict the options. Flags of a flag file only give way to options.

    Raises:
        UsageInvalid: another function, other inputs, or another module instead of ours.
        BundleInvalid: our module cannot be read.
    """
    flags = sorted_out(options.runtime_flags)
    if options.function is not UNKNOWN and flags.function not in ("", options.function):
        raise UsageInvalid(
            f"--function {options.function} contradicts --function={flags.function} after `--`: name one of them"
        )
    if options.inputs and flags.inputs:
        raise UsageInvalid("--input is given both before and after `--`: give all inputs in one place")
    if len(modules) == 1 and flags.modules:
        own, is_same = read_stored_file(ours, BundleInvalid), False
        with suppress(UsageInvalid):
            is_same = read_stored_file(Path(flags.modules[0]), UsageInvalid) == own
        if not is_same:
            raise UsageInvalid(f"--module={flags.modules[0]}: the bundle's own module is called; drop --module")


def _make_call(
    program: Program, options: CallOptions, flags: RuntimeFlags, name: str, folder: Path, values: Sequence[object]
) -> Call:
    modules = _modules(program.module, flags.modules)
    check_files(flags)
    entry, declared = _entry(program, name)
    check_size([entry], options.dim)
    device = flags.device or DEFAULT_DEVICE if program.device is UNKNOWN else str(program.device)
    serial = (SERIAL_FLAG,) if options.serial else ()
    try:
        given: list[Input | None] = [None] * len(entry.arguments)
        if values:
            given = array_inputs(entry, values, folder)
        elif flags.inputs:
            given = given_inputs(entry, flags.inputs)
        inputs = [known for known in given if known]
        if len(inputs) < len(given):
            inputs = _other_inputs(program, entry, options.dim, folder, given)
    except OSError as error:
        text = f"{folder}: inputs cannot be written ({error}); set TMPDIR to a folder with free space"
        raise TargetUnwritable(text) from error
    rest = (*program.kept.flags(flags.rest), *flags.rest, *serial)
    return Call(modules, entry, declared.results, device, tuple(inputs), rest, folder, declared.asynchronous)


def _other_inputs(
    program: Program, entry: Function, dim: Integer, folder: Path, given: Sequence[Input | None]
) -> list[Input]:
    """The given inputs, with the saved ones in place of those that are not given, or generated ones."""
    if program.kept.is_for(entry) and not isinstance(dim, int):  # --dim asks for others than the saved
        saved = saved_inputs(entry, program.kept, folder)
        return [known or kept for known, kept in zip(given, saved, strict=True)]
    return generated_inputs(entry, dim, folder, given)


def _without_at(module: Path, folder: Path) -> Path:
    """A path that IREE's tools accept: they cut a module's path at an `@`, so link to it."""
    if "@" not in str(module):
        return module
    link = folder / f"module-{hashlib.sha256(os.fsencode(module)).hexdigest()[:16]}.vmfb"
    if "@" in str(link):
        raise UsageInvalid(
            f"{module}: IREE's tools cut a module's path at an @; set TMPDIR to a folder without @, or move the bundle"
        )
    with suppress(FileExistsError):
        link.symlink_to(module.absolute())
    return link


def _modules(ours: Path, named: Sequence[str]) -> tuple[Path, ...]:
    """The modules to load: ours replaces the only `--module`, or the identical one of several.

    Raises:
        UsageInvalid: one of several modules cannot be read, or not exactly one of them is ours.
        BundleInvalid: ours cannot be read.
    """
    if len(named) <= 1:
        return (ours,)
    content = read_stored_file(ours, BundleInvalid)
    try:
        same = [read_stored_file(Path(name), UsageInvalid) == content for name in named]
    except UsageInvalid as error:
        raise UsageInvalid(f"the flags name several modules; {error}") from error
    if sum(same) != 1:
        raise UsageInvalid(
            f"the flags name several modules, and the bundle's is among them {sum(same)} times; name its module.vmfb "
            "exactly once"
        )
    return tuple(ours if is_ours else Path(name) for name, is_ours in zip(named, same, strict=True))


def _entry(program: Program, name: str) -> tuple[Function, Signature]:
    """The function to call, with the types of the compiled module, and its signature."""
    function = function_named(program.functions, name)
    declared = signatures_of(program.module).get(function.name, Signature())
    if len(declared.arguments) != len(function.arguments):
        return function, declared
    # The compiler may have changed types (f64 to f32); the runtime expects the module's types.
    pairs = zip(function.arguments, declared.arguments, strict=True)
    arguments = tuple(Argument(old.name, kind, old.loop_bound) for old, kind in pairs)
    return Function(function.name, arguments), declared


# ---- input shapes
#
# Shapes of inputs as given or declared, without generating any.


Sizes = tuple[int, ...] | Unknown
"""Shape of one input: empty for a number, UNKNOWN if only the runtime could tell."""


def called_shapes(program: Program, options: FunctionOptions, tool: str) -> tuple[str, tuple[Sizes, ...]]:
    """The called function, and the shapes of the inputs in options and flag file; no shapes if none are given.

    Raises:
        FunctionUnknown: there is no such function, or inputs are given, but not for which of several functions.
        InputInvalid: a file of an input cannot be read.
        UsageInvalid: flags that do not go together.
    """
    flags = _flags(program, options, tool)
    name = _name(options, flags)
    if not flags.inputs:
        return name, ()
    function = function_named(program.functions, name)
    specs = specs_by_argument(function, flags.inputs)
    return function.name, tuple(UNKNOWN if spec is None else next(shapes_of([spec])) for spec in specs)


def shapes_of(specs: Sequence[str]) -> Iterator[Sizes]:
    """The shapes of inputs in IREE's syntax; for a file of several arrays, the first one.

    Raises:
        InputInvalid: a numpy file cannot be read.
    """
    for spec in map(str.strip, specs):
        if match := SPEC.fullmatch(spec):
            yield tuple(int(size) for size in match[1].split("x")[:-1])
        elif spec[:1] in ("@", "+"):
            with refused_as(InputInvalid, f"--input={spec}: the file holds no array, as numpy writes them"):
                sizes = tuple(mapped_array(Path(spec[1:])).shape)
            yield sizes
        else:
            yield UNKNOWN


def shapes_of_run(said: Sequence[str]) -> tuple[Sizes, ...]:
    """The shapes of a run's inputs, by their descriptions in its header; files may have changed meanwhile."""
    texts = (description.partition(": ")[0] for description in said)
    return tuple(UNKNOWN if text[:1] in ("@", "+") else next(shapes_of([text])) for text in texts)
