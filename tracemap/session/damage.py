"""Modules that a bundle keeps and that are damaged or others: called so, by the file's name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracemap.errors import BundleInvalid, ModelInvalid, ProgramFailed, ToolFailed
from tracemap.inputs import opened
from tracemap.memory import free_memory

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle


_CHUNK = 1 << 20


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
def whole_program(bundle: Bundle) -> Iterator[Callable[[], None]]:
    """Work with a bundle's compiled module, which has to be what the build wrote: what another one does is not its.

    Yields what looks whether it still is, for those who keep what they saw; at the end that is looked at anyway.

    Raises:
        BundleInvalid: it is another, or damaged, or was changed or replaced meanwhile.
    """
    _check_program(bundle)
    begun = _state_of(bundle)

    def check() -> None:
        if _state_of(bundle) != begun:
            raise BundleInvalid(f"{bundle.module_path}: was changed or replaced while it ran; do it again")

    try:
        yield check
    except ProgramFailed as error:
        if not (error.interrupted or error.keeps_run):
            _check_size(bundle, error)
            check()
        raise
    check()


def _state_of(bundle: Bundle) -> tuple[int, ...]:
    """What changes where a file is replaced or written to; nothing where it is not there."""
    try:
        about = bundle.module_path.stat()
    except OSError:
        return ()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


def _check_program(bundle: Bundle) -> None:
    path = bundle.module_path
    if not path.exists():
        raise BundleInvalid(f"{path}: is not there; build the bundle again")
    with opened(path, BundleInvalid) as file:
        if os.fstat(file.fileno()).st_size > free_memory():  # it may run, and to look through it may take for ever
            return
        found = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    if found.hexdigest() != bundle.graph.module.sha256:
        raise BundleInvalid(
            f"{path}: another module, or damaged: its bytes are not those that the build wrote; build the bundle again"
        )


def _check_size(bundle: Bundle, cause: Exception) -> None:
    path = bundle.module_path
    if path.exists() and path.stat().st_size > free_memory():
        raise BundleInvalid(f"{path}: is larger than the free memory; build the bundle again") from cause


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
