"""Modules of another build of MLIR as bytecode of this compiler."""

from __future__ import annotations

import io

from tracemap.ir.parsing import MlirParser


def own_bytecode(text: str) -> bytes:
    """The bytecode that this compiler writes for a module.

    Bytecode of another build is read wrongly where a dialect has changed since: attributes have other places in it. The
    text in generic form names each attribute, and keeps the locations of all operations, those in regions included.

    Args:
        text: the module in generic form, with locations.

    Raises:
        ModelInvalid: it does not parse.
    """
    written = io.BytesIO()
    MlirParser().parse(text, printed=True).operation.write_bytecode(written)
    return written.getvalue()
