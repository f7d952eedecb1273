"""Which pass of the compiler loses an op: the model is compiled again, up to the phase that loses it, printing IR.

Every operation gets a tag in place of its location, so that what is printed stays small; passes that change nothing
print nothing. The stream of prints is read once, and of the text only what may still be needed is kept.
"""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.diagnostics import tells
from tracemap.errors import ModelInvalid, UsageInvalid
from tracemap.graph.audit import Spot, lost_in
from tracemap.graph.bundle import Bundle
from tracemap.graph.model import PHASES, Op
from tracemap.ir.dumps import DumpText
from tracemap.ir.parsing import MlirParser, Module, string_attribute, walk
from tracemap.ir.reading import blank_locations, parse_model
from tracemap.mapping.compiler.compiling import Compiler
from tracemap.mapping.compiler.messages import failed
from tracemap.mapping.tagging import write_bytecode
from tracemap.owned.children import end, start
from tracemap.owned.home import temporary_folder
from tracemap.toolchain import Progress, no_progress

_PREFIX = "tm.op."
_NAME = "tracemap_audited"
"""The name that an unnamed model gets, so that prints of all of it are known from those of modules inside."""

# `Name: argument{options}`, or `Name (argument)` as IREE 3.11 writes it.
_HEADER = re.compile(
    r"// -----// IR Dump After (?P<name>\S+?)"
    r"(?:(?:: | \()(?P<argument>[^\s{}()']+)(?:\{.*\})?\)?)? (?:\(.*\) )?//----- //"
)
_FLAGS = (
    "--mlir-print-debuginfo",
    "--mlir-disable-threading",
    "--mlir-print-ir-after-all",
    "--mlir-print-ir-after-change",
    "--mlir-elide-elementsattrs-if-larger=16",
    "--mlir-elide-resource-strings-if-larger=16",
)
_CONSTEVAL = "jit_eval"
"""The compiler evaluates constants by compiling them as modules of this name, whose passes print too."""
_CONSTEVAL_END = "iree-consteval-jit-globals"
_SYMBOL = re.compile(r"^\s*([\w.]+)\b[^@\n]*?(@[\w$.-]+)")
_FUNCTION = re.compile(r"\b(?:func\.func|llvm\.func|util\.func|vm\.func)\b[^@\n]*(@[\w$.-]+)")
_WHOLE = re.compile(r"^module @", re.MULTILINE)
_AROUND = 2
_WIDTH = 200
_GAPS = re.compile(r" +([,)])")
_FAR = 40
"""How many lines away from an op its neighbours are looked for."""


_Anchor = tuple[str, str]
"""Kind and symbol of an operation that passes run on: names that stay the same from print to print."""


@dataclass(frozen=True, slots=True)
class _Print:
    """The IR after a pass: which pass, the how-manyth print, and what it printed."""

    pass_name: str
    argument: str
    number: int
    text: str

    @property
    def anchor(self) -> _Anchor:
        """The operation that was printed."""
        for line in self.text.splitlines():
            if line.strip() and not line.startswith("#"):
                return _anchor_of(line, self.text)
        return ("", "")


def find_spots(bundle: Bundle, ops: Sequence[Op], progress: Progress = no_progress) -> tuple[Spot, ...]:
    """Find the pass that lost each op; ops that are never lost are left out.

    Raises:
        UsageInvalid: the bundle does not hold what is needed to compile the model again.
        ModelInvalid: the compiler fails.
    """
    lost = [op for op in ops if lost_in(op)]
    if not lost:
        return ()
    last_phase = max((lost_in(op) for op in lost), key=PHASES.index)
    module = _tagged(bundle)
    watch = Watch({op.id.number for op in lost}, consteval=_CONSTEVAL not in str(module))
    with temporary_folder() as folder:
        bytecode = write_bytecode(module, folder)
        progress(f"compiling up to {last_phase}")
        compiler = Compiler.installed(bundle.graph.module.flags)
        start = module.operation.get_asm(large_elements_limit=16, large_resource_limit=16, enable_debug_info=True)
        watch.look(_Print("", "", 0, str(start)))
        for each in _prints(compiler, bytecode, last_phase):
            watch.look(each)
    return tuple(watch.spot(op, lost_in(op)) for op in lost)


def _tagged(bundle: Bundle) -> Module:
    """The model of a bundle, named, with nothing but tags for locations."""
    from tracemap.ir.parsing import ir

    graph = bundle.graph
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: built without the model's text; build it again without --no-sources")
    if not graph.module.flags and tells(graph.diagnostics, "identity-by-location"):
        raise UsageInvalid(f"{bundle.path}: made from dumps, so it is not known how to compile the model again")
    module = parse_model(MlirParser(), model).module
    with module.context:
        if not string_attribute(module.operation, "sym_name"):
            module.operation.attributes["sym_name"] = ir.StringAttr.get(_NAME)
        for index, operation in enumerate(walk(module.operation)):
            operation.location = ir.Location.name(f"{_PREFIX}{index}")
    return module


def _prints(compiler: Compiler, bytecode: Path, phase: str) -> Iterator[_Print]:
    """Run the compiler up to a phase and hand out what its passes print, as it comes.

    Raises:
        ModelInvalid: the compiler fails.
        ToolMissing: it cannot be started.
    """
    arguments: list[str | Path] = [
        compiler.program,
        bytecode,
        *_FLAGS,
        f"--compile-to={phase}",
        "-o",
        "/dev/null",
        *compiler.flags,
    ]
    process = start(arguments, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        last = ""
        for each in split_prints(io.TextIOWrapper(process.stderr, encoding="utf-8", errors="replace")):
            last = each.text
            yield each
        if process.wait() != 0:
            raise failed(ModelInvalid, process.returncode, last[-2000:])
    finally:
        end(process)


def split_prints(lines: Iterable[str]) -> Iterator[_Print]:
    """Cut a stream of lines at the headers that the compiler prints before the IR after each pass."""
    header: re.Match[str] | None = None
    number = 0
    text: list[str] = []
    for line in lines:
        found = _HEADER.match(line)
        if found is None:
            text.append(line)
            continue
        if header is not None:
            yield _Print(header["name"], header["argument"] or "", number, "".join(text))
        header, text = found, []
        number += 1
    if header is not None:
        yield _Print(header["name"], header["argument"] or "", number, "".join(text))


class Watch:
    """Follows ops through the prints: where each was seen last, and the first print that must show it but does not."""

    def __init__(self, ops: Iterable[int], *, consteval: bool = True) -> None:
        self._ops = sorted(ops)
        self._consteval = consteval
        self._inside_consteval = False
        self._seen: dict[int, tuple[DumpText, int]] = {}
        self._around: dict[int, set[_Anchor]] = {op: set() for op in self._ops}
        self._missed: dict[int, _Print] = {}

    def look(self, each: _Print) -> None:
        """Take notice of the next print."""
        if self._is_consteval(each):
            return
        anchor = each.anchor
        dump = DumpText(each.text, _PREFIX)
        for op in self._ops:
            line = _line_of(dump, op)
            if line is not None:
                self._seen[op] = (dump, line)
                self._missed.pop(op, None)  # it was only out of sight: the print was of another operation
                self._around[op] |= _anchors_around(each.text, line)
            elif op not in self._missed and op in self._seen and anchor in self._around[op]:
                self._missed[op] = each

    def _is_consteval(self, each: _Print) -> bool:
        """Whether a print belongs to a module that the compiler made up to evaluate constants."""
        if not self._consteval:
            return False
        if each.argument.startswith(_CONSTEVAL_END):
            self._inside_consteval = False
        elif _CONSTEVAL in (each.anchor[1] if _WHOLE.search(each.text) else each.text):
            self._inside_consteval = True
        return self._inside_consteval

    def spot(self, op: Op, phase: str) -> Spot:
        """Where an op was lost."""
        index = op.id.number
        dump, line = self._seen[index]
        lines = dump.text.splitlines()
        missed = self._missed.get(index)
        before = _excerpt(lines, _start_of(lines, line), line)
        if missed is None:
            return Spot(op.id, phase, "", "", 0, "", before, "")
        after = _same_place(dump, line, DumpText(missed.text, _PREFIX))
        anchor = " ".join(missed.anchor).strip()
        return Spot(op.id, phase, missed.pass_name, missed.argument, missed.number, anchor, before, after)


def _line_of(dump: DumpText, tag: int) -> int | None:
    """The number of the first line that ends an operation of a tag, from 0."""
    if f'"{_PREFIX}{tag}"' not in dump.text or tag not in dump.tags():
        return None
    for number, line in enumerate(dump.text.splitlines()):
        if tag in dump.of_line(line):
            return number
    return None


def _anchors_around(text: str, number: int) -> set[_Anchor]:
    """The operations around a line, and its own: those whose print shows the line too."""
    lines = text.splitlines()
    start = _start_of(lines, number)
    found = {_anchor_of(lines[start], text)}
    indent = _indent(lines[start])
    for above in range(start - 1, -1, -1):
        line = lines[above]
        # What is indented less begins an operation around; labels of blocks (^bb0) and aliases (#loc) do not.
        if line.strip() and _indent(line) < indent and not line.lstrip().startswith(("#", "^")):
            indent = _indent(line)
            found.add(_anchor_of(line, "\n".join(lines[above : above + _FAR])))
    return found


def _anchor_of(line: str, text: str) -> _Anchor:
    """The operation that a line begins; an unnamed module goes by the first function in it."""
    words = line.split(None, 1)
    if words and words[0] == "module" and not re.match(r"\s*module @", line):
        function = _FUNCTION.search(text)
        return ("module", function[1] if function else "")
    match = _SYMBOL.match(line)
    return (match[1], match[2]) if match else (words[0] if words else "", "")


def _start_of(lines: Sequence[str], number: int) -> int:
    """Where the operation begins that a line ends: itself, or for the end of a region the line that opened it."""
    if not lines[number].lstrip().startswith("}"):
        return number
    indent = _indent(lines[number])
    for above in range(number - 1, -1, -1):
        line = lines[above]
        if _indent(line) == indent and line.strip() and not line.lstrip().startswith(("}", "^")):
            return above
    return number


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _same_place(dump: DumpText, number: int, after: DumpText) -> str:
    """Of a later text the lines around the neighbour of an operation that is nearest and still there."""
    lines = dump.text.splitlines()
    later = after.text.splitlines()
    line_of: dict[int, int] = {}
    for later_number, line in enumerate(later):
        for tag in sorted(after.of_line(line)):
            line_of.setdefault(tag, later_number)
    for distance in range(1, _FAR):
        for near in (number + distance, number - distance):
            if 0 <= near < len(lines):
                known = [line_of[tag] for tag in sorted(dump.of_line(lines[near])) if tag in line_of]
                if known:
                    return _excerpt(later, _start_of(later, known[0]), known[0])
    return _excerpt([line for line in later if line.strip() and not line.startswith("#")], 0, 0)


def _excerpt(lines: Sequence[str], begin: int, end: int) -> str:
    """The lines from two before `begin` to two after `end`, without locations; the middle of many is left out."""
    chosen = [*range(max(0, begin - _AROUND), min(len(lines), begin + _AROUND + 1))]
    chosen += [number for number in range(end - _AROUND, min(len(lines), end + _AROUND + 1)) if number > chosen[-1]]
    shown: list[str] = []
    previous = chosen[0] - 1
    for number in chosen:
        if number != previous + 1:
            shown.append("…")
        shown.append(_without_location(lines[number]))
        previous = number
    return "\n".join(line for line in shown if line.strip() and not line.startswith("#loc"))


def _without_location(line: str) -> str:
    bare = _GAPS.sub(r"\1", blank_locations(line)).rstrip()
    return bare if len(bare) <= _WIDTH else bare[: _WIDTH - 1] + "…"
