"""Checks of a model's text before parsing: files of other formats, and excessive nesting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from tracemap.core.errors import start_of
from tracemap.core.files import HEAD_BYTES, FileFormat, format_of_data
from tracemap.core.locations import STRING

# ---- nesting
#
# Nesting depth of MLIR text. Text that is nested deeper than any compiler's output is refused before parsing.
#
# MLIR's parser and printer recurse per level without a limit. With a stack of 8 MiB, IREE 3.13's parser crashes at
# about 2,000 regions of operations in generic form (`({`), 3,100 nested structs of LLVM, 3,500 modules, 5,200
# dictionaries, 6,600 arrays, 6,800 parentheses of affine maps, 13,000 function types and 16,000 tuples or locations.

TOO_DEEP: Final = "nested too deep"
"""Part of all messages about nesting."""
MAX_BRACKETS: Final = 1500
"""Maximum of nested brackets of any kind: less than half of the parser's limit."""
MAX_BRACES: Final = 400
"""Maximum of nested braces, which enclose regions and dictionaries. tracemap's reader recurses per region, too."""
MAX_EXPANSION: Final = 256
MAX_EXTRA_BYTES: Final = 1 << 24
"""Maximum length of a text with all aliases expanded: `MAX_EXPANSION` times its length plus `MAX_EXTRA_BYTES`. A single
alias may expand to `MAX_EXTRA_BYTES`.
"""

MAX_MAP_BYTES: Final = 1 << 16
"""Maximum bytes of an affine map or set. Its terms are levels, too, and the parser crashes at 84,000."""

_OPEN, _CLOSED = b"([{<", b")]}>"
_NO_BRACKETS = bytes(set(range(256)) - set(_OPEN + _CLOSED))
_PASSES = 16
# Places where a bracket does not nest: strings, comments (a carriage return ends them, too) and arrows. Matching the
# first character before the alternatives halves the time.
_NOT_NESTING = rb'(["/=-])(?:(?<=")%s|(?<=/)/[^\r\n]*+|(?<=[-=])>)' % STRING[1:].encode()
_SKIPPED = re.compile(_NOT_NESTING, re.DOTALL)
_BRACKET = re.compile(_NOT_NESTING + rb"|[][(){}<>]", re.DOTALL)
_LONG_MAP = re.compile(rb"affine_(?:map|set)\s*+<[^<>]{%d}" % MAX_MAP_BYTES)
_DEFINED = re.compile(rb"([#!][\w.$-]++)\s*+=")
_NAMED = re.compile(rb"[#!][\w.$-]+")
# At the outermost level, an alias never contains two adjacent words; the second word begins an operation.
_OPERATION = re.compile(rb"""(?<=[\w.$>\])}"])\s+[a-z_%"]""")


def nesting_fault(text: bytes) -> str:
    """Why MLIR text must not be parsed (nested too deep, or too long with aliases expanded); "" if it may be.

    Takes time and memory proportional to the length of the text.
    """
    # Strings and arrows are reduced to their first character.
    bare = b"".join(_SKIPPED.sub(rb"\1", part).replace(b"/", b"") for part in _parts(text))
    deep = "" if _is_shallow(bare) else _fault_of_brackets(text)
    if not deep and _LONG_MAP.search(bare):
        return f"an affine map or set is {TOO_DEEP}: more than {MAX_MAP_BYTES} bytes; shorten it"
    return deep or (_fault_of_aliases(bare, len(text)) if _DEFINED.search(bare) else "")


def printed_fault(text: bytes) -> str:
    """As `nesting_fault`, but faster, for text that the compiler printed.

    Such text is much longer than a model, and its strings do not hide brackets on purpose. If the brackets of strings
    and code together are shallow, so is the text.
    """
    return "" if _is_shallow(text.replace(b"->", b"")) else nesting_fault(text)


def _parts(text: bytes) -> Iterator[bytes]:
    """Split a text into parts of whole lines, which bounds the number of match objects. Strings never span lines."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + _PART_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


_PART_BYTES = 1 << 18


def _is_shallow(bare: bytes) -> bool:
    """Whether a text is certainly shallow: few brackets remain after removing innermost pairs repeatedly."""
    brackets = bare.translate(None, _NO_BRACKETS)
    for _ in range(_PASSES):
        if len(brackets) <= MAX_BRACES // 2:
            return True  # a pass removes at most four levels
        for pair in (b"()", b"[]", b"<>", b"{}"):
            brackets = brackets.replace(pair, b"")
    return len(brackets) <= MAX_BRACES // 2


def _fault_of_brackets(text: bytes) -> str:
    stack = bytearray()
    braces = 0
    for match in _BRACKET.finditer(text):
        if match[1] is not None:
            continue
        bracket = match[0]
        if bracket in _OPEN:
            stack += bracket
            braces += bracket == b"{"
        else:
            braces -= _close(stack, bracket)
        if len(stack) > MAX_BRACKETS or braces > MAX_BRACES:
            line = text.count(b"\n", 0, match.start()) + 1
            return (
                f"line {line}: {TOO_DEEP}: more than {MAX_BRACKETS} nested brackets or {MAX_BRACES} nested braces;"
                " reduce the nesting"
            )
    return ""


def _close(stack: bytearray, bracket: bytes) -> int:
    """Pop the bracket that `bracket` closes; returns the number of popped braces.

    A `>` or `<` may be a comparison. So `>` closes only a `<`, and an open `<` does not block other closing brackets.
    """
    opening = _OPEN[_CLOSED.index(bracket)]
    while bracket != b">" and stack[-1:] == b"<":
        stack.pop()
    if stack[-1:] == bytes([opening]):
        stack.pop()
        return int(bracket == b"}")
    return 0


@dataclass(frozen=True, slots=True)
class _Alias:
    """Length in bytes and nesting depth of an alias with all aliases in it expanded."""

    length: int
    depth: int


def _fault_of_aliases(bare: bytes, length: int) -> str:
    """Check the expansion of aliases: a hundred short lines may expand to more than any memory."""
    aliases: dict[bytes, _Alias] = {}
    left = MAX_EXPANSION * length + MAX_EXTRA_BYTES
    for name, definition in _definitions(bare):
        inner = [aliases[other] for other in _NAMED.findall(definition) if other in aliases]
        alias = _Alias(
            len(definition) + sum(other.length for other in inner),
            _levels(definition) + max((other.depth for other in inner), default=0),
        )
        aliases[name] = alias
        left -= alias.length
        if left < 0 or alias.length > MAX_EXTRA_BYTES or alias.depth > MAX_BRACKETS:
            return (
                f"the alias {start_of(name.decode(errors='replace'), 40)} is {TOO_DEEP} or too long when expanded: more"
                f" than {MAX_BRACKETS} levels or {MAX_EXPANSION} times the text; shorten it"
            )
    return ""


def _definitions(bare: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names and definitions of aliases; a definition ends at the next alias or operation."""
    matches = list(_DEFINED.finditer(bare))
    ends = [*(match.start() for match in matches[1:]), len(bare)]
    for match, end in zip(matches, ends, strict=True):
        line = bare.find(b"\n", match.end(), end)
        if line < 0 or not bare[line:end].strip():  # the usual case: a single line, followed by another alias
            yield match[1], bare[match.end() : end]
        else:
            yield match[1], bare[match.end() : _end_of_alias(bare, match.end(), end)]


def _end_of_alias(bare: bytes, begin: int, end: int) -> int:
    """Start of the operation after an alias; `end` if there is none."""
    depth = at = 0
    for match in _BRACKET.finditer(bare, begin, end):
        if not depth and (operation := _OPERATION.search(bare, max(begin, at), match.start())):
            return operation.start()
        at = match.end() - 1
        depth = max(0, depth + (1 if match[0] in _OPEN else -1))
    return end


def _levels(definition: bytes) -> int:
    """Nesting depth of a definition alone, without the `loc(…)` that disappears when a location is expanded."""
    brackets = definition.translate(None, _NO_BRACKETS)
    depth = most = 0
    for bracket in brackets:
        depth += 1 if bracket in _OPEN else -1
        most = max(most, depth)
    return most - definition.lstrip().startswith(b"loc")


# ---- not MLIR

_REMEDIES: Final = {
    "an ONNX model": "rename it to MODEL.onnx for `tracemap build`, or import it: iree-import-onnx MODEL.onnx "
    "-o MODEL.mlir (pip install iree-base-compiler[onnx])",
    "a TensorFlow Lite model": "import it first: iree-import-tflite MODEL.tflite -o MODEL.mlir (pip install "
    "iree-tools-tflite)",
    "a TensorFlow model": "import it first: iree-import-tf FOLDER -o MODEL.mlir (pip install iree-tools-tf)",
    "a PyTorch program": "`tracemap build` accepts files written by torch.export.save as MODEL.pt2 (pip install "
    "'tracemap[torch]')",
    "weights or a PyTorch program": "pass the module to `tracemap.build` in Python, or export it first with "
    "torch-mlir or iree-turbine (iree.turbine.aot.export(module, args).save_mlir(…))",
    "weights": "pass the program that uses them, and add the weights with `tracemap build --parameters SCOPE=FILE`",
    "compressed": "unpack it first, for example: tracemap build <(zcat MODEL.mlir.gz) -o MODEL.tracemap",
    "a compiled module": "pass the model that it was compiled from",
    "a table": "pass a model; for runs, use `tracemap attribute`",
    "text in another encoding than UTF-8": "convert it first: iconv -f UTF-16 -t UTF-8",
    "text with a byte order mark": "save it as UTF-8 without byte order mark",
    "empty": "pass a file with MLIR text or bytecode",
    FileFormat.RUN: "pass a model; for runs, use `tracemap attribute`",
    FileFormat.PROFILE: "pass a model; for profiles, use `tracemap attribute`",
    FileFormat.ARRAY: "pass a model; arrays are inputs: --input @FILE.npy",
    FileFormat.ARRAYS: "pass a model; arrays are inputs: --input @FILE.npy, one per file",
    FileFormat.HTML: "get the model again, since a download may have saved a web page in its place",
    FileFormat.PAGE: "pass a model",
    FileFormat.DOCUMENT: "pass a model",
    FileFormat.JSON: "pass a model",
    FileFormat.POINTER: "fetch the model with `git lfs pull`",
    FileFormat.SCRIPT: "`tracemap profile SCRIPT.py` profiles its functions",
    FileFormat.TEXT: "pass a model (.mlir, .mlirbc, .onnx, .pt2)",
}
"""Remedies by file format."""
_BEGINNINGS: Final = (
    (b"\x1f\x8b", "compressed"),
    (b"\xfd7zXZ\0", "compressed"),
    (b"\x28\xb5\x2f\xfd", "compressed"),
    (b"BZh", "compressed"),
    (b"GGUF", "weights"),
    (b"\x89HDF\r\n", "weights"),
    (b"IRPA", "weights"),
    (b"\x80\x02", "weights or a PyTorch program"),
    (b"\x7fELF", "a compiled module"),
    (b"PAR1", "a table"),
    (b"\xff\xfe", "text in another encoding than UTF-8"),
    (b"\xfe\xff", "text in another encoding than UTF-8"),
    (b"\xef\xbb\xbf", "text with a byte order mark"),
)
_ENDINGS: Final = {
    ".onnx": "an ONNX model",
    ".tflite": "a TensorFlow Lite model",
    ".pb": "a TensorFlow model",
    ".pt": "weights or a PyTorch program",
    ".pt2": "a PyTorch program",
    ".pth": "weights or a PyTorch program",
    ".safetensors": "weights",
    ".vmfb": "a compiled module",
}
_ZIP: Final = b"PK\x03\x04"
_MAYBE_MLIR: Final = (FileFormat.TEXT, FileFormat.SCRIPT, FileFormat.JSON, FileFormat.RUN)
_OPERATION_START: Final = re.compile(
    rb'^[ \t]*(?:%\S+.*=[ \t]*)?(?:"[\w$.-]+"\(|[a-z_][\w$]*(?:\.[\w$]+)+[ \t].*[%@{:]|(?:module|func)\b)', re.MULTILINE
)
"""A line that begins as an operation does; texts without one are not MLIR."""


def format_fault(data: bytes, name: str) -> str:
    """The format of a file that is not MLIR, and what to do; "" if it may be a model.

    The name decides only for binary content, and for texts without any operation.
    """
    file_format = _file_format(data, PurePath(name).suffix.lower())
    return file_format and f"is {file_format}, not MLIR; {_REMEDIES[file_format]}"


def _file_format(data: bytes, suffix: str) -> str:
    if not data.strip():
        return "empty"
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if by_magic := next((file_format for magic, file_format in _BEGINNINGS if data.startswith(magic)), ""):
        return by_magic
    kind = format_of_data(data[:HEAD_BYTES], f"model{suffix}")
    if kind is FileFormat.MODULE:
        return "a compiled module"
    if kind in _REMEDIES and not (kind in _MAYBE_MLIR and _OPERATION_START.search(data)):
        return kind
    if b"\0" not in data[:HEAD_BYTES] and not data.startswith((_ZIP, b"\x08")):
        return ""
    if data.startswith(_ZIP):
        return _ENDINGS.get(suffix, "compressed")
    return "" if data.startswith(b"ML\xefR") else _ENDINGS.get(suffix, "")
