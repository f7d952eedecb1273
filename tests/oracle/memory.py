"""Accuracy of a program's memory, and of its peak without an op: `python -m tests.oracle.memory`.

The truth of the peak is the runtime's own count of allocated bytes (`--print_statistics`). The truth of the peak
without an op is the model without that op, compiled again: its users read what it read.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tests.documents import DOCS, write_part
from tests.oracle.memory_programs import Edit, fused_edits
from tests.oracle.stock import Program
from tests.support import ROOT, SAMPLES, Corpus, Json, check_cli, json_cli
from tracemap.core.toolchain import find_tool

MOST_ERROR: Final = 0.01
_WIDTHS: Final = (32, 64, 96, 160, 256)


def edits(count: int) -> Iterator[Edit]:
    """Random programs of products, each without one of its ops, whose operand and result have the same type.

    Every second program has barriers behind its ops, so that each is a submission, with allocations of its own.
    """
    seed = found = 0
    while found < count:
        chance = random.Random(seed)
        lines = _lines(chance, chance.randint(6, 14))
        used = _used(lines)
        removable = [index for index in used if lines[index].is_removable]
        if removable:
            removed, barriers = chance.choice(removable), bool(seed % 2)
            before = _program(f"memory{seed}", lines, None, barriers=barriers)
            after = _program(f"memory{seed}_without", lines, removed, barriers=barriers)
            yield Edit(f"program {seed}", before, after, _FIRST_LINE + _LINES_OF_OP * removed)
            found += 1
        seed += 1


_FIRST_LINE, _LINES_OF_OP = 2, 3
"""The line of the first op in a program's text, and the lines of each."""
_ROWS: Final = 64
_NONE: Final = -2
"""The operand that an op does not have."""


@dataclass(frozen=True, slots=True)
class _Line:
    """An op of a program: a product of an earlier value with a weight, or of two earlier values `a (aᵀ b)`.

    `first`: the width of the program's first argument.
    """

    first: int
    width: int
    operand: int
    other: int = _NONE
    is_removable: bool = False


def _lines(chance: random.Random, length: int) -> list[_Line]:
    """The ops; value -1 is the program's first argument."""
    first = chance.choice(_WIDTHS)
    widths = {-1: first}
    lines: list[_Line] = []
    for index in range(length):
        operand = chance.choice((index - 1, index - 1, chance.randrange(-1, index)))
        if chance.random() < 0.35:
            other = chance.randrange(-1, index)
            lines.append(_Line(first, widths[other], operand, other))
        else:
            width = widths[operand] if chance.random() < 0.6 else chance.choice(_WIDTHS)
            lines.append(_Line(first, width, operand, is_removable=width == widths[operand]))
        widths[index] = lines[-1].width
    return lines


def _used(lines: Sequence[_Line]) -> list[int]:
    """The indices of ops that the result needs, without the one that makes it."""
    needed = {len(lines) - 1}
    for index in range(len(lines) - 1, -1, -1):
        if index in needed:
            needed |= {lines[index].operand, lines[index].other}
    return sorted(index for index in needed if 0 <= index < len(lines) - 1)


def _program(name: str, lines: Sequence[_Line], removed: int | None, *, barriers: bool) -> Program:
    first = lines[0].first
    widths = {-1: first} | {index: line.width for index, line in enumerate(lines)}
    names = {-1: "x"}
    arguments, body = [("x", f"{_ROWS}x{first}xf32")], []
    for index, line in enumerate(lines):
        width, kind = widths[line.operand], f"tensor<{_ROWS}x{widths[line.operand]}xf32>"
        result = f"tensor<{_ROWS}x{line.width}xf32>"
        text = ["", "", ""]
        if index != removed:
            left, weight = names[line.operand], f"tensor<{width}x{line.width}xf32>"
            factor = f"w{index}"
            if line.other != _NONE:
                other = names[line.other]
                text[1] = (
                    f"  %w{index} = stablehlo.dot_general %{left}, %{other}, contracting_dims = [0] x [0]"
                    f" : ({kind}, {result}) -> {weight}"
                )
            else:
                arguments.append((factor, f"{width}x{line.width}xf32"))
            line_of = 2 if text[1] else 0
            text[line_of] = (
                f"  %o{index} = stablehlo.dot_general %{left}, %{factor}, contracting_dims = [1] x [0]"
                f" : ({kind}, {weight}) -> {result}"
            )
            names[index] = f"o{index}"
            if barriers and not text[1]:
                text[1] = f"  %v{index} = stablehlo.optimization_barrier %o{index} : {result}"
                names[index] = f"v{index}"
        elif barriers:  # it stays: without it, two submissions would be one
            text[1] = f"  %v{index} = stablehlo.optimization_barrier %{names[line.operand]} : {result}"
            names[index] = f"v{index}"
        else:
            names[index] = names[line.operand]
        body += text
    last = f"tensor<{_ROWS}x{lines[-1].width}xf32>"
    head = f"func.func @main({', '.join(f'%{name}: tensor<{kind}>' for name, kind in arguments)}) -> {last} {{"
    end = [f"  return %{names[len(lines) - 1]} : {last}", "}"]
    return Program(name, "\n".join([head, *body, *end]) + "\n", tuple(f"{kind}=0.01" for _, kind in arguments))


@dataclass(frozen=True, slots=True)
class EditedPeak:
    """Bytes at the peak: before an edit, as predicted for it, and after it in truth.

    `counted`: the runtime's own count after the edit, without inputs and constants. `is_estimate`: tracemap says so.
    """

    name: str
    before: int
    predicted: int
    true: int
    counted: int
    is_estimate: bool = False
    is_fused: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.true - 1 if self.true else float(self.predicted > 0)

    @property
    def is_right(self) -> bool:
        return abs(self.error) <= MOST_ERROR


def edited_peak(edit: Edit, folder: Path) -> EditedPeak:
    """Predict the peak without the op, and compile and run the model without it."""
    before, after = _bundle(edit.before, folder), _bundle(edit.after, folder)
    op = next(op["id"] for op in json_cli("show", before)["ops"] if op["line"] == edit.line)
    (without,) = json_cli("memory", before, "--without", op)["functions"]
    (compiled,) = json_cli("memory", after)["functions"]
    inputs = edit.after.inputs
    flags = ["--function=main", *(f"--input={value}" for value in inputs)]
    counted = _counted_bytes(after, flags, folder)
    # The count does not exist if the program allocates nothing: it returns an input.
    own = 0 if counted is None else counted - sum(map(_bytes_of, inputs))
    return EditedPeak(
        edit.name,
        peak(json_cli("memory", before)),
        int(without["peak_bytes"]),
        int(compiled["peak_bytes"]),
        own if own == compiled["peak_bytes"] else own - int(compiled["kept_bytes"]),
        bool(without["is_estimate"]),
        edit.is_fused,
    )


def is_promised(edited: EditedPeak) -> bool:
    """Whether a prediction is right or says that it is an estimate, and the runtime confirms the truth."""
    return (edited.is_right or edited.is_estimate) and edited.counted == edited.true


def peak(found: Json) -> int:
    """The bytes at the peak of the only function."""
    (function,) = found["functions"]
    return int(function["peak_bytes"])


def _bundle(program: Program, folder: Path) -> Path:
    model, bundle = folder / f"{program.name}.mlir", folder / f"{program.name}.tracemap"
    if not bundle.exists():
        model.write_text(program.text, encoding="utf-8")
        check_cli("build", model, "-o", bundle)
    return bundle


# ---- allocated bytes


_ELEMENT_BYTES: Final = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i8": 1, "i1": 1}
_PEAK: Final = re.compile(r"DEVICE_LOCAL: +(\d+)B peak")


@dataclass(frozen=True, slots=True)
class AllocatedPeak:
    """Bytes at the peak of a program with its inputs: as tracemap has it, and as the runtime counts them.

    `mapped`: constants that the runtime may have mapped from the module's file instead of allocating them.
    """

    flags: str
    told: int
    counted: int
    mapped: int

    @property
    def is_right(self) -> bool:
        return self.counted in (self.told, self.told - self.mapped)


DYNAMIC: Final[Mapping[str, tuple[str, ...]]] = {
    "mlp": ("17x64xf32=1", "64x128xf32=1", "128x32xf32=1"),
    "scores": ("5x64xf32=1", "33x64xf32=1", "33x64xf32=1"),
    "joined": ("7x64xf32=1", "40x64xf32=1", "64x64xf32=1"),
    "trips": ("13x48xf32=1", "48x48xf32=0.01", "4"),
    "halves": ("9x31xf16=1", "31x17xf16=1"),
    "mixed": ("70x64xf32=1", "32x64xf32=1", "64x64xf32=1"),
}
"""Programs of `tests/programs/memory`, whose shapes are dynamic, and their inputs."""


def dynamic_peak(name: str, folder: Path) -> AllocatedPeak:
    """The peak of a program with dynamic shapes."""
    bundle = folder / f"{name}.tracemap"
    check_cli("build", ROOT / "tests" / "programs" / "memory" / f"{name}.mlir", "-o", bundle)
    flags = ["--function=main", *(f"--input={value}" for value in DYNAMIC[name])]
    return _peak_of(name, "main", DYNAMIC[name], flags, bundle, folder)


def allocated_peak(corpus: Corpus, flags: str, bundle: Path) -> AllocatedPeak:
    """Ask for the memory of a function with the inputs of a flag file, and run it."""
    file = corpus.flag_files()[flags]
    text = file.read_text(encoding="utf-8")
    (name,) = re.findall(r"--function=(.*)", text)
    inputs = re.findall(r"--input=(.*)", text)
    return _peak_of(flags, name, inputs, [f"--flagfile={file}"], bundle, corpus.folder)


def _peak_of(
    shown: str, name: str, inputs: Sequence[str], flags: Sequence[str], bundle: Path, folder: Path
) -> AllocatedPeak:
    words = [word for value in inputs for word in ("--input", value)]
    found = json_cli("memory", bundle, "--function", name, "--top", "1", *words)["functions"]
    own, kept, loading = (found[0][key] if found else 0 for key in ("peak_bytes", "kept_bytes", "load_peak_bytes"))
    counted = _counted_bytes(bundle, flags, folder)
    assert counted is not None, shown
    told = max(loading, kept + own + sum(map(_bytes_of, inputs)))
    return AllocatedPeak(shown, told, counted, kept)


def _counted_bytes(bundle: Path, flags: Sequence[str], folder: Path) -> int | None:
    """The runtime's own count of bytes at the peak, inputs included; None if it allocates nothing."""
    command = [
        *(str(find_tool("iree-benchmark-module")), f"--module={bundle / 'module.vmfb'}", *flags),
        *("--device=local-sync", "--print_statistics", "--benchmark_min_time=2x"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    counted = _PEAK.search(done.stdout + done.stderr)
    return int(counted[1]) if counted else None


def _bytes_of(value: str) -> int:
    """The size of an input; scalars are no buffers."""
    found = re.match(r"((?:\d+x)+)(\w+)", value)
    if found is None:
        return 0
    size = _ELEMENT_BYTES[found[2]]
    for dimension in found[1].split("x")[:-1]:
        size *= int(dimension)
    return size


def table(edited: Sequence[EditedPeak]) -> str:
    """All edits as a table of Markdown."""
    rows = [
        "| model | peak, bytes | predicted without an op | compiled without it | difference |",
        "|---|--:|--:|--:|--:|",
    ]
    rows += [
        f"| {one.name} | {one.before:,} | {'about ' * one.is_estimate}{one.predicted:,} | {one.true:,} "
        f"| {one.error:+.1%} |"
        for one in edited
    ]
    changed = [one for one in edited if one.before != one.true]
    groups = {
        "all": edited,
        "fused ops": [one for one in edited if one.is_fused],
        "the peak changes": changed,
        "not marked as estimates": [one for one in edited if not one.is_estimate],
        "marked as estimates": [one for one in edited if one.is_estimate],
    }
    sums = [
        f"| {name} | {len(own)} | {sum(not one.error for one in own)} | {sum(one.is_right for one in own)} |"
        for name, own in groups.items()
    ]
    head = ["", f"| edits | number | exact | within {MOST_ERROR:.0%} |", "|---|--:|--:|--:|"]
    counted = sum(one.counted == one.true for one in edited)
    last = f"The runtime counts the same bytes as the plan of the edited model in {counted} of {len(edited)} edits."
    return "\n".join([*rows, *head, *sums, "", last])


@click.command()
@click.option("--corpus", type=click.Path(path_type=Path, exists=True), default=SAMPLES, help="Folder of models.")
@click.option("--edits", "count", type=click.IntRange(1), default=40, show_default=True, help="Number of edits.")
@click.option(
    "--fused-edits", "fused", type=click.IntRange(1), default=60, show_default=True, help="Edits of fused programs."
)
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(corpus: Path, count: int, fused: int, *, write_docs: bool) -> None:
    """Print the table; status 1 if a target is missed."""
    with tempfile.TemporaryDirectory(prefix="tracemap-memory-") as name:
        folder, models = Path(name), Corpus(corpus)
        allocated = []
        for flags in models.flag_files():
            bundle = folder / f"{models.model_of(flags)}.tracemap"
            if not bundle.exists():
                models.build(models.model_of(flags), bundle)
            allocated.append(allocated_peak(models, flags, bundle))
            print(allocated[-1], file=sys.stderr, flush=True)
        allocated += [dynamic_peak(name, folder) for name in DYNAMIC]
        edited = []
        for edit in (*edits(count), *fused_edits(fused)):
            edited.append(edited_peak(edit, folder))
            print(edited[-1], file=sys.stderr, flush=True)
    text = table(edited)
    right = sum(one.is_right for one in allocated)
    text += f"\nThe runtime's own count of allocated bytes is the same in {right} of {len(allocated)} programs."
    print(text)
    if write_docs:
        write_part(DOCS / "accuracy.md", "memory", text)
    sys.exit(0 if right == len(allocated) and all(map(is_promised, edited)) else 1)


if __name__ == "__main__":
    main()
