"""What a kernel is, in words: what it takes and gives, how it is configured, what it is called after."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracemap.experiments.reference.kernel import Access
from tracemap.ir.parsing import Operation, walk

_CALLED_AFTER = re.compile(r".*?_dispatch_\d+_(.+)", re.DOTALL)
_PIPELINE = re.compile(r"pipeline = (?:#[\w.]+pipeline<)?(\w+)")
_TILES = re.compile(r"(\w+) = (\[[\d, \[\]]*\])")


def operation_name(kernel: str) -> str:
    """What a kernel's name says that it does: `matmul_64x64x64_f32` of `main_dispatch_4_matmul_64x64x64_f32`."""
    found = _CALLED_AFTER.fullmatch(kernel)
    return found[1] if found else kernel


def arguments(accesses: Sequence[Access]) -> str:
    """What is read, and behind an arrow what is written: `64x64xf32, 64xf32 -> 64x64xf32`."""
    read = [_shape(access) for access in accesses if access.loaded]
    written = [_shape(access) for access in accesses if access.stored]
    return f"{', '.join(read)} -> {', '.join(written)}"


def _shape(access: Access) -> str:
    return "x".join([*map(str, access.view.extents), access.view.element])


def configuration(function: Operation) -> str:
    """A kernel's pipeline, and the tiles of the operation that has the most: `CPUDefault distribution=[64, 64, 0]`."""
    pipeline = ""
    if "translation_info" in function.attributes:
        found = _PIPELINE.search(str(function.attributes["translation_info"]))
        pipeline = found[1] if found else ""
    configs = [
        str(operation.attributes["lowering_config"])
        for operation in walk(function)
        if "lowering_config" in operation.attributes
    ]
    tiles = max((_TILES.findall(config) for config in configs), key=len, default=[])
    return " ".join([*([pipeline] if pipeline else []), *(f"{name}={sizes}" for name, sizes in tiles)])
