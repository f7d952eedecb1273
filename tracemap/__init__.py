"""tracemap: which of my operations, on which line of my model, costs this time and these cache misses?

The Python API; it returns the objects that the command line prints. Example:

    import tracemap

    bundle = tracemap.build("model.mlir")
    run = tracemap.record(bundle, iterations=50)
    result = tracemap.attribute([run.path], bundle)
    for op in result.ops:
        print(bundle.graph.op_by_id[op.op].line, op.metrics["cpu_ns"].attributed)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap._version import __version__

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.capture.record import Recorded
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.lowering import Lowering

__all__ = ["__version__", "attribute", "build", "load", "lower", "record"]


def build(
    model: str | Path,
    output: str | Path | None = None,
    *,
    device: str = "local",
    flags: Sequence[str] = (),
    source_roots: Sequence[str | Path] = (),
    force: bool = False,
) -> Bundle:
    """Compile a model and write its bundle, as `tracemap build` does; the default output is the model's name.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.mapping.build.build` does.
    """
    from tracemap.session import BuildOptions
    from tracemap.session import build as build_file

    roots = tuple(Path(root) for root in source_roots)
    options = BuildOptions(device=device, flags=tuple(flags), source_roots=roots, force=force)
    return build_file(str(model), Path(output) if output is not None else None, options)


def load(path: str | Path) -> Bundle:
    """Open a bundle.

    Raises:
        tracemap.errors.BundleInvalid: it is not a bundle, or damaged.
        tracemap.errors.BundleVersion: it is of another format version.
    """
    from tracemap.graph import bundle

    return bundle.load(Path(path))


def lower(model: str | Path, pipelines: Sequence[str]) -> Lowering:
    """Run pass pipelines over a model, as `tracemap lower` does, and link its ops to the outermost loops of each stage.

    Args:
        model: MLIR text or bytecode.
        pipelines: as iree-opt takes them, `builtin.module(…)`; each goes on from the result of the one before.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.mapping.lowering.lower` does.
    """
    from tracemap.session import lower as lower_file

    return lower_file(str(model), tuple(pipelines))


def record(  # noqa: PLR0913 - the options of the command, by name
    bundle: Bundle,
    output: str | Path | None = None,
    *,
    function: str | None = None,
    inputs: Sequence[str] = (),
    dim: int | None = None,
    flagfile: str | Path | None = None,
    serial: bool = False,
    iterations: int = 20,
    warmup: int = 3,
    runtime_flags: Sequence[str] = (),
    counters: Sequence[str] = (),
    cache_sim: bool = False,
    cache_geometry: Sequence[str] = (),
    force: bool = False,
) -> Recorded:
    """Run a bundle's module and write a run, as `tracemap record` does; `.path` of the result is the run.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.capture.record.record` does.
    """
    from tracemap.session import RunOptions
    from tracemap.session import record as record_bundle
    from tracemap.units import UNKNOWN

    options = RunOptions(
        function=UNKNOWN if function is None else function,
        inputs=tuple(inputs),
        dim=UNKNOWN if dim is None else dim,
        flagfile=None if flagfile is None else Path(flagfile),
        serial=serial,
        iterations=iterations,
        warmup=warmup,
        runtime_flags=tuple(runtime_flags),
        counters=tuple(counters),
        cache_sim=cache_sim,
        cache_geometry=tuple(cache_geometry),
        force=force,
    )
    return record_bundle(bundle, None if output is None else Path(output), options)


def attribute(
    runs: Sequence[str | Path], bundle: Bundle | None = None, *, rule: str = "", allow_mismatch: bool = False
) -> Attribution:
    """Join runs onto their bundle, as `tracemap attribute` does; without a bundle it is found from the first run.

    Without a rule the runs decide, as `--rule` says.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.attribution.engine.attribute` does.
        ValueError: no such rule.
    """
    from tracemap.attribution.model import Rule
    from tracemap.session import attribute as attribute_runs

    chosen = Rule(rule) if rule else None
    return attribute_runs([Path(run) for run in runs], bundle, chosen, allow_mismatch=allow_mismatch).attribution
