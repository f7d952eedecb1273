"""Finds the compiler pass in which an op loses its location: recompiles up to the phase of the loss and prints IR.

Every operation gets a tag as its location, so that prints stay small; passes without a change print nothing. The stream
of prints is read once, and only text that may still be needed is kept.
"""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracemap.core.diagnostics import has_slug
from tracemap.core.errors import ModelInvalid, UsageInvalid
from tracemap.core.process.children import end, start
from tracemap.core.process.temporary_files import temporary_folder
from tracemap.core.toolchain import Progress, no_progress
from tracemap.ir.dumps import DumpText
from tracemap.ir.model_reader import blank_locations, parse_model
from tracemap.ir.parsing import MlirParser, Module, string_attribute, walk
from tracemap.map.build.compiler.compilation import Compiler
from tracemap.map.build.compiler.failure_messages import compiler_error
from tracemap.map.build.tagging import write_bytecode
from tracemap.map.bundle import Bundle
from tracemap.map.model import PHASES, Op
from tracemap.map.query import LosingPass, phase_of_loss

_PREFIX = "tm.op."
_DEFAULT_NAME = "tracemap_audited"
"""The name for an unnamed model, which distinguishes prints of the whole model from those of inner modules."""

# `Name: argument{options}`, or `Name (argument)` in IREE 3.11.
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
"""The name of modules that the compiler makes and compiles to evaluate constants; their passes print, too."""
_CONSTEVAL_END = "iree-consteval-jit-globals"
_SYMBOL = re.compile(r"^\s*([\w.]+)\b[^@\n]*?(@[\w$.-]+)")
_FUNCTION = re.compile(r"\b(?:func\.func|llvm\.func|util\.func|vm\.func)\b[^@\n]*(@[\w$.-]+)")
_MODULE_START = re.compile(r"^module @", re.MULTILINE)
_CONTEXT_LINES = 2
_MAX_WIDTH = 200
_GAPS = re.compile(r" +([,)])")
_MAX_DISTANCE = 40
"""The maximal distance, in lines, of neighbours of an op."""

_Anchor = tuple[str, str]
"""Kind and symbol of an operation that passes run on; they are the same in all prints."""


@dataclass(frozen=True, slots=True)
class _Print:
    """The IR after a pass: the pass, the index of the print, and its text."""

    pass_name: str
    argument: str
    number: int
    text: str

    @property
    def anchor(self) -> _Anchor:
        """The operation that was printed."""
        line = next((line for line in self.text.splitlines() if line.strip() and not line.startswith("#")), None)
        return ("", "") if line is None else _anchor_of(line, self.text)


def find_losing_passes(bundle: Bundle, ops: Sequence[Op], progress: Progress = no_progress) -> tuple[LosingPass, ...]:
    """Find the pass in which each op loses its location; ops without a loss are left out.

    Raises:
        UsageInvalid: the bundle does not have what is needed to compile the model again.
        ModelInvalid: the compiler failed.
    """
    lost_ops = [op for op in ops if phase_of_loss(op)]
    if not lost_ops:
        return ()
    last_phase = max((phase_of_loss(op) for op in lost_ops), key=PHASES.index)
    module = _tagged(bundle)
    watch = LossTracker({op.id.number for op in lost_ops}, consteval=_CONSTEVAL not in str(module))
    with temporary_folder() as folder:
        bytecode = write_bytecode(module, folder)
        progress(f"compiling up to {last_phase}")
        compiler = Compiler.installed(bundle.graph.module.flags)
        initial_text = module.operation.get_asm(
            large_elements_limit=16, large_resource_limit=16, enable_debug_info=True
        )
        watch.look(_Print("", "", 0, str(initial_text)))
        for ir_print in _prints(compiler, bytecode, last_phase):
            watch.look(ir_print)
    return tuple(watch.spot(op, phase_of_loss(op)) for op in lost_ops)


def _tagged(bundle: Bundle) -> Module:
    """The model of a bundle, with a name, and with tags as its only locations."""
    from tracemap.ir.parsing import ir

    graph = bundle.graph
    model = bundle.model()
    if not model:
        raise UsageInvalid(f"{bundle.path}: has no model text; build it again without --no-sources")
    if not graph.module.flags and has_slug(graph.diagnostics, "identity-by-location"):
        raise UsageInvalid(f"{bundle.path}: made from dumps, without the flags that are needed to compile it again")
    module = parse_model(MlirParser(), model).module
    with module.context:
        if not string_attribute(module.operation, "sym_name"):
            module.operation.attributes["sym_name"] = ir.StringAttr.get(_DEFAULT_NAME)
        for index, operation in enumerate(walk(module.operation)):
            operation.location = ir.Location.name(f"{_PREFIX}{index}")
    return module


def _prints(compiler: Compiler, bytecode: Path, phase: str) -> Iterator[_Print]:
    """Run the compiler up to a phase and yield the prints of its passes as they come.

    Raises:
        ModelInvalid: the compiler failed.
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
        last_text = ""
        for ir_print in split_prints(io.TextIOWrapper(process.stderr, encoding="utf-8", errors="replace")):
            last_text = ir_print.text
            yield ir_print
        if process.wait() != 0:
            raise compiler_error(ModelInvalid, process.returncode, last_text[-2000:])
    finally:
        end(process)


def split_prints(lines: Iterable[str]) -> Iterator[_Print]:
    """Split a stream of lines at the headers that the compiler prints for each pass."""
    header: re.Match[str] | None = None
    index = 0
    text: list[str] = []
    for line in lines:
        match = _HEADER.match(line)
        if match is None:
            text.append(line)
            continue
        if header is not None:
            yield _Print(header["name"], header["argument"] or "", index, "".join(text))
        header, text = match, []
        index += 1
    if header is not None:
        yield _Print(header["name"], header["argument"] or "", index, "".join(text))


class LossTracker:
    """Follows ops through the prints: the last print with each op, and the first that lacks it though it should not."""

    def __init__(self, ops: Iterable[int], *, consteval: bool = True) -> None:
        self._ops = sorted(ops)
        self._consteval = consteval
        self._inside_consteval = False
        self._last_seen: dict[int, tuple[DumpText, int]] = {}
        self._anchors: dict[int, set[_Anchor]] = {op: set() for op in self._ops}
        self._losses: dict[int, _Print] = {}

    def look(self, ir_print: _Print) -> None:
        """Process the next print."""
        if self._is_consteval(ir_print):
            return
        anchor = ir_print.anchor
        dump = DumpText(ir_print.text, _PREFIX)
        for op in self._ops:
            line = _line_of(dump, op)
            if line is not None:
                self._last_seen[op] = (dump, line)
                self._losses.pop(op, None)  # not lost: the earlier print was of another operation
                self._anchors[op] |= _anchors_around(ir_print.text, line)
            elif op not in self._losses and op in self._last_seen and anchor in self._anchors[op]:
                self._losses[op] = ir_print

    def _is_consteval(self, ir_print: _Print) -> bool:
        """Whether a print belongs to a module that the compiler made to evaluate constants."""
        if not self._consteval:
            return False
        if ir_print.argument.startswith(_CONSTEVAL_END):
            self._inside_consteval = False
        elif _CONSTEVAL in (ir_print.anchor[1] if _MODULE_START.search(ir_print.text) else ir_print.text):
            self._inside_consteval = True
        return self._inside_consteval

    def spot(self, op: Op, phase: str) -> LosingPass:
        """The pass in which an op lost its location."""
        index = op.id.number
        dump, line = self._last_seen[index]
        lines = dump.text.splitlines()
        loss = self._losses.get(index)
        before = _excerpt(lines, _start_of(lines, line), line)
        if loss is None:
            return LosingPass(op.id, phase, "", "", 0, "", before, "")
        after = _excerpt_without(dump, line, DumpText(loss.text, _PREFIX))
        anchor = " ".join(loss.anchor).strip()
        return LosingPass(op.id, phase, loss.pass_name, loss.argument, loss.number, anchor, before, after)


def _line_of(dump: DumpText, tag: int) -> int | None:
    """The index of the first line that ends an operation with a tag."""
    if f'"{_PREFIX}{tag}"' not in dump.text or tag not in dump.tags():
        return None
    for index, line in enumerate(dump.text.splitlines()):
        if tag in dump.of_line(line):
            return index
    return None


def _anchors_around(text: str, index: int) -> set[_Anchor]:
    """The operation of a line and those around it, whose prints contain the line, too."""
    lines = text.splitlines()
    start = _start_of(lines, index)
    anchors = {_anchor_of(lines[start], text)}
    indent = _indent(lines[start])
    for above in range(start - 1, -1, -1):
        line = lines[above]
        # A smaller indent begins an enclosing operation, except for block labels (^bb0) and aliases (#loc).
        if line.strip() and _indent(line) < indent and not line.lstrip().startswith(("#", "^")):
            indent = _indent(line)
            anchors.add(_anchor_of(line, "\n".join(lines[above : above + _MAX_DISTANCE])))
    return anchors


def _anchor_of(line: str, text: str) -> _Anchor:
    """The operation that begins on a line; an unnamed module is identified by its first function."""
    words = line.split(None, 1)
    if words and words[0] == "module" and not re.match(r"\s*module @", line):
        function = _FUNCTION.search(text)
        return ("module", function[1] if function else "")
    match = _SYMBOL.match(line)
    return (match[1], match[2]) if match else (words[0] if words else "", "")


def _start_of(lines: Sequence[str], index: int) -> int:
    """The first line of the operation that ends on a line; for the end of a region, the line that opened it."""
    if not lines[index].lstrip().startswith("}"):
        return index
    indent = _indent(lines[index])
    for above in range(index - 1, -1, -1):
        line = lines[above]
        if _indent(line) == indent and line.strip() and not line.lstrip().startswith(("}", "^")):
            return above
    return index


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _excerpt_without(dump: DumpText, index: int, after: DumpText) -> str:
    """The lines of a later text around the nearest neighbour of a removed operation that is still there."""
    lines = dump.text.splitlines()
    later = after.text.splitlines()
    line_of: dict[int, int] = {}
    for later_index, line in enumerate(later):
        for tag in sorted(after.of_line(line)):
            line_of.setdefault(tag, later_index)
    for distance in range(1, _MAX_DISTANCE):
        for neighbour in (index + distance, index - distance):
            if 0 <= neighbour < len(lines):
                candidates = [line_of[tag] for tag in sorted(dump.of_line(lines[neighbour])) if tag in line_of]
                if candidates:
                    return _excerpt(later, _start_of(later, candidates[0]), candidates[0])
    return _excerpt([line for line in later if line.strip() and not line.startswith("#")], 0, 0)


def _excerpt(lines: Sequence[str], begin: int, end: int) -> str:
    """The lines from two above `begin` to two below `end`, without locations; a long middle is left out."""
    chosen = [*range(max(0, begin - _CONTEXT_LINES), min(len(lines), begin + _CONTEXT_LINES + 1))]
    chosen += [
        index for index in range(end - _CONTEXT_LINES, min(len(lines), end + _CONTEXT_LINES + 1)) if index > chosen[-1]
    ]
    shown: list[str] = []
    previous = chosen[0] - 1
    for index in chosen:
        if index != previous + 1:
            shown.append("…")
        shortened = _GAPS.sub(r"\1", blank_locations(lines[index])).rstrip()
        shown.append(shortened if len(shortened) <= _MAX_WIDTH else shortened[: _MAX_WIDTH - 1] + "…")
        previous = index
    return "\n".join(line for line in shown if line.strip() and not line.startswith("#loc"))
