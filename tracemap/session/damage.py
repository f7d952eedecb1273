"""Modules that a bundle keeps and that are damaged: called so, by the file's name, where work with them fails."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tracemap.errors import BundleInvalid, ModelInvalid, ProgramFailed, ToolFailed
from tracemap.inputs import opened
from tracemap.memory import free_memory

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle

_CHUNK: Final = 1 << 20


@contextmanager
def damage_named(*bundles: Bundle) -> Iterator[None]:
    """Where a module cannot be read or compiled, look whether that is for a file of a bundle that is damaged.

    Only then: to read all of them takes as long as what is done with them.

    Raises:
        BundleInvalid: it is.
    """
    try:
        yield
    except (ModelInvalid, ToolFailed) as error:
        for bundle in bundles:
            _check_modules(bundle, error)
        raise


@contextmanager
def program_damage_named(bundle: Bundle) -> Iterator[None]:
    """Where a program with a bundle's compiled module fails, look whether that is for a module that is damaged.

    Only then: of what runs well nothing is read again.

    Raises:
        BundleInvalid: it is.
    """
    try:
        yield
    except ProgramFailed as error:
        if not (error.interrupted or error.keeps_run):
            _check_program(bundle, error)
        raise


def _check_program(bundle: Bundle, cause: Exception) -> None:
    path = bundle.module_path
    if not path.exists():
        raise BundleInvalid(f"{path}: is not there; build the bundle again") from cause
    with opened(path, BundleInvalid) as file:
        if os.fstat(file.fileno()).st_size > free_memory():  # which takes as long to look through as it is large
            raise BundleInvalid(f"{path}: is larger than the free memory; build the bundle again") from cause
        found = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    if found.hexdigest() != bundle.graph.module.sha256:
        raise BundleInvalid(
            f"{path}: damaged, its bytes are not those that the build wrote; build the bundle again"
        ) from cause


def _check_modules(bundle: Bundle, cause: Exception) -> None:
    from tracemap.graph.bundle import CONFIGURED_NAME, KERNELS_FOLDER, SOURCE_FOLDER
    from tracemap.ir.parsing import MlirParser
    from tracemap.ir.reading import parse_model

    def configured() -> bytes:
        return bundle.configured() if bundle.graph.kernels else b""

    sources = [source.path for source in bundle.graph.sources[:1]]
    kept = [(f"{KERNELS_FOLDER}/{CONFIGURED_NAME}", configured)]
    kept += [(f"{SOURCE_FOLDER}/{name}", bundle.model) for name in sources]
    for name, read in kept:
        try:
            data = read()
            if data:
                parse_model(MlirParser(), data)
        except ModelInvalid as damage:
            said = str(damage).removeprefix("-:")
            raise BundleInvalid(f"{bundle.path / name}: damaged ({said}); build the bundle again") from cause
        except BundleInvalid:
            continue  # it is not kept
