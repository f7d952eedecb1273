"""Arguments of a wrong type get a sentence that says what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracemap
from tests.conftest import Built, Recorded
from tests.support import SAMPLES
from tracemap.core.errors import TracemapError, UsageInvalid

MODEL = SAMPLES / "models" / "hand_mlp.mlir"
Call = Callable[[Any, Any], object]

# What is called with a bundle and a run, and how the sentence begins.
CALLS: list[tuple[Call, str]] = [
    (lambda _bundle, _run: tracemap.load(5), "path is 5; it must be a path"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.lower(5, ["x"]), "model is 5; it must be a path, a string or bytes"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.record(5), "bundle is 5; it must be a bundle or its path"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.record(bundle, 5), "output is 5; it must be a path"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.record(bundle, inputs=5), "inputs is 5; it must be a list"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.record(bundle, inputs="x"), "inputs is 'x'; it must be a list"),
    (lambda bundle, _run: tracemap.record(bundle, options=5), "options is 5; it must be a record of the type Rec"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.recording(bundle, 5), "output is 5; it must be a path"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.run(5), "bundle is 5"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.benchmark(None), "bundle is None"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.bench(5), "bundle is 5"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.numerics(5), "bundle is 5"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.tune(b"x"), "bundle is b'x'"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.attribute(5), "a run is 5; it must be a run, a bundle or its path"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.attribute([5], bundle), "a run is 5"),  # type: ignore[list-item]
    (lambda _bundle, run: tracemap.attribute(run, 5), "bundle is 5"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.remarks(bundle, 5), "a run is 5"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.diff(bundle, 5), "a run is 5"),  # type: ignore[arg-type]
    (lambda bundle, run: tracemap.export(run, "pprof", 5, bundle), "output is 5"),  # type: ignore[arg-type]
    (lambda bundle, run: tracemap.export(run, 5, "x", bundle), "to is 5; it must be a string"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.report(bundle, "x.html", 5), "a run is 5"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.report(5, "x.html"), "bundle is 5"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.swap(bundle, 5, "n"), "kernels is 5; it must be a dictionary of names and files"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.swap(bundle, {"k": 5}, "n"), "a file in kernels is 5; it must be a path"),  # type: ignore[dict-item]
    (lambda bundle, _run: tracemap.swap(bundle, {5: "f"}, "n"), "a name in kernels is 5; it must be a string"),  # type: ignore[dict-item]
    (lambda _bundle, _run: tracemap.sweep(5), "operation is 5; it must be a string"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.store_list(5), "store is 5; it must be a string"),  # type: ignore[arg-type]
    (lambda _bundle, _run: tracemap.store_list(""), "store is empty; name a folder, or the address of a bucket"),
    (lambda _bundle, run: tracemap.store_add(run, ""), "store is empty"),
    (lambda bundle, _run: tracemap.load(bundle).op(5), "what is 5; it must be a string"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.load(bundle).scope(5), "path is 5; it must be a string"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.load(bundle).show(5), "output is 5; it must be a path"),  # type: ignore[arg-type]
    (lambda bundle, run: tracemap.attribute(run, bundle).op(5), "what is 5"),  # type: ignore[arg-type]
    (lambda bundle, run: tracemap.attribute(run, bundle).scope(5), "path is 5"),  # type: ignore[arg-type]
    (lambda bundle, _run: tracemap.diff(bundle, bundle).op(5), "what is 5"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "said"), CALLS, ids=[said[:40] + str(at) for at, (_, said) in enumerate(CALLS)])
def test_another_type_is_refused_in_one_sentence(
    call: Call, said: str, built: Built, recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageInvalid) as caught:
        call(built("hand_mlp"), recorded("hand_mlp"))
    assert str(caught.value).startswith(said)
    assert not list(tmp_path.iterdir())


def test_a_program_of_no_framework_is_refused() -> None:
    with pytest.raises(TracemapError):
        tracemap.build(5)


def test_what_is_said_of_a_value_is_short() -> None:
    with pytest.raises(UsageInvalid) as caught:
        tracemap.load(b"x" * 100_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200
