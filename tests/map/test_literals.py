"""Large literals in a model's text: stored once, named at their place, restored for the compiler."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import check_cli, json_cli, run_cli
from tracemap.core.errors import BundleInvalid
from tracemap.map.bundle import load
from tracemap.map.map_json import MAX_LITERAL, extract_literals, restore_literals

SIZE = 96
"""Rows and columns of a weight: 36,864 bytes."""

PARTS = st.sampled_from(
    [
        '"0x' + "AB" * MAX_LITERAL + '"',
        'weight: "0x04000000' + "AB" * MAX_LITERAL + '"',
        '"' + "AB" * MAX_LITERAL + '"',
        '"0x' + "ab" * MAX_LITERAL + '"',
        '"0x' + "A" * (2 * MAX_LITERAL + 1) + '"',
        '"' + "é\\22" * MAX_LITERAL + '"',
        "dense<[" + "1.0, -2.5e-3,\n " * MAX_LITERAL + "]>",
        "dense<[[1, 2]]>",
        '// a comment with one " in it\n',
        "\n",
        '"short"',
        "%0 = op ",
        " … in literals/ ",
        "\udc80",
        "\r\n",
    ]
)


@given(st.lists(PARTS).map("".join), st.dictionaries(st.integers(1, 9), st.integers(1, 3000)))
def test_restored_texts_equal_the_originals(text: str, last_columns: dict[int, int]) -> None:
    shown, contents = extract_literals(text, last_columns)
    assert shown.count("\n") == text.count("\n")
    assert len(shown) <= len(text)
    assert restore_literals(shown, dict(contents).__getitem__) == text


def test_ops_keep_their_positions() -> None:
    """A literal before an op on its line would move that op."""
    literal = '"0x' + "00" * MAX_LITERAL + '"'
    text = f"%0 = a {literal}\n%1 = a {literal} %2 = b\n"
    shown, contents = extract_literals(text, {1: 6, 2: text.splitlines()[1].index("b") + 1})
    assert len(contents) == 1
    assert shown.splitlines()[1] == text.splitlines()[1]
    assert len(shown.splitlines()[0]) < 150


def weighted(tmp_path: Path, *, resource: bool) -> Path:
    """A model with eight weights in its text, each used in a matrix product."""
    dice = np.random.default_rng(3)
    kind = f"tensor<{SIZE}x{SIZE}xf32>"
    weights = [dice.random((SIZE, SIZE), np.float32).tobytes().hex().upper() for _ in range(8)]
    lines = [f"func.func @main(%m: {kind}) -> {kind} {{"]
    last = "%m"
    for index, weight in enumerate(weights):
        value = f"dense_resource<w{index}>" if resource else f'dense<"0x{weight}">'
        lines.append(f"  %w{index} = stablehlo.constant {value} : {kind}")
        product = f"stablehlo.dot_general {last}, %w{index}, contracting_dims = [1] x [0]"
        lines += [
            f"  %m{index} = {product} : ({kind}, {kind}) -> {kind}",
            f"  %t{index} = stablehlo.tanh %m{index} : {kind}",
        ]
        last = f"%t{index}"
    lines += [f"  return {last} : {kind}", "}"]
    if resource:
        held = ",\n".join(f'    w{index}: "0x04000000{weight}"' for index, weight in enumerate(weights))
        lines.append(f"{{-# dialect_resources: {{ builtin: {{\n{held}\n}} }} #-}}")
    path = tmp_path / "weighted.mlir"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.long
@pytest.mark.parametrize("resource", [False, True])
def test_weights_are_stored_once_and_not_shown(tmp_path: Path, *, resource: bool) -> None:
    model, target, page = weighted(tmp_path, resource=resource), tmp_path / "w.tracemap", tmp_path / "page.html"
    check_cli("build", model, "-o", target)
    bundle = load(target)
    assert bundle.model() == model.read_bytes()
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    weights = 8 * 4 * SIZE * SIZE
    assert size < 2.2 * weights + 300_000  # once in the module, which runs, and once beside it
    check_cli("report", target, "-o", page)
    assert page.stat().st_size < 500_000
    assert re.search(r"… ?36,864 bytes in literals/[0-9a-f]{64}", page.read_text(encoding="utf-8"))
    ops = {op["name"]: op for op in json_cli("show", target)["ops"]}
    line = model.read_text(encoding="utf-8").splitlines()[ops["stablehlo.tanh"]["line"] - 1]
    assert line[ops["stablehlo.tanh"]["column"] - 1 :].startswith("stablehlo.tanh")


@pytest.mark.long
def test_compilers_get_the_weights_again(tmp_path: Path) -> None:
    """The same model is compiled again, and simulated; without a weight both are refused in a sentence."""
    target = tmp_path / "w.tracemap"
    check_cli("build", weighted(tmp_path, resource=False), "-o", target)
    check_cli("audit", target, "--pass", "op7")
    if shutil.which("valgrind"):
        check_cli("record", target, "--iterations", "1", "--cache-sim", "-o", tmp_path / "run.csv")
    # Texts of kernels have literals of their own: what some processors can do takes many words.
    of_model = re.findall(
        r"literals/([0-9a-f]{64}[.a-z]*)", (target / "source" / "weighted.mlir").read_text(encoding="utf-8")
    )
    lost = target / "literals" / random.Random(1).choice(of_model)
    lost.unlink()
    with pytest.raises(BundleInvalid, match="a literal of a text cannot be read"):
        load(target).model()
    done = run_cli("audit", target, "--pass", "op7")
    assert done.returncode == 2
    assert lost.name in done.stderr
