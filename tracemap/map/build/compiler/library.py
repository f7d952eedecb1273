"""The compiler's library: a whole compilation in a forked process, with the program in memory from end to end.

The library is what `iree-compile` itself consists of (compiler/bindings/c/iree/compiler/embedding_api.h). The bindings
have loaded it already, so a forked process starts with it. Between the phases the process sets the kernels' debug lines
in the module itself; two runs of `iree-compile` would have to write and parse it for that, with all its constants.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p, py_object
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tracemap.core.errors import ModelInvalid
from tracemap.ir.executables import KernelText, set_line_locations
from tracemap.ir.parsing import (
    BYTECODE_MAGIC,
    OPERATION_CAPSULE,
    MlirParser,
    Module,
    Operation,
    capsule_address,
    compiler_library,
    ir,
    string_attribute,
)
from tracemap.ir.source_model import TEXT_FILE
from tracemap.map.build.tagging import Tags, tag_operations

# ---- library

_POINTERS: Final = (
    "SessionCreate",
    "SessionStealContext",
    "InvocationCreate",
    "InvocationExportStealModule",
    "InvocationOutputVMBytecode",
    "OutputOpenFile",
    "SourceWrapBuffer",
)
_TRUTHS: Final = ("InvocationParseSource", "InvocationPipeline", "InvocationImportBorrowModule")
_OTHERS: Final = (
    "SetupGlobalCL",
    "GlobalInitialize",
    "InvocationEnableConsoleDiagnostics",
    "InvocationSetCompileFromPhase",
    "InvocationSetCompileToPhase",
    "InvocationSetDumpCompilationPhasesTo",
    "InvocationSetVerifyIR",
    "OutputKeep",
    "OutputDestroy",
)
_STANDARD_PIPELINE: Final = 0


@cache
def _library() -> ctypes.CDLL | None:
    """The library with its functions' types; None if it lacks any of them."""
    library = compiler_library()
    kinds: dict[str, Any] = {**dict.fromkeys(_POINTERS, c_void_p), **dict.fromkeys(_TRUTHS, c_bool)}
    try:
        for name in (*kinds, *_OTHERS):
            getattr(library, f"ireeCompiler{name}").restype = kinds.get(name)
    except AttributeError:
        return None
    return library


def is_library_of(program: Path) -> bool:
    """Whether a program of iree-compile is the library's own, and the library has all that is needed.

    The library and the bindings are loaded then, and in processes forked from this one.
    """
    try:
        own = Path(compiler_library()._name).parent
        return program.resolve().parent == own.resolve() and _library() is not None and ir.Operation is not None
    except OSError:
        return False


def has_worker_threads() -> bool:
    """Whether MLIR has threads in this process, because someone else uses its bindings.

    All contexts of a process share them, and a forked process would wait forever for threads that it does not have.
    """
    names = (task.read_text(errors="replace") for task in Path("/proc/self/task").glob("*/comm"))
    with suppress(OSError):  # a thread ended meanwhile
        return any(name.startswith(_WORKER) for name in names)
    return True


_WORKER: Final = "llvm-worker"


class _Invocation:
    """One compilation. Its process can have no other, since the library reads flags only once.

    Raises:
        ModelInvalid: the compiler rejects something; it has printed why.
    """

    def __init__(self, flags: Sequence[str]) -> None:
        library = _library()
        assert library is not None
        self._library = library
        arguments = [os.fsencode(word) for word in ("iree-compile", *flags)]
        array = (c_char_p * len(arguments))(*arguments)
        library.ireeCompilerSetupGlobalCL(c_int(len(arguments)), array, b"IREE compiler", c_bool(False))
        library.ireeCompilerGlobalInitialize()
        self._session = c_void_p(library.ireeCompilerSessionCreate())
        self._invocation = c_void_p(library.ireeCompilerInvocationCreate(self._session))
        library.ireeCompilerInvocationEnableConsoleDiagnostics(self._invocation)

    def check_after_passes(self, *, wanted: bool) -> None:
        """Whether the compiler checks the whole program after every pass."""
        self._library.ireeCompilerInvocationSetVerifyIR(self._invocation, c_bool(wanted))

    def dump_phases_to(self, folder: Path) -> None:
        """Print the program to a file in a folder after each phase."""
        self._library.ireeCompilerInvocationSetDumpCompilationPhasesTo(self._invocation, os.fsencode(folder))

    def read(self, model: bytes) -> None:
        """Parse a model from text or bytecode; made-up locations name the file as `MlirParser` does."""
        is_text = not model.startswith(BYTECODE_MAGIC)
        data = model + b"\0" if is_text else model
        source = c_void_p()
        fault = self._library.ireeCompilerSourceWrapBuffer(
            self._session, TEXT_FILE.encode(), data, c_size_t(len(data)), c_bool(is_text), ctypes.byref(source)
        )
        _check(fault is None and self._library.ireeCompilerInvocationParseSource(self._invocation, source))

    def run(self, after: str, last: str) -> None:
        """Run the phases from the one that follows `after` to `last`."""
        self._library.ireeCompilerInvocationSetCompileFromPhase(self._invocation, after.encode())
        self._library.ireeCompilerInvocationSetCompileToPhase(self._invocation, last.encode())
        _check(self._library.ireeCompilerInvocationPipeline(self._invocation, c_int(_STANDARD_PIPELINE)))

    def module(self) -> Operation:
        """The program; it has to be handed back before the next phase. Once only, since the session gives it away."""
        module = self._library.ireeCompilerInvocationExportStealModule(self._invocation)
        context = self._library.ireeCompilerSessionStealContext(self._session)
        _check(bool(module and context))
        self._context = ir.Context._CAPICreate(_capsule(context, b"iree.compiler.ir.Context._CAPIPtr"))
        return ir.Operation._CAPICreate(_capsule(module, OPERATION_CAPSULE))

    def hand_back(self, module: Operation) -> None:
        """Continue with a program."""
        address = c_void_p(capsule_address(module._CAPIPtr, OPERATION_CAPSULE))
        _check(self._library.ireeCompilerInvocationImportBorrowModule(self._invocation, address))

    def write(self, target: Path) -> None:
        """Write the compiled module."""
        output = c_void_p()
        _check(self._library.ireeCompilerOutputOpenFile(os.fsencode(target), ctypes.byref(output)) is None)
        _check(self._library.ireeCompilerInvocationOutputVMBytecode(self._invocation, output) is None)
        self._library.ireeCompilerOutputKeep(output)
        self._library.ireeCompilerOutputDestroy(output)


def _capsule(address: int, name: bytes) -> object:
    create = ctypes.pythonapi.PyCapsule_New
    create.restype, create.argtypes = py_object, (c_void_p, c_char_p, c_void_p)
    return create(address, name, None)


def _check(done: bool) -> None:
    if not done:
        raise ModelInvalid("iree-compile failed")


# ---- compilation


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels' texts; none if the module was not compiled from lines of them, for the reason `unknown`."""

    texts: tuple[KernelText, ...] = ()
    unknown: str = ""

    @classmethod
    def of(cls, data: bytes) -> Kernels:
        """Decode the result of `compile_with_library`."""
        kernels = pickle.loads(data)
        assert isinstance(kernels, cls)
        return kernels


OWN_KERNELS_REJECTED: Final = "iree-compile failed to compile its own configured kernels"
CONFIGURED: Final = "executable-configurations"
"""The phase after which kernels are final except for their machine code."""


@dataclass(frozen=True, slots=True)
class TaggedModel:
    """A model's text or bytecode, the name that iree-compile would give it, and the prefix of its operations' tags."""

    content: bytes
    name: str
    prefix: str


@dataclass(frozen=True, slots=True)
class LibraryFiles:
    """The files of a compilation with the library.

    Attributes:
        module: the compiled module. It is missing if kernels cannot have lines.
        phases: the folder for the dumps of phases.
        output: what the compiler prints.
        parsed: an empty file, once the model has been parsed.
        configured: the module ahead of code generation, once it is complete.
    """

    module: Path
    phases: Path
    output: Path
    parsed: Path
    configured: Path


def compile_with_library(model: TaggedModel, flags: Sequence[str], files: LibraryFiles) -> bytes:
    """Compile a model in this process, which must be a forked one; returns what `Kernels.of` reads.

    The checks of the program after every pass are off, which take a third of the compiler's time and change nothing.
    The model and the phases that tracemap reads are checked when they are parsed.

    Raises:
        ModelInvalid: the compiler rejects the model, or its module has a name for which it would dump phases elsewhere.
    """
    _print_to(files.output)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and the compiler would not name the limit
    os.environ["TMPDIR"] = str(files.module.parent)  # linked constants of the program, which stay if it is killed
    invocation = _Invocation(flags)
    invocation.dump_phases_to(files.phases)
    invocation.read(model.content)
    module = invocation.module()
    check_module_name(string_attribute(module, "sym_name"), model.name)
    tag_operations(module, Tags(model.prefix), model.name)
    files.parsed.touch()
    invocation.hand_back(module)
    invocation.check_after_passes(wanted=False)
    invocation.run("start", CONFIGURED)
    # Dumped without having run. The next dump may have another name, since the compiler changes names like `a.b`.
    for dump in files.phases.glob("*.hal.mlir"):
        dump.unlink()
    try:
        texts = set_line_locations(MlirParser(), module)
    except (ModelInvalid, ValueError) as error:
        return pickle.dumps(Kernels(unknown=f"the configured kernels cannot be read: {error}"))
    _write_configured(module, files.configured)
    ctypes.CDLL(None).malloc_trim(c_size_t(0))  # what reading the texts needed, so that it does not add to the peak
    invocation.hand_back(module)
    try:
        invocation.run(CONFIGURED, "end")
        invocation.write(files.module)
    except ModelInvalid:
        return pickle.dumps(Kernels(unknown=OWN_KERNELS_REJECTED))
    return pickle.dumps(Kernels(texts))


_LONGEST_NAME: Final = 200
"""Bytes of a module's name: with the compiler's additions a file name has at most 255."""


def check_module_name(name: str, model: str) -> None:
    """Reject a module name that cannot be part of the names of the compiler's dumps.

    The compiler uses it in a path without escaping, so `../..` would lead out of the folder.

    Raises:
        ModelInvalid: it is such a name; the message begins with the model's.
    """
    if "/" in name or "\0" in name or len(name.encode()) > _LONGEST_NAME:
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        raise ModelInvalid(
            f"{model}: the module's name {shown!r} cannot be a file name, which "
            "iree-compile needs for its dumps; give the module another name"
        )


CONSTANT: Final = b"dense_resource<"
"""Present in bytecode only if a constant is stored as text, whether its data was elided or is kept elsewhere."""
_NO_LIMIT: Final = (1 << 62) - 1


def write_module(module: Module | Operation, target: Path, *, as_text: bool) -> None:
    """Write a module with the locations of all operations; as text if it has constants that bytecode would lose."""
    with target.open("wb") as file:
        if as_text:
            module.operation.print(
                file=file,
                binary=True,
                enable_debug_info=True,
                print_generic_op_form=True,
                large_elements_limit=_NO_LIMIT,  # whatever flags of the process elide
                large_resource_limit=_NO_LIMIT,
            )
        else:
            module.operation.write_bytecode(file)


def _write_configured(module: Operation, target: Path) -> None:
    """Write the module under its name only when it is complete."""
    unfinished = target.with_suffix(".part")
    write_module(module, unfinished, as_text=False)
    if CONSTANT in unfinished.read_bytes():
        write_module(module, unfinished, as_text=True)
    unfinished.replace(target)


def _print_to(output: Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
