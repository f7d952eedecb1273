"""Fixtures: bundles and runs of the samples, each made once in a session, also where processes test in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.gpu import OnGpu
from tests.support import ROOT, SAMPLES, Corpus, check_cli, made_once

# A busy machine is slow; that is no defect of what is tested. What chance finds must not stand in the way of a change
# that has nothing to do with it: every change is tried with the same examples, `make thorough` tries others.
settings.register_profile("thorough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("busy", settings.get_profile("thorough"), derandomize=True)
settings.load_profile("busy")

# Every test compiles: none gets the bundle that another one has built.
os.environ["TRACEMAP_CACHE_DIR"] = ""

Built = Callable[[str], Path]
"""Model -> its bundle."""
Recorded = Callable[..., Path]
"""Flag file, suffix (`.csv` or `.parquet`) -> its run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-gold`: write golden files anew instead of comparing with them."""
    parser.addoption("--update-gold", action="store_true", help="write the golden files anew")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a test `long` but those that its mark `few(count)` keeps, evenly spaced from first to last."""
    cases_of: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None:
            cases_of.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in cases_of.values():
        mark = cases[0].get_closest_marker("few")
        assert mark is not None
        (count,) = mark.args
        kept = {round(number * (len(cases) - 1) / max(count - 1, 1)) for number in range(count)}
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of what tests share; parallel workers have the same."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "made"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def samples() -> Corpus:
    """The models that the repository brings."""
    return Corpus(SAMPLES)


@pytest.fixture(scope="session")
def built(made: Path, samples: Corpus) -> Built:
    """Makes, once, the bundle of a sample model; tests must not change it."""

    def build(model: str) -> Path:
        bundle = made / f"{model}.tracemap"
        with made_once(bundle) as missing:
            if missing:
                samples.build(model, bundle)
        return bundle

    return build


@pytest.fixture(scope="session")
def several(made: Path) -> Path:
    """The bundle of the functions of several kinds; tests must not change it."""
    bundle = made / "several.tracemap"
    with made_once(bundle) as missing:
        if missing:
            check_cli("build", ROOT / "tests" / "programs" / "several.mlir", "-o", bundle)
    return bundle


@pytest.fixture(scope="session")
def on_gpu(made: Path) -> OnGpu:
    """Makes, once, the bundle of a sample model for CUDA."""

    def build(model: str) -> Path:
        bundle = made / f"{model}-cuda.tracemap"
        with made_once(bundle) as missing:
            if missing:
                source = SAMPLES / "models" / f"{model}.mlir"
                check_cli("build", source, "--device", "cuda", "-o", bundle, "--", "--iree-cuda-target=sm_80")
        return bundle

    return build


FIXED = ("--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu", "--iree-llvmcpu-target-cpu=x86-64-v3")
"""A processor whose kernels are the same wherever they are compiled."""


@pytest.fixture(scope="session")
def fixed(made: Path) -> Built:
    """Makes, once, the bundle of a sample for one certain processor: runs that are kept are of it."""
    return _for_one_processor(made, "fixed")


@pytest.fixture(scope="session")
def remarked(made: Path) -> Built:
    """The same with the compiler's remarks."""
    return _for_one_processor(made, "remarked", "--remarks")


def _for_one_processor(made: Path, name: str, *options: str) -> Built:
    def build(model: str) -> Path:
        bundle = made / f"{model}-{name}.tracemap"
        with made_once(bundle) as missing:
            if missing:
                sources = ("--source-root", SAMPLES / "sources")
                file = SAMPLES / "models" / f"{model}.mlir"
                check_cli("build", file, *sources, *options, "-o", bundle, "--", *FIXED)
        return bundle

    return build


@pytest.fixture(scope="session")
def recorded(made: Path, samples: Corpus, built: Built) -> Recorded:
    """Makes, once, a run of a sample's flag file: three iterations after a warm-up; tests must not change it."""

    def record(flags: str, suffix: str = ".parquet") -> Path:
        run = made / f"{flags}{suffix}"
        bundle = built(samples.model_of(flags))
        with made_once(run) as missing:
            if missing:
                samples.record(flags, bundle, run)
        return run

    return record
