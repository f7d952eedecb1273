"""Parsing with `iree.compiler.ir`: bindings, contexts, walking, and locations."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import re
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Final

from tracemap.errors import LocationInvalid, ModelInvalid
from tracemap.forked import forked
from tracemap.ir.checks import MOST_BRACES, TOO_DEEP, nesting_fault, printed_fault
from tracemap.locations import STRING, UNKNOWN_LOCATION, Location, read_location, unescape

# ---- bindings
#
# The compiler's bindings, without what they import for those who build modules: that takes longer than reading one.


__all__ = ["do_without_dialect_modules", "get_indexing_maps", "ir"]


_FOUND = threading.Lock()
"""Held by who takes a stand-in away."""


class _Late(ModuleType):
    """Stands for a module until something of it is used."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module has
        with _FOUND:
            if sys.modules.get(self.__name__) is self:  # in a thread that imports it just now
                del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _late(name: str) -> Iterator[None]:
    """Let who imports a module meanwhile have it only when something of it is used; nothing where it is there."""
    stand_in = _Late(name)
    stand_in.__spec__ = importlib.util.find_spec(name)
    late = sys.modules.setdefault(name, stand_in) is stand_in
    try:
        yield
    finally:
        with _FOUND:
            if late and sys.modules.get(name) is stand_in:
                del sys.modules[name]  # nobody else is to find it: who imports the real one gets that


with _late("numpy"):  # two thirds of the time that the bindings take; they need it to make constants of arrays
    from iree.compiler import ir
    from iree.compiler._mlir_libs._mlirDialectsLinalg import get_indexing_maps  # without the module of the dialect

_DIALECTS = """
    affine arith cf chlo complex flow func gpu hal hal_inline hal_loader io_parameters iree_codegen iree_cpu
    iree_encoding iree_gpu iree_linalg_ext iree_tensor_ext iree_vector_ext linalg llvm math memref mhlo
    ml_program scf shape stablehlo stream tensor torch torch_c tosa util vector vm
    """.split()


@cache
def do_without_dialect_modules() -> None:
    """Tell the bindings once that they have the modules of these dialects.

    Of every operation and attribute that they hand out they import the Python module of its dialect, which has a class
    for each of its operations. No such class is used here, and to import those of `linalg` takes as long as to read a
    small model. Where there is no module they look for it each time: most of the time of walking a large model.
    """
    bindings = importlib.import_module("iree.compiler._mlir_libs._mlir")
    for dialect in _DIALECTS:
        name = f"iree.compiler.dialects.{dialect}"
        if name not in sys.modules:
            sys.modules[name] = ModuleType(name)  # nobody else is to find it: who imports the real one gets that
            try:
                bindings.globals._check_dialect_module_loaded(dialect)
            finally:
                del sys.modules[name]


# ---- apart
#
# Whether the parser survives a text: tried in a process of its own.
#
# Parsers and verifiers are written for texts that are right. On some that were edited or cut they use what is not
# theirs: the count region of `flow.dispatch.workgroups`, for one, compares its results with as many types as it should
# have (`zip_equal`, compiler/src/iree/compiler/Dialect/Flow/IR/FlowOps.cpp); where the text of a `linalg.generic`
# fails behind its region, that is freed before what around it still points there (`GenericOp::parse`,
# mlir/lib/Dialect/Linalg/IR/LinalgOps.cpp). That crashes, or spoils the heap, so that something else crashes later, or
# never ends, and no exception tells of it. So a text from somebody else is parsed in a forked process first, and here
# only where it was parsed well there.


_WELL: Final = b"+"


def check_parses_apart(parse: Callable[[], object], most_s: float) -> None:
    """Try a parse in a process of its own.

    Args:
        parse: the parse; it must do without threads that exist already, which the other process does not have.
        most_s: how long it may take.

    Raises:
        ModelInvalid: the text does not parse, with the parser's message; or the parser crashes, or does not end.
    """

    def tried() -> bytes:
        _limit_cpu_time(math.ceil(most_s))
        try:
            parse()
        except ModelInvalid as error:
            return str(error).encode(errors="surrogatepass")
        return _WELL

    with forked(tried) as child:
        try:
            told = child.told(most_s)
        except TimeoutError as error:
            raise ModelInvalid("the parser of IREE's compiler does not come to an end on it") from error
        status = child.end()
    if told != _WELL:
        raise ModelInvalid(told.decode(errors="replace") or _without_a_word(status))


def _limit_cpu_time(most_s: int) -> None:
    """Whoever is to end a parse that does not end may itself be ended before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == resource.RLIM_INFINITY or most_s < soft:
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, hard))


def _without_a_word(status: int) -> str:
    number = os.waitstatus_to_exitcode(status)
    how = signal.Signals(-number).name if number < 0 else f"status {number}"
    return f"the parser of IREE's compiler crashes on it ({how})"


# ---- parsing
#
# The door to `iree.compiler.ir`: contexts, parsing, walking, and locations parsed once each.
#
# Everything that the bindings hand out stays inside `tracemap.ir` and `tracemap.mapping`; typed records leave it.


Operation = Any
"""An `iree.compiler.ir.Operation`; the bindings' stubs do not pass strict checking."""
Module = Any
"""An `iree.compiler.ir.Module`."""
Value = Any
"""An `iree.compiler.ir.Value`."""
Type = Any
"""An `iree.compiler.ir.Type`."""
Region = Any
"""An `iree.compiler.ir.Region`."""
Attribute = Any
"""An `iree.compiler.ir.Attribute`."""
BoundLocation = Any
"""An `iree.compiler.ir.Location`."""

BYTECODE_MAGIC = b"ML\xefR"
"""First bytes of MLIR bytecode (mlir/lib/Bytecode/Encoding.h)."""


class MlirParser:
    """Parses modules in one context and reads locations, each distinct one once.

    `cut_locations`: how many of them are nested deeper than is read.
    """

    def __init__(self) -> None:
        do_without_dialect_modules()
        self.context = ir.Context()
        self.context.allow_unregistered_dialects = True
        # A diagnostic of a thread of MLIR's waits for Python's lock, whose holder may be waiting for that thread; forks
        # have no threads; and a model of which nearly all is one function is read as fast without.
        self.context.enable_multithreading(False)
        self._locations: dict[Any, Location] = {}
        self._texts: dict[Any, str] = {}
        self.cut_locations = 0

    def parse(self, text: str | bytes, *, printed: bool = False) -> Module:
        """A module from text or bytecode.

        Args:
            text: of a module.
            printed: whether it is what the compiler, or this program, made of a model that was parsed here before. What
                is not is parsed in a process apart first.

        Raises:
            ModelInvalid: it does not parse; the message is the parser's first, with line and column. Or it is nested so
                deep that the parser might not come to an end; or the parser crashes on it.
        """
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        fault_of = printed_fault if printed else nesting_fault
        if not data.startswith(BYTECODE_MAGIC) and (fault := fault_of(data)):
            raise ModelInvalid(fault)
        if not printed:
            _check_apart(data)
        try:
            if data.startswith(BYTECODE_MAGIC):
                return _of_bytecode(data, self.context)
            return ir.Module.parse(text, self.context)
        except ir.MLIRError as error:
            raise ModelInvalid(_first_diagnostic(error)) from error

    def attribute(self, text: str) -> Attribute:
        """An attribute from its text.

        Raises:
            ModelInvalid: it does not parse.
        """
        try:
            return ir.Attribute.parse(text, self.context)
        except ir.MLIRError as error:
            raise ModelInvalid(_first_diagnostic(error)) from error

    def location(self, operation: Operation) -> Location:
        """The location of an operation; one of a form that we cannot read is unknown."""
        return self.location_of(operation.location.attr)

    def location_of(self, attribute: Attribute) -> Location:
        """The location that an attribute of the bindings stands for; equal attributes give the very same object."""
        known = self._locations.get(attribute)
        if known is None:
            try:
                known, has_cut = read_location(str(attribute))
                self.cut_locations += has_cut
            except LocationInvalid:
                known = UNKNOWN_LOCATION
            self._locations[attribute] = known
        return known

    def text_of(self, attribute: Attribute | Type) -> str:
        """The text of an attribute or a type: there are few, and each is printed once."""
        known = self._texts.get(attribute)
        if known is None:
            known = self._texts[attribute] = str(attribute)
        return known


_LARGE_STACK = 1 << 29
"""Bytes of addresses; of memory it takes what is used."""


_MOST_S, _MOST_S_PER_BYTE = 8.0, 4e-6
"""Forty times what the parser takes, as other programs may keep it waiting."""
_PARSED_APART: set[bytes] = set()
"""Digests of the texts that parse well; the same dump is asked for more than once."""


def _check_apart(data: bytes) -> None:
    digest = hashlib.sha256(data).digest()
    if digest not in _PARSED_APART:
        check_parses_apart(lambda: MlirParser().parse(data, printed=True), _MOST_S + _MOST_S_PER_BYTE * len(data))
        _PARSED_APART.add(digest)


def _of_bytecode(data: bytes, context: ir.Context) -> Module:
    """A module of bytecode: how deep it is nested is seen only when it was parsed, in a thread that has room for it."""

    def parsed() -> Module | None:
        module = _parsed_where_it_lies_right(data, context)
        if _is_shallow(module):
            return module
        _take_apart(module)  # here, as that needs the room too
        return None

    before = threading.stack_size(_LARGE_STACK)
    try:
        with ThreadPoolExecutor(1) as executor:
            module = executor.submit(parsed).result()
    finally:
        threading.stack_size(before)
    if module is None:
        raise ModelInvalid(f"{TOO_DEEP} to be read: more than {MOST_BRACES} regions within one another")
    return module


def _parsed_where_it_lies_right(data: bytes, context: ir.Context) -> Module:
    """A module of bytecode, whose blobs may want an alignment that Python's bytes do not have, but a file's have."""
    try:
        return ir.Module.parse(data, context)
    except ir.MLIRError as error:
        if not _OF_ALIGNMENT.search(str(error)):
            raise
        file = os.memfd_create("bytecode")
        try:
            with os.fdopen(file, "wb", closefd=False) as stream:
                stream.write(data)
            return ir.Module.parseFile(f"/proc/self/fd/{file}", context)
        except ir.MLIRError:
            raise error from None  # which names no file that nobody knows
        finally:
            os.close(file)


_OF_ALIGNMENT = re.compile("section alignment|trailing bytes in resource entry")


def _is_shallow(module: Module) -> bool:
    left = [(module.operation, 0)]
    while left:
        operation, depth = left.pop()
        if depth > MOST_BRACES:
            return False
        left += [(child, depth + 1) for child in nested(operation)]
    return True


def _take_apart(module: Module) -> None:
    """Remove operations from within: MLIR goes through all that is in one when it removes it, so each level anew."""
    _, *inside = walk(module.operation)
    for operation in reversed(inside):
        if not any(list(result.uses) for result in operation.results):
            operation.erase()


def _first_diagnostic(error: ir.MLIRError) -> str:
    for diagnostic in error.error_diagnostics:
        position = str(diagnostic.location).removeprefix("loc(").removesuffix(")").replace('"', "")
        return f"{position}: {diagnostic.message}"
    return str(error)


def walk(operation: Operation) -> Iterator[Operation]:
    """An operation and all that is nested in it, in pre-order (the order in which the text shows them)."""
    stack = [operation.operation]  # no recursion: generators within generators cost with the depth of the nest
    while stack:
        current = stack.pop()
        yield current
        children = nested(current)
        children.reverse()
        stack.extend(children)


def printed_locations(parser: MlirParser, root: Operation, text: str) -> list[Location]:
    """Where all operations stand in a text of theirs, in pre-order; none where the text shows other operations."""
    try:
        printed = list(walk(parser.parse(text, printed=True).operation))
    except ModelInvalid:
        return []
    same = [operation.name for operation in printed] == [operation.name for operation in walk(root)]
    return [parser.location(operation) for operation in printed] if same else []


def maker_of(value: Value) -> Operation | None:
    """The operation that makes a value; None for an argument, which is of a block."""
    return getattr(value.owner, "operation", None)


def operand_parts(operation: Operation) -> list[list[Value]]:
    """The operands of an operation that says how many of each kind it has, by kind."""
    operands, parts = list(operation.operands), []
    for size in operation.attributes["operandSegmentSizes"]:
        parts.append(operands[: int(size)])
        operands = operands[int(size) :]
    return parts


def nested(operation: Operation) -> list[Operation]:
    """The operations directly in an operation's regions, in order."""
    return [child.operation for region in operation.regions for block in region.blocks for child in block.operations]


def is_file_place(location: BoundLocation) -> bool:
    """Whether a location of the bindings is a line of a file: a class of its own since IREE 3.12, a question before."""
    kind = getattr(ir, "FileLineColLoc", None)
    return bool(location.is_a_file()) if kind is None else isinstance(location, kind)


def string_attribute(operation: Operation, name: str) -> str:
    """The value of a string or symbol attribute, or "" where there is none."""
    attribute = operation.attributes.get(name)
    if attribute is None:
        return ""
    value = getattr(attribute, "value", None)
    return value if isinstance(value, str) else str(attribute)


def own_name(operation: Operation, name: str) -> str:
    """What an operation is called: ONNX ops come as `torch.operator "onnx.Add"` and go by their own name."""
    return (string_attribute(operation, "name") if name == "torch.operator" else "") or name


SYMBOL = rf"@(?:({STRING})|([\w.$-]+))"
"""A symbol in a text: with its quotes and escapes, or as it is."""
_SYMBOL = re.compile(SYMBOL)


def symbol_path(attribute: Attribute) -> tuple[str, ...]:
    """The names of a symbol reference: `@a::@b` is `("a", "b")`."""
    return symbols_in(str(attribute))


def symbols_in(text: str, where: re.Pattern[str] = _SYMBOL) -> tuple[str, ...]:
    """The names of the symbols in a text, in order; `where`: a pattern around `SYMBOL`, for those in such places."""
    return tuple(plain or unescape(quoted) for quoted, plain in where.findall(text))


_SCALAR = re.compile(r"tensor<[su]?(i\d+|index)>|index|[su]?i\d+|!torch\.(int|bool|vtensor<\[\],[su]?i\d+>)")


def is_scalar_like(value: Value) -> bool:
    """Whether a value is one number: an integer, an index, or a tensor of rank 0."""
    return _SCALAR.fullmatch(str(value.type)) is not None
