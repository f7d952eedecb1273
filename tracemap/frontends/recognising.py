"""Which framework an object is of, told by its class: nothing is imported to find out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tracemap.errors import UsageInvalid
from tracemap.frontends.imported import Imported
from tracemap.inputs import names_file
from tracemap.ir.checks import why_no_model


def import_file(path: Path, folder: Path) -> Imported | None:
    """The model of a file of one of the frameworks; None: it is none, as far as its name tells.

    Args:
        path: the file.
        folder: where parameters are written; it must stay until they are kept.

    Raises:
        ModelInvalid: no model can be made of it.
        ModelUnreadable: it cannot be read.
        ToolMissing: what reads it is not installed.
    """
    if path.suffix.lower() == ".onnx" and not _is_text(path):
        from tracemap.frontends.onnx import import_file as import_onnx

        return import_onnx(path, folder)
    if path.suffix.lower() == ".pt2" and not _is_text(path):
        from tracemap.frontends.torch import import_file as import_torch

        return import_torch(path, folder)
    return None


def _is_text(path: Path) -> bool:
    """Whether a file is text or MLIR bytecode, whatever it is called; a pipe is, since it can be read only once."""
    if not names_file(path):
        return True
    try:
        with path.open("rb") as file:
            beginning = file.read(_LOOKED_AT)
    except OSError:
        return True
    return not why_no_model(beginning, path.name)


_LOOKED_AT: Final = 4096


def import_program(
    program: object, arguments: Sequence[object], keywords: Mapping[str, object], folder: Path
) -> Imported:
    """The model of a program of one of the frameworks.

    Args:
        program: such as `jax.jit(f)`.
        arguments: what it is called with.
        keywords: the same, by name.
        folder: where parameters are written; it must stay until they are kept.

    Raises:
        InputInvalid: it does not take these arguments.
        ModelInvalid: no model can be made of it.
        UsageInvalid: it is of no framework that is known.
    """
    packages = {each.__module__.partition(".")[0] for each in type(program).__mro__}
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
        raise UsageInvalid("a plain function has no model: hand in jax.jit(f) with its arguments")
    raise UsageInvalid(
        f"no model can be made of {type(program).__name__}; hand in a file, MLIR, or jax.jit(f) or a module of torch "
        "with its arguments"
    )
