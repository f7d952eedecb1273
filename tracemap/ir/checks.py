"""Checks of a model's text before it is parsed: files that are no MLIR, and nesting that is too deep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from tracemap.errors import start_of
from tracemap.locations import STRING

# ---- nesting
#
# How deep a text of MLIR is nested: what is deeper than any compiler makes is refused before it is parsed.
#
# MLIR's parser and printer call themselves for each level and know no limit. With a stack of 8 MiB, IREE 3.13's parser
# dies of about 2,000 regions of operations in generic form (`({`), 3,100 nested structs of LLVM, 3,500 modules, 5,200
# dictionaries, 6,600 arrays, 6,800 parentheses of affine maps, 13,000 function types and 16,000 tuples or locations.


TOO_DEEP: Final = "nested too deep"
"""What is said of all that is refused."""
MOST_BRACKETS: Final = 1500
"""Brackets of any kind within one another: less than half of what the parser dies of."""
MOST_BRACES: Final = 400
"""Of these braces, which hold regions and dictionaries: what reads operations calls itself for each region too."""
MOST_TIMES: Final = 256
MOST_BYTES: Final = 1 << 24
"""How much longer a text may be with all aliases written out: so many times its length, and so many bytes more. No
alias alone is longer than these.
"""

MOST_OF_MAP: Final = 1 << 16
"""Bytes of an affine map or set: each of its terms is a level too, and the parser dies of 84,000."""

_OPEN, _CLOSED = b"([{<", b")]}>"
_NO_BRACKETS = bytes(set(range(256)) - set(_OPEN + _CLOSED))
_PASSES = 16
# Where a bracket is none: in strings, in comments, which end with a carriage return too, and in arrows. The first
# character is looked for at once, which takes half the time of trying one branch after the other.
_NOT_NESTING = rb'(["/=-])(?:(?<=")%s|(?<=/)/[^\r\n]*+|(?<=[-=])>)' % STRING[1:].encode()
_SKIPPED = re.compile(_NOT_NESTING, re.DOTALL)
_BRACKET = re.compile(_NOT_NESTING + rb"|[][(){}<>]", re.DOTALL)
_LONG_MAP = re.compile(rb"affine_(?:map|set)\s*+<[^<>]{%d}" % MOST_OF_MAP)
_DEFINED = re.compile(rb"([#!][\w.$-]++)\s*+=")
_NAMED = re.compile(rb"[#!][\w.$-]+")
# At the outermost level no two words of an alias stand side by side: the second one begins an operation.
_OPERATION = re.compile(rb"""(?<=[\w.$>\])}"])\s+[a-z_%"]""")


def nesting_fault(text: bytes) -> str:
    """Why a text of MLIR is not to be parsed: it is nested so deep, or grows so long by its aliases; "": it may be.

    Takes time and memory that grow with the length of the text alone.
    """
    # Of strings and arrows their first character is left.
    bare = b"".join(_SKIPPED.sub(rb"\1", part).replace(b"/", b"") for part in _parts(text))
    deep = "" if _is_shallow(bare) else _fault_of_brackets(text)
    if not deep and _LONG_MAP.search(bare):
        return f"an affine map or set is {TOO_DEEP} to be read: it is longer than {MOST_OF_MAP} bytes; shorten it"
    return deep or (_fault_of_aliases(bare, len(text)) if _DEFINED.search(bare) else "")


def printed_fault(text: bytes) -> str:
    """As `nesting_fault`, of what the compiler has printed: it has read the model, which was not nested too deep.

    That is much longer than a model, and no string in it is there to hide brackets: where those of strings and of code
    together leave none, it is shallow.
    """
    return "" if _is_shallow(text.replace(b"->", b"")) else nesting_fault(text)


def _parts(text: bytes) -> Iterator[bytes]:
    """A text in parts of whole lines, as no string goes over the end of a line: each match is an object for a while."""
    begin = 0
    while begin < len(text):
        end = text.find(b"\n", begin + _PART) + 1 or len(text)
        yield text[begin:end]
        begin = end


_PART = 1 << 18


def _is_shallow(bare: bytes) -> bool:
    """Whether a text is certainly not too deep: few brackets are left when the innermost pairs are taken out."""
    brackets = bare.translate(None, _NO_BRACKETS)
    for _ in range(_PASSES):
        if len(brackets) <= MOST_BRACES // 2:
            return True  # each pass takes four levels at most
        for pair in (b"()", b"[]", b"<>", b"{}"):
            brackets = brackets.replace(pair, b"")
    return len(brackets) <= MOST_BRACES // 2


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
        if len(stack) > MOST_BRACKETS or braces > MOST_BRACES:
            line = text.count(b"\n", 0, match.start()) + 1
            return (
                f"line {line}: {TOO_DEEP} to be read: more than {MOST_BRACKETS} brackets, or {MOST_BRACES} braces,"
                " within one another; take some of them away"
            )
    return ""


def _close(stack: bytearray, bracket: bytes) -> int:
    """Take away what a bracket closes; returns how many braces these were.

    A `>` or `<` may be a comparison: it closes nothing but a `<`, and does not keep other brackets from being closed.
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
    """What an alias stands for, with all aliases in it written out: its length in bytes, and how deep it is nested."""

    length: int
    depth: int


def _fault_of_aliases(bare: bytes, length: int) -> str:
    """Aliases stand for others: a hundred short lines may mean a text that is longer than any memory."""
    known: dict[bytes, _Alias] = {}
    left = MOST_TIMES * length + MOST_BYTES
    for name, meaning in _definitions(bare):
        within = [known[each] for each in _NAMED.findall(meaning) if each in known]
        alias = _Alias(
            len(meaning) + sum(each.length for each in within),
            _levels(meaning) + max((each.depth for each in within), default=0),
        )
        known[name] = alias
        left -= alias.length
        if left < 0 or alias.length > MOST_BYTES or alias.depth > MOST_BRACKETS:
            return (
                f"the alias {start_of(name.decode(errors='replace'), 40)}, with all others in it written out, is"
                f" {TOO_DEEP} or too long to be read: more than {MOST_BRACKETS} levels, or {MOST_TIMES} times the text;"
                " shorten it"
            )
    return ""


def _definitions(bare: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Names of aliases and what they stand for: up to the next one, or to the operation before it."""
    found = list(_DEFINED.finditer(bare))
    ends = [*(match.start() for match in found[1:]), len(bare)]
    for match, end in zip(found, ends, strict=True):
        line = bare.find(b"\n", match.end(), end)
        if line < 0 or not bare[line:end].strip():  # most are: a line, and the next one begins with an alias
            yield match[1], bare[match.end() : end]
        else:
            yield match[1], bare[match.end() : _end_of_alias(bare, match.end(), end)]


def _end_of_alias(bare: bytes, begin: int, end: int) -> int:
    """Where an operation begins behind an alias; `end`: nowhere."""
    depth = at = 0
    for match in _BRACKET.finditer(bare, begin, end):
        if not depth and (operation := _OPERATION.search(bare, max(begin, at), match.start())):
            return operation.start()
        at = match.end() - 1
        depth = max(0, depth + (1 if match[0] in _OPEN else -1))
    return end


def _levels(meaning: bytes) -> int:
    """How deep an alias is nested by itself; the `loc(…)` around a location vanishes where it is written out."""
    brackets = meaning.translate(None, _NO_BRACKETS)
    depth = most = 0
    for bracket in brackets:
        depth += 1 if bracket in _OPEN else -1
        most = max(most, depth)
    return most - meaning.lstrip().startswith(b"loc")


# ---- foreign
#
# Files that are given as models and are none: what they are, and what makes a model of them.


_IMPORTER: Final = {
    "an ONNX model": "`tracemap build` takes it as MODEL.onnx; else import it: iree-import-onnx MODEL.onnx "
    "-o MODEL.mlir (pip install iree-base-compiler[onnx])",
    "a TensorFlow Lite model": "import it first: iree-import-tflite MODEL.tflite -o MODEL.mlir (pip install "
    "iree-tools-tflite)",
    "a TensorFlow model": "import it first: iree-import-tf FOLDER -o MODEL.mlir (pip install iree-tools-tf)",
    "a program of PyTorch": "`tracemap build` takes what torch.export.save writes as MODEL.pt2 (pip install "
    "'tracemap[torch]')",
    "weights or a program of PyTorch": "hand the module to `tracemap.build` in Python, or export it first, by "
    "torch-mlir or iree-turbine (iree.turbine.aot.export(module, args).save_mlir(…))",
    "weights": "name the program that uses them; `tracemap build --parameters SCOPE=FILE` keeps them with it",
    "compressed": "unpack it first, for example: tracemap build <(zcat MODEL.mlir.gz) -o MODEL.tracemap",
    "a compiled module": "name the model that it was compiled from",
    "a table": "name a model; runs are for tracemap attribute",
    "text in another encoding than UTF-8": "convert it first: iconv -f UTF-16 -t UTF-8",
    "text with a byte order mark": "save it as UTF-8 without one",
    "empty": "name a file with MLIR text or bytecode",
}
"""What is done about each."""
_BEGINNINGS: Final = (
    (b"\x1f\x8b", "compressed"),
    (b"\xfd7zXZ\0", "compressed"),
    (b"\x28\xb5\x2f\xfd", "compressed"),
    (b"BZh", "compressed"),
    (b"GGUF", "weights"),
    (b"\x89HDF\r\n", "weights"),
    (b"IRPA", "weights"),
    (b"\x80\x02", "weights or a program of PyTorch"),
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
    ".pt": "weights or a program of PyTorch",
    ".pt2": "a program of PyTorch",
    ".pth": "weights or a program of PyTorch",
    ".safetensors": "weights",
    ".vmfb": "a compiled module",
}
_ZIP: Final = b"PK\x03\x04"


def why_no_model(data: bytes, name: str) -> str:
    """What a file is instead of MLIR, and what to do; "": it may well be a model.

    Names decide only where the content is not text: a model may be called anything.
    """
    what = _what(data, PurePath(name).suffix.lower())
    return what and f"is {what}, not MLIR; {_IMPORTER[what]}"


def _what(data: bytes, suffix: str) -> str:
    if not data.strip():
        return "empty"
    if data[4:8] == b"TFL3":
        return "a TensorFlow Lite model"
    if found := next((what for start, what in _BEGINNINGS if data.startswith(start)), ""):
        return found
    if b"\0" not in data[:4096] and not data.startswith((_ZIP, b"\x08")):
        return ""
    if data.startswith(_ZIP):
        return _ENDINGS.get(suffix, "compressed")
    return "" if data.startswith(b"ML\xefR") else _ENDINGS.get(suffix, "")
