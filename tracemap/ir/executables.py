"""Executables of a module, and of files that are to take their place: names, exports, stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tracemap.ir.bindings import ir
from tracemap.ir.parsing import MlirParser, Module, Operation, nested, string_attribute, walk

_BACKEND = re.compile(r'#hal\.executable\.target<"([\w-]+)"')
_FORMAT = re.compile(r'#hal\.executable\.target<"[\w-]+", "([\w-]+)"')
_RESOURCE = "dense_resource<"
_DATA = "\n{-#"
"""What begins the data behind a module; in texts of a module line ends are written as escapes."""
_EXECUTABLES = ("hal.executable", "hal.executable.source")


@dataclass(frozen=True, slots=True)
class Executable:
    """An executable: its name, the exports by which it is called, the stage that its code is at.

    `stage` is `source` (loops have no tiles yet), `configuration` (they have) or `object` (they are in LLVM's dialect).
    `functions` are those that its code defines.
    """

    name: str
    exports: tuple[str, ...]
    functions: frozenset[str]
    stage: str
    operation: Operation


def executables_of(module: Module) -> Mapping[str, Executable]:
    """The executables of a module by name, in the order of the text."""
    found = (_executable(top) for top in nested(module.operation) if top.name in _EXECUTABLES)
    return {each.name: each for each in found}


def read_executables(parser: MlirParser, text: bytes) -> tuple[Module, Mapping[str, Executable]]:
    """The executables of a file as IREE dumps them, and the module that they live in.

    Raises:
        ModelInvalid: it does not parse.
    """
    module = parser.parse(text)
    return module, executables_of(module)


def _executable(operation: Operation) -> Executable:
    exports: dict[str, None] = {}
    functions, stage = set(), "source"
    for inner in walk(operation):
        if inner.name == "hal.executable.export":
            exports[string_attribute(inner, "sym_name")] = None
        elif inner.name in ("func.func", "llvm.func"):
            if any(list(region.blocks) for region in inner.regions):
                functions.add(string_attribute(inner, "sym_name"))
            if inner.name == "llvm.func":
                stage = "object"
            elif "translation_info" in inner.attributes and stage == "source":
                stage = "configuration"
    return Executable(string_attribute(operation, "sym_name"), tuple(exports), frozenset(functions), stage, operation)


def backend_of(operation: Operation) -> str:
    """What the code that an operation lies in is for, as the compiler names it; "" where nothing says it."""
    outer = operation.parent
    while outer is not None and outer.name != "hal.executable.variant":
        outer = outer.parent
    found = None if outer is None else _BACKEND.match(str(outer.attributes["target"]))
    return found[1] if found else ""


def formats_of(executable: Executable) -> frozenset[str]:
    """The formats of an executable's machine code, which name its architecture: `embedded-elf-x86_64`."""
    return frozenset(found[1] for target in _targets(executable.operation) if (found := _FORMAT.match(target)))


def _targets(executable: Operation) -> list[str]:
    return [str(inner.attributes["target"]) for inner in nested(executable) if inner.name == "hal.executable.variant"]


def backends_of(module: Module) -> frozenset[str]:
    """What the code of a module's executables is for, as the compiler names it: `llvm-cpu`, `rocm`, `vulkan-spirv`."""
    targets = [target for each in executables_of(module).values() for target in _targets(each.operation)]
    return frozenset(found[1] for target in targets if (found := _BACKEND.match(target)))


def executable_text(executable: Executable) -> str:
    """The text of an executable with its locations, as IREE takes it in place of the one of its name."""
    text: str = executable.operation.get_asm(enable_debug_info=True, use_local_scope=True)
    return text.replace("hal.executable private @", "hal.executable public @", 1) + "\n" + _resources(executable, text)


def _resources(executable: Executable, text: str) -> str:
    """The data of constants that a text refers to by name; it is printed behind a module that has no local scope."""
    if _RESOURCE not in text:
        return ""
    with executable.operation.context, executable.operation.location:
        module = ir.Module.create()
    module.body.append(executable.operation.clone())
    _, begin, data = module.operation.get_asm().rpartition(_DATA)
    return f"{begin}{data}".lstrip("\n") if begin else ""
