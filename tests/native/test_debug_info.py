"""Debug information of native libraries: lines of the model for the same code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import json_cli
from tracemap.attribution.kernel_lines.code_ops import instruction_ops
from tracemap.machine.images import NO_LINE, read_image
from tracemap.map.bundle import load


@pytest.mark.long
@pytest.mark.parametrize(("name", "pipeline"), [("layer", "plain"), ("softmax", "affine"), ("stencil", "vector")])
def test_library_has_lines_of_the_model(
    name: str, pipeline: str, native: Callable[[str, str], Path], tmp_path: Path
) -> None:
    bundle, symbols = load(native(name, pipeline)), tmp_path / "symbols"
    (executable,) = json_cli("debug-info", bundle.path, "-o", symbols)["executables"]
    assert executable["own_build_id"]
    assert executable["instructions_with_op"] > 0.5 * executable["instructions"]
    library = symbols / executable["code_file"]
    written, (image,) = read_image(library), bundle.images()
    count = 0
    for function in image.functions:
        kernel = bundle.graph.kernel_by_name.get(function.name)
        for instruction in instruction_ops(bundle.graph, kernel, image, function) if kernel else ():
            op = bundle.graph.op_by_id[instruction.op.member.op] if instruction.op else None
            assert written.lines_of([instruction.address]) == [op.line if op else NO_LINE]
            count += op is not None
    assert count > 20
    exported = bundle.graph.functions[0].name
    assert ctypes.CDLL(str(library))[exported]
