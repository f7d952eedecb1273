"""A model or other file in place of a run is named as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.test_errors import refused
from tests.support import SAMPLES
from tracemap.core.errors import RunInvalid
from tracemap.runs.readers.formats import reader_of

_MODELS = sorted((SAMPLES / "models").glob("*.mlir"))
_IS_MODEL = r": is a model, not a run; build it first: tracemap build .*, then record its bundle$"


@pytest.mark.parametrize("model", _MODELS, ids=lambda model: model.stem)
def test_a_model_is_known_whatever_it_is_called(model: Path, tmp_path: Path) -> None:
    named = tmp_path / "run.csv"
    named.write_bytes(model.read_bytes())
    with pytest.raises(RunInvalid, match=_IS_MODEL):
        reader_of(named)


@pytest.mark.parametrize(
    "content",
    [
        b"ML\xefR\x0dMLIR21.0.0\0\x1f\x07",
        b'"builtin.module"() ({\n}) : () -> ()\n',
        b'"builtin.module"() <{sym_name = "m"}> ({\n}) : () -> ()\n',
        b"// a comment, with a comma\n\n// another\n  module attributes {a.b} {\n}\n",
        b"#map = affine_map<(d0) -> (d0)>\n",
        b"!v = tensor<4xf32>\n",
        b"{-#\n  dialect_resources: {\n",
        b"util.func public @f() {\n",
        b"util.global private mutable @state = dense<0.0> : tensor<2xf32>\n",
    ],
)
def test_beginnings_of_models(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RunInvalid, match=_IS_MODEL):
        reader_of(tmp_path / "x")


@pytest.mark.parametrize("name", ["m.mlir", "m.ONNX", "m.mlirbc"])
@pytest.mark.parametrize("content", [bytes(range(256)), b"\x08\x07\x12\x07pytorch", b"%0 = what, ever\n", b""])
def test_a_model_is_known_by_its_name(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunInvalid, match=_IS_MODEL):
        reader_of(tmp_path / name)


@pytest.mark.parametrize(
    "content", [bytes(range(256)), b"{\x01\x02", b"\x7fELF\x02\x01", b"abcdef\0", b"\xb6\x8a\n" * 9]
)
def test_bytes_that_are_no_text_are_no_table(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(RunInvalid, match=r"x\.csv: is not a table, because it is not text; pass a run"):
        reader_of(tmp_path / "x.csv")


@pytest.mark.parametrize("name", ["run.csv", "run.mlir", "run.onnx"])
@pytest.mark.parametrize(
    "content",
    [
        b"kernel,duration_ns\nf,5\n",
        b"module,kernel,duration_ns\nm,f,5\n",
        b"kernel,duration_ns\nf\x01\0,5\n",
        "module,name,durée\nm,f,5\n".encode("latin-1"),
        b"PAR1\x15\x04\x15",
        "kernel,duration_ns\nf,5\n".encode("utf-16"),
    ],
)
def test_tables_stay_tables(name: str, content: bytes, tmp_path: Path) -> None:
    """A name is nothing against what is in the file, and a cell is not the file."""
    (tmp_path / name).write_bytes(content)
    assert reader_of(tmp_path / name) is None


def test_models_in_the_place_of_runs(tmp_path: Path) -> None:
    for name in ("hand_mlp.mlir", "jax_mlp.mlir"):
        (tmp_path / name).write_bytes((SAMPLES / "models" / name).read_bytes())
    (tmp_path / "g.onnx").write_bytes(bytes(range(256)))
    for command in (("diff", "hand_mlp.mlir", "jax_mlp.mlir"), ("attribute", "hand_mlp.mlir"), ("attribute", "g.onnx")):
        said = refused("run-invalid", *command, cwd=tmp_path)
        assert said.startswith(f"{command[1]}: is a model, not a run; build it first"), said
