"""Files that are given as models and are none: what they are, and what makes a model of them."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final

_IMPORTER: Final = {
    "an ONNX model": "`tracemap build` takes it as MODEL.onnx; else import it: iree-import-onnx MODEL.onnx "
    "-o MODEL.mlir (pip install iree-base-compiler[onnx])",
    "a TensorFlow Lite model": "import it first: iree-import-tflite MODEL.tflite -o MODEL.mlir (pip install "
    "iree-tools-tflite)",
    "a TensorFlow model": "import it first: iree-import-tf FOLDER -o MODEL.mlir (pip install iree-tools-tf)",
    "a program of PyTorch": "`tracemap build` takes what torch.export.save writes as MODEL.pt2 (pip install "
    "'tracemap[torch]')",
    "weights or a program of PyTorch": "hand the module to `tracemap.build` in Python, or export it first, by "
    "torch-mlir or iree-turbine (iree.turbine.aot.export(module, args).save_mlir(…))",
    "weights": "name the program that uses them; `tracemap build --parameters SCOPE=FILE` keeps them with it",
    "compressed": "unpack it first, for example: tracemap build <(zcat MODEL.mlir.gz) -o MODEL.tracemap",
    "a compiled module": "name the model that it was compiled from",
    "a table": "name a model; runs are for tracemap attribute",
    "text in another encoding than UTF-8": "convert it first: iconv -f UTF-16 -t UTF-8",
    "text with a byte order mark": "save it as UTF-8 without one",
    "empty": "name a file with MLIR text or bytecode",
}
"""What is done about each."""
_BEGINNINGS: Final = (
    (b"\x1f\x8b", "compressed"),
    (b"\xfd7zXZ\0", "compressed"),
    (b"\x28\xb5\x2f\xfd", "compressed"),
    (b"BZh", "compressed"),
    (b"GGUF", "weights"),
    (b"\x89HDF\r\n", "weights"),
    (b"IRPA", "weights"),
    (b"\x80\x02", "weights or a program of PyTorch"),
    (b"\x7fELF", "a compiled module"),
    (b"PAR1", "a table"),
    (b"\xff\xfe", "text in another encoding than UTF-8"),
    (b"\xfe\xff", "text in another encoding than UTF-8"),
    (b"\xef\xbb\xbf", "text with a byte order mark"),
)
_ENDINGS: Final = {
    ".onnx": "an ONNX model",
    ".tflite": "a TensorFlow Lite model",
    ".pb": "a TensorFlow model",
    ".pt": "weights or a program of PyTorch",
    ".pt2": "a program of PyTorch",
    ".pth": "weights or a program of PyTorch",
    ".safetensors": "weights",
    ".vmfb": "a compiled module",
}
_ZIP: Final = b"PK\x03\x04"


def why_no_model(data: bytes, name: str) -> str:
    """What a file is instead of MLIR, and what to do; "": it may well be a model.

    Names decide only where the content is not text: a model may be called anything.
    """
    what = _what(data, PurePath(name).suffix.lower())
    return what and f"is {what}, not MLIR; {_IMPORTER[what]}"


def _what(data: bytes, suffix: str) -> str:
    if not data.strip():
        return "empty"
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if found := next((what for start, what in _BEGINNINGS if data.startswith(start)), ""):
        return found
    if b"\0" not in data[:4096] and not data.startswith((_ZIP, b"\x08")):
        return ""
    if data.startswith(_ZIP):
        return _ENDINGS.get(suffix, "compressed")
    return "" if data.startswith(b"ML\xefR") else _ENDINGS.get(suffix, "")
