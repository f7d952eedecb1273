"""Call a function of a native library again and again, and write down when each call began and ended.

It runs as a program of its own, `python native_caller.py PLAN.json`, so that the library crashes only that program, and
imports nothing of tracemap. Functions have the C interface of MLIR (mlir/docs/TargetLLVMIR.md, "C-compatible wrapper
emission"): each memref is passed as a pointer to its descriptor, and results are written through a first argument.
"""

from __future__ import annotations

import array
import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

_SCALARS: dict[str, Any] = {
    **{f"i{bits}": kind for bits, kind in ((1, ctypes.c_bool), (8, ctypes.c_int8), (16, ctypes.c_int16))},
    **{"i32": ctypes.c_int32, "i64": ctypes.c_int64, "index": ctypes.c_int64},
    **{"f16": ctypes.c_uint16, "bf16": ctypes.c_uint16, "f32": ctypes.c_float, "f64": ctypes.c_double},
}
_REAL = ("f16", "bf16", "f32", "f64")
_STATIC = 0xDEADBEEF
"""MLIR's allocated pointer of a global (mlir/lib/Conversion/MemRefToLLVM, `GetGlobalMemrefOp`)."""
_MOST_INTEGERS, _MOST_REALS = 32, 8  # as in native.py and native_call.c


class _Call(ctypes.Structure):
    """A call, as `native_call.c` of the hook reads it."""

    _fields_ = (
        ("called", ctypes.c_void_p),
        ("integers", ctypes.c_uint64 * _MOST_INTEGERS),
        ("reals", ctypes.c_double * _MOST_REALS),
    )


_ALIGNMENT = 64
_LEAST_CALLS = 3


def _descriptor(rank: int) -> type[ctypes.Structure]:
    """The type of a memref's descriptor: allocated and aligned pointer, offset, sizes and strides."""
    numbers = ctypes.c_int64 * rank

    class Descriptor(ctypes.Structure):
        _fields_ = (
            ("allocated", ctypes.c_void_p),
            ("aligned", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            *((("sizes", numbers), ("strides", numbers)) if rank else ()),
        )

    return Descriptor


def _memref(sizes: list[int], data: bytes) -> tuple[ctypes.Structure, ctypes.Array[ctypes.c_char]]:
    """A descriptor of a copy of the data, and the memory that must outlive it."""
    memory = ctypes.create_string_buffer(len(data) + _ALIGNMENT)
    start = ctypes.addressof(memory)
    aligned = -(-start // _ALIGNMENT) * _ALIGNMENT
    ctypes.memmove(aligned, data, len(data))
    strides = [1] * len(sizes)
    for place in range(len(sizes) - 2, -1, -1):
        strides[place] = strides[place + 1] * sizes[place + 1]
    descriptor = _descriptor(len(sizes))(start, aligned, 0)
    if sizes:
        descriptor.sizes[:], descriptor.strides[:] = sizes, strides
    return descriptor, memory


class _Function:
    """A function of the library, ready to be called."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._kept: list[object] = []
        self._not_ours = {0, _STATIC}
        self._results: list[ctypes.Structure] = []
        self._hook = ctypes.CDLL(plan["hook"])
        self._free = ctypes.CDLL(None).free
        self._free.argtypes, self._free.restype = (ctypes.c_void_p,), None
        library = ctypes.CDLL(plan["library"])
        function = library[plan["symbol"]]
        self._kept += [library, function]
        integers: list[int] = []
        reals: list[bytes] = []
        if structure := self._result_structure(plan["results"]):
            integers.append(ctypes.addressof(structure))
        for argument in plan["arguments"]:
            if "value" not in argument:
                integers.append(self._memref(argument))
            elif argument["type"] in _REAL:
                reals.append(bytes(_SCALARS[argument["type"]](argument["value"])).ljust(8, b"\0"))
            else:
                integers.append(int(_SCALARS[argument["type"]](argument["value"]).value) % (1 << 64))
        self._call = _Call(ctypes.cast(function, ctypes.c_void_p))
        self._call.integers[: len(integers)] = integers
        ctypes.memmove(self._call.reals, b"".join(reals), 8 * len(reals))

    def _memref(self, argument: dict[str, Any]) -> int:
        """The address of a descriptor of the data in a file."""
        descriptor, memory = _memref(argument["sizes"], Path(argument["file"]).read_bytes())
        self._kept += [descriptor, memory]
        self._not_ours.add(ctypes.addressof(memory))
        return ctypes.addressof(descriptor)

    def _result_structure(self, results: list[dict[str, Any]]) -> ctypes.Structure | None:
        """One structure for all results; None if there are none, or a single number, which is returned by value."""
        if not results or (len(results) == 1 and "rank" not in results[0]):
            return None
        kinds = [_descriptor(result["rank"]) if "rank" in result else _SCALARS[result["type"]] for result in results]

        class Results(ctypes.Structure):
            _fields_ = tuple((f"result{index}", kind) for index, kind in enumerate(kinds))

        structure = Results()
        self._kept.append(structure)
        self._results = [
            getattr(structure, f"result{index}") for index, result in enumerate(results) if "rank" in result
        ]
        return structure

    def call(self, times_ns: ctypes.Array[ctypes.c_uint64]) -> None:
        """Call it once, and set begin and end on the monotonic clock."""
        self._hook.tracemap_hook_call_native(ctypes.byref(self._call), times_ns)
        # The caller owns results that are neither an argument nor a global; two of them may be the same memory.
        for allocated in {result.allocated or 0 for result in self._results} - self._not_ours:
            self._free(allocated)


def run(plan: dict[str, Any]) -> None:
    """Call the function as often as planned, or until the time is spent, and write the times."""
    function = _Function(plan)
    times = array.array("q")
    call_ns = (ctypes.c_uint64 * 2)()
    until_ns = time.monotonic_ns() + int(plan["seconds"] * 1e9)
    calls, least = plan["calls"], plan["warmup"] + _LEAST_CALLS
    while len(times) < 2 * calls if calls else len(times) < 2 * least or time.monotonic_ns() < until_ns:
        function.call(call_ns)
        times.extend(call_ns)
    with Path(plan["times"]).open("wb") as file:
        times.tofile(file)


if __name__ == "__main__":
    try:
        run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except (OSError, AttributeError, ValueError) as error:  # the library cannot be loaded, or the function called
        sys.exit(str(error))
