"""How IREE's tools call a function of a module: signature, flags, inputs."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tracemap.capture.benchmark import SERIAL_FLAG, call_command, check_flags
from tracemap.capture.flags import RuntimeFlags, check_calls, check_files, read_flags, sorted_out, with_flag_files
from tracemap.capture.inputs import Input, array_inputs, check_size, given_inputs, made_inputs
from tracemap.capture.saved_inputs import NOTHING_KEPT, Kept, kept_inputs
from tracemap.errors import BundleInvalid, TargetUnwritable, TracemapError, UsageInvalid
from tracemap.functions import Argument, Function, function_named
from tracemap.inputs import stored_bytes
from tracemap.locations import STRING, unescape
from tracemap.options.measure import CallOptions, FunctionOptions
from tracemap.toolchain import check_tool, find_tool
from tracemap.units import UNKNOWN, Text

# ---- declared
#
# What a compiled module says of the functions that it exports: the types of arguments and results.


_EXPORTS = "Exported Functions:"
_EXPORT = re.compile(r"^ *\[ *\d+\] (.*)\([^()]*\) -> \(([^()]*)\)$", re.MULTILINE)
_DECLARATION = re.compile(rf"iree\.abi\.declaration: \w+ func @({STRING}|[^\s(]+)\((.*)$", re.MULTILINE)
_MODEL = re.compile(r"^ *iree\.abi\.model: *(\S+) *$", re.MULTILINE)
_ASYNCHRONOUS = "coarse-fences"
_ARROW = " -> ("


@dataclass(frozen=True, slots=True)
class Declared:
    """The types of a function; where it declares none, as torch's do, `arguments` is empty.

    Results are then the runtime's own types, which tell scalars (`i32`) from all else (`!vm.ref<?>`).
    `asynchronous`: it returns before its work is done, and takes a fence to wait for and one to signal.
    """

    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    asynchronous: bool = False


def declared_types(module: Path) -> dict[str, Declared]:
    """What a module says of each function; nothing at all where the module cannot be read."""
    try:
        text = check_tool([find_tool("iree-dump-module"), "--output=metadata", module])
    except TracemapError:
        return {}
    exports = text.partition(_EXPORTS)[2]
    found = {}
    matches = list(_EXPORT.finditer(exports))
    ends = [*(match.start() for match in matches[1:]), len(exports)][: len(matches)]
    for match, end in zip(matches, ends, strict=True):
        model = _MODEL.search(exports, match.end(), end)
        found[match[1]] = Declared(
            results=_types(match[2] + ")")[0], asynchronous=model is not None and model[1] == _ASYNCHRONOUS
        )
    for match in _DECLARATION.finditer(exports):
        arguments, rest = _types(match[2])
        results, _ = _types(rest.removeprefix(_ARROW)) if rest.startswith(_ARROW) else ((), "")
        name = unescape(match[1]) if match[1][0] == '"' else match[1]
        found[name] = Declared(arguments, results, found.get(name, Declared()).asynchronous)
    return found


def _types(text: str) -> tuple[tuple[str, ...], str]:
    """The types in `%input0: tensor<4xf32>, i32) -> (…`, up to the parenthesis that closes the list, and the rest."""
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
    """The type in `%input0: tensor<4xf32> {iree.identifier = "x"}`, or in `i32`."""
    name, colon, kind = item.partition(":")
    return (kind if colon and name.lstrip().startswith("%") else item).partition(" {")[0].strip()


# ---- calling
#
# How a function of a module is called by IREE's tools: flags sorted out, the function found, inputs made.
#
# What measures a program, what only runs it, and what only times it begin here.


DEFAULT_DEVICE = "local-task"


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled module with its entry points, and the device that it was compiled for."""

    module: Path
    functions: tuple[Function, ...]
    device: Text = UNKNOWN
    """Unknown: that of the flags, else local-task."""
    kept: Kept = NOTHING_KEPT


@dataclass(frozen=True, slots=True)
class Call:
    """A function with all that its program is started with; modules are loaded in order, its own last.

    `results` are the types of its results, of which the number is known even where they are not declared; `folder` is
    where its inputs lie; `asynchronous`: the function returns before its work is done, and signals a fence.
    """

    modules: tuple[Path, ...]
    entry: Function
    results: tuple[str, ...]
    device: str
    inputs: tuple[Input, ...]
    flags: tuple[str, ...]
    folder: Path
    asynchronous: bool = False

    @property
    def specs(self) -> list[str]:
        """The inputs as IREE's tools take them."""
        return [given.spec for given in self.inputs]

    def command(self, tool: str, *more: str) -> list[str]:
        """The command line of one of IREE's tools that calls the function; what stands last counts.

        Raises:
            UsageInvalid: a module lies where these tools cannot be told that it does.
        """
        modules = [_without_at(module, self.folder) for module in self.modules]
        return [*call_command(tool, modules, self.entry.name, self.specs, self.device, self.flags), *more]

    def with_module(self, ours: Path, other: Path) -> Call:
        """The same call with another module in place of ours."""
        return replace(self, modules=tuple(other if path == ours else path for path in self.modules))


def make_call(program: Program, options: CallOptions, tool: str, folder: Path, values: Sequence[object] = ()) -> Call:
    """Decide everything that the options leave open: what they do not name the flag file does; else it is made up.

    Args:
        program: the module.
        options: what was asked for.
        tool: the program of IREE that is to be started, whose flags stand behind the `--`.
        folder: where inputs are written.
        values: inputs as Python has them, in place of those of the options; none: the options decide.

    Raises:
        FunctionUnknown: no such function, or several and none named.
        InputInvalid: the inputs do not fit, or cannot be made up.
        UsageInvalid: flags that do not go together, or a size for every `?` where there is none.
    """
    flags = _flags(program, options, tool)
    return _made(program, options, flags, _name(options, flags), folder, values)


def make_calls(
    program: Program, options: CallOptions, tool: str, folder: Path, values: Sequence[object] = ()
) -> list[Call]:
    """As `make_call`; where nothing says which of several functions, all that take no inputs, as IREE's benchmark does.

    Raises:
        FunctionUnknown: there is no such function, or each of several takes inputs and none is named.
    """
    flags = _flags(program, options, tool)
    name, functions = _name(options, flags), program.functions
    free = [function.name for function in functions if not function.arguments]
    chosen = free if free and len(functions) > 1 and not (name or flags.inputs or values) else [name]
    return [_made(program, options, flags, each, folder, values) for each in chosen]


def given_specs(program: Program, options: FunctionOptions, tool: str) -> tuple[str, tuple[str, ...]]:
    """The function that options and flags name, "" for none, and the inputs that they give.

    Raises:
        UsageInvalid: flags that do not go together.
    """
    flags = _flags(program, options, tool)
    return _name(options, flags), flags.inputs


def declared_entry(program: Program, name: str) -> Function:
    """The function of a name, with the types that the compiled module declares; "": the only one.

    Raises:
        FunctionUnknown: there is none, or several and none is named.
    """
    return _entry(program, name)[0]


def _name(options: FunctionOptions, flags: RuntimeFlags) -> str:
    return flags.function if options.function is UNKNOWN else str(options.function)


def _flags(program: Program, options: FunctionOptions, tool: str) -> RuntimeFlags:
    """The flags of the flag file and those behind the `--`, with the inputs of the options, which go before theirs."""
    behind = with_flag_files(options.runtime_flags)
    of_file = read_flags(options.flagfile) if options.flagfile else []
    check_flags(options.runtime_flags, tool)
    check_calls([*of_file, *behind], tool)
    flags = sorted_out([*_without_devices(of_file, behind), *behind])
    _check_behind(program.module, options, flags.modules)
    return replace(flags, inputs=options.inputs) if options.inputs else flags


def _without_devices(of_file: Sequence[str], behind: Sequence[str]) -> list[str]:
    """The flags of a flag file, whose devices give way to those behind the `--`: those are all that a module gets."""
    given = sorted_out(behind).device
    return [flag for flag in of_file if not (given and flag.startswith("--device="))]


def _check_behind(ours: Path, options: FunctionOptions, modules: Sequence[str]) -> None:
    """Refuse what is said behind the `--` in contradiction to the options; those of a flag file give way to these.

    Raises:
        UsageInvalid: another function, other inputs, or another module in place of ours.
        BundleInvalid: our module cannot be read.
    """
    behind = sorted_out(options.runtime_flags)
    if options.function is not UNKNOWN and behind.function not in ("", options.function):
        raise UsageInvalid(
            f"--function {options.function} and, behind the `--`, --function={behind.function}: name one of them"
        )
    if options.inputs and behind.inputs:
        raise UsageInvalid("--input is given before the `--` and behind it: give all inputs in one place")
    if len(modules) == 1 and behind.modules and not _is_same(Path(behind.modules[0]), ours):
        raise UsageInvalid(f"--module={behind.modules[0]}: the bundle's own module is called; leave it out")


def _is_same(file: Path, ours: Path) -> bool:
    own = stored_bytes(ours, BundleInvalid)
    try:
        return stored_bytes(file, UsageInvalid) == own
    except UsageInvalid:
        return False


def _made(
    program: Program, options: CallOptions, flags: RuntimeFlags, name: str, folder: Path, values: Sequence[object]
) -> Call:
    modules = _modules(program.module, flags.modules)
    check_files(flags)
    entry, declared = _entry(program, name)
    check_size([entry], options.dim)
    device = flags.device or DEFAULT_DEVICE if program.device is UNKNOWN else str(program.device)
    serial = (SERIAL_FLAG,) if options.serial else ()
    try:
        inputs = tuple(_inputs(entry, options, flags.inputs, values, (program.kept, folder)))
    except OSError as error:
        text = f"{folder}: inputs cannot be written ({error}); name a folder that has room by TMPDIR"
        raise TargetUnwritable(text) from error
    rest = (*program.kept.flags(flags.rest), *flags.rest, *serial)
    return Call(modules, entry, declared.results, device, inputs, rest, folder, declared.asynchronous)


def _without_at(module: Path, folder: Path) -> Path:
    """A name of a module that IREE's tools take as a whole: they cut the path of one off where it has an `@`."""
    if "@" not in str(module):
        return module
    link = folder / f"module-{hashlib.sha256(os.fsencode(module)).hexdigest()[:16]}.vmfb"
    if "@" in str(link):
        raise UsageInvalid(
            f"{module}: programs of IREE cut the path of a module off where it has an @; name a folder without one by "
            "TMPDIR, or move the bundle"
        )
    with suppress(FileExistsError):
        link.symlink_to(module.absolute())
    return link


def _modules(ours: Path, named: Sequence[str]) -> tuple[Path, ...]:
    """The modules to load: ours takes the place of the only `--module`, or of that one of several that is the same.

    Raises:
        UsageInvalid: one of several cannot be read, none of them is ours, or more than one.
        BundleInvalid: ours cannot be read.
    """
    if len(named) <= 1:
        return (ours,)
    content = stored_bytes(ours, BundleInvalid)
    try:
        same = [stored_bytes(Path(name), UsageInvalid) == content for name in named]
    except UsageInvalid as error:
        raise UsageInvalid(f"the flags name several modules; {error}") from error
    if sum(same) != 1:
        raise UsageInvalid(
            f"the flags name several modules, {sum(same) or 'none'} of them the bundle's; name its module.vmfb once "
            "among them"
        )
    return tuple(ours if is_ours else Path(name) for name, is_ours in zip(named, same, strict=True))


def _entry(program: Program, name: str) -> tuple[Function, Declared]:
    """The function to call, with its arguments' types as the compiled module declares them, and what else it does."""
    found = function_named(program.functions, name)
    declared = declared_types(program.module).get(found.name, Declared())
    if len(declared.arguments) != len(found.arguments):
        return found, declared
    # The compiler may have changed types (f64 to f32); the runtime takes those that the module declares.
    pairs = zip(found.arguments, declared.arguments, strict=True)
    arguments = tuple(Argument(old.name, kind, old.loop_bound) for old, kind in pairs)
    return Function(found.name, arguments), declared


def _inputs(
    entry: Function, options: CallOptions, specs: Sequence[str], values: Sequence[object], kept_in: tuple[Kept, Path]
) -> list[Input]:
    kept, folder = kept_in
    if values:
        return array_inputs(entry, values, folder)
    if specs:
        return given_inputs(entry, specs)
    if kept.is_for(entry) and not isinstance(options.dim, int):  # a size asks for other inputs than those kept
        return kept_inputs(entry, kept, folder)
    return made_inputs(entry, options.dim, folder)
