"""A graph of ONNX to a module, by the compiler's own importer; its locations are the names of nodes and values."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

from tracemap.errors import ModelInvalid


def import_graph(model: Any, scope: str, data_folder: Path, archive: Path) -> tuple[bytes, list[str]]:  # noqa: ANN401 - an onnx.ModelProto, whose package need not be there
    """The bytecode of a model with all shapes, and what the importer warns of; large initialisers are parameters.

    Args:
        model: an `onnx.ModelProto`.
        scope: of its parameters.
        data_folder: where its external data lies.
        archive: the file for its parameters, which is not written where there are none.

    Raises:
        ModelInvalid: the importer does not take the graph; the message is its own.
    """
    from iree.compiler.extras import onnx_importer
    from iree.compiler.ir import Context, MLIRError
    from iree.compiler.tools.import_onnx.importer_externalization_overrides import IREENodeImporter, ParamData

    about = ParamData(
        param_bit_threshold=None,
        num_elements_threshold=_LEAST_ELEMENTS,
        params_scope=scope,
        data_dir=str(data_folder),
        param_path=str(archive),
        input_index_threshold=None,
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            info = onnx_importer.ModelInfo(model)
            module = info.create_module(context=Context()).operation
            importer = IREENodeImporter.define_function(info.main_graph, module, about)
            importer.import_all()
            module.verify()
            if importer.globals:
                importer.save_params()
        except (
            onnx_importer.OnnxImportError,
            MLIRError,
            ValueError,
            LookupError,
            TypeError,
            NotImplementedError,
        ) as error:
            said = str(error).strip() or type(error).__name__
            raise ModelInvalid(f"IREE's importer of ONNX does not take the model: {said}") from error
    written = io.BytesIO()
    module.write_bytecode(written)
    return written.getvalue(), sorted({str(each.message) for each in warned})


_LEAST_ELEMENTS = 100
"""Of a parameter: what is smaller stays in the module, where the compiler can reckon with it."""
