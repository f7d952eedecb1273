"""Compiler remarks: the flags that request them, and their parsing.

LLVM prints a remark as `remark: FILE:LINE:COLUMN: TEXT`, and the text may continue on further lines. The pass is not
printed; it follows from the wording, or is unknown. Other output may come between remarks. MLIR writes its remarks to a
YAML file with a document for each, whose tag is the kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tracemap.core.units import UNKNOWN, Text

REMARK_FLAGS: Final = ("--pass-remarks=.", "--pass-remarks-missed=.", "--pass-remarks-analysis=.")
NO_THREADS: Final = "--mlir-disable-threading"
"""Compiles one kernel after the other: LLVM writes a remark in pieces, and threads would interleave them."""

_REMARK_START = re.compile(r"remark: (?P<file>.*?):(?P<line>\d{1,9}):(?P<column>\d{1,9}): (?P<text>.*)", re.DOTALL)
_OTHER_MESSAGE = re.compile(r"(?:\S.*: )?(?:warning|error|note|remark): ")
"""The start of any other compiler message, with or without a location."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The compiler's names for a pass, for a remark of it, and for the remark's kind."""

    pass_name: Text
    name: Text
    kind: Text


def _wording(text: str, pass_name: str, name: Text, kind: str) -> tuple[re.Pattern[str], Origin]:
    return re.compile(text, re.DOTALL), Origin(pass_name, name, kind)


_SPILLS = r"\d+ (?:zero cost )?(?:folded )?(?:spills|reloads|virtual registers copies) .*generated in "
WORDINGS: Final = (
    _wording(_SPILLS + "loop", "regalloc", "LoopSpillReloadCopies", "missed"),
    _wording(_SPILLS + "function", "regalloc", "SpillReloadCopies", "missed"),
    _wording("vectorized loop ", "loop-vectorize", "Vectorized", "passed"),
    _wording("loop not vectorized", "loop-vectorize", UNKNOWN, "missed"),
    _wording("completely unrolled loop ", "loop-unroll", "FullyUnrolled", "passed"),
    _wording("unrolled loop by a factor of ", "loop-unroll", "PartialUnrolled", "passed"),
    _wording("Loop interchanged with ", "loop-interchange", "Interchanged", "passed"),
    _wording("All loops have dependencies in all directions", "loop-interchange", "Dependence", "missed"),
    _wording("Number of loads/stores exceeded", "loop-interchange", UNKNOWN, "missed"),
    _wording("Computed dependence info", "loop-interchange", "Dependence", "analysis"),
    _wording("hoisting ", "licm", "Hoisted", "passed"),
    _wording("load of type .* not eliminated", "gvn", UNKNOWN, "missed"),
    _wording("load of type .* eliminated", "gvn", "LoadElim", "passed"),
    _wording("'.*' not inlined into '", "inline", UNKNOWN, "missed"),
    _wording("'.*' inlined into '", "inline", "Inlined", "passed"),
    _wording(r"marked as tail call candidate \(readnone", "tailcallelim", "tailcall-readnone", "passed"),
    _wording("Switch instruction is not predictable", "dfa-jump-threading", "SwitchNotPredictable", "missed"),
    _wording("BasicBlock:", "asm-printer", "InstructionMix", "analysis"),
    _wording(r"\d+ instructions in function", "asm-printer", "InstructionCount", "analysis"),
    _wording(r"\d+ stack bytes in function", "prolog-epilog", "StackSize", "analysis"),
    _wording("Function: ", "stack-frame-layout", "StackLayout", "analysis"),
    _wording("Enabled features for ", "target-features", "EnabledFeatures", "analysis"),
    _wording(".+: Function: .+: MI Instruction count changed ", "size-info", "FunctionMISizeChange", "analysis"),
    _wording(".+: Function: .+: IR instruction count changed ", "size-info", "FunctionIRSizeChange", "analysis"),
    _wording(".+: IR instruction count changed ", "size-info", "IRSizeChange", "analysis"),
)
"""Wordings of LLVM 24; the first match counts. The name is unknown if several remarks share a wording."""
_UNKNOWN_ORIGIN: Final = Origin(UNKNOWN, UNKNOWN, UNKNOWN)
_KINDS: Final = {"!Passed": "passed", "!Missed": "missed", "!Analysis": "analysis", "!Failure": "missed"}
NUMBERED_FILE: Final = "op"
"""The file name of all locations in a model that is compiled for remarks; its lines are indices of operations."""


@dataclass(frozen=True, slots=True)
class PrintedRemark:
    """A remark as printed; `line` is 0 if the compiler does not know the location.

    `told`: its stated origin; None: the origin follows from the wording.
    """

    file: str
    line: int
    text: str
    told: Origin | None = None

    @property
    def origin(self) -> Origin:
        """Its pass, name and kind; unknown if the wording is unknown."""
        return self.told or next((origin for words, origin in WORDINGS if words.match(self.text)), _UNKNOWN_ORIGIN)


def read_remarks(said: Iterable[str]) -> Iterator[PrintedRemark]:
    """The remarks among the lines that the compiler printed, in order."""
    head: re.Match[str] | None = None
    words: list[str] = []
    for line in said:
        match = _REMARK_START.match(line)
        if match is None and head is not None and not _OTHER_MESSAGE.match(line):
            words.append(line)
            continue
        if head is not None:
            yield _remark(head, words)
        head, words = match, []
    if head is not None:
        yield _remark(head, words)


def _remark(head: re.Match[str], more: list[str]) -> PrintedRemark:
    lines = (line.rstrip() for line in (head["text"], *more))
    return PrintedRemark(head["file"], int(head["line"]), "\n".join(line for line in lines if line))


def read_mlir_remarks(text: str) -> Iterator[PrintedRemark]:
    """The remarks of a file that MLIR wrote.

    Raises:
        ValueError: the file is not YAML, or holds something else.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Loads a document with a tag as the tag and its mapping."""

    def construct_tagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> tuple[str, object]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(problem="a document is not a mapping", problem_mark=node.start_mark)
        return f"!{tag}", loader.construct_mapping(node, deep=True)

    Loader.add_multi_constructor("!", construct_tagged)
    try:
        documents = list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"MLIR's remarks cannot be read: {error}") from error
    for document in documents:
        match document:
            case (str(kind), {"Pass": pass_name, "Name": name, **more}):
                yield _mlir_remark(kind, str(pass_name), str(name), more)
            case _:
                raise ValueError("MLIR's remarks cannot be read: a document is not a remark")


def _mlir_remark(kind: str, pass_name: str, name: str, more: dict[object, object]) -> PrintedRemark:
    file, line_number = "", 0
    match more.get("DebugLoc"):
        case {"File": str(named), "Line": int(line)} if line > 0:
            file, line_number = named, line
    phrases = [str(value) if key == "Remark" else f"{key} {value}" for key, value in _arguments(more.get("Args"))]
    origin = Origin(pass_name, name, _KINDS.get(kind, UNKNOWN))
    return PrintedRemark(file, line_number, f"{name}: {', '.join(phrases)}" if phrases else name, origin)


def _arguments(arguments: object) -> Iterator[tuple[object, object]]:
    """The arguments of a remark by key, without MLIR's id."""
    for argument in arguments if isinstance(arguments, list) else ():
        if isinstance(argument, dict):
            yield from ((key, value) for key, value in argument.items() if key != "RemarkId")
