"""tracemap: which of my operations, on which line of my model, costs this time and these cache misses?

The Python API: a function per command, which does what the command does and returns what the command would print.
Each takes the command's options, as a record (`tracemap.options`) or by the names of its fields; paths and choices may
be given as text, a model as its file, its MLIR text or its bytes, inputs as arrays. Example:

    import tracemap

    bundle = tracemap.build("model.mlir")
    run = tracemap.record(bundle, iterations=50, sample_hz=251)
    result = tracemap.attribute([run.path], bundle)
    for op in result.ops:
        print(op.name, op.line, op.metrics["cpu_ns"].attributed)

All raise kinds of `tracemap.errors.TracemapError`, and TypeError for an option that does not exist.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracemap._version import __version__
from tracemap.errors import TracemapError

if TYPE_CHECKING:
    from tracemap.attribution.model import Attribution
    from tracemap.capture.record import Recorded
    from tracemap.graph.bundle import Bundle
    from tracemap.graph.lowering import Lowering
    from tracemap.options.attribute import AttributeOptions
    from tracemap.options.build import BuildOptions
    from tracemap.options.lower import LowerOptions
    from tracemap.options.record import RecordOptions
    from tracemap.options.report import ReportOptions

    Run = str | Path | Recorded
    Runs = Run | Sequence[Run]

__all__ = ["TracemapError", "__version__", "attribute", "build", "load", "lower", "record", "report"]


def build(
    model: str | Path | bytes, output: str | Path | None = None, options: BuildOptions | None = None, **changes: object
) -> Bundle:
    """Compile a model, or read the dumps of a compilation made elsewhere, and write its bundle.

    Args:
        model: a file of MLIR text or bytecode; or the content of one, as bytes or as text with a line break or, where
            no file has that name, a brace; "" with `from_dumps`, where the dumps hold the model.
        output: the bundle; None: named as the model's file, in the working folder.
        options: what `tracemap build` can be asked; None: its defaults.
        changes: options by name, such as `device="vulkan"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.build.build` does.
        TypeError: there is no such option.
    """
    from tracemap.options.build import BuildOptions
    from tracemap.options.option import chosen
    from tracemap.session.build import build as build_model

    return build_model(_model(model), chosen(BuildOptions, options, changes, output=output))


def load(path: str | Path) -> Bundle:
    """Open a bundle.

    Raises:
        tracemap.errors.BundleInvalid: it is not a bundle, or damaged.
        tracemap.errors.BundleVersion: it is of another format version.
    """
    from tracemap.graph import bundle

    return bundle.load(Path(path))


def lower(
    model: str | Path | bytes,
    pipelines: Sequence[str] | None = None,
    options: LowerOptions | None = None,
    **changes: object,
) -> Lowering:
    """Run pass pipelines over a model and link its ops to the outermost loops of each stage.

    Args:
        model: as `build` takes it.
        pipelines: as iree-opt takes them, `builtin.module(…)`; each goes on from the result of the one before.
        options: what `tracemap lower` can be asked; None: its defaults.
        changes: options by name, such as `html="loops.html"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.lower.lower` does.
        TypeError: there is no such option, or there are no pipelines.
    """
    from tracemap.options.lower import LowerOptions
    from tracemap.options.option import chosen
    from tracemap.session.lower import lower as lower_model

    return lower_model(_model(model), chosen(LowerOptions, options, changes, pipelines=pipelines))


def record(
    bundle: Bundle | str | Path,
    output: str | Path | None = None,
    options: RecordOptions | None = None,
    *,
    inputs: Sequence[object] | None = None,
    **changes: object,
) -> Recorded:
    """Run a bundle's module and write a run; `.path` of the result is the run.

    Args:
        bundle: what `build` or `load` returned, or its path.
        output: the run; None: the next free number in the bundle.
        options: what `tracemap record` can be asked; None: its defaults.
        inputs: one per argument: texts as the command takes them, numbers, arrays (of numpy, or what it can read);
            None: those of the options.
        changes: options by name, such as `iterations=50, sample_hz=251`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.record.record` does.
        TypeError: there is no such option.
    """
    from tracemap.options.option import chosen
    from tracemap.options.record import RecordOptions
    from tracemap.session.record import record as record_bundle

    # Texts are an option like any other; what else Python has goes beside the options, which hold what can be typed.
    texts = inputs if inputs is None or all(isinstance(value, str) for value in inputs) else None
    asked = chosen(RecordOptions, options, changes, output=output, inputs=texts)
    return record_bundle(_opened(bundle), asked, values=() if inputs is None or texts is not None else inputs)


def attribute(
    runs: Runs,
    bundle: Bundle | str | Path | None = None,
    options: AttributeOptions | None = None,
    **changes: object,
) -> Attribution:
    """Join runs onto their bundle: which op costs what.

    Args:
        runs: tables, as `record` writes them or of others, or `.ireeprof` files; several are added up. Also what
            `record` returned.
        bundle: what `build` or `load` returned, or its path; None: it is found from the first run.
        options: what `tracemap attribute` can be asked; None: its defaults.
        changes: options by name, such as `rule="equal", html="page.html"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.attribute.attribute` does.
        TypeError: there is no such option.
    """
    from tracemap.options.attribute import AttributeOptions
    from tracemap.options.option import chosen
    from tracemap.session.attribute import attribute as attribute_runs

    asked = chosen(AttributeOptions, options, changes)
    return attribute_runs(_paths(runs), None if bundle is None else _opened(bundle), asked).attribution


def report(
    bundle: Bundle | str | Path,
    output: str | Path | None = None,
    runs: Runs = (),
    options: ReportOptions | None = None,
    **changes: object,
) -> None:
    """Write the annotated page of a bundle, with the costs of its runs or, without any, of the map alone.

    Args:
        bundle: what `build` or `load` returned, or its path.
        output: the page; None: that of the options.
        runs: as `attribute` takes them.
        options: what `tracemap report` can be asked; None: its defaults.
        changes: options by name, such as `rule="equal"`.

    Raises:
        tracemap.errors.TracemapError: as `tracemap.session.report.report` does.
        TypeError: there is no such option, or no output is named.
    """
    from tracemap.options.option import chosen
    from tracemap.options.report import ReportOptions
    from tracemap.session.report import report as report_bundle

    asked = chosen(ReportOptions, options, changes, output=output)
    report_bundle(_opened(bundle), _paths(runs), asked)


def _model(model: str | Path | bytes) -> str | bytes:
    """A path as text, or the content of a model as bytes."""
    if isinstance(model, str) and ("\n" in model or ("{" in model and not os.path.exists(model))):  # noqa: PTH110 - Path.exists raises OSError for names that are too long
        return model.encode()
    return model if isinstance(model, bytes) else str(model)


def _opened(bundle: Bundle | str | Path) -> Bundle:
    return load(bundle) if isinstance(bundle, (str, Path)) else bundle


def _paths(runs: Runs) -> list[Path]:
    """The paths of one run, or of several."""
    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    return [Path(run) if isinstance(run, (str, Path)) else run.path for run in several]
