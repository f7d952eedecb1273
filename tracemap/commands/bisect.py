"""`tracemap bisect`: which of the flags that two builds do not share makes the second one worse."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.streams import show_phases
from tracemap.compare.bisection import (
    Bisection,
    Build,
    FlagDifference,
    Value,
    find_causes,
    flag_differences,
    flags_with,
)
from tracemap.core.errors import BundleInvalid, TargetUnwritable, UsageInvalid
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import plural
from tracemap.options.measure import BisectOptions, RecordOptions, call_of

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle

_PART: Final = 2 / 3
"""A build is bad if it has at least this part of the change. Of two that add up, the smaller must have a third."""
_ROUNDS: Final = 4
"""Rounds of recordings before a time within its interval of the limit is decided by its median."""
_LEAST_CHANGE: Final = 0.01
"""The smallest change of time to look for."""


def bisect(good: Bundle, bad: Bundle, options: BisectOptions, progress: Progress = no_progress) -> Bisection:
    """Find the flags of the compiler that make the bad build worse than the good one.

    Builds are kept in the output folder and used again. A build with all of the causes of a set has at least two thirds
    of the change.

    Raises:
        UsageInvalid: the builds do not have the same model or compiler, or have the same flags.
        TargetUnwritable: the folder of the builds cannot be created.
        TracemapError: see `commands.build.build`, `commands.record.record` and `commands.memory.planned`.
    """
    model = _common_model(good, bad)
    differences = flag_differences(good.graph.module.flags, bad.graph.module.flags)
    if not differences:
        raise UsageInvalid(f"{good.path} and {bad.path} were built with the same flags: there is nothing to bisect")
    folder = options.output or Path(f"{good.path.stem}.bisect")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise TargetUnwritable(f"{folder}: cannot be created: {error.strerror}") from error
    search = _Search(good, model, differences, options, folder, progress)
    good_value, bad_value = search.ends()
    result = partial(Bisection, search.built(()).path, options.metric, good_value, bad_value, differences)
    if not search.is_worse(good_value, bad_value):
        return result()
    search.limit = good_value.value + _PART * (bad_value.value - good_value.value)
    sets = find_causes(len(differences), lambda chosen: search.build(chosen).is_bad)
    causes = tuple(search.build(frozenset(each)) for each in sets)
    return result(causes, tuple(search.builds.values()))


def _common_model(good: Bundle, bad: Bundle) -> bytes:
    """The model of both builds; rejects builds that differ in more than flags."""
    from tracemap.map.bundle import check_iree

    models = []
    for bundle in (good, bad):
        check_iree(bundle)
        models.append(bundle.model())
        if not models[-1]:
            raise UsageInvalid(f"{bundle.path}: does not contain its model; build it without --no-sources")
    if models[0] != models[1]:
        raise UsageInvalid(
            f"{good.path} and {bad.path} have different models, and bisect compares flags: build one model twice, or "
            "compare the models with `tracemap diff`"
        )
    compilers = {good.graph.module.iree_compiler, bad.graph.module.iree_compiler}
    if len(compilers) > 1:
        raise UsageInvalid(
            f"{good.path} and {bad.path} were compiled by different releases, {' and '.join(sorted(compilers))}: build "
            "both with one of them"
        )
    return models[0]


@dataclass
class _Search:
    """Builds and measures sets of differences; `limit` is the value from which on a build is bad."""

    good: Bundle
    model: bytes
    differences: tuple[FlagDifference, ...]
    options: BisectOptions
    folder: Path
    progress: Progress
    limit: float = 0.0
    builds: dict[frozenset[int], Build] = field(default_factory=dict)

    def ends(self) -> tuple[Value, Value]:
        """The values of builds with no difference and with all of them."""
        self.progress("building both versions again")
        good, bad = self.built(()), self.built(self.differences)
        if self.options.metric == "time":
            return Value(1.0, 1.0, 1.0), self._time(bad, 1 + _LEAST_CHANGE)
        return self._bytes(good), self._bytes(bad)

    def is_worse(self, good: Value, bad: Value) -> bool:
        """Whether the second value is larger, beyond its error."""
        if self.options.metric == "time":
            return bad.low > 1 + _LEAST_CHANGE
        return bad.value > good.value

    def build(self, chosen: frozenset[int]) -> Build:
        """The build with these differences; measured once."""
        if chosen not in self.builds:
            own = tuple(self.differences[index] for index in sorted(chosen))
            self.progress(f"build {len(self.builds) + 1}: {plural(len(own), 'flag')} of {len(self.differences)}")
            bundle = self.built(own)
            value = self._time(bundle, self.limit) if self.options.metric == "time" else self._bytes(bundle)
            certain = not value.low < self.limit <= value.high
            self.builds[chosen] = Build(own, bundle.path, value, value.value >= self.limit, certain)
        return self.builds[chosen]

    def built(self, own: Sequence[FlagDifference]) -> Bundle:
        """The good build with these differences, from the folder if it is there."""
        from tracemap.map.build.build import BuildRequest, build
        from tracemap.map.bundle import load
        from tracemap.options.compile import BuildOptions

        flags = flags_with(self.good.graph.module.flags, own)
        about = self.good.graph
        key = hashlib.sha256("\0".join([about.module.iree_compiler, *flags]).encode() + b"\0" + self.model).hexdigest()
        target = self.folder / f"{key[:16]}.tracemap"
        try:
            return load(target)
        except BundleInvalid:
            pass
        options = BuildOptions(output=target, flags=flags, force=True)
        return build(BuildRequest(self.model, about.sources[0].name, target, options, ()))

    def _bytes(self, bundle: Bundle) -> Value:
        if self.options.metric == "module_bytes":
            size = bundle.module_path.stat().st_size
        else:
            from tracemap.commands.memory import planned
            from tracemap.options.compile import MemoryOptions

            call = MemoryOptions(function=self.options.function, inputs=self.options.inputs, dim=self.options.dim)
            size = max(use.peak_bytes for use, _ in planned(bundle, call))
        return Value(size, size, size)

    def _time(self, bundle: Bundle, limit: float) -> Value:
        """The time of a build over that of the good one, in pairs of recordings; more of them close to the limit."""
        from tracemap.commands.record import record_repeatedly
        from tracemap.kernels.tune import interval_of

        good, ratios = self.built(()), list[float]()
        value = Value(1.0, 0.0, 0.0)
        options = RecordOptions(
            **call_of(self.options), seconds=self.options.seconds, repeat=self.options.repeat, launches=1
        )
        for _ in range(_ROUNDS):
            medians: dict[Path, list[int]] = {good.path: [], bundle.path: []}
            for run in record_repeatedly([good, bundle], options):
                median = run.header.invocation.median_ns
                assert isinstance(median, int)  # `record` counts invocations
                medians[run.path.parent.parent].append(median)
            ratios += [after / before for before, after in zip(*medians.values(), strict=True)]
            if ratio := interval_of(ratios):
                value = Value(ratio.median, ratio.low, ratio.high)
            if not value.low <= limit <= value.high:
                break
        return value


@options_command("bisect", BisectOptions)
@click.argument("good", metavar="GOOD", type=PATH)
@click.argument("bad", metavar="BAD", type=PATH)
def command(good: Path, bad: Path, options: BisectOptions) -> None:
    """Find the flags of iree-compile that make the bundle BAD slower or larger than GOOD; both have the same model.

    Builds the model with some of the flags that differ, and measures it, until a smallest set of flags is left that
    makes it worse; flags that act only together are one set. A cause has at least two thirds of the change. For 16
    flags this takes about 13 builds.

    \b
    Example:
      tracemap bisect good.tracemap bad.tracemap
      tracemap bisect good.tracemap bad.tracemap --metric module_bytes
    """
    from tracemap.map.bundle import load
    from tracemap.reports.terminal.bisection import print_bisection

    with show_phases("bisect") as progress:
        result = bisect(load(good), load(bad), options, progress)
    print_bisection(result, sys.stdout)
