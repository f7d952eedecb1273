"""Modules of torch as they are, where iree-turbine is installed."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tracemap
from tests.frontends.shares import share_on_lines_of
from tests.support import check_cli, run_cli
from tracemap.core.errors import InputInvalid
from tracemap.map.bundle import Bundle
from tracemap.map.model import Op

torch = pytest.importorskip("torch", reason="torch is not installed: make frontends")
pytest.importorskip("iree.turbine", reason="iree-turbine is not installed: make frontends")
programs = pytest.importorskip("tests.frontends.torch_programs")

# Of torch and iree-turbine, which speak of what they will do in releases to come.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_module_of_torch_from_its_arguments_to_its_lines(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = programs.Perceptron().eval()
    arguments = torch.randn(32, 96), torch.tensor(2.0)
    bundle = tracemap.build(module, *arguments, output=tmp_path / "a.tracemap")
    assert [each.name for each in bundle.graph.functions] == ["Perceptron"]
    call = bundle.kept_call()
    assert call is not None
    assert [each.name for each in call.inputs] == ["x", "scale"]
    right = module(*arguments).detach().numpy()
    np.testing.assert_allclose(tracemap.run(bundle)[0], right, rtol=1e-4, atol=1e-6)
    result = tracemap.attribute(tracemap.record(bundle, iterations=20), bundle)
    assert share_on_lines_of(programs.__file__, result, bundle) >= 0.95
    assert {"layers/0", "layers/2"} <= {"/".join(op.scope) for op in bundle.graph.ops}
    assert not any(hasattr(each, "_turbine_external_tensor_trait") for each in module.parameters())


def test_an_exported_program_knows_its_inputs(tmp_path: Path) -> None:
    module = programs.Perceptron().eval()
    arguments = torch.randn(8, 96), torch.tensor(1.0)
    exported = torch.export.export(module, arguments)
    bundle = tracemap.build(exported, output=tmp_path / "a.tracemap")
    right = module(*arguments).detach().numpy()
    np.testing.assert_allclose(tracemap.run(bundle)[0], right, rtol=1e-4, atol=1e-6)
    with pytest.raises(InputInvalid, match="has 2 tensor inputs"):
        tracemap.build(exported, arguments[0], output=tmp_path / "b.tracemap")


def test_shared_weights_buffers_names_of_arguments_and_open_sizes(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module, picture, word = programs.Tied().eval(), torch.randn(2, 3, 8, 8), torch.tensor([1, 4])
    right = module(picture, word=word).detach().numpy()
    named = tracemap.build(module, picture, keywords={"word": word}, output=tmp_path / "a.tracemap")
    rows = torch.export.Dim("rows", min=2, max=64)
    sizes = {"picture": {0: rows}, "word": {0: rows}}
    exported = torch.export.export(module, (picture,), {"word": word}, dynamic_shapes=sizes)
    for bundle in (named, tracemap.build(exported, output=tmp_path / "b.tracemap")):
        call = bundle.kept_call()
        assert call is not None
        assert [each.name for each in call.inputs] == ["picture", "word"]
        np.testing.assert_allclose(tracemap.run(bundle)[0], right, rtol=1e-4, atol=1e-5)
        assert {"convolution", "norm", "words", "out"} <= {"/".join(op.scope) for op in torch_ops(bundle)}
    assert not any(hasattr(each, "_turbine_external_tensor_trait") for each in module.parameters())


def line_of(text: str) -> int:
    """The number of the only line of the programs that has this text."""
    lines = Path(programs.__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return number


def torch_ops(bundle: Bundle) -> list[Op]:
    """The ops that a node of torch became, without numbers and the loads of parameters."""
    return [op for op in bundle.graph.ops if op.name.startswith("torch.aten.")]


@pytest.mark.parametrize("strict", [False, True], ids=["plain", "strict"])
@pytest.mark.parametrize("stored", [False, True], ids=["exported", "file"])
def test_the_stack_of_modules_is_the_scope(strict: bool, stored: bool, tmp_path: Path) -> None:
    """Of each node its modules and lines are compared with those that torch itself has of it."""
    torch.manual_seed(2)
    module, x = programs.Network().eval(), torch.randn(16, 64)
    exported = torch.export.export(module, (x,), strict=strict)
    metas = [dict(node.meta) for node in exported.graph.nodes]
    if stored:
        torch.export.save(exported, tmp_path / "network.pt2")
        check_cli("build", tmp_path / "network.pt2", "-o", tmp_path / "a.tracemap")
        bundle = tracemap.load(tmp_path / "a.tracemap")
    else:
        bundle = tracemap.build(exported, output=tmp_path / "a.tracemap")
    assert [dict(node.meta) for node in exported.graph.nodes] == metas
    assert [each.name for each in bundle.graph.functions] == ["network" if stored else "exported"]
    np.testing.assert_allclose(tracemap.run(bundle)[0], module(x).detach().numpy(), rtol=1e-3, atol=1e-5)
    wanted = [
        "/".join(next(reversed(node.meta["nn_module_stack"].values()))[0].split("."))
        for node in exported.graph.nodes
        if node.op == "call_function" and "getitem" not in node.name
    ]
    ops = torch_ops(bundle)
    assert ["/".join(op.scope) for op in ops] == wanted
    assert {"layers/0/attn", "layers/1/attn/qkv", "layers/1/activation", "layers/0", ""} <= set(wanted)
    (first, _) = [op for op in ops if op.name == "torch.aten.softmax.int"]
    at = [(frame.line, frame.function) for frame in first.frames if frame.file == programs.__file__]
    softmax, attn, loop = line_of("torch.softmax(q @"), line_of("self.attn(self.norm(x))"), line_of("x = layer(x)")
    assert at == [(softmax, "forward"), (attn, "forward"), (loop, "forward")]
    result = tracemap.attribute(tracemap.record(bundle, iterations=20), bundle)
    assert share_on_lines_of(programs.__file__, result, bundle) >= 0.95
    loads = [op for op in bundle.graph.ops if op.name == "util.global.load"]
    assert {"layers/0/attn/out", "layers/1/norm", ""} <= {"/".join(op.scope) for op in loads}
    assert not any(op.frames for op in loads)  # the importer gives them the place of the first node


def test_files_that_torch_does_not_read(tmp_path: Path) -> None:
    target = tmp_path / "a.tracemap"
    program = torch.export.export(programs.Perceptron().eval(), (torch.randn(8, 96), torch.tensor(1.0)))
    torch.export.save(program, tmp_path / "whole.pt2")
    (tmp_path / "half.pt2").write_bytes((tmp_path / "whole.pt2").read_bytes()[:3000])
    with_pickle(tmp_path / "whole.pt2", tmp_path / "evil.pt2", tmp_path / "ran")
    for name in ("half.pt2", "evil.pt2"):
        done = run_cli("build", tmp_path / name, "-o", target)
        assert done.stderr.startswith(f"tracemap: error: {name}: torch cannot read it"), done.stderr
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not target.exists()
    assert not (tmp_path / "ran").exists()


class Evil:
    """Makes a folder where it is read."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[object, ...]:
        return Path.mkdir, (self.place,)


def with_pickle(program: Path, target: Path, place: Path) -> None:
    """Write a program again with example inputs that do something where they are read."""
    evil = io.BytesIO()
    torch.save(((Evil(place),), {}), evil)
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        (inputs,) = [name for name in old.namelist() if "sample_inputs" in name]
        for name in old.namelist():
            new.writestr(name, evil.getvalue() if name == inputs else old.read(name))
