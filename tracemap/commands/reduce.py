"""`tracemap reduce`: the smallest part of a model that still shows a problem, for a bug report."""

from __future__ import annotations

import glob
import hashlib
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tracemap._version import __version__
from tracemap.commands.framework import PATH, options_command
from tracemap.commands.problems import Candidate, ShownProblem, problem_of
from tracemap.commands.runs import check_outputs
from tracemap.commands.streams import show_phases
from tracemap.compare.reduction import Reduction, minimize
from tracemap.core.errors import (
    InputInvalid,
    ModelInvalid,
    OutputInvalid,
    ProgramFailed,
    TargetUnwritable,
    UsageInvalid,
)
from tracemap.core.files import atomic_file, is_stream, write_text
from tracemap.core.process.children import path_argument
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.sanitize import without_controls
from tracemap.core.toolchain import Progress, no_progress
from tracemap.core.units import join_names, plural
from tracemap.options.measure import CallOptions, ReduceOptions

if TYPE_CHECKING:
    from tracemap.commands.problems import Array
    from tracemap.ir.slicing import Slicer, ValueId

_FILE: Final = "reduced.mlir"
_STEPS: Final = (0, 1, 2, 3, 4, 6, 9, 13)
"""Steps along the data flow from the op, to look for a first part of the model that shows the problem."""
_ELEMENT: Final = re.compile(r"[x,<](?:[su](?=i))?([a-z]+\d+)(?:, [^>]*)?>$")
_VERDICTS: Final = ("no", "yes")
_FAILURES: Final = (ModelInvalid, ProgramFailed, InputInvalid, OutputInvalid)
"""Errors of a part of the model, which then does not show the problem."""


def reduce(target: Path, options: ReduceOptions, progress: Progress = no_progress) -> Reduction:
    """Write the smallest part of a model that still shows a problem.

    The verdicts on the parts that were tried stay next to the output, so that an interrupted search goes on.

    Args:
        target: a bundle; or the model itself, if the compiler fails on it.
        options: the op, the problem and the output.
        progress: receives the phase of the work.

    Raises:
        UsageInvalid: the model does not show the problem, or no op is named.
        QueryInvalid: nothing has the name of the op.
        BundleInvalid, ModelInvalid: the bundle or the model cannot be read.
        TargetExists, TargetUnwritable: the output cannot be written.
        TracemapError: see `commands.record.record`.
    """
    output = options.output or Path(_FILE)
    if is_stream(output):
        raise TargetUnwritable(f"{output}: is no file, and inputs are written next to it; name a file with -o")
    check_outputs(output, force=options.force, runs=[target])
    for file in _input_files_of(output):
        check_outputs(file, force=options.force, runs=[target])
    folder = output.with_suffix(".reduce")
    with temporary_folder() as work:
        problem = problem_of(target, options, work)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise TargetUnwritable(f"{folder}: cannot be created: {error.strerror}") from error
        search = _Search(problem, folder, progress)
        found = search.smallest()
        if options.anonymous:
            progress("replacing names and data")
            found = search.anonymous(found)
        return _write(search, found, output, progress)


@dataclass
class _Search:
    """The search for the smallest part; `tried` counts the parts, with those of an earlier search."""

    problem: ShownProblem
    folder: Path
    progress: Progress
    tried: int = 0
    count: int = 0
    names: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    _values: dict[ValueId, Array] = field(default_factory=dict)

    # ---- search

    def smallest(self) -> Candidate:
        """The smallest part that shows the problem.

        Raises:
            UsageInvalid: no function of the model shows it.
        """
        from tracemap.ir.slicing import Slicer

        missing: ModelInvalid | None = None
        reached = False
        for inline in (True, False):
            for function in dict.fromkeys(self.problem.functions):
                self._values = {}
                try:
                    slicer = Slicer(self.problem.model, function, inline=inline)
                except ModelInvalid as error:
                    missing = error
                    continue
                self.count = slicer.count
                if self.problem.ops and not self.problem.needed(slicer):
                    continue
                reached = True
                part = self._first(slicer)
                if part is not None:
                    return self._minimal(slicer, part)
        if missing is not None and not self.count:
            raise UsageInvalid(f"{self.problem.name}: {missing}") from missing
        if not self.problem.functions:
            raise UsageInvalid(
                f"{self.problem.name}: the model has no public function, so that nothing can be left out"
            )
        if not reached:
            raise UsageInvalid(
                f"{self.problem.name}: {self.problem.what}, but the op is in no function that "
                f"{join_names(self.problem.functions)} calls; choose another --function, or an op that is called"
            )
        raise UsageInvalid(
            f"{self.problem.name}: compiled again, the model does not show this, so that nothing is left to reduce: "
            f"{self.problem.what}"
        )

    def _first(self, slicer: Slicer) -> frozenset[int] | None:
        """The smallest surroundings of the op that show the problem; None if the whole function does not."""
        for units in self._surroundings(slicer):
            self.progress(f"trying {plural(len(units), 'op')} of {len(slicer.units)}")
            self._compute(slicer, units)
            if self._shows_units(slicer, units):
                return units
        return None

    def _surroundings(self, slicer: Slicer) -> Iterator[frozenset[int]]:
        units, last = self.problem.begin(slicer), frozenset[int]()
        for step in range(max(_STEPS) + 1 if units else 0):
            if step in _STEPS and units != last:
                yield units
                last = units
            units = slicer.neighbours(units)
        everything = frozenset(range(len(slicer.units)))
        if everything != last:
            yield everything

    def _minimal(self, slicer: Slicer, part: frozenset[int]) -> Candidate:
        def shows(units: frozenset[int]) -> bool:
            self.progress(f"trying {plural(len(units), 'op')} of {len(slicer.units)}, part {self.tried + 1}")
            return self._shows_units(slicer, units)

        closed = slicer.closure(part)
        inner = closed if self._shows_units(slicer, closed) else part
        return self._candidate(slicer, minimize(inner, shows, self.problem.needed(slicer)))

    def _shows_units(self, slicer: Slicer, units: frozenset[int]) -> bool:
        try:
            return self.shows(self._candidate(slicer, units))
        except ModelInvalid:
            return False

    def _candidate(self, slicer: Slicer, units: frozenset[int]) -> Candidate:
        part = slicer.cut(units, results=self.problem.results(slicer))
        kinds = slicer.types_of(part.arguments)
        is_dynamic = any("?" in kind for kind in kinds)
        if not (self.problem.takes_values or (is_dynamic and self.problem.kind != "lost")):
            return Candidate(part.text, part.function, part)
        if self.problem.kind == "crash":
            return Candidate(part.text, part.function, part)
        self._compute(slicer, units, always=True)
        inputs = [
            self._values[value] if value in self._values else _made_up(kind)
            for value, kind in zip(part.arguments, kinds, strict=True)
        ]
        return Candidate(part.text, part.function, part, tuple(inputs))

    def _compute(self, slicer: Slicer, units: Iterable[int], *, always: bool = False) -> None:
        """Compute the values that units take, if parts need them."""
        from tracemap.commands.problems import BundleProblem

        if not (always or self.problem.takes_values) or not isinstance(self.problem, BundleProblem):
            return
        wanted = dict.fromkeys(value for unit in sorted(units) for value in slicer.units[unit].takes)
        missing = [value for value in wanted if value not in self._values and slicer.can_return(value)]
        if missing:
            self._values |= self.problem.values(slicer, missing)

    # ---- verdicts

    def shows(self, candidate: Candidate) -> bool:
        """Try a candidate, or read the verdict of an earlier search; returns whether it shows the problem."""
        self.tried += 1
        verdict = self.folder / self._key(candidate)
        with suppress(OSError, UnicodeDecodeError):
            if (said := verdict.read_text(encoding="utf-8")) in _VERDICTS:
                return said == _VERDICTS[True]
        try:
            shown = self.problem.shows(candidate)
        except _FAILURES:
            shown = False
        write_text(_VERDICTS[shown], verdict)
        return shown

    def _key(self, candidate: Candidate) -> str:
        from tracemap.map.build.compiler.compilation import compiler_version

        model = hashlib.sha256(self.problem.model).hexdigest()  # its ops have the numbers in the problem's key
        words = (self.problem.key, model, compiler_version(), *self.problem.flags, candidate.text)
        digest = hashlib.sha256("\0".join(words).encode())
        for array in candidate.inputs:
            digest.update(str(array.dtype).encode() + array.tobytes())
        return digest.hexdigest()[:24]

    # ---- names

    def anonymous(self, found: Candidate) -> Candidate:
        """A candidate without names, texts and weights of the model; what must stay is in `names` and `data`."""
        from tracemap.ir.anonymous import (
            anonymous_text,
            is_data_item,
            items_of,
            names_in,
            names_left,
            new_function_name,
        )

        names = names_in(self.problem.model)
        items = items_of(found.text)

        def renamed(keep: Collection[int]) -> Candidate:
            text = anonymous_text(found.text, found.slice.function, names, keep)
            return replace(found, text=text, function=new_function_name(names))

        def shows(keep: frozenset[int]) -> bool:
            try:
                return self.shows(renamed(keep))
            except ModelInvalid:
                return False

        kept = frozenset[int]() if shows(frozenset()) else minimize(range(len(items)), shows)
        result = self._with_other_inputs(renamed(kept))
        self.names = names_left(result.text, names)
        self.data += tuple(items[index] for index in sorted(kept) if is_data_item(items[index]))
        self.data += tuple(f"a path in the flag {flag}" for flag in self.problem.flags if "/" in flag)
        return result

    def _with_other_inputs(self, found: Candidate) -> Candidate:
        """Replace each recorded input by made-up numbers, if the problem stays."""
        for index, array in enumerate(found.inputs):
            for other in _other_values(array):
                inputs = (*found.inputs[:index], other, *found.inputs[index + 1 :])
                if self.shows(replace(found, inputs=inputs)):
                    found = replace(found, inputs=inputs)
                    break
            else:
                self.data += (f"input {index} ({'x'.join(map(str, array.shape)) or 'scalar'})",)
        return found


def _other_values(array: Array) -> Iterator[Array]:
    """Arrays of the same type without the data: random, and with the same value everywhere."""
    import numpy as np

    numbers = np.random.default_rng(0).standard_normal(array.shape)
    if array.dtype.kind in "fc":
        yield numbers.astype(array.dtype)
    for value in (0, 1, -1, 1000) if array.dtype.kind != "b" else (False, True):
        if array.dtype.kind != "u" or value >= 0:
            yield np.full(array.shape, value).astype(array.dtype)
    if array.dtype.kind in "fc":  # only its infinities are left
        yield np.where(np.isfinite(array), numbers.astype(array.dtype), array)


def _made_up(kind: str) -> Array:
    """An input for a value inside control flow, which cannot be computed alone.

    Raises:
        ModelInvalid: its size is not known.
    """
    import numpy as np

    from tracemap.capture.inputs import dtype_of, number_type
    from tracemap.ir.attributes import shape_of

    shape, element = shape_of(kind), _ELEMENT.search(kind)
    sizes = [size for size in shape.extents if isinstance(size, int)]
    if len(sizes) < len(shape.extents):
        raise ModelInvalid("an input inside control flow has an unknown size")
    dtype = dtype_of(number_type(element[1] if element else kind))
    numbers = np.random.default_rng(0).random(sizes) / 10
    return numbers.astype(dtype)


# ---- output


def _write(search: _Search, found: Candidate, output: Path, progress: Progress) -> Reduction:
    from tracemap.commands.problems import BundleProblem, input_files
    from tracemap.ir.slicing import count_ops

    problem = search.problem
    progress("comparing with the original")
    evidence = problem.evidence(found)
    specs: list[str] = []
    files: list[Path] = []
    if isinstance(problem, BundleProblem) and problem.kind != "lost":
        part = problem.build(found.text, "reduced")
        (function,) = part.graph.functions
        specs = [_plain_spec(argument.type) for argument in function.arguments]
        if found.inputs:
            given = input_files(part, CallOptions(), found.inputs, problem.work)
            written = [
                _write_input(spec, array, output, number)
                for number, (spec, array) in enumerate(zip(given, found.inputs, strict=True))
            ]
            files, specs = [file for file, _ in written if file is not None], [spec for _, spec in written]
    commands = problem.commands(found, path_argument(Path(output.name)), specs)
    head = [f"// creator: tracemap {__version__}", *(f"// {without_controls(command)}" for command in commands)]
    write_text("\n".join([*head, found.text]), output)
    return Reduction(
        problem=problem.kind,
        model=output,
        inputs=tuple(files),
        what=problem.what,
        ops_before=search.count,
        ops=count_ops(found.slice.module),
        builds=search.tried,
        commands=commands,
        evidence=evidence.lines,
        same_time=evidence.same_time,
        names=search.names,
        data=search.data,
    )


def _input_files_of(output: Path) -> list[Path]:
    """The files that have names of inputs of this output."""
    return sorted(output.parent.glob(f"{glob.escape(output.stem)}-[0-9]*.npy"))


def _write_input(spec: str, array: Array, output: Path, number: int) -> tuple[Path | None, str]:
    """Write an input next to the model; returns its file, None for a number, and its specification there."""
    import numpy as np

    kind, at, path = spec.partition("@")
    if not at:
        return None, spec
    if array.dtype.kind in "iuf" and array.dtype.isbuiltin:
        file = output.with_name(f"{output.stem}-{number}.npy")
        with atomic_file(file) as temporary, temporary.open("wb") as stream:
            np.save(stream, array)
        return file, f"@{file.name}"
    file = output.with_name(f"{output.stem}-{number}{Path(path).suffix}")
    with atomic_file(file) as temporary:
        shutil.copyfile(path, temporary)
    return file, f"{kind}@{file.name}"


def _plain_spec(kind: str) -> str:
    """An input of a type in IREE's syntax: 0.5 everywhere, or 0 for integers."""
    plain = kind.removeprefix("tensor<").removesuffix(">").partition(",")[0]
    number = "0.5" if plain.rpartition("x")[2].startswith(("f", "bf")) else "0"
    return f"{plain}={number}" if kind.startswith("tensor<") else number


# ---- command line


@options_command("reduce", ReduceOptions)
@click.argument("target", metavar="TARGET", type=PATH)
def command(target: Path, options: ReduceOptions) -> None:
    """Write the smallest part of a model that still shows a problem, with inputs and commands for a bug report.

    TARGET is a bundle and --op the op with the problem; if the compiler fails, TARGET is the model. Removed ops become
    arguments and results of the function. Each part is compiled again until no op can be left out. A search that was
    interrupted goes on where it was.

    \b
    Example:
      tracemap reduce model.tracemap --op op12
      tracemap reduce model.tracemap --op op40 --shows nan --input x=@x.npy
      tracemap reduce model.mlir --shows crash --anonymous -- --iree-opt-level=O3
    """
    from tracemap.reports.terminal.reduction import print_reduction

    with show_phases("reduce") as progress:
        result = reduce(target, options, progress)
    print_reduction(result, options.anonymous, sys.stdout)
