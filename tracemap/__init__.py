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
    from tracemap.options.build import BuildOptions
    from tracemap.options.record import RecordOptions

__all__ = ["__version__", "attribute", "build", "load", "lower", "record"]


def build(
    model: str | Path, output: str | Path | None = None, options: BuildOptions | None = None, **changes: object
) -> Bundle:
    """Compile a model and write its bundle, as `tracemap build` does; the default output is the model's name.

    Args:
        model: MLIR text or bytecode.
        output: the bundle.
        options: what `tracemap build` can be asked; None: its defaults.
        changes: options by name, such as `device="vulkan"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.mapping.build.build` does.
        TypeError: there is no such option.
    """
    from tracemap.options.build import BuildOptions
    from tracemap.options.option import chosen
    from tracemap.session import build as build_file

    return build_file(str(model), chosen(BuildOptions, options, {**changes, **_given(output)}))


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
        tracemap.errors.TracemapError: as `tracemap.mapping.lowering.pipelines.lower` does.
    """
    from tracemap.session import lower as lower_file

    return lower_file(str(model), tuple(pipelines))


def record(
    bundle: Bundle, output: str | Path | None = None, options: RecordOptions | None = None, **changes: object
) -> Recorded:
    """Run a bundle's module and write a run, as `tracemap record` does; `.path` of the result is the run.

    Args:
        bundle: what `build` or `load` returned.
        output: the run; None: the next free number in the bundle.
        options: what `tracemap record` can be asked; None: its defaults.
        changes: options by name, such as `iterations=50, sample_hz=251`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.capture.record.record` does.
        TypeError: there is no such option.
    """
    from tracemap.options.option import chosen
    from tracemap.options.record import RecordOptions
    from tracemap.session import record as record_bundle

    return record_bundle(bundle, chosen(RecordOptions, options, {**changes, **_given(output)}))


def _given(output: str | Path | None) -> dict[str, object]:
    return {} if output is None else {"output": output}


def attribute(
    runs: Sequence[str | Path], bundle: Bundle | None = None, *, rule: str = "", allow_mismatch: bool = False
) -> Attribution:
    """Join runs onto their bundle, as `tracemap attribute` does; without a bundle it is found from the first run.

    Without a rule the runs decide, as `--rule` says.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.attribution.attribute.attribute` does.
        ValueError: no such rule.
    """
    from tracemap.options.attribute import Rule
    from tracemap.session import attribute as attribute_runs

    chosen = Rule(rule) if rule else None
    return attribute_runs([Path(run) for run in runs], bundle, chosen, allow_mismatch=allow_mismatch).attribution
