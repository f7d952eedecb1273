"""Check the wording of all texts: `python -m tests.words`, a part of `make lint`.

Three checks:

- Terms that only this project used (`TERMS`) are gone from documents, docstrings, comments, messages, pages and names.
- A docstring begins with a noun phrase or an imperative, not with a clause (`OPENINGS`).
- Sentences of documents are short: at most 35 words, 18 on average.

Code is not checked: code blocks, `code spans`, SQL, MLIR and string literals without a space. `EXEMPTIONS` has all
exceptions, with reasons.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath

import click

from tracemap.core.units import plural

ROOT = Path(__file__).resolve().parents[1]

LONGEST_SENTENCE = 35
LONGEST_MEAN = 18


class Kind(StrEnum):
    """Where a text stands."""

    DOCUMENT = "document"
    DOCSTRING = "docstring"
    COMMENT = "comment"
    MESSAGE = "message"
    NAME = "name"


NAMES = frozenset({Kind.NAME})
DOCSTRINGS = frozenset({Kind.DOCSTRING})
TEXTS = frozenset(Kind) - NAMES


@dataclass(frozen=True)
class Term:
    """A term that is gone, and what to say instead."""

    pattern: re.Pattern[str]
    instead: str
    in_names: bool
    """Whether names must not contain it either."""


@dataclass(frozen=True)
class Passage:
    """A text or a name in a file; `line` is that of its first character."""

    file: str
    line: int
    kind: Kind
    text: str


@dataclass(frozen=True)
class Exemption:
    """A phrase or a name that may stay although it contains a term."""

    pattern: re.Pattern[str]
    reason: str
    kinds: frozenset[Kind]
    files: tuple[str, ...]
    """Beginnings of the paths of files in which it holds; none: all files."""

    def holds_for(self, passage: Passage) -> bool:
        return passage.kind in self.kinds and (not self.files or passage.file.startswith(self.files))


@dataclass(frozen=True, order=True)
class Finding:
    """A fault of wording."""

    file: str
    line: int
    reason: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}: {self.text}"


def _text_and_name(pattern: str, instead: str) -> Term:
    return Term(_regex(rf"\b(?:{pattern})\b"), instead, in_names=True)


def _text(pattern: str, instead: str) -> Term:
    return Term(_regex(rf"\b(?:{pattern})\b"), instead, in_names=False)


def _exempt(pattern: str, reason: str, kinds: frozenset[Kind], *files: str) -> Exemption:
    return Exemption(_regex(pattern), reason, kinds, files)


def _regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern in which a blank stands for any white space, also a line end."""
    return re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE | re.MULTILINE)


_THING = r"(?:op|dispatch|site|kernel|line|run|call|invocation|event|buffer|command|target|argument|input|output)"

TERMS = (
    _text_and_name(r"dear|dearer|dearest", "most expensive, hottest"),
    _text_and_name(r"attain(?:s|ed|able|ing)?|unattainable", "% of roofline, headroom"),
    _text_and_name(r"(?:told|tells?|telling)(?: \w+){0,5} apart", "distinguished, reported separately"),
    _text_and_name(r"fence[ds]?", "outlier threshold"),
    _text_and_name(r"(?:un)?disturb(?:s|ed|ing|ances?)?", "outliers (preemption, noise), noisy"),
    _text_and_name(r"residuals?", "unattributed, with the reason"),
    _text(r"members?", "op in the dispatch, fused op"),
    _text(r"fates?", "outcome"),
    _text(r"sites?", "dispatch site, dispatch"),
    _text_and_name(r"behind", "after"),
    _text_and_name(r"besides?", "next to, with"),
    _text(r"open shares?|shares? (?:that )?(?:is|are|stays?|remains?) open|opens? by", "uncertain by N %"),
    _text(r"what (?:it|they|that|this|(?:the )?\w+) (?:goes|go|went) for", "where the time goes"),
    _text(r"lost ops?|ops? (?:that )?(?:is|are|was|were|got) lost", "an op whose location is lost"),
    _text(r"of another module", "recorded from a different build"),
    _text(r"(?<!,\s)so (?:often|much|many)", "a number, or the option's name"),
    _text(r"(?:do|does|did|doing) work in|works? in \S+ (?:dispatch(?:es)?|sites?)", "runs in"),
    _text(r"called so", "named X"),
    _text(
        r"calls? of (?:(?:the|its|their|this|that) (?:\w+'s )?function|\w+ (?:\w+'s )?(?:model|program|entry point))",
        "invocation of a function",
    ),
    _text(r"invocations? of (?:the|its|an?|this|that|each|one|single) (?:kernel|dispatch|site)", "call of a kernel"),
    _text_and_name(r"fleets?|nightl(?:ies|y(?= (?:store|has|have|holds?|is|are|keeps?)))", "store"),
    _text(
        r"steps? of (?:(?:the|its|their|a|an|this|that|each|one|single|all) )?kernels?|kernel(?:'s|s'|s)? steps?",
        "line of kernel IR, instruction",
    ),
    _text(rf"(?<!\ba\s)numbers? of (?:the|its|an?|this|that|each) {_THING}(?!['\w])", "index"),
)
"""Terms that only this project used, and the field's terms; see `docs/glossary.md`. `before` is fine for time and not
checked."""

EXEMPTIONS = (
    _exempt(r"\w*(?:residual|disturb)\w*", "keys, columns and slugs, and names in code after them", NAMES),
    _exempt(r"\battainable_\w+|^dearest$", "keys of JSON", NAMES),
    _exempt(r"\b(?:other_)?sites?\b|\bmembers\b", "fields of documents", TEXTS, "tracemap/reports/brief.py"),
    _exempt(r"^beside$", "a key of JSON", NAMES, "tracemap/kernels/model.py"),
    _exempt(r"^\s*(?:>>>|\.\.\.) .*$", "examples, which are code", DOCSTRINGS),
    _exempt(r"^\s{4,}[*\w]+:(?= )", "names of arguments and attributes", DOCSTRINGS),
    _exempt(r"--[a-z][\w-]*(?: site\b)?|\bstore sites\b", "options with their values, and commands", TEXTS),
    _exempt(r"\(residual\)", "names in exported files, which other tools keep", TEXTS),
    _exempt(r"\bfate fate-", "classes of style sheets", TEXTS),
    _exempt(
        r"\bsites?\b",
        "the identity `site3`, which the code calls site",
        frozenset({Kind.DOCSTRING, Kind.COMMENT}),
        "tracemap/",
    ),
    _exempt(r"\b(?:dispatch|call) sites?\b|\bsite[-\s]packages\b", "terms of the field", TEXTS),
    _exempt(r"\b(?:leav(?:es?|ing)|left)(?: \w+){0,2} behind\b(?! (?:it|them|the|an?)\b)", "a verb", TEXTS),
    _exempt(r"\bresidual (?:network|connection|block|add)s?\b", "a structure of models", TEXTS),
    _exempt(r"\b(?:memory|hal) fences?\b|\bhal\.fence\b", "instructions, and a type of IREE", TEXTS),
    _exempt(r"\bfences?\b", "IREE's type", TEXTS, "tracemap/capture/calling.py", "tracemap/commands/programs.py"),
    _exempt(r"\bresiduals?\b", "differences from a statistical model", TEXTS, "tracemap/store/"),
    _exempt(
        r"\bcalls? of (?:the|its|their) function", "call ops of the model", TEXTS, "tracemap/map/build/", "tracemap/ir/"
    ),
)

OPENINGS = re.compile(r"(?:What|Of|By|Whose|Where what|How much)\b")
"""First words of docstrings that begin with a clause or an inverted sentence."""


# Findings in a passage


def findings_of_terms(passage: Passage) -> Iterator[Finding]:
    """Find the terms in a text or a name."""
    if passage.kind == Kind.NAME:
        for instead in _terms_in_name(passage.text):
            yield Finding(passage.file, passage.line, f"say “{instead}” in this name", passage.text)
    elif _ANY_TERM.search(passage.text):
        text = blank_code_spans(passage.text)
        for exemption in EXEMPTIONS:
            if exemption.holds_for(passage):
                text = exemption.pattern.sub(_blank, text)
        for term in TERMS:
            for match in term.pattern.finditer(text):
                line = passage.line + text.count("\n", 0, match.start())
                reason = f"say “{term.instead}” in this {passage.kind}"
                yield Finding(passage.file, line, reason, _excerpt(passage.text, match))


_ANY_TERM = re.compile("|".join(term.pattern.pattern for term in TERMS), re.IGNORECASE)


@functools.cache
def _terms_in_name(name: str) -> tuple[str, ...]:
    """Return what to say instead of the terms in a name."""
    if any(Kind.NAME in exemption.kinds and exemption.pattern.search(name) for exemption in EXEMPTIONS):
        return ()
    words = _words_of_name(name)
    return tuple(term.instead for term in TERMS if term.in_names and term.pattern.search(words))


def findings_of_opening(passage: Passage) -> Iterator[Finding]:
    """Find an unwanted first word of a docstring."""
    first_line = passage.text.strip().partition("\n")[0]
    if passage.kind == Kind.DOCSTRING and OPENINGS.match(first_line):
        reason = "begin a docstring with a noun phrase or an imperative"
        yield Finding(passage.file, passage.line, reason, first_line[:80])


def findings_of_sentences(file: str, source: str) -> Iterator[Finding]:
    """Find long sentences in a document, and a high mean length of its sentences."""
    lengths = []
    for line, sentence in sentences_of_document(source):
        length = len(sentence.split())
        lengths.append(length)
        if length > LONGEST_SENTENCE:
            yield Finding(file, line, f"a sentence of {length} words; at most {LONGEST_SENTENCE}", sentence[:80])
    mean = sum(lengths) / max(1, len(lengths))
    if mean > LONGEST_MEAN:
        yield Finding(file, 1, f"sentences have {mean:.1f} words on average; at most {LONGEST_MEAN}", file)


def _excerpt(text: str, match: re.Match[str], around: int = 30) -> str:
    """Return a match with the text around it, on one line."""
    start, end = max(0, match.start() - around), match.end() + around
    return " ".join(text[start:end].split())


def _blank(match: re.Match[str]) -> str:
    """Replace a match by underscores and keep its line ends, so that positions stay."""
    return re.sub(r"[^\n]", "_", match[0])


_CODE_SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)


def blank_code_spans(text: str) -> str:
    """Replace `code spans` by underscores: a span without blanks is one word."""
    return _CODE_SPAN.sub(_blank, text)


# Documents

_NO_PROSE = (
    re.compile(r"^<!-- (\w+) -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL),  # generated blocks
    re.compile(r"^ *(`{3,})[^\n]*\n.*?^ *\1 *$", re.MULTILINE | re.DOTALL),  # code blocks
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"(?<=\])\([^)\s]+\)"),  # addresses of links
)


def prose_of_document(source: str) -> str:
    """Remove code blocks, generated blocks, comments and addresses of links; line numbers stay."""
    for pattern in _NO_PROSE:
        source = pattern.sub(lambda match: re.sub(r"[^\n]", "", match[0]), source)
    return source


_TABLE_ROW_OR_HEADING = re.compile(r"^\s*(?:\||#+ )")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.) ")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|cf|pp?|[A-Z])\.$")
_SENTENCE_END = re.compile(r"[.!?][)\]”\"*]*(?=\s)")


def sentences_of_document(source: str) -> list[tuple[int, str]]:
    """Return the sentences of paragraphs and list items, each with its line. A code span counts as one word."""
    prose = prose_of_document(source)
    prose = _CODE_SPAN.sub(lambda match: "_" + "\n" * match[0].count("\n") + "_" * (len(match[0]) > 1), prose)
    sentences: list[tuple[int, str]] = []
    paragraph: list[str] = []
    for number, line in enumerate([*prose.splitlines(), ""], start=1):
        ends = not line.strip() or _TABLE_ROW_OR_HEADING.match(line) or _LIST_ITEM.match(line)
        if ends and paragraph:
            sentences += _sentences_of_paragraph(number - len(paragraph), "\n".join(paragraph))
            paragraph = []
        if line.strip() and not _TABLE_ROW_OR_HEADING.match(line):
            paragraph.append(_LIST_ITEM.sub("", line))
    return sentences


def _sentences_of_paragraph(line: int, text: str) -> Iterator[tuple[int, str]]:
    start = 0
    stops = (match for match in _SENTENCE_END.finditer(text) if not _ABBREVIATION.search(text[: match.start() + 1]))
    for end in (*(stop.end() for stop in stops), len(text)):
        first = start + len(text[start:end]) - len(text[start:end].lstrip())
        if sentence := " ".join(text[start:end].split()):
            yield line + text.count("\n", 0, first), sentence
        start = end


def passages_of_document(file: str, source: str) -> Iterator[Passage]:
    """Return the prose of a document, tables included."""
    yield Passage(file, 1, Kind.DOCUMENT, prose_of_document(source))


# Python

_PROGRAM = re.compile(
    r"\b(?:SELECT|FROM|WHERE|GROUP BY|ORDER BY|JOIN|CREATE|CAST|CASE|AS|OVER|COPY|VARCHAR|BIGINT|INTEGER)\b|%\w+ = "
)
"""Marks of SQL and of MLIR in string literals."""


def passages_of_python(file: str, source: str) -> Iterator[Passage]:
    """Return the docstrings, comments, messages and names of a module."""
    nodes = list(ast.walk(ast.parse(source)))
    yield from _strings(file, nodes)
    yield from _comments(file, source)
    yield from _names(file, nodes)


def _strings(file: str, nodes: Iterable[ast.AST]) -> Iterator[Passage]:
    """Return docstrings, those of attributes included, and other literals with a space."""
    skipped: set[int] = set()
    for node in nodes:  # parents come before their children
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.add(id(node.value))
            yield Passage(file, node.lineno, Kind.DOCSTRING, node.value.value)
        elif isinstance(node, ast.Call) and _is_regex_function(node.func):
            skipped.update(id(literal) for argument in node.args for literal in ast.walk(argument))
        elif isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped.update(map(id, node.values))
            yield from _message(file, node.lineno, "".join(map(_shown_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield from _message(file, node.lineno, node.value)


def _is_regex_function(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"


def _shown_part(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


def _message(file: str, line: int, text: str) -> Iterator[Passage]:
    """Return a literal as one line, unless it is a program."""
    if " " in text.strip() and not _PROGRAM.search(text):
        yield Passage(file, line, Kind.MESSAGE, " ".join(text.split()))


_STRING_OR_COMMENT = re.compile(
    r"\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
"""Tokens that a `#` can be in; `tokenize` takes ten times as long."""


def _comments(file: str, source: str) -> Iterator[Passage]:
    """Return comments; those on adjacent lines are one passage."""
    block: list[str] = []
    first = 0
    for match in _STRING_OR_COMMENT.finditer(source):
        if match["comment"] is None:
            continue
        line = source.count("\n", 0, match.start()) + 1
        if block and line != first + len(block):
            yield Passage(file, first, Kind.COMMENT, "\n".join(block))
            block = []
        first = first if block else line
        block.append(match["comment"].lstrip("# "))
    if block:
        yield Passage(file, first, Kind.COMMENT, "\n".join(block))


def _names(file: str, nodes: Iterable[ast.AST]) -> Iterator[Passage]:
    """Return the names that a module defines, each once, and its own."""
    lines = {PurePath(file).stem: 1}
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            lines.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.arg):
            lines.setdefault(node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            lines.setdefault(node.id, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            lines.setdefault(node.attr, node.lineno)
        elif isinstance(node, ast.alias) and node.asname:
            lines.setdefault(node.asname, node.lineno)
    for name, line in lines.items():
        yield Passage(file, line, Kind.NAME, name)


def _words_of_name(name: str) -> str:
    """Split snake_case and CamelCase into words."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)).lower()


# C, JavaScript, CSS and templates

_C_OR_SCRIPT = re.compile(
    r"//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/"
    r"|\"(?P<double>(?:\\.|[^\"\\\n])*)\"|'(?P<single>(?:\\.|[^'\\\n])*)'|`(?P<template>(?:\\.|[^`\\])*)`",
    re.DOTALL,
)
_INTERPOLATION = re.compile(r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def passages_of_code(file: str, source: str) -> Iterator[Passage]:
    """Return comments and messages of C, JavaScript or CSS."""
    for match in _C_OR_SCRIPT.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        if match.lastgroup in ("line", "block"):
            yield Passage(file, line, Kind.COMMENT, match[match.lastgroup])
        elif match.lastgroup is not None:
            yield from _message(file, line, _INTERPOLATION.sub("{}", match[match.lastgroup]).replace("\\n", " "))


_TEMPLATE_CODE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|<script.*?</script>|<style.*?</style>", re.DOTALL)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_SHOWN_ATTRIBUTE = re.compile(r"\b(?:title|aria-label|placeholder|alt)=\"([^\"]*)\"")


def passages_of_template(file: str, source: str) -> Iterator[Passage]:
    """Return what a template shows: text, and attributes that browsers show or read out."""
    source = _TEMPLATE_CODE.sub(lambda match: "\n" * match[0].count("\n"), source)
    yield Passage(file, 1, Kind.MESSAGE, _TAG.sub(_shown_attributes, source))


def _shown_attributes(tag: re.Match[str]) -> str:
    """Replace a tag by the values of its shown attributes; line ends stay."""
    shown = " ".join(_SHOWN_ATTRIBUTE.findall(tag[0]))
    return " " + shown + "\n" * (tag[0].count("\n") - shown.count("\n"))


# Settings and shell scripts

_HASH_COMMENT = re.compile(r"(?:^|\s)#+ (.*)$", re.MULTILINE)


def passages_of_settings(file: str, source: str) -> Iterator[Passage]:
    """Return the comments of a Makefile, a TOML file or a shell script, the help of `make` included."""
    for match in _HASH_COMMENT.finditer(source):
        yield Passage(file, source.count("\n", 0, match.start(1)) + 1, Kind.COMMENT, match[1])


# The project

READERS = {
    ".md": passages_of_document,
    ".py": passages_of_python,
    ".c": passages_of_code,
    ".h": passages_of_code,
    ".js": passages_of_code,
    ".css": passages_of_code,
    ".j2": passages_of_template,
    ".toml": passages_of_settings,
    ".sh": passages_of_settings,
    "": passages_of_settings,
}
"""The reader of each file name suffix; `Makefile` and `.ci/run` have none."""

_OTHERS = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "samples/README.md", "samples/nightly/README.md"),
    *("tests/browser/README.md", "docs/conf.py", "tests/documents.py", "tests/schema_page.py"),
    *("Makefile", "pyproject.toml", ".ci/run", "samples/nightly/nightly.sh", "samples/nightly/report.sh"),
    *("tests/browser/setup.sh", "tests/lavapipe.sh"),
)
"""Files outside `docs` and `tracemap`; the modules of `tests` write parts of documents."""


def files_of_project(root: Path) -> list[Path]:
    """Return the files whose texts are checked, in order."""
    files = [root / name for name in _OTHERS if (root / name).exists()]
    files += (root / "docs").glob("*.md")
    package = (path for path in (root / "tracemap").rglob("*.*") if path.suffix in READERS)
    files += (path for path in package if "vendor" not in path.parts)
    return sorted(files)


def findings_of_file(file: str, source: str) -> Iterator[Finding]:
    """Find all faults of wording in a file."""
    suffix = PurePath(file).suffix
    for passage in READERS[suffix](file, source):
        yield from findings_of_terms(passage)
        yield from findings_of_opening(passage)
    if suffix == ".md":
        yield from findings_of_sentences(file, source)


def findings_of_project(root: Path, only: tuple[str, ...] = ()) -> list[Finding]:
    """Find all faults of wording in the project, or in files whose path begins with one of `only`, in order."""
    findings: set[Finding] = set()
    for path in files_of_project(root):
        file = path.relative_to(root).as_posix()
        if not only or file.startswith(only):
            findings.update(findings_of_file(file, path.read_text(encoding="utf-8")))
    return sorted(findings)


def count_by_folder(findings: Iterable[Finding]) -> str:
    """Count findings by folder, such as `docs 3, tracemap/ir 12`."""
    counts = Counter("/".join(PurePath(finding.file).parts[:-1][:2]) or "." for finding in findings)
    return ", ".join(f"{folder} {count}" for folder, count in sorted(counts.items()))


@click.command(help=__doc__)
@click.argument("only", nargs=-1)
@click.option("--root", type=click.Path(path_type=Path, exists=True), default=ROOT, hidden=True)
def main(only: tuple[str, ...], root: Path) -> None:
    """Print the findings, and end with status 1 if there are any."""
    findings = findings_of_project(root, only)
    for finding in findings:
        click.echo(finding)
    if findings:
        click.echo(f"{plural(len(findings), 'finding')}: {count_by_folder(findings)}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
