"""The sample notebook runs from its first cell to its last, and shows pictures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import SAMPLES

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: make frontends")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("jax", reason="JAX is not installed: make frontends")
pytest.importorskip("pandas", reason="pandas is not installed: make frontends")

# Of libraries of Jupyter, which speak of what they will do in releases to come.
pytestmark = pytest.mark.filterwarnings("ignore")


def html_of(cell: Any) -> list[str]:  # noqa: ANN401 - a cell of nbformat
    return ["".join(output["data"]["text/html"]) for output in cell["outputs"] if "text/html" in output.get("data", {})]


@pytest.mark.quick
def test_the_sample_notebook(tmp_path: Path) -> None:
    notebook = nbformat.read(SAMPLES / "jax_network.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [html for cell in notebook["cells"] if cell["cell_type"] == "code" for html in html_of(cell)]
    assert len(shown) == 5  # the bundle, the run, the costs, pandas' table, and what the magic recorded
    assert sum("<svg" in html for html in shown) == 3
    costs, recorded = shown[2], shown[4]
    assert "layer0" in costs
    assert "layer0" in recorded
    assert "median invocation" in costs
    assert (tmp_path / "network.tracemap" / "source").is_dir()
