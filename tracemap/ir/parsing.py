"""Parsing with `iree.compiler.ir`: bindings, contexts, traversal and locations."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import math
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from tracemap.core.errors import LocationInvalid, ModelInvalid, ToolMissing
from tracemap.core.locations import STRING, UNKNOWN_LOCATION, Location, read_location, unescape
from tracemap.core.process.forked import fork_work
from tracemap.ir.text_checks import MAX_BRACES, TOO_DEEP, nesting_fault, printed_fault

# ---- bindings
#
# The compiler's Python bindings, without their imports for building modules, which take longer than reading a model.

__all__ = ["get_indexing_maps", "ir", "skip_dialect_modules"]

_REMOVAL_LOCK = threading.Lock()
"""Held while a placeholder is removed from `sys.modules`."""


class _LazyModule(ModuleType):
    """Placeholder for a module, which is imported on first use."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        with _REMOVAL_LOCK:
            if sys.modules.get(self.__name__) is self:  # another thread may import the module at the same time
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _lazy_import(name: str) -> Iterator[None]:
    """Make imports of a module inside this context lazy; without effect if the module is loaded already."""
    placeholder = _LazyModule(name)
    placeholder.__spec__ = importlib.util.find_spec(name)
    is_lazy = sys.modules.setdefault(name, placeholder) is placeholder
    try:
        yield
    finally:
        with _REMOVAL_LOCK:
            if is_lazy and sys.modules.get(name) is placeholder:
                del sys.modules[name]  # later imports get the real module


if TYPE_CHECKING:
    from iree.compiler import ir
    from iree.compiler._mlir_libs._mlirDialectsLinalg import get_indexing_maps
else:

    class _Bindings(ModuleType):
        """`iree.compiler.ir`, imported on first use: code that another compiler made is read without it."""

        def __getattr__(self, name: str) -> object:
            value = getattr(_bindings(), name)
            setattr(self, name, value)
            return value

    @cache
    def _bindings() -> ModuleType:
        try:
            is_installed = importlib.util.find_spec("iree.compiler") is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            raise ToolMissing("IREE's compiler is not installed; install it with: pip install iree-base-compiler")
        # Two thirds of the bindings' import time; needed only to create constants from arrays.
        with _lazy_import("numpy"):
            return importlib.import_module("iree.compiler.ir")

    ir = _Bindings("iree.compiler.ir")

    def get_indexing_maps(operation: Operation) -> object:
        """The indexing maps of a linalg operation, without the Python module of its dialect."""
        _bindings()
        return importlib.import_module("iree.compiler._mlir_libs._mlirDialectsLinalg").get_indexing_maps(operation)


@cache
def compiler_library() -> ctypes.CDLL:
    """IREE's compiler as a library with a C interface; the bindings use the same one.

    Raises:
        OSError: it cannot be loaded.
    """
    bindings = importlib.import_module("iree.compiler._mlir_libs")
    return ctypes.CDLL(str(Path(str(bindings.__file__)).with_name("libIREECompiler.so")))


_DIALECTS = """
    affine arith cf chlo complex flow func gpu hal hal_inline hal_loader io_parameters iree_codegen iree_cpu
    iree_encoding iree_gpu iree_linalg_ext iree_tensor_ext iree_vector_ext linalg llvm math memref mhlo
    ml_program scf shape stablehlo stream tensor torch torch_c tosa util vector vm
    """.split()


@cache
def skip_dialect_modules() -> None:
    """Register these dialects as loaded in the bindings, so that their Python modules are never imported.

    For every operation and attribute, the bindings import the Python module of its dialect, with a class per operation.
    tracemap uses none of these classes, and importing those of `linalg` takes as long as reading a small model. For
    dialects without a module the bindings search again each time, which dominates the traversal of a large model.
    """
    bindings = importlib.import_module("iree.compiler._mlir_libs._mlir")
    for dialect in _DIALECTS:
        name = f"iree.compiler.dialects.{dialect}"
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)  # removed below, so that later imports get the real module
            try:
                bindings.globals._check_dialect_module_loaded(dialect)
            finally:
                del sys.modules[name]


# ---- trial parse in a subprocess
#
# Parse untrusted text in a forked process first, since the parser may crash on it.
#
# MLIR's parsers and verifiers expect valid text. On some edited or truncated texts they access invalid memory.
# Examples: the count region of `flow.dispatch.workgroups` compares its results with as many types as it should have
# (`zip_equal`, compiler/src/iree/compiler/Dialect/Flow/IR/FlowOps.cpp). If the text of a `linalg.generic` is wrong
# after its region, the region is freed while its surroundings still point to it (`GenericOp::parse`,
# mlir/lib/Dialect/Linalg/IR/LinalgOps.cpp). The process crashes at once, or later from a corrupted heap, or hangs,
# without an exception. So foreign text is parsed in this process only after a forked process has parsed it
# successfully.

_SUCCESS: Final = b"+"


def check_parses_in_subprocess(parse: Callable[[], object], limit_s: float) -> None:
    """Try a parse in a forked process.

    Args:
        parse: the parse; it must not need existing threads, which the forked process lacks.
        limit_s: time limit.

    Raises:
        ModelInvalid: the text does not parse (with the parser's message), or the parser crashes or exceeds the limit.
    """

    def attempt() -> bytes:
        # In case the parent dies before it can kill a hanging parse.
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if soft == resource.RLIM_INFINITY or limit_s < soft:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), hard))
        try:
            parse()
        except ModelInvalid as error:
            return str(error).encode(errors="surrogatepass")
        return _SUCCESS

    with fork_work(attempt) as child:
        try:
            answer = child.told(limit_s)
        except TimeoutError as error:
            raise ModelInvalid(f"the parser of IREE's compiler does not finish within {limit_s:.0f} s") from error
        status = child.end()
    if answer != _SUCCESS:
        exit_code = os.waitstatus_to_exitcode(status)
        cause = signal.Signals(-exit_code).name if exit_code < 0 else f"status {exit_code}"
        raise ModelInvalid(answer.decode(errors="replace") or f"the parser of IREE's compiler crashes on it ({cause})")


# ---- parsing
#
# Contexts, parsing, traversal, and cached locations.
#
# Objects of the bindings stay inside `tracemap.ir` and `tracemap.map.build`; other packages get typed records.

# Classes of `iree.compiler.ir`, whose stubs do not pass strict checking.
Operation = Any
Module = Any
Value = Any
Type = Any
Region = Any
Attribute = Any
BoundLocation = Any
"""An `iree.compiler.ir.Location`."""

BYTECODE_MAGIC = b"ML\xefR"
"""First bytes of MLIR bytecode (mlir/lib/Bytecode/Encoding.h)."""


class MlirParser:
    """Parser with a context of its own and a cache of locations.

    `cut_locations`: number of locations that were truncated because they are nested too deep.
    """

    def __init__(self) -> None:
        skip_dialect_modules()
        self.context = ir.Context()
        self.context.allow_unregistered_dialects = True
        # MLIR's threads can deadlock: a diagnostic waits for the GIL, whose holder may wait for that thread. Forked
        # processes have no threads. And a model with a single large function is read as fast without them.
        self.context.enable_multithreading(False)
        self._locations: dict[Any, Location] = {}
        self._texts: dict[Any, str] = {}
        self.cut_locations = 0

    def parse(self, text: str | bytes, *, printed: bool = False) -> Module:
        """Parse a module from text or bytecode.

        Args:
            text: the module.
            printed: whether the compiler or tracemap printed it, from a model that was parsed before. Other text is
                tried in a forked process first.

        Raises:
            ModelInvalid: it does not parse, is nested too deep, or crashes the parser. For a syntax error the message
                is the parser's first one, with line and column.
        """
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        fault_of = printed_fault if printed else nesting_fault
        if not data.startswith(BYTECODE_MAGIC) and (fault := fault_of(data)):
            raise ModelInvalid(fault)
        if not printed:
            _check_in_subprocess(data)
        try:
            if data.startswith(BYTECODE_MAGIC):
                return _parse_bytecode(data, self.context)
            return ir.Module.parse(text, self.context)
        except ir.MLIRError as error:
            raise ModelInvalid(_first_diagnostic(error)) from error

    def attribute(self, text: str) -> Attribute:
        """Parse an attribute.

        Raises:
            ModelInvalid: the text does not parse.
        """
        try:
            return ir.Attribute.parse(text, self.context)
        except ir.MLIRError as error:
            raise ModelInvalid(_first_diagnostic(error)) from error

    def location(self, operation: Operation) -> Location:
        """The location of an operation; unknown if its form is not supported."""
        return self.location_of(operation.location.attr)

    def location_of(self, attribute: Attribute) -> Location:
        """The location of a location attribute; equal attributes give the identical object."""
        location = self._locations.get(attribute)
        if location is None:
            try:
                location, has_cut = read_location(str(attribute))
                self.cut_locations += has_cut
            except LocationInvalid:
                location = UNKNOWN_LOCATION
            self._locations[attribute] = location
        return location

    def text_of(self, attribute: Attribute | Type) -> str:
        """The text of an attribute or type; cached, since few are distinct."""
        text = self._texts.get(attribute)
        if text is None:
            text = self._texts[attribute] = str(attribute)
        return text


_LARGE_STACK_BYTES = 1 << 29
"""Address space; memory is allocated on use."""
_LIMIT_S, _LIMIT_S_PER_BYTE = 8.0, 4e-6
"""Forty times the parser's own time, since other programs may delay it."""
_CHECKED_TEXTS: set[bytes] = set()
"""Digests of texts that parse; the same dump is parsed several times."""


def parsing_limit_s(size: int) -> float:
    """The time limit for parsing a text of this many bytes."""
    return _LIMIT_S + _LIMIT_S_PER_BYTE * size


def note_parsed(data: bytes) -> None:
    """Note that another process has parsed a text successfully, so that it need not be tried again."""
    _CHECKED_TEXTS.add(hashlib.sha256(data).digest())


def _check_in_subprocess(data: bytes) -> None:
    if hashlib.sha256(data).digest() not in _CHECKED_TEXTS:
        check_parses_in_subprocess(lambda: MlirParser().parse(data, printed=True), parsing_limit_s(len(data)))
        note_parsed(data)


def _parse_bytecode(data: bytes, context: ir.Context) -> Module:
    """Parse bytecode in a thread with a large stack, since its nesting depth is known only after parsing."""

    def parse() -> Module | None:
        module = _parse_aligned(data, context)
        if _is_shallow(module):
            return module
        _erase_inside_out(module)  # in this thread, since it needs the large stack, too
        return None

    before = threading.stack_size(_LARGE_STACK_BYTES)
    try:
        with ThreadPoolExecutor(1) as executor:
            module = executor.submit(parse).result()
    finally:
        threading.stack_size(before)
    if module is None:
        raise ModelInvalid(f"{TOO_DEEP}: more than {MAX_BRACES} nested regions")
    return module


def _parse_aligned(data: bytes, context: ir.Context) -> Module:
    """Parse bytecode; if a blob needs more alignment than Python's bytes have, parse it from an in-memory file."""
    try:
        return ir.Module.parse(data, context)
    except ir.MLIRError as error:
        if not _ALIGNMENT_ERROR.search(str(error)):
            raise
        file = os.memfd_create("bytecode")
        try:
            with os.fdopen(file, "wb", closefd=False) as stream:
                stream.write(data)
            return ir.Module.parseFile(f"/proc/self/fd/{file}", context)
        except ir.MLIRError:
            raise error from None  # the first error, since the second one names the in-memory file
        finally:
            os.close(file)


_ALIGNMENT_ERROR = re.compile("section alignment|trailing bytes in resource entry")


def _is_shallow(module: Module) -> bool:
    left = [(module.operation, 0)]
    for operation, depth in left:  # grows during the loop
        if depth > MAX_BRACES:
            return False
        left += [(child, depth + 1) for child in nested(operation)]
    return True


def _erase_inside_out(module: Module) -> None:
    """Erase inner operations first: MLIR visits all nested operations of an erased one, so outside-in is quadratic."""
    _, *inside = walk(module.operation)
    for operation in reversed(inside):
        if not any(list(result.uses) for result in operation.results):
            operation.erase()


def _first_diagnostic(error: ir.MLIRError) -> str:
    for diagnostic in error.error_diagnostics:
        position = str(diagnostic.location).removeprefix("loc(").removesuffix(")").replace('"', "")
        return f"{position}: {diagnostic.message}"
    return str(error)


class _Pointer(ctypes.Structure):
    """A handle of MLIR's C interface (mlir-c/IR.h)."""

    _fields_: ClassVar = [("pointer", ctypes.c_void_p)]


class _StringPart(ctypes.Structure):
    """Part of a text that MLIR prints (mlir-c/Support.h, `MlirStringRef`)."""

    _fields_: ClassVar = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t)]


_PRINTED = ctypes.CFUNCTYPE(None, _StringPart, ctypes.c_void_p)
_ALL_ELEMENTS: Final = (1 << 62) - 1


def print_without_locations(operation: Operation, *, max_elements: int = _ALL_ELEMENTS) -> str:
    """The text of an operation, without the values of larger constants than `max_elements`.

    The bindings' own printing adds locations wherever flags of the process ask for them, whatever its arguments say.
    """
    parts: list[bytes] = []
    take = _PRINTED(lambda part, _: parts.append(ctypes.string_at(part.data, part.length)))
    library = compiler_library()
    library.mlirOpPrintingFlagsCreate.restype = _Pointer
    flags = library.mlirOpPrintingFlagsCreate()
    try:
        library.mlirOpPrintingFlagsEnableDebugInfo(flags, ctypes.c_bool(False), ctypes.c_bool(False))
        library.mlirOpPrintingFlagsUseLocalScope(flags)
        library.mlirOpPrintingFlagsElideLargeElementsAttrs(flags, ctypes.c_ssize_t(max_elements))
        library.mlirOpPrintingFlagsElideLargeResourceString(flags, ctypes.c_ssize_t(_ALL_ELEMENTS))
        handle = _Pointer(capsule_address(operation._CAPIPtr, OPERATION_CAPSULE))
        library.mlirOperationPrintWithFlags(handle, flags, take, None)
    finally:
        library.mlirOpPrintingFlagsDestroy(flags)
    return b"".join(parts).decode(errors="replace")


OPERATION_CAPSULE: Final = b"iree.compiler.ir.Operation._CAPIPtr"
"""The name of capsules with operations (mlir-c/Bindings/Python/Interop.h)."""


def capsule_address(capsule: object, name: bytes) -> int:
    """The address in a capsule of the bindings, which is the handle in MLIR's C interface."""
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(read(capsule, name))


def walk(operation: Operation) -> Iterator[Operation]:
    """An operation and all operations nested in it, in pre-order, which is the order of the text."""
    stack = [operation.operation]  # iterative, since nested generators take time proportional to the depth
    while stack:
        current = stack.pop()
        yield current
        children = nested(current)
        children.reverse()
        stack.extend(children)


def printed_locations(parser: MlirParser, root: Operation, text: str) -> list[Location]:
    """Locations of all operations in their printed text, in pre-order; empty if the text has other operations."""
    try:
        printed = list(walk(parser.parse(text, printed=True).operation))
    except ModelInvalid:
        return []
    same = [operation.name for operation in printed] == [operation.name for operation in walk(root)]
    return [parser.location(operation) for operation in printed] if same else []


def entry_arguments(function: Operation) -> list[Value]:
    """The arguments of a function's first block; none for a declaration."""
    blocks = [block for region in function.regions for block in region.blocks]
    return list(blocks[0].arguments) if blocks else []


def producer_of(value: Value) -> Operation | None:
    """The operation that defines a value; None for a block argument."""
    return getattr(value.owner, "operation", None)


def operand_segments(operation: Operation) -> list[list[Value]]:
    """The operands of an operation with `operandSegmentSizes`, by segment."""
    operands, segments = list(operation.operands), []
    for size in operation.attributes["operandSegmentSizes"]:
        segments.append(operands[: int(size)])
        operands = operands[int(size) :]
    return segments


def nested(operation: Operation) -> list[Operation]:
    """The operations directly in an operation's regions, in order."""
    return [child.operation for region in operation.regions for block in region.blocks for child in block.operations]


def is_file_location(location: BoundLocation) -> bool:
    """Whether a location of the bindings is a file location: a class since IREE 3.12, a method earlier."""
    kind = getattr(ir, "FileLineColLoc", None)
    return bool(location.is_a_file()) if kind is None else isinstance(location, kind)


def string_attribute(operation: Operation, name: str) -> str:
    """The value of a string or symbol attribute, or "" if it is missing."""
    attribute = operation.attributes.get(name)
    if attribute is None:
        return ""
    value = getattr(attribute, "value", None)
    return value if isinstance(value, str) else str(attribute)


def unwrapped_name(operation: Operation, name: str) -> str:
    """The name of an operation; for ONNX ops, wrapped as `torch.operator "onnx.Add"`, the inner name."""
    return (string_attribute(operation, "name") if name == "torch.operator" else "") or name


SYMBOL = rf"@(?:({STRING})|([\w.$-]+))"
"""A symbol in a text, either quoted with escapes or plain."""
_SYMBOL = re.compile(SYMBOL)


def symbol_path(attribute: Attribute) -> tuple[str, ...]:
    """The names of a symbol reference: `@a::@b` is `("a", "b")`."""
    return symbols_in(str(attribute))


def symbols_in(text: str, where: re.Pattern[str] = _SYMBOL) -> tuple[str, ...]:
    """The names of the symbols in a text, in order; `where`: a pattern that contains `SYMBOL`, to restrict them."""
    return tuple(plain or unescape(quoted) for quoted, plain in where.findall(text))


_SCALAR = re.compile(r"tensor<[su]?(i\d+|index)>|index|[su]?i\d+|!torch\.(int|bool|vtensor<\[\],[su]?i\d+>)")


def is_scalar_like(value: Value) -> bool:
    """Whether a value is a single number: an integer, an index, or a tensor of rank 0."""
    return _SCALAR.fullmatch(str(value.type)) is not None


# ---- reachability


_Node = TypeVar("_Node", bound=Hashable)


def reachable(start: Iterable[_Node], neighbours: Callable[[_Node], Iterable[_Node]]) -> set[_Node]:
    """The start and all nodes that it leads to; iterative, since chains may be as long as a program."""
    reached: set[_Node] = set()
    worklist = list(start)
    while worklist:
        node = worklist.pop()
        if node not in reached:
            reached.add(node)
            worklist += neighbours(node)
    return reached
