"""The compiler's bindings, without what they import for those who build modules: that takes longer than reading one."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

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
