"""Bundles and runs of native code, made once for all tests that only read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.support import flags, needs_tools, program
from tests.support import check_cli, made_once


@pytest.fixture(scope="session")
def native(made: Path) -> Callable[[str, str], Path]:
    """Makes, once, the bundle of a program by a pipeline; tests must not change it."""

    def build(name: str, pipeline: str) -> Path:
        needs_tools()
        bundle = made / f"native-{name}-{pipeline}.tracemap"
        with made_once(bundle) as missing:
            if missing:
                check_cli("build", program(name), *flags(pipeline), "-o", bundle)
        return bundle

    return build


@pytest.fixture(scope="session")
def native_run(made: Path, native: Callable[[str, str], Path]) -> Callable[[str, str], Path]:
    """Makes, once, a short run of such a bundle; tests must not change it."""

    def record(name: str, pipeline: str) -> Path:
        run = made / f"native-{name}-{pipeline}.parquet"
        bundle = native(name, pipeline)
        with made_once(run) as missing:
            if missing:
                check_cli("record", bundle, "--seconds", "0.5", "-o", run)
        return run

    return record
