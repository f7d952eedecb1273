"""Detect the framework of a file or object, without importing frameworks, and call its frontend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tracemap.core.errors import UsageInvalid
from tracemap.core.files import names_file
from tracemap.frontends.imported import ImportedModel
from tracemap.ir.text_checks import format_fault


def import_file(path: Path, folder: Path) -> ImportedModel | None:
    """Import a framework's model file; None if the file's name or content is of no framework.

    Args:
        path: the file.
        folder: folder for parameters; it must exist until the bundle is written.

    Raises:
        ModelInvalid: the file cannot be imported.
        ModelUnreadable: the file cannot be read.
        ToolMissing: the importer is not installed.
    """
    if path.suffix.lower() == ".onnx" and not _is_text(path):
        from tracemap.frontends.onnx import import_file as import_onnx

        return import_onnx(path, folder)
    if path.suffix.lower() == ".pt2" and not _is_text(path):
        from tracemap.frontends.torch import import_file as import_torch

        return import_torch(path, folder)
    return None


def _is_text(path: Path) -> bool:
    """Whether a file is text or MLIR bytecode, whatever its name. True for a pipe, which can be read only once."""
    if not names_file(path):
        return True
    try:
        with path.open("rb") as file:
            beginning = file.read(_HEAD_BYTES)
    except OSError:
        return True
    return not format_fault(beginning, path.name)


_HEAD_BYTES: Final = 4096


def import_program(
    program: object, arguments: Sequence[object], keywords: Mapping[str, object], folder: Path
) -> ImportedModel:
    """Import a program of a supported framework.

    Args:
        program: the program, such as `jax.jit(f)`.
        arguments: positional arguments of the program.
        keywords: keyword arguments of the program.
        folder: folder for parameters; it must exist until the bundle is written.

    Raises:
        InputInvalid: the arguments do not fit the program.
        ModelInvalid: the program cannot be imported.
        UsageInvalid: the object belongs to no supported framework, or is a plain function and JAX is not installed.
    """
    packages = {base.__module__.partition(".")[0] for base in type(program).__mro__}
    if packages & {"jax", "jaxlib"}:
        from tracemap.frontends.jax import import_program as import_jax

        return import_jax(program, arguments, keywords)
    if "onnx" in packages:
        from tracemap.frontends.onnx import import_program as import_onnx

        return import_onnx(program, arguments, keywords, folder)
    if "torch" in packages:
        from tracemap.frontends.torch import import_program as import_torch

        return import_torch(program, arguments, keywords, folder)
    if callable(program) and packages <= {"builtins"}:
        if find_spec("jax") is None:
            raise UsageInvalid("a plain function is a model only with JAX; install it with: pip install jax")
        import jax

        from tracemap.frontends.jax import import_program as import_jax

        return import_jax(jax.jit(program), arguments, keywords)
    raise UsageInvalid(
        f"{type(program).__name__} is no model; pass a file, MLIR, or jax.jit(f) or a torch module with its arguments"
    )
