"""Pass pipelines as text, and the place in one at which a program stops to have loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.core.errors import PipelineInvalid

# ---- pipelines
#
# `builtin.module(func.func(a,b{option=1}),c)` (mlir/docs/PassManagement.md, "Textual Pass Pipeline Specification").


@dataclass(frozen=True, slots=True)
class PassNode:
    """A pass with its options as written, or an operation whose own passes follow in `inside`."""

    text: str
    inside: tuple[PassNode, ...] | None = None

    def __str__(self) -> str:
        return self.text if self.inside is None else f"{self.text}({','.join(map(str, self.inside))})"


_NAME: Final = re.compile(r"\s*([\w.:$-]+)\s*")
_BRACES: Final = re.compile(r"[{}]")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def whole(self) -> PassNode:
        node = self._node()
        if self._position < len(self._text) or node.inside is None:
            raise self._fault()
        return node

    def _node(self) -> PassNode:
        match = _NAME.match(self._text, self._position)
        if match is None:
            raise self._fault()
        self._position = match.end()
        name = match[1]
        if self._takes("("):
            inside = []
            while not self._takes(")"):
                inside.append(self._node())
                if not self._takes(",") and not self._text.startswith(")", self._position):
                    raise self._fault()
            return PassNode(name, tuple(inside))
        return PassNode(name + self._options())

    def _options(self) -> str:
        start, depth = self._position, 0
        if not self._text.startswith("{", start):
            return ""
        for match in _BRACES.finditer(self._text, start):
            depth += 1 if match[0] == "{" else -1
            if not depth:
                self._position = match.end()
                self._skip_spaces()
                return self._text[start : match.end()]
        raise self._fault()

    def _takes(self, letter: str) -> bool:
        if not self._text.startswith(letter, self._position):
            return False
        self._position += 1
        self._skip_spaces()
        return True

    def _skip_spaces(self) -> None:
        while self._position < len(self._text) and self._text[self._position].isspace():
            self._position += 1

    def _fault(self) -> PipelineInvalid:
        rest = self._text[self._position : self._position + 30]
        return PipelineInvalid(
            f"{self._text[:80] or 'an empty pipeline'}: is no pass pipeline like builtin.module(…), from {rest!r} on"
        )


def parse_pipeline(text: str) -> PassNode:
    """Parse a pipeline with its anchor, such as `builtin.module(cse)`.

    Raises:
        PipelineInvalid: the text is not one.
    """
    return _Parser(text.strip()).whole()


def joined(pipelines: Iterable[PassNode]) -> PassNode:
    """One pipeline that runs several on the same operation, one after the other.

    Raises:
        PipelineInvalid: they run on different operations, or there is none.
    """
    first, *others = pipelines
    for other in others:
        if other.text != first.text:
            raise PipelineInvalid(f"{other}: runs on {other.text}, but the first pipeline on {first.text}")
    return PassNode(first.text, tuple(node for pipeline in (first, *others) for node in pipeline.inside or ()))


PassPath = tuple[int, ...]
"""The place of a pass: the index in each list from the outermost on."""


def split_after(pipeline: PassNode, path: PassPath) -> tuple[PassNode, PassNode]:
    """The passes up to the one at `path`, and those after it; an empty path: none, and all."""
    inside = pipeline.inside or ()
    if not path:
        return PassNode(pipeline.text, ()), pipeline
    number, *rest = path
    node = inside[number]
    done, left = inside[:number], inside[number + 1 :]
    if rest:
        first, second = split_after(node, tuple(rest))
        return PassNode(pipeline.text, (*done, first)), PassNode(
            pipeline.text, (*([second] if second.inside else ()), *left)
        )
    return PassNode(pipeline.text, (*done, node)), PassNode(pipeline.text, left)


# ---- loops

_LOOP: Final = re.compile(r"^\s*(?:%\S+(?::\d+)? = )?\"?(?:affine|scf)\.(?:for|forall|parallel|while)\b", re.MULTILINE)
_DUMP: Final = re.compile(r"(\d+(?:_\d+)*)_([^/]*)\.mlir")


def has_loops(text: str) -> bool:
    """Whether a module's text has operations that are loops."""
    return _LOOP.search(text) is not None


def last_with_loops(pipeline: PassNode, dumps: Path) -> PassPath:
    """The last pass after which a part of the program has loops; empty if there is none.

    Args:
        pipeline: the pipeline.
        dumps: the folder that `mlir-opt --mlir-print-ir-tree-dir` wrote: a folder for each operation, and in it a file
            for each pass on this operation. The numbers in their names grow (mlir/lib/Pass/IRPrinting.cpp).
    """
    passes = list(_passes(pipeline, ()))
    found: list[PassPath] = []
    for folder in sorted({file.parent for file in dumps.rglob("*.mlir")}):
        files = [
            (tuple(map(int, match[1].split("_"))), match[2], file)
            for file in folder.iterdir()
            if (match := _DUMP.fullmatch(file.name))
        ]
        left = [path_and_name for path_and_name in passes if len(path_and_name[0]) == len(files[0][0])] if files else []
        for _, name, file in sorted(files):
            while left and left[0][1] != name:  # not run on this operation
                left.pop(0)
            if left:
                path, _ = left.pop(0)
                found += [path] if has_loops(file.read_text(errors="replace")) else []
    return max(found, default=())


def _passes(pipeline: PassNode, outer: PassPath) -> Iterator[tuple[PassPath, str]]:
    """The places and names of all passes, in order."""
    for number, node in enumerate(pipeline.inside or ()):
        if node.inside is None:
            yield (*outer, number), node.text.partition("{")[0]
        else:
            yield from _passes(node, (*outer, number))


def flags_of(pipelines: Sequence[str]) -> tuple[str, ...]:
    """The flags that repeat pipelines on tracemap's command line."""
    return tuple(f"--pipeline={pipeline}" for pipeline in pipelines)
