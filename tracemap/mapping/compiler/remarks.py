"""What the compiler says about the code that it makes: the flags that make it speak, and what it says, taken apart.

LLVM prints a remark as `remark: FILE:LINE:COLUMN: TEXT`, and the text may go on in further lines. Which pass it is of
is not printed; the wording tells, and where it does not the pass is unknown. Anything may stand between remarks.
MLIR writes its own into a file of YAML, a document each, whose tag is the kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tracemap.units import UNKNOWN, Text

REMARK_FLAGS: Final = ("--pass-remarks=.", "--pass-remarks-missed=.", "--pass-remarks-analysis=.")
IN_ORDER: Final = "--mlir-disable-threading"
"""Kernels are compiled one after the other: LLVM writes a remark in pieces, and several threads would mix theirs."""

_HEAD = re.compile(r"remark: (?P<file>.*?):(?P<line>\d{1,9}):(?P<column>\d{1,9}): (?P<text>.*)", re.DOTALL)
_OTHER = re.compile(r"(?:\S.*: )?(?:warning|error|note|remark): ")
"""How anything else begins that the compiler says: with or without its place."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the compiler calls a pass, a remark of it and the kind of that."""

    pass_name: Text
    name: Text
    kind: Text


def _worded(text: str, pass_name: str, name: Text, kind: str) -> tuple[re.Pattern[str], Origin]:
    return re.compile(text, re.DOTALL), Origin(pass_name, name, kind)


_SPILLS = r"\d+ (?:zero cost )?(?:folded )?(?:spills|reloads|virtual registers copies) .*generated in "
WORDINGS: Final = (
    _worded(_SPILLS + "loop", "regalloc", "LoopSpillReloadCopies", "missed"),
    _worded(_SPILLS + "function", "regalloc", "SpillReloadCopies", "missed"),
    _worded("vectorized loop ", "loop-vectorize", "Vectorized", "passed"),
    _worded("loop not vectorized", "loop-vectorize", UNKNOWN, "missed"),
    _worded("completely unrolled loop ", "loop-unroll", "FullyUnrolled", "passed"),
    _worded("unrolled loop by a factor of ", "loop-unroll", "PartialUnrolled", "passed"),
    _worded("Loop interchanged with ", "loop-interchange", "Interchanged", "passed"),
    _worded("All loops have dependencies in all directions", "loop-interchange", "Dependence", "missed"),
    _worded("Number of loads/stores exceeded", "loop-interchange", UNKNOWN, "missed"),
    _worded("Computed dependence info", "loop-interchange", "Dependence", "analysis"),
    _worded("hoisting ", "licm", "Hoisted", "passed"),
    _worded("load of type .* not eliminated", "gvn", UNKNOWN, "missed"),
    _worded("load of type .* eliminated", "gvn", "LoadElim", "passed"),
    _worded("'.*' not inlined into '", "inline", UNKNOWN, "missed"),
    _worded("'.*' inlined into '", "inline", "Inlined", "passed"),
    _worded(r"marked as tail call candidate \(readnone", "tailcallelim", "tailcall-readnone", "passed"),
    _worded("Switch instruction is not predictable", "dfa-jump-threading", "SwitchNotPredictable", "missed"),
    _worded("BasicBlock:", "asm-printer", "InstructionMix", "analysis"),
    _worded(r"\d+ instructions in function", "asm-printer", "InstructionCount", "analysis"),
    _worded(r"\d+ stack bytes in function", "prolog-epilog", "StackSize", "analysis"),
    _worded("Function: ", "stack-frame-layout", "StackLayout", "analysis"),
    _worded("Enabled features for ", "target-features", "EnabledFeatures", "analysis"),
    _worded(".+: Function: .+: MI Instruction count changed ", "size-info", "FunctionMISizeChange", "analysis"),
    _worded(".+: Function: .+: IR instruction count changed ", "size-info", "FunctionIRSizeChange", "analysis"),
    _worded(".+: IR instruction count changed ", "size-info", "IRSizeChange", "analysis"),
)
"""In the words of LLVM 24; the first that fits counts. A name is unknown where several have one wording."""
_NOWHERE: Final = Origin(UNKNOWN, UNKNOWN, UNKNOWN)
_KINDS: Final = {"!Passed": "passed", "!Missed": "missed", "!Analysis": "analysis", "!Failure": "missed"}
NUMBERED: Final = "op"
"""The file that all locations of a model name which is compiled for remarks; lines are indices of operations."""


@dataclass(frozen=True, slots=True)
class SaidRemark:
    """A remark as it was printed: `line` is 0 where the compiler does not know the place.

    `told`: where it is from; None: only its wording tells.
    """

    file: str
    line: int
    text: str
    told: Origin | None = None

    @property
    def origin(self) -> Origin:
        """Where it is from; unknown where nothing tells."""
        return self.told or next((origin for words, origin in WORDINGS if words.match(self.text)), _NOWHERE)


def read_remarks(said: Iterable[str]) -> Iterator[SaidRemark]:
    """The remarks among the lines that the compiler printed, in their order."""
    head: re.Match[str] | None = None
    words: list[str] = []
    for line in said:
        begun = _HEAD.match(line)
        if begun is None and head is not None and not _OTHER.match(line):
            words.append(line)
            continue
        if head is not None:
            yield _remark(head, words)
        head, words = begun, []
    if head is not None:
        yield _remark(head, words)


def _remark(head: re.Match[str], more: list[str]) -> SaidRemark:
    lines = (line.rstrip() for line in (head["text"], *more))
    return SaidRemark(head["file"], int(head["line"]), "\n".join(line for line in lines if line))


def read_mlir_remarks(text: str) -> Iterator[SaidRemark]:
    """The remarks of a file that MLIR has written.

    Raises:
        ValueError: it is no YAML, or holds something else.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Makes of a document with a tag the tag and its mapping."""

    def tagged(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> tuple[str, object]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(problem="a document is no mapping", problem_mark=node.start_mark)
        return f"!{tag}", loader.construct_mapping(node, deep=True)

    Loader.add_multi_constructor("!", tagged)
    try:
        documents = list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"MLIR's remarks cannot be read: {error}") from error
    for document in documents:
        match document:
            case (str(kind), {"Pass": pass_name, "Name": name, **more}):
                yield _of_mlir(kind, str(pass_name), str(name), more)
            case _:
                raise ValueError("MLIR's remarks cannot be read: a document is no remark")


def _of_mlir(kind: str, pass_name: str, name: str, more: dict[object, object]) -> SaidRemark:
    file, number = "", 0
    match more.get("DebugLoc"):
        case {"File": str(named), "Line": int(line)} if line > 0:
            file, number = named, line
    words = [str(value) if key == "Remark" else f"{key} {value}" for key, value in _arguments(more.get("Args"))]
    origin = Origin(pass_name, name, _KINDS.get(kind, UNKNOWN))
    return SaidRemark(file, number, f"{name}: {', '.join(words)}" if words else name, origin)


def _arguments(listed: object) -> Iterator[tuple[object, object]]:
    """What a remark says besides its name, by key, without the number that MLIR gives it."""
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            yield from ((key, value) for key, value in each.items() if key != "RemarkId")
