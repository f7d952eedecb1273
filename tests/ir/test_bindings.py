"""IREE's bindings: parts that only builders of modules need are imported where they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run_python(text: str) -> None:
    subprocess.run([sys.executable, "-c", text], check=True)


def test_numpy_is_imported_only_where_the_bindings_use_it() -> None:
    run_python("""
import sys
from tracemap.ir.parsing import ir
assert not any(name.startswith("iree") for name in sys.modules)
with ir.Context() as context:
    assert "numpy" not in sys.modules
    built = ir.AttrBuilder.get("F64ElementsAttr")([1.5, 2.5], context)
assert str(built) == "dense<[1.500000e+00, 2.500000e+00]> : tensor<2xf64>"
import numpy
assert numpy.__file__ and list(numpy.asarray(built)) == [1.5, 2.5]
""")


def test_numpy_that_is_there_is_left_alone() -> None:
    run_python("""
import sys, numpy
from tracemap.ir.parsing import ir
from iree.compiler import ir as same
assert sys.modules["numpy"] is numpy and same.Module is ir.Module and same.np is numpy
""")


@pytest.mark.parametrize("use", ["numpy.array([1])", "numpy.linalg.norm([3.0])"])
def test_who_imports_numpy_while_the_bindings_are_imported_gets_it(use: str) -> None:
    run_python(f"""
import sys
from tracemap.ir import parsing as bindings
with bindings._lazy_import("numpy"):
    import numpy
    assert type(numpy) is bindings._LazyModule
    {use}
    assert type(sys.modules["numpy"]) is not bindings._LazyModule
import numpy
assert type(numpy) is not bindings._LazyModule
""")
