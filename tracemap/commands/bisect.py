"""`tracemap bisect`: which of the flags that two builds do not share makes the second one worse."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.streams import show_phases
from tracemap.core.errors import BundleInvalid, TargetUnwritable, UsageInvalid
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import plural
from tracemap.options.measure import BisectOptions, RecordOptions, call_of

if TYPE_CHECKING:
    from tracemap.compare.bisection import FlagDifference
    from tracemap.map.bundle import Bundle

_PART: Final = 2 / 3
"""A build is bad if it has at least this part of the change. Of two that add up, the smaller must have a third."""
_ROUNDS: Final = 4
"""Rounds of recordings before a time within its interval of the limit is decided by its median."""
_LEAST_CHANGE: Final = 0.01
"""The smallest change of time to look for."""


@dataclass(frozen=True, slots=True)
class Value:
    """The cost of a build: bytes, or its time relative to the good build; a range for times."""

    value: float
    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Whether it has no error."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Build:
    """A build with some of the differences: its bundle, its cost, and whether it counts as bad.

    `certain`: whether all of its range is on one side of the limit.
    """

    differences: tuple[FlagDifference, ...]
    bundle: Path
    value: Value
    is_bad: bool
    certain: bool


@dataclass(frozen=True)
class Bisection:
    """The result: the differences, and the sets of them that are bad on their own; empty if the bad build is not worse.

    `causes`: a build for each set, with its differences only. `builds`: those measured between the two.
    """

    good: Path
    metric: str
    good_value: Value
    bad_value: Value
    differences: tuple[FlagDifference, ...]
    causes: tuple[Build, ...] = ()
    builds: tuple[Build, ...] = ()

    def print(self, out: TextIO) -> None:
        """Print the causes, and the commands that show what they change."""
        count = f"{plural(len(self.differences), 'flag')} of the compiler differ"
        change = f"{self._shown(self.good_value)} → {self._shown(self.bad_value)}"
        out.write(f"{self.metric}: {change}; {count}, {len(self.builds) + 2} builds measured\n")
        if not self.causes:
            out.write("No cause: the second build is not significantly worse.\n")
        for number, cause in enumerate(self.causes, 1):
            title = "Cause" if len(self.causes) == 1 else f"Cause {number} of {len(self.causes)}, each is enough alone"
            together = ", only together" if len(cause.differences) > 1 else ""
            doubt = "" if cause.certain else ", uncertain: the times overlap"
            out.write(f"\n{title}{together}: {self._shown(cause.value)}{doubt}\n")
            out.writelines(f"  {difference}\n" for difference in cause.differences)
            out.write(f"  tracemap diff {shlex.quote(str(self.good))} {shlex.quote(str(cause.bundle))}\n")

    def _shown(self, value: Value) -> str:
        if self.metric == "time":
            return f"{value.value:.3f}x" + ("" if value.is_exact else f" ({value.low:.3f} to {value.high:.3f})")
        return f"{int(value.value):,} bytes"


def bisect(good: Bundle, bad: Bundle, options: BisectOptions, progress: Progress = no_progress) -> Bisection:
    """Find the flags of the compiler that make the bad build worse than the good one.

    Builds are kept in the output folder and used again. A build with all of the causes of a set has at least two thirds
    of the change.

    Raises:
        UsageInvalid: the builds do not have the same model or compiler, or the same flags.
        TracemapError: see `commands.build.build`, `commands.record.record` and `commands.memory.planned`.
    """
    from tracemap.compare.bisection import find_causes, flag_differences

    _check_comparable(good, bad)
    differences = flag_differences(good.graph.module.flags, bad.graph.module.flags)
    if not differences:
        raise UsageInvalid(f"{good.path} and {bad.path} were built with the same flags: there is nothing to bisect")
    search = _Search(good, differences, options, progress)
    good_value, bad_value = search.ends()
    result = partial(Bisection, search.built(()).path, options.metric, good_value, bad_value, differences)
    if not search.is_worse(good_value, bad_value):
        return result()
    search.limit = good_value.value + _PART * (bad_value.value - good_value.value)
    sets = find_causes(len(differences), lambda chosen: search.build(chosen).is_bad)
    causes = tuple(search.build(frozenset(each)) for each in sets)
    return result(causes, tuple(search.builds.values()))


def _check_comparable(good: Bundle, bad: Bundle) -> None:
    from tracemap.map.bundle import check_iree

    for bundle in (good, bad):
        check_iree(bundle)
        if not bundle.model():
            raise UsageInvalid(f"{bundle.path}: does not contain its model; build it without --no-sources")
    if good.model() != bad.model():
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


@dataclass
class _Search:
    """Builds and measures sets of differences; `limit` is the value from which on a build is bad."""

    good: Bundle
    differences: tuple[FlagDifference, ...]
    options: BisectOptions
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
        from tracemap.compare.bisection import flags_with
        from tracemap.map.build.build import BuildRequest, build
        from tracemap.map.bundle import load
        from tracemap.options.compile import BuildOptions

        flags = flags_with(self.good.graph.module.flags, own)
        model, about = self.good.model(), self.good.graph
        key = hashlib.sha256("\0".join([about.module.iree_compiler, *flags]).encode() + b"\0" + model).hexdigest()
        target = self.folder / f"{key[:16]}.tracemap"
        try:
            return load(target)
        except BundleInvalid:
            pass
        options = BuildOptions(output=target, flags=flags, force=True)
        return load(build(BuildRequest(model, about.sources[0].name, target, options, ()), no_progress).path)

    @property
    def folder(self) -> Path:
        """The folder of the builds."""
        folder = self.options.output or Path(f"{self.good.path.stem}.bisect")
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise TargetUnwritable(f"{folder}: cannot be created: {error.strerror}") from error
        return folder

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
            value = _with_range(ratios)
            if not value.low <= limit <= value.high:
                break
        return value


def _with_range(ratios: Sequence[float]) -> Value:
    """The median of ratios, and its 95 % interval by order statistics; with fewer than six, their range."""
    import numpy as np

    from tracemap.runs.statistics import median_of

    scale = 1e9
    found = median_of(np.array([round(ratio * scale) for ratio in ratios], dtype=np.int64))
    low, high = (
        (found.low, found.high)
        if isinstance(found.low, int) and isinstance(found.high, int)
        else (round(min(ratios) * scale), round(max(ratios) * scale))
    )
    assert isinstance(found.value, int)
    return Value(found.value / scale, low / scale, high / scale)


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

    with show_phases("bisect") as progress:
        result = bisect(load(good), load(bad), options, progress)
    result.print(sys.stdout)
