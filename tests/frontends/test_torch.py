"""Modules of torch as they are, where iree-turbine is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tracemap
from tests.frontends.shares import share_on_lines_of
from tracemap.errors import InputInvalid

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
    with pytest.raises(InputInvalid, match="takes 2 tensors"):
        tracemap.build(exported, arguments[0], output=tmp_path / "b.tracemap")
