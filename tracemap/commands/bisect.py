"""`tracemap bisect`: which difference between two builds makes the second one worse."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from msgspec import structs

from tracemap.commands.framework import PATH, options_command
from tracemap.commands.streams import show_in_format, show_phases
from tracemap.commands.versions import Recordings, Version, Versions
from tracemap.compare.bisection import (
    RATIOS,
    Bisection,
    Cause,
    Change,
    Difference,
    EditDifference,
    FlagDifference,
    HitOp,
    ReleaseDifference,
    Value,
    find_causes,
    first_bad,
    flag_differences,
    flags_with,
)
from tracemap.core.errors import ModelInvalid, TargetUnwritable, ToolFailed, UsageInvalid
from tracemap.core.process.children import path_argument
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, check_tool, find_tool, no_progress
from tracemap.core.units import UNKNOWN, Integer, Text, Unknown, plural
from tracemap.map.build.compiler.flags import OPT_LEVEL, level_defaults, level_differences
from tracemap.map.model import OpId
from tracemap.map.query import python_frame
from tracemap.options.kernels import NumericsOptions, SwapOptions
from tracemap.options.measure import BisectOptions, FunctionOptions, call_of

if TYPE_CHECKING:
    from tracemap.compare.model import Comparison
    from tracemap.ir.model_edits import MixedModel, ModelEdits
    from tracemap.ir.source_model import SourceModel, SourceOperation
    from tracemap.map.bundle import Bundle
    from tracemap.map.model import Op

_PART: Final = 2 / 3
"""A build is bad if it has at least this part of the change. Of two that add up, the smaller must have a third."""
_ROUNDS: Final = 4
"""Rounds of recordings before a time within its interval of the limit is decided by its median."""
_SEARCHES: Final = 3
"""Searches by time, if recordings of the proof contradict earlier ones."""
_LEAST_CHANGE: Final = 0.01
"""The smallest change of time to look for."""
_LEAST_COMPILE_CHANGE: Final = 0.05
"""The same for the compiler's time, which varies more, and whose builds are few."""
_COMPILATIONS: Final = 3
"""Pairs of compilations at first; twice as many near the limit."""
_MOST_OPS: Final = 10
"""Ops that are named for a cause."""
_FEW_DIFFERENCES: Final = 8
"""For fewer differences, as many builds may be made as for this number: 4 log2 n + 4."""
_FAILED: Final = Value(1.0, 1.0, 1.0)
_FINE: Final = Value(0.0, 0.0, 0.0)


def bisect(good: Bundle, bad: Bundle | Path, options: BisectOptions, progress: Progress = no_progress) -> Bisection:
    """Find the differences that make the bad build worse than the good one.

    Differences are flags of the compiler, releases of IREE, and edits of the model. Builds are kept in the output
    folder and used again. A build with all differences of a cause has at least two thirds of the change.

    Args:
        good: the good build.
        bad: the bad build, or a model that is built with the flags in the options.
        options: what got worse.
        progress: receives the phase of the work.

    Raises:
        UsageInvalid: there is no difference, or a build does not contain its model.
        TargetUnwritable: the folder of the builds cannot be created.
        TracemapError: see `commands.build.build`, `commands.record.record` and `commands.memory.planned`.
    """
    if not isinstance(options.op, Unknown):
        if options.metric != "time":
            raise UsageInvalid(
                f"--op {options.op}: only times are measured by op; leave --op out, or use --metric time"
            )
        if options.op not in good.graph.op_by_id:
            raise UsageInvalid(f"--op {options.op}: {good.path} has no such op; list them with `tracemap show`")
    folder = options.output or Path(f"{good.path.stem}.bisect")
    search = _Search.between(good, bad, options, Versions(folder, good, progress))
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise TargetUnwritable(f"{folder}: cannot be created: {error.strerror}") from error
    return search.result()


@dataclass(frozen=True, slots=True)
class _Tested:
    """A version with some of the differences, and its cost. `failure`: the compiler's message; "": it compiles."""

    version: Version
    value: Value
    is_bad: bool
    certain: bool
    failure: str = ""


# ---- differences


def _version_of(bundle: Bundle) -> Version:
    from tracemap.core.releases import release_of
    from tracemap.map.bundle import check_iree

    check_iree(bundle)
    model, module = bundle.model(), bundle.graph.module
    if not model:
        raise UsageInvalid(f"{bundle.path}: does not contain its model; build it without --no-sources")
    return Version(model, bundle.graph.sources[0].name, module.flags, release_of(module.iree_compiler))


def _version_of_model(model: Path, flags: Sequence[str], release: str) -> Version:
    from tracemap.commands.build import read_model
    from tracemap.map.build.compiler.flags import compile_flags

    content, name = read_model(str(model))
    return Version(content, name, compile_flags("local", flags), release)


def _edits_between(
    versions: tuple[Version, Version], paths: tuple[Path, Path]
) -> tuple[ModelEdits, list[EditDifference]]:
    """The edits between two versions' models, by the matching of `diff`; `paths`: for messages.

    Raises:
        ModelInvalid: a model does not parse.
    """
    from tracemap.compare.matching import match_flows
    from tracemap.ir.model_edits import ModelEdits
    from tracemap.map.build.model.dataflow import FlowBuilder

    flows = FlowBuilder()
    sides = []
    for version, path in zip(versions, paths, strict=True):
        try:
            sides.append(flows.of(version.model))
        except ModelInvalid as error:
            raise ModelInvalid(f"{path}:{str(error).removeprefix('-:')}") from error
    before, after = (version.model for version in versions)
    matches = match_flows(sides[0], sides[1])
    pairs = {each.after.number: (each.before.number, each.edited) for each in matches}
    edits = ModelEdits(before, after, pairs)
    unedited = {number for number, (_, edited) in pairs.items() if not edited}
    partners = {pairs[number][0] for number in unedited}
    models = _source_model(before), _source_model(after)
    differences = []
    for number, edit in enumerate(edits.edits):
        removed, added = (
            [operation for index in side if (operation := model.operations[index]).is_op]
            for side, model in zip((edit.before, edit.after), models, strict=True)
        )
        # Ops that only read another value are named if nothing else changed.
        own = (
            [operation for operation in removed if operation.index not in partners],
            [operation for operation in added if operation.index not in unedited],
        )
        removed, added = own if any(own) else (removed, added)
        if [each.name for each in removed] == [each.name for each in added]:
            parts = [("changed", added)]
        else:
            parts = [("removed", removed), ("added", added)]
        text = "; ".join(f"{word} {_listed(operations)}" for word, operations in parts if operations)
        ids = tuple(OpId.of(each.index) for each in added)
        differences.append(EditDifference(number, ids, text))
    return edits, differences


def _source_model(model: bytes) -> SourceModel:
    from tracemap.ir.model_reader import create_records, parse_model
    from tracemap.ir.parsing import MlirParser

    parser = MlirParser()
    return create_records(parser, parse_model(parser, model))


def _listed(operations: Sequence[SourceOperation]) -> str:
    """Ops with their first line: `stablehlo.add at line 5`, `3 ops from line 5: stablehlo.dot, stablehlo.add`."""
    line, names = operations[0].line, list(dict.fromkeys(each.name for each in operations))
    where = "" if isinstance(line, Unknown) else f" line {line}"
    if len(operations) == 1:
        return f"{names[0]}{where and f' at{where}'}"
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return f"{len(operations)} ops{where and f' from{where}'}: {shown}"


# ---- search


@dataclass
class _Search:
    """Builds and measures sets of differences; `limit` is the value from which on a build is bad."""

    good: Version
    bad: Version
    paths: tuple[Path, Path]
    options: BisectOptions
    versions: Versions
    differences: tuple[Difference, ...]
    edits: ModelEdits | None
    limit: float = 0.0
    failure: str = ""
    unmixed: int = 0
    """Sets of edits that make no valid model, and count as good."""
    tested: dict[Version, _Tested] = field(default_factory=dict)
    least_rounds: dict[Version, int] = field(default_factory=dict)
    """Rounds of recordings that a version needs at least, if more than one."""
    measured: dict[str, tuple[Version, Value]] = field(default_factory=dict)
    """The first version with a module, and its cost, by the module's SHA-256."""
    mixed: dict[bytes, MixedModel] = field(default_factory=dict)
    """Models in between, by their content."""

    @classmethod
    def between(cls, good: Bundle, bad: Bundle | Path, options: BisectOptions, versions: Versions) -> _Search:
        """The search between a build and another, or a model.

        Raises:
            UsageInvalid: there is no difference.
        """
        before = _version_of(good)
        if isinstance(bad, Path):
            after, path = _version_of_model(bad, options.flags, versions.own_release), bad
        elif options.flags:
            raise UsageInvalid(f"{bad.path}: is a bundle, which has its flags; leave out the flags after `--`")
        else:
            after, path = _version_of(bad), bad.path
        differences: list[Difference] = list(flag_differences(before.flags, after.flags))
        if before.release != after.release:
            differences.append(ReleaseDifference(before.release, after.release))
        elif options.releases:
            raise UsageInvalid(
                f"--releases: {good.path} and {path} are of the same release of IREE, {after.release}; leave it out"
            )
        edits = None
        if before.model != after.model:
            versions.progress("comparing the models")
            edits, edited = _edits_between((before, after), (good.path, path))
            differences += edited
        if not differences:
            raise UsageInvalid(
                f"{good.path} and {path} have the same model, flags and release of IREE: there is nothing to bisect"
            )
        return cls(before, after, (good.path, path), options, versions, tuple(differences), edits)

    def result(self) -> Bisection:
        """Search, and describe what was found."""
        self.versions.progress("building both versions again")
        if self.options.metric == "crash":
            good, bad = self._crash_ends()
        else:
            self.versions.bundle(self.good)
            self.versions.bundle(self.bad)
            good = Value(1.0, 1.0, 1.0) if self.options.metric == "compile_time" else self._measure(self.good)
            bad = self._measure(self.bad)
        causes: tuple[Cause, ...] = ()
        if self._is_worse(good, bad):
            self.limit = good.value + _PART * (bad.value - good.value)
            sets = self._sets()
            causes = tuple(self._cause([self.differences[index] for index in each]) for each in sets)
        failures = [each for each in self.tested.values() if each.failure]
        return Bisection(
            good=str(self.paths[0]),
            bad=str(self.paths[1]),
            metric=self.options.metric,
            op=self.options.op,
            good_value=good,
            bad_value=bad,
            differences=tuple(Change(each.kind, str(each)) for each in self.differences),
            causes=causes,
            builds=len({self.good, self.bad, *self.tested}) + self.unmixed,
            failed=len(failures) + self.unmixed,
        )

    def _sets(self) -> tuple[tuple[int, ...], ...]:
        """The sets of differences that are bad on their own.

        For times, the builds that prove it are recorded again: of many tests, a few are wrong by chance. If one of them
        turns out otherwise, the search starts again, with all recordings.
        """
        for _ in range(_SEARCHES):
            sets = find_causes(len(self.differences), self._is_bad)
            if self.options.metric != "time" or not self._changes_with_more_recordings(sets):
                break
        return sets

    def _changes_with_more_recordings(self, sets: Sequence[tuple[int, ...]]) -> bool:
        """Record each set, what is left of it without one difference, and the rest again; whether one is otherwise."""
        every = frozenset(range(len(self.differences)))
        proofs = [every.difference(*sets)]
        for each in map(frozenset, sets):
            proofs += [each, *(each - {one} for one in each if len(each) > 1)]
        changed = False
        for chosen in proofs:
            was_bad = self._is_bad(chosen)
            version = self._with([self.differences[index] for index in sorted(chosen)])
            if version in self.tested and not self.tested[version].failure and self.least_rounds.get(version, 1) < 2:
                self.least_rounds[version] = 2
                del self.tested[version]
                self.measured.pop(self.versions.bundle(version).graph.module.sha256, None)
                changed |= self._is_bad(chosen) != was_bad
        return changed

    def _crash_ends(self) -> tuple[Value, Value]:
        self.versions.bundle(self.good)
        try:
            self.versions.bundle(self.bad)
        except ModelInvalid as error:
            self.failure = str(error)
            return _FINE, _FAILED
        return _FINE, _FINE

    def _is_worse(self, good: Value, bad: Value) -> bool:
        """Whether the second value is larger, beyond its error."""
        return bad.low > self._least_ratio if self.options.metric in RATIOS else bad.value > good.value

    @property
    def _least_ratio(self) -> float:
        """The ratio of times from which on a build is slower."""
        return 1 + (_LEAST_CHANGE if self.options.metric == "time" else _LEAST_COMPILE_CHANGE)

    def _is_bad(self, chosen: frozenset[int]) -> bool:
        try:
            version = self._with([self.differences[index] for index in sorted(chosen)])
        except ModelInvalid:
            self.unmixed += 1
            return False
        return self._test(version).is_bad

    # ---- versions

    def _with(self, chosen: Sequence[Difference], release: str = "") -> Version:
        """The good version with some differences; `release`: another one than the bad version's."""
        flags = flags_with(self.good.flags, [each for each in chosen if isinstance(each, FlagDifference)])
        numbers = [each.number for each in chosen if isinstance(each, EditDifference)]
        model = self.good.model
        if self.edits is not None and numbers:
            is_all = len(numbers) == len(self.edits.edits)
            model = self.bad.model if is_all else self._mixed(self.edits, numbers)
        changes_release = any(isinstance(each, ReleaseDifference) for each in chosen)
        named = self.bad.name if model is self.bad.model else self.good.name
        return Version(model, named, flags, (release or self.bad.release) if changes_release else self.good.release)

    def _mixed(self, edits: ModelEdits, numbers: Sequence[int]) -> bytes:
        mixed = edits.model_with(numbers)
        self.mixed[mixed.content] = mixed
        return mixed.content

    def _test(self, version: Version) -> _Tested:
        if version not in self.tested:
            self.versions.progress(f"build {len(self.tested) + 1} for {plural(len(self.differences), 'difference')}")
            self.tested[version] = self._tested(version)
        return self.tested[version]

    def _tested(self, version: Version) -> _Tested:
        is_crash = self.options.metric == "crash"
        try:
            self.versions.bundle(version)
        except ModelInvalid as error:
            is_bad = is_crash and signature(str(error)) == signature(self.failure)
            return _Tested(version, _FAILED if is_bad else _FINE, is_bad, certain=True, failure=str(error))
        value = _FINE if is_crash else self._measure(version)
        return _Tested(version, value, value.value >= self.limit, not value.low < self.limit <= value.high)

    # ---- measuring

    def _measure(self, version: Version) -> Value:
        """The cost of a version. Versions with the same module cost the same, and are measured once."""
        if self.options.metric == "compile_time":
            return self._compile_time(version)
        sha256 = self.versions.bundle(version).graph.module.sha256
        if sha256 not in self.measured:
            is_good = sha256 == self.versions.bundle(self.good).graph.module.sha256
            is_ratio = self.options.metric in RATIOS
            value = Value(1.0, 1.0, 1.0) if is_good and is_ratio else self._measured(version)
            self.measured[sha256] = version, value
        return self.measured[sha256][1]

    def _measured(self, version: Version) -> Value:
        match self.options.metric:
            case "time":
                return self._time(version)
            case "module_bytes":
                size = self.versions.bundle(version).module_path.stat().st_size
                return Value(size, size, size)
            case "live_bytes_at_peak":
                return self._peak(version)
            case _:
                return self._outputs(version)

    @property
    def _near(self) -> float:
        """The ratio to decide about: the limit, or the smallest change if there is no limit yet."""
        return self.limit or self._least_ratio

    def _time(self, version: Version) -> Value:
        """The time of a build over that of the good one, in pairs of recordings; more of them close to the limit."""
        from tracemap.kernels.tune import interval_of

        value = Value(1.0, 0.0, 0.0)
        recordings = Recordings(self.versions, (self.good, version), self.options)
        for number in range(1, _ROUNDS + 1):
            pairs = recordings.pairs(number * self.options.repeat)
            if not isinstance(self.options.op, Unknown):
                value = self._time_of_op(recordings)
            elif ratio := interval_of([pair.ratio for pair in pairs]):
                value = Value(ratio.median, ratio.low, ratio.high)
            if number >= self.least_rounds.get(version, 1) and self._is_decided(value):
                break
        return value

    def _is_decided(self, value: Value) -> bool:
        """Whether a ratio is on one side of the limit; without a limit yet, whether its change is known to a half."""
        is_precise = bool(self.limit) or value.high - value.low <= max(_LEAST_CHANGE, abs(value.value - 1) / 2)
        return is_precise and not value.low <= self._near <= value.high

    def _time_of_op(self, recordings: Recordings) -> Value:
        before, after = recordings.runs()
        for each in _compare(before, after).ops if before else ():
            if each.before == self.options.op and each.ratio is not None:
                return Value(each.ratio.ratio, each.ratio.ratio_low, each.ratio.ratio_high)
        raise UsageInvalid(
            f"--op {self.options.op}: its time cannot be compared; it has none in some build. Leave --op out"
        )

    def _compile_time(self, version: Version) -> Value:
        """The CPU time of the compiler over that for the good build, in pairs of builds."""
        ratios: list[float] = []
        for wanted in (_COMPILATIONS, 2 * _COMPILATIONS):
            while len(ratios) < wanted:
                before, after = (self._compile_ns(each) for each in (self.good, version))
                ratios.append(after / before)
            ordered = sorted(ratios)
            value = Value(ordered[len(ordered) // 2], ordered[0], ordered[-1])
            if not value.low <= self._near <= value.high:
                break
        return value

    def _compile_ns(self, version: Version) -> int:
        with temporary_folder() as folder:
            times = self.versions.build(version, folder / "built.tracemap").compile_times()
        if isinstance(times.cpu_ns, Unknown) or not times.cpu_ns:
            raise ToolFailed("the CPU time of iree-compile is unknown, or too short to measure")
        return times.cpu_ns

    def _peak(self, version: Version) -> Value:
        from tracemap.commands.memory import planned
        from tracemap.options.compile import MemoryOptions

        call = MemoryOptions(function=self.options.function, inputs=self.options.inputs, dim=self.options.dim)
        uses = planned(self.versions.bundle(version), call)
        size = max((use.peak_bytes for use, _ in uses), default=0)
        return Value(size, size, size)

    def _outputs(self, version: Version) -> Value:
        """1 if an output differs from the good build's, with the same inputs."""
        from tracemap.commands.diff import compare_with_references, references

        good, bundle = self.versions.bundle(self.good), self.versions.bundle(version)
        options = SwapOptions(atol=self.options.atol, rtol=self.options.rtol, **call_of(self.options))
        with temporary_folder() as folder:
            expected = references(good, options, folder, self.versions.progress)
            compared = list(compare_with_references(good, bundle, expected, folder, self.versions.progress))
        for each in compared:
            if each.failure:
                self._check_same_arguments(each.function, good, bundle)
        same = all(each.matches for each in compared)
        return _FINE if same else _FAILED

    def _check_same_arguments(self, function: str, *bundles: Bundle) -> None:
        """Reject a function that failed in the second build because it has other arguments there."""
        types = [
            [argument.type for argument in entry.arguments]
            for bundle in bundles
            for entry in bundle.graph.functions
            if entry.name == function
        ]
        if len(types) < len(bundles) or types[0] != types[1]:
            other = (
                f"takes {', '.join(types[1]) or 'nothing'} in {self.paths[1]}"
                if len(types) > 1
                else f"is missing in {self.paths[1]}"
            )
            raise UsageInvalid(
                f"--metric outputs: function '{function}' takes {', '.join(types[0]) or 'nothing'} in {self.paths[0]}, "
                f"but {other}, so that outputs with the same inputs cannot be compared; choose another --function or "
                "--metric"
            )

    # ---- causes

    def _cause(self, differences: Sequence[Difference]) -> Cause:
        """Describe a set of differences that was found, with the first bad release if one of them is a release."""
        release, found = self._first_bad_release(differences)
        version = self._with(differences, release)
        tested = self._test(version)
        shown = [Change(each.kind, f"{each}{self._parts_of_level(each, version)}") for each in found]
        bundle: Path | None = None if tested.failure else self.versions.path(version)
        return Cause(
            differences=tuple(shown),
            bundle=UNKNOWN if bundle is None else str(bundle),
            value=tested.value,
            certain=tested.certain,
            ops=tuple(self._hit_ops(version, differences, tested.failure)),
            diff=()
            if bundle is None
            else ("tracemap", "diff", path_argument(self.versions.path(self.good)), path_argument(bundle)),
            reproduce=self.versions.command(version),
            message=tested.failure,
        )

    def _first_bad_release(self, differences: Sequence[Difference]) -> tuple[str, list[Difference]]:
        """The first release in the chain between the two that is bad with the other differences."""
        from tracemap.core.releases import releases_between

        changed = [each for each in differences if isinstance(each, ReleaseDifference)]
        if not changed:
            return "", list(differences)
        (change,) = changed
        chain = self.options.releases or releases_between(change.before, change.after)
        if (chain[0], chain[-1]) != (change.before, change.after):
            raise UsageInvalid(
                f"--releases {','.join(chain)}: must begin with {change.before} and end with {change.after}, the "
                "releases of the two builds"
            )
        place = 1 + first_bad(
            len(chain) - 1, lambda index: self._test(self._with(differences, chain[index + 1])).is_bad
        )
        found = ReleaseDifference(chain[place - 1], chain[place])
        return chain[place], [found if each is change else each for each in differences]

    def _parts_of_level(self, difference: Difference, version: Version) -> str:
        """For a level of optimization: which of the flags that it sets are the cause; "" if that cannot be told.

        A flag's part is tested by setting it, and the others, as at the level before.
        """
        if not isinstance(difference, FlagDifference) or difference.name != OPT_LEVEL:
            return ""
        help_text = check_tool([find_tool("iree-compile"), "--help-hidden"])
        levels = [_level(words) for words in (difference.before, difference.after)]
        parts = level_differences(level_defaults(help_text), *levels)
        given = {flag.partition("=")[0] for flag in version.flags}
        parts = [part for part in parts if part[0] not in given]

        def is_bad(kept: frozenset[int]) -> bool:
            forced = [value for number, (_, value) in enumerate(parts) if number not in kept]
            return self._test(replace(version, flags=(*version.flags, *forced))).is_bad

        if not parts or version.release != self.versions.own_release:
            return ""
        needed = len(self.tested) + 2 * math.log2(len(parts)) + 3
        if needed > 4 * math.log2(max(len(self.differences), _FEW_DIFFERENCES)) + 4 or is_bad(frozenset()):
            return ""
        sets = find_causes(len(parts), is_bad)
        names = [" with ".join(parts[number][0] for number in each) for each in sets]
        return f", by {' or '.join(names)}"

    def _hit_ops(self, version: Version, differences: Sequence[Difference], failure: str) -> list[HitOp]:
        """The ops of edits, then the others whose cost rises, as ops of the bad version."""
        edited = [op.number for each in differences if isinstance(each, EditDifference) for op in each.ops]
        if failure:
            at_error = _indexes_at_error(version, failure)
            return [self._hit(each) for each in (self._places(version, at_error) or edited)[:_MOST_OPS]]
        graph = self.versions.bundle(version).graph
        indexes = [op.id.number for op in graph.ops]
        op_at = dict(zip(self._places(version, indexes), graph.ops, strict=True))
        change_of = dict(self._changes(version))
        worst = [place for place, op in op_at.items() if op.id in change_of]
        worst.sort(key=lambda place: -_known(change_of[op_at[place].id]))
        hits = []
        for place in list(dict.fromkeys([*edited, *worst]))[:_MOST_OPS]:
            op = op_at.get(place)
            frame = python_frame(graph, op) if op is not None else None
            python = f"{frame.file}:{frame.line}" if frame else ""
            change = change_of.get(op.id, UNKNOWN) if op is not None else UNKNOWN
            hits.append(structs.replace(self._hit(place, op), python=python, change=change))
        return hits

    def _places(self, version: Version, indexes: Sequence[int]) -> list[int]:
        """The places in the bad model of operations of a version, by index; -1 and less: it lacks the operation."""
        if self.edits is None or version.model == self.bad.model:
            return list(indexes)
        from tracemap.ir.model_edits import Origin

        mixed = self.mixed.get(version.model)
        origins = [Origin(False, index) if mixed is None else mixed.origins[index] for index in indexes]
        places = map(self.edits.index_after, origins)
        return [place if place >= 0 else -1 - index for place, index in zip(places, indexes, strict=True)]

    def _hit(self, place: int, op: Op | None = None) -> HitOp:
        """The op at a place of the bad model; else `op`, which only the good model has."""
        if place < 0:
            assert op is not None
            return HitOp(UNKNOWN, op.name, UNKNOWN)
        operation = self._bad_model.operations[place]
        return HitOp(OpId.of(place), operation.name, operation.line)

    @cached_property
    def _bad_model(self) -> SourceModel:
        return _source_model(self.bad.model)

    def _changes(self, version: Version) -> list[tuple[OpId, Integer]]:
        """The ops of a version whose cost rises, with the change."""
        good, bundle = self.versions.bundle(self.good), self.versions.bundle(version)
        changes: list[tuple[Text, Integer]]
        match self.options.metric:
            case "time":
                before, after = Recordings(self.versions, (self.good, self._recorded(version)), self.options).runs()
                findings = _compare(before, after).findings if before else ()
                changes = [(each.after, _difference(each.median_before, each.median_after)) for each in findings]
            case "compile_time":
                timed = [self.versions.bundle(each, timing=True).path for each in (self.good, version)]
                building = _compare(timed[:1], timed[1:]).building
                costs = () if building is None else building.ops
                changes = [(each.name, _difference(each.before_ns, each.after_ns)) for each in costs]
            case "module_bytes":
                changes = _larger_ops(good, bundle)
            case "live_bytes_at_peak":
                memory = _compare([good.path], [bundle.path]).memory
                changes = [(op.after, op.held.change) for function in memory for op in function.ops]
            case _:
                changes = [(op, UNKNOWN) for op in self._wrong_ops(bundle, good)]
        known: dict[str, OpId] = {op.id: op.id for op in bundle.graph.ops}
        rising = [(op, change) for op, change in changes if isinstance(change, Unknown) or change > 0]
        if not rising:
            rising = [(op, UNKNOWN) for op in _ops_with_other_code(good, bundle)]
        return [(known[op], change) for op, change in rising if isinstance(op, str) and op in known]

    def _recorded(self, version: Version) -> Version:
        """The version whose recordings stand for a version: one with the same module and model, or its own."""
        other, _ = self.measured[self.versions.bundle(version).graph.module.sha256]
        if other.model == version.model:
            return other
        Recordings(self.versions, (self.good, version), self.options).pairs(self.options.repeat)
        return version

    def _wrong_ops(self, bundle: Bundle, good: Bundle) -> Sequence[str]:
        """The ops of the first dispatch whose result departs from the good build's."""
        from tracemap.commands.numerics import numerics

        called = {name: value for name, value in call_of(self.options).items() if hasattr(FunctionOptions, name)}
        culprit = numerics(bundle, NumericsOptions(against=str(good.path), **called)).culprit
        return () if culprit is None else culprit.ops


def _level(words: Sequence[str]) -> int:
    """The level that a flag sets; 0, the compiler's default, without the flag."""
    number = words[-1][-1:] if words else ""
    return int(number) if number.isdecimal() else 0


def _compare(before: Sequence[Path], after: Sequence[Path]) -> Comparison:
    from tracemap.commands.diff import diff
    from tracemap.options.reports import DiffOptions

    return diff(before, after, DiffOptions())


def _difference(before: Integer, after: Integer) -> int:
    return _known(after) - _known(before)


def _known(value: Integer) -> int:
    return 0 if isinstance(value, Unknown) else value


def _larger_ops(good: Bundle, bundle: Bundle) -> list[tuple[Text, Integer]]:
    """The bytes of the module that ops have more, by their id in the second bundle; none if a build has no symbols."""
    from tracemap.map.build_cost import build_cost

    costs = build_cost(good).ops, build_cost(bundle).ops
    if not all(any(own.code_bytes for own in side) for side in costs):
        return []
    old, new = ({str(own.op): own.bytes for own in side} for side in costs)
    ops = _compare([good.path], [bundle.path]).ops
    return [(each.after, new.get(str(each.after), 0) - old.get(str(each.before), 0)) for each in ops]


def _ops_with_other_code(good: Bundle, bundle: Bundle) -> list[Text]:
    """The ops whose kernels are others or have another code, by their id in the second bundle."""
    from tracemap.compare.compare import CHANGED

    comparison = _compare([good.path], [bundle.path])
    regrouped = [str(each.after) for each in comparison.regrouped]
    changed = [each.after for each in comparison.ops if each.code == CHANGED and str(each.after) not in regrouped]
    return [*regrouped, *changed]


# ---- errors of the compiler


_DIAGNOSTIC: Final = re.compile(r"^(?:[^\n]*?:)?(\d+):\d+: error: ([^\n]*)", re.MULTILINE)
_VARYING: Final = re.compile(r"0x[0-9a-f]+|\d+|<[^<>]*>|%\w+|\"[^\"]*\"|'[^']*'")


def signature(message: str) -> str:
    """The part of an error's message that is the same for other models: without positions, types and names.

    >>> signature("a.mlir:3:4: error: 'x.y' op has 3 results") == signature("b.mlir:9:1: error: 'x.z' op has 4 results")
    True
    """
    found = _DIAGNOSTIC.search(message)
    text = found[2] if found else message.partition("cannot be compiled: ")[2].partition("\n")[0] or message
    previous = ""
    while text != previous:
        previous, text = text, _VARYING.sub("", text)
    return text.strip()


def _indexes_at_error(version: Version, failure: str) -> list[int]:
    """The ops at the lines of the compiler's errors, by index."""
    lines = {int(line) for line, _ in _DIAGNOSTIC.findall(failure)}
    try:
        operations = _source_model(version.model).operations if lines else ()
    except ModelInvalid:
        return []
    return [operation.index for operation in operations if operation.is_op and operation.line in lines]


@options_command("bisect", BisectOptions)
@click.argument("good", metavar="GOOD", type=PATH)
@click.argument("bad", metavar="BAD", type=PATH)
def command(good: Path, bad: Path, options: BisectOptions) -> None:
    """Find the change that makes BAD worse than the bundle GOOD: a flag of iree-compile, a release of IREE, or an edit.

    BAD is a bundle, or a model that is built with the flags after `--`. Builds the program with some of the differences
    and measures it, until a smallest set of differences is left that makes it worse; differences that act only together
    are one set. A cause has at least two thirds of the change. For 16 differences this takes about 13 builds.

    Other releases of IREE are installed into environments of their own in the user's cache folder.

    \b
    Example:
      tracemap bisect good.tracemap bad.tracemap
      tracemap bisect old.tracemap new.tracemap --metric time --op op12
      tracemap bisect good.tracemap model.mlir --metric crash -- FLAGS
    """
    from tracemap.map.bundle import is_bundle, load
    from tracemap.reports.terminal.bisection import print_bisection

    with show_phases("bisect") as progress:
        result = bisect(load(good), load(bad) if is_bundle(bad) or bad.is_dir() else bad, options, progress)
    show_in_format(options.format, sys.stdout, lambda out: print_bisection(result, out), lambda: result)
