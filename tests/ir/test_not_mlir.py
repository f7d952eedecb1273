"""Files that are not MLIR: each is named, with the command that makes a model of it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import SAMPLES, run_cli
from tracemap.ir.text_checks import format_fault

MLP = (SAMPLES / "models" / "hand_mlp.mlir").read_bytes()


def zipped(name: str = "model/data.pkl") -> bytes:
    """An archive as PyTorch writes it, as far as its first bytes go."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"weights")
    return file.getvalue()


ONNX = b"\x08\x07\x12\x07pytorch\x1a\x051.9.0:\x10" + b"\x0a\x00" * 40
FILES = {
    "model.tflite": (b"\x1c\0\0\0TFL3" + b"\0" * 64, "a TensorFlow Lite model", "iree-import-tflite"),
    "saved_model.pb": (b"\x08\x01\x12\x80\0", "a TensorFlow model", "iree-import-tf "),
    "model.pt": (zipped(), "weights or a PyTorch program", "iree-turbine"),
    "model.mlir.gz": (gzip.compress(MLP), "compressed", "zcat"),
    "packed.mlir": (gzip.compress(MLP), "compressed", "zcat"),
    "model.xz": (lzma.compress(MLP), "compressed", "zcat"),
    "model.bz2": (bz2.compress(MLP), "compressed", "zcat"),
    "model.zip": (zipped(), "compressed", "unpack it"),
    "model.gguf": (b"GGUF\x03\0\0\0", "weights", "MLIR"),
    "run.parquet": (b"PAR1\0\0", "a table", "attribute"),
    "wide.mlir": (MLP.decode().encode("utf-16"), "text in another encoding than UTF-8", "iconv"),
    "marked.mlir": (b"\xef\xbb\xbf" + MLP, "text with a byte order mark", "without byte order mark"),
    "empty.mlir": (b"", "empty", "MLIR"),
    "blank.mlir": (b" \n\t\n", "empty", "MLIR"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_named_with_what_helps(name: str, tmp_path: Path) -> None:
    data, what, helps = FILES[name]
    (tmp_path / name).write_bytes(data)
    done = run_cli("build", name, "-o", "m.tracemap", cwd=tmp_path)
    assert done.stderr.startswith(f"tracemap: error: {name}: is {what}, not MLIR; ")
    assert helps in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(find_spec("onnx") is not None, reason="onnx is installed: make frontends tries what reads models")
def test_a_model_of_onnx_names_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(ONNX)
    done = run_cli("build", "model.onnx", "-o", "m.tracemap", cwd=tmp_path)
    assert "pip install 'tracemap[onnx]'" in done.stderr
    assert done.stderr.endswith("[tool-missing]\n")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    lowered = run_cli("lower", "model.onnx", "--pipeline", "builtin.module(cse)", cwd=tmp_path)
    assert (lowered.returncode, lowered.stderr) == (done.returncode, done.stderr)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed; tests/frontends tries what reads it")
def test_a_program_of_torch_names_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(zipped("model/models/model.json"))
    for command in (("build", "model.pt2"), ("lower", "model.pt2", "--pipeline", "builtin.module(cse)")):
        done = run_cli(*command, cwd=tmp_path)
        assert "pip install 'tracemap[torch]'" in done.stderr
        assert done.stderr.endswith("[tool-missing]\n")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_other_commands_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(zipped())
    done = run_cli("lower", "model.pt", "--pipeline", "builtin.module(cse)", cwd=tmp_path)
    assert "model.pt: is weights or a PyTorch program, not MLIR; " in done.stderr


@pytest.mark.parametrize("name", ["model.onnx", "model.pb", "model", "model.pt"])
@pytest.mark.parametrize("data", [MLP, b"ML\xefR\x0d\0\0\0", b"// \x00", b"module {}"])
def test_mlir_may_be_called_anything(name: str, data: bytes) -> None:
    assert format_fault(data, name) == "" or (data == b"// \x00" and name != "model")


@pytest.mark.parametrize("path", sorted((SAMPLES / "models").glob("*.mlir")), ids=lambda path: path.stem)
def test_models_are_models(path: Path) -> None:
    assert format_fault(path.read_bytes(), path.name) == ""
