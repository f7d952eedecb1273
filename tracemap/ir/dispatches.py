"""The dispatches of a bundle's configured module: which kernel each calls, and with which numbers.

The host program of this phase is in the stream dialect. Its k-th `stream.cmd.dispatch` becomes the k-th dispatch
command of the hal phase, so that sites are told by order. Sizes that depend on the program's arguments are computed
from the extents of these, as far as the host program itself would compute them from nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracemap.ir.numbers import Extent, HostValues, Number
from tracemap.ir.parsing import Attribute, Module, Operation, nested, operand_parts, symbol_path, walk

_DISPATCH = "stream.cmd.dispatch"


@dataclass(frozen=True, slots=True)
class Binding:
    """A part of a buffer that a dispatch hands to its kernel: `length` bytes from `offset` on."""

    offset: int
    length: int
    access: str
    """`ro`, `wo` or `rw`, as the host program says."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A dispatch of the host program, in the order of the text.

    `target` are the names of the executable, of its variant and of the export, as symbols; `workload` and `constants`
    the numbers that it is given; `constant_types` how wide each is (`i32`). `stood_in`: how many of its numbers only a
    run tells, such as counters of loops and what was computed on the device; they are those of a first trip and of
    values that are 0 or true.
    """

    target: tuple[str, ...]
    workload: tuple[int, ...]
    constants: tuple[int, ...]
    constant_types: tuple[str, ...]
    bindings: tuple[Binding, ...]
    stood_in: int

    @property
    def kernel(self) -> str:
        """The name of the export."""
        return self.target[-1]


def read_dispatches(module: Module, extent: Extent) -> tuple[Dispatch, ...]:
    """All dispatches of the host program, initializers included, in the order of the text.

    Args:
        module: `Bundle.configured()`, parsed.
        extent: what the extents of the entry points' arguments are.
    """
    values = HostValues(module, extent)
    hosts = (top for top in nested(module.operation) if top.name != "hal.executable")
    return tuple(
        _dispatch(operation, values) for top in hosts for operation in walk(top) if operation.name == _DISPATCH
    )


def _dispatch(operation: Operation, values: HostValues) -> Dispatch:
    # Between them stand the buffers and their sizes, which are no numbers of its own.
    given, constant, _, _, begins, sizes = operand_parts(operation)
    told = (given, constant, begins, sizes)
    workload, constants, offsets, lengths = ([values.of(each) for each in part] for part in told)
    accesses = [_access(each) for each in operation.attributes["resource_accesses"]]
    bindings = zip(_values(offsets), _values(lengths), accesses, strict=True)
    return Dispatch(
        symbol_path(operation.attributes["entry_points"][0]),
        _values(workload),
        _values(constants),
        tuple(str(each.type) for each in constant),
        tuple(Binding(*each) for each in bindings),
        sum(not number.told for number in (*workload, *constants, *offsets, *lengths)),
    )


def _values(numbers: Sequence[Number]) -> tuple[int, ...]:
    return tuple(number.value for number in numbers)


def _access(attribute: Attribute) -> str:
    """How a resource is accessed: bits of `IREE::Stream::ResourceAccessBitfield`, 1 reads and 2 writes."""
    return {1: "ro", 2: "wo"}.get(int(attribute.value), "rw")
