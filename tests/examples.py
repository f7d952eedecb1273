"""The examples in the docstrings of the Python API, and those of the rooms' own functions, as doctest reads them.

`python -m tests.examples FOLDER` runs the examples of the API, each in a copy of the folder: they are of `model.mlir`
in it, its bundle `model.tracemap` with remarks, its runs `run.parquet` and `again.parquet`, the store `nightly` with
both, and `edited.mlir`, the configuration of its first kernel.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import tracemap
from tests.support import ROOT
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME

RESULTS = {
    "attribution": ("Attribution", "Cost", "Profile"),
    "bundle": ("Bundle",),
    "comparison": ("Bench", "Comparison"),
    "run": ("Recording", "Run"),
    "sql": ("QueryResult",),
}
"""By their files the classes of `tracemap/results/` that the API returns."""
NOT_CALLED = ("of",)
"""What makes results of those of the rooms below: nobody else calls it."""
NEEDS = {"to_arrow": "pyarrow", "to_pandas": "pandas", "iree.runtime": "the hook"}
"""A word of an example, and what it needs besides what the package always brings."""


def api() -> dict[str, str]:
    """By its name the docstring of each function, class, method and property that users of Python touch; "": none."""
    named = {name: getattr(tracemap, name) for name in tracemap.__all__ if not name.startswith("__")}
    for file, kinds in RESULTS.items():
        module = importlib.import_module(f"tracemap.results.{file}")
        for kind in kinds:
            named[kind] = vars(module)[kind]
            named |= {f"{kind}.{name}": value for name, value in _members(named[kind])}
    return {name: inspect.getdoc(value) or "" for name, value in named.items()}


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """Public methods and properties of a class and its bases of tracemap, each as the first class of these has it."""
    seen = set(NOT_CALLED)
    for base in kind.__mro__:
        for name, value in vars(base).items() if base.__module__.startswith("tracemap.") else ():
            if not name.startswith("_") and name not in seen and (inspect.isfunction(value) or _is_property(value)):
                seen.add(name)
                yield name, value


def _is_property(value: object) -> bool:
    return isinstance(value, property)


def own_modules() -> list[ModuleType]:
    """The modules of the package with an example in any docstring."""
    files = [path for path in sorted((ROOT / "tracemap").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    return [importlib.import_module(name) for name in names]


def lacking() -> set[str]:
    """Which words of `NEEDS` an example cannot have here."""
    without = {word for word in ("to_arrow", "to_pandas") if importlib.util.find_spec(NEEDS[word]) is None}
    return without if (FOLDER / LIBRARY_NAME).is_file() else without | {"iree.runtime"}


def run_examples(names: dict[str, str], folder: Path) -> tuple[int, list[str]]:
    """Run examples, each in a copy of a folder; returns how many failed, and the names of those that were left out."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    without, left_out = lacking(), []
    for name, text in names.items():
        if any(word in text for word in without):
            left_out.append(name)
            continue
        with tempfile.TemporaryDirectory() as place:
            shutil.copytree(folder, place, dirs_exist_ok=True)
            with contextlib.chdir(place):
                runner.run(parser.get_doctest(text, {"tracemap": tracemap}, name, None, None), clear_globs=False)
    return runner.failures, left_out


def main() -> int:
    """Run the examples of the API in copies of the folder that is named; the last line says what was left out."""
    os.environ.setdefault("NO_COLOR", "1")
    failed, left_out = run_examples(api(), Path(sys.argv[1]))
    print(" ".join(left_out))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
