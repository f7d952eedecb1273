"""The bundle on disk, and queries of the map."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import ValidationError

from tests.builders import graph, op, site
from tests.conftest import Built
from tests.schemas import validator
from tests.support import long_where
from tracemap.core.codec import decode_document
from tracemap.core.codec import encode as encode_record
from tracemap.core.errors import BundleInvalid, BundleVersion, QueryInvalid, TargetExists, TargetUnwritable
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import Bundle, BundleFiles, load, store
from tracemap.map.map_json import decode, encode
from tracemap.map.model import SourceFile, TraceGraph
from tracemap.map.query import same_file, select


def example() -> TraceGraph:
    return graph(
        [
            op(1, 2, name="func.func"),
            op(2, 3, scope=("h0", "attn"), frames=[("pkg/layers.py", 40), ("main.py", 7)]),
            op(3, 4, scope=("h0", "ffn")),
            op(4, UNKNOWN, scope=("h1",), file=UNKNOWN, function=UNKNOWN),
            op(5, 9, name="func.call"),
        ],
        [site(0, 2, 3, kernel="k0", path=[5]), site(1, 4, kernel="k1"), site(2, 4, kernel="k0", initializer=True)],
    )


def stored(tmp_path: Path, target: Path, *, force: bool = False, sources: dict[str, str] | None = None) -> Bundle:
    module = tmp_path / "m.vmfb"
    module.write_bytes(b"module")
    return store(target, example(), BundleFiles(module, sources or {"model.mlir": "func\r\n"}), force=force)


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["hand_loop", "hand_multifunc", "jax_gpt2_4l_scan", "torch_resnet18_small"])
def test_real_maps_fit_their_schema(model: str, built: Built) -> None:
    data = json.loads((built(model) / "map.json").read_text(encoding="utf-8"))
    validator("map").validate(data)
    del data["sites"]["members"]["items"]["path"]
    with pytest.raises(ValidationError):
        validator("map").validate(data)


@pytest.mark.parametrize(
    "model",
    long_where(["hand_loop", "hand_dynamic", "jax_gpt2_4l", "torch_resnet18_small"], lambda number, _: number == 3),
)
def test_real_maps_survive_the_round_trip(model: str, built: Built) -> None:
    text = (built(model) / "map.json").read_bytes()
    again = decode(text)
    assert encode(again) == text
    assert decode_document(encode_record(again), TraceGraph) == again


def test_a_stored_bundle_opens_as_it_was(tmp_path: Path) -> None:
    bundle = stored(tmp_path, tmp_path / "a.tracemap")
    opened = load(bundle.path)
    assert opened.graph == example()
    assert opened.map_sha256 == bundle.map_sha256
    assert opened.module_path.read_bytes() == b"module"
    assert opened.source_text(SourceFile("model.mlir", "model.mlir", "mlir")) == "func\r\n"
    assert opened.source_text(SourceFile("gone.py", "gone.py", "python")) == ""


def test_a_bundle_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "a.tracemap"
    stored(tmp_path, target)
    (target / "mark").touch()
    stored(tmp_path, target)
    assert not (target / "mark").exists()
    (target / "map.json").write_text("damaged")
    with pytest.raises(TargetExists, match="exists and is not a tracemap bundle; remove it"):
        stored(tmp_path, target)
    stored(tmp_path, target, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tracemap", "m.vmfb"] or not (
        [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    )


def test_force_replaces_bundles_only(tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter1.txt").write_text("words")
    with pytest.raises(TargetExists, match="exists and is not a tracemap bundle; remove it"):
        stored(tmp_path, precious, force=True)
    assert (precious / "chapter1.txt").read_text() == "words"
    with pytest.raises(TargetUnwritable, match="does not exist"):
        stored(tmp_path, tmp_path / "no" / "such" / "a.tracemap")


def test_maps_of_other_versions_and_damaged_maps_are_rejected(tmp_path: Path) -> None:
    bundle = stored(tmp_path, tmp_path / "a.tracemap")
    data = json.loads(encode(example()))
    for spoilt, error in [
        ({**data, "schema_version": 99}, BundleVersion),
        ({key: value for key, value in data.items() if key != "sites"}, BundleInvalid),
        ({**data, "ops": [{"id": 3}]}, BundleInvalid),
        ({**data, "ops": {"id": [3]}}, BundleInvalid),
        ([], BundleInvalid),
    ]:
        (bundle.path / "map.json").write_text(json.dumps(spoilt))
        with pytest.raises(error):
            load(bundle.path)
    (bundle.path / "map.json").write_text("{")
    with pytest.raises(BundleInvalid, match="not JSON"):
        load(bundle.path)
    with pytest.raises(BundleInvalid, match="is a folder, but not a bundle, since it has no map"):
        load(tmp_path)


def test_sources_outside_of_the_bundle_are_not_read(tmp_path: Path) -> None:
    bundle = stored(tmp_path, tmp_path / "a.tracemap")
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(BundleInvalid, match="outside"):
        bundle.source_text(SourceFile("x", "../../secret", "mlir"))
    with pytest.raises(BundleInvalid, match="outside"):
        bundle.source_text(SourceFile("x", str(tmp_path / "secret"), "mlir"))


@pytest.mark.parametrize("name", ["x" * 5000, "zero\0byte", "."])
def test_texts_that_no_file_can_hold_are_refused(name: str, tmp_path: Path) -> None:
    bundle = stored(tmp_path, tmp_path / "a.tracemap")
    with pytest.raises(BundleInvalid, match=r"cannot be read|is a folder, not a file"):
        bundle.source_text(SourceFile("x", name, "mlir"))


def test_files_with_names_outside_of_unicode_are_kept(tmp_path: Path) -> None:
    """Such a name has half surrogate pairs, which neither JSON nor a file system of other rules can hold."""
    name = b"caf\xe9.mlir".decode(errors="surrogateescape")
    source = SourceFile(name, name, "mlir")
    (tmp_path / "m.vmfb").write_bytes(b"module")
    made = graph([op(1, 2, file=name)], sources=[source])
    bundle = store(tmp_path / "a.tracemap", made, BundleFiles(tmp_path / "m.vmfb", {name: "text"}), force=False)
    opened = load(bundle.path)
    assert opened.graph.ops[0].file == opened.graph.sources[0].name == "caf\\udce9.mlir"
    assert opened.source_text(opened.graph.sources[0]) == bundle.source_text(source) == "text"


@pytest.mark.parametrize(
    ("what", "ops", "sites", "kernels"),
    [
        ("op2", ["op2", "op3"], ["site0"], ["k0"]),
        ("site1", ["op4"], ["site1"], ["k1"]),
        ("k0", ["op2", "op3", "op4"], ["site0", "site2"], ["k0"]),
        ("model.mlir:4", ["op2", "op3"], ["site0"], ["k0"]),
        ("layers.py:40", ["op2", "op3"], ["site0"], ["k0"]),
        ("x/pkg/layers.py:40", ["op2", "op3"], ["site0"], ["k0"]),
        ("h0", ["op2", "op3"], ["site0"], ["k0"]),
        ("h1", ["op4"], ["site1", "site2"], ["k0", "k1"]),
        ("op5", ["op2", "op3", "op5"], ["site0"], ["k0"]),
        ("op1", ["op1"], [], []),
    ],
)
def test_selections(what: str, ops: list[str], sites: list[str], kernels: list[str]) -> None:
    found = select(example(), what)
    assert [each.id for each in found.ops] == ops
    assert [each.id for each in found.sites] == sites
    assert [each.name for each in found.kernels] == kernels


@pytest.mark.parametrize(
    ("what", "hint"),
    [
        *[(what, "FILE:LINE") for what in ("nothing", ":3", "", "/")],
        ("op99", r"its ids are op1 to op\d+, and the nearest is op\d+ \("),
        ("site99", r"its ids are site0 to site2, and the nearest is site2$"),
        ("elsewhere.c:99", r"in a file of this name; the files are model.mlir, "),
        ("model.mlr:4", r"did you mean model.mlir:4\?"),
        ("h0/at", r"did you mean h0/?.*\?"),
    ],
)
def test_an_unknown_name_is_an_error(what: str, hint: str) -> None:
    with pytest.raises(QueryInvalid, match=hint):
        select(example(), what)


def test_a_line_inside_of_an_op_leads_to_it() -> None:
    """Operations of a region are no ops of the map."""
    _, last = max((op.line, op.id) for op in example().ops if op.file == "model.mlir" and isinstance(op.line, int))
    with pytest.raises(QueryInvalid, match=rf"no op of the map begins on this line; the nearest .* \({last} "):
        select(example(), "model.mlir:99")


def test_files_match_by_whole_components() -> None:
    assert same_file("a/b.py", "b.py")
    assert not same_file("a/b.py", "xb.py")
    assert not same_file("a/b.py", "c/b.py")


def test_links_lead_from_ops_to_kernels() -> None:
    def sites(name: str) -> list[str]:
        return [site.id for site in select(example(), name).sites]

    assert sites("op5") == ["site0"]
    assert sites("op4") == ["site1", "site2"]
    assert sites("k0") == ["site0", "site2"]
