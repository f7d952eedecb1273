"""The lines and ops that gdb, perf and callgrind show for the kernels of a bundle, in a program with the hook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tracemap.attribution.kernel_lines.code_ops import instruction_ops
from tracemap.machine.images import kernel_images, read_images
from tracemap.map.bundle import Bundle, load
from tracemap.map.query import frames_of, user_frames

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Shown:
    """What a tool shows for an instruction: the op's id, "" for none, and the line, 0 for none."""

    op: str
    line: int


Instructions = dict[tuple[str, int], Shown]
"""By kernel, and offset from its first instruction."""


def need(tool: str) -> str:
    """The tool's path; skips without it."""
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"needs {tool} (Debian: linux-perf, gdb, valgrind, binutils)")
    return path


def need_samples(folder: Path) -> str:
    """The path of perf; skips where it may not sample."""
    perf = need("perf")
    command = [perf, "record", "-q", "-e", "cpu-clock", "-o", str(folder / "tried.data"), "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"perf may not sample here: {done.stderr.strip().splitlines()[-1:]}")
    return perf


def expected(folder: Path, lines: str = "mlir") -> Instructions:
    """What tracemap itself names for each instruction of a bundle."""
    bundle = load(folder)
    images = read_images(bundle.module_path)
    shown: Instructions = {}
    for kernel in bundle.graph.kernels:
        for image, function in kernel_images(images, kernel.name)[:1]:
            for instruction in instruction_ops(bundle.graph, kernel, image, function):
                op = instruction.op.member.op if instruction.op else ""
                path = instruction.op.member.path if instruction.op else ()
                line = instruction.line if lines == "kernel" else _line_of(bundle, op, path, lines)
                shown[kernel.name, instruction.address - function.low] = Shown(op, line)
    return shown


def _line_of(bundle: Bundle, op: str, path: Sequence[str], lines: str) -> int:
    if not op:
        return 0
    known = bundle.graph.op_by_id[op]
    frames = user_frames(bundle.graph, frames_of(bundle.graph, known, path)) if lines == "python" else ()
    line = frames[0].line if frames else known.line
    return line if isinstance(line, int) else 0


def agreement(found: Mapping[tuple[str, int], Shown], names: Mapping[tuple[str, int], Shown]) -> tuple[int, int]:
    """How many instructions that the tool showed are as tracemap names them, and how many it showed."""
    known = {key: shown for key, shown in found.items() if key in names}
    return sum(shown == names[key] for key, shown in known.items()), len(known)


def op_in(name: str) -> str:
    """The id at the begin of an op's name; "" for the name of a kernel."""
    match = re.fullmatch(r"(op\d+) \S+ \[.*\]", name)
    return match[1] if match else ""


# ---- gdb


_GDB_SCRIPT = """
import gdb
gdb.execute("set pagination off")
gdb.execute("set confirm off")
{start}
for file in gdb.objfiles():
    for kernel, offsets in {offsets!r}.items():
        symbol = file.lookup_global_symbol(kernel)
        if symbol is None:
            continue
        low = int(symbol.value().address)
        for offset in offsets:
            text = gdb.execute("info line *%d" % (low + offset), to_string=True)
            block = gdb.block_for_pc(low + offset)
            while block is not None and block.function is None:
                block = block.superblock
            name = block.function.name if block is not None else ""
            print("@", file.filename, "@", kernel, offset, name, "@", text.splitlines()[0])
gdb.execute({end!r})
"""


def gdb_lines(
    command: Sequence[str | Path], names: Instructions, folder: Path, variables: Mapping[str, str]
) -> Instructions:
    """`info line *pc` in the running program, stopped in its first kernel."""
    settings = "".join(f'gdb.execute("set environment {name} {value}")\n' for name, value in variables.items())
    breakpoint_ = f'gdb.execute("set breakpoint pending on")\ngdb.Breakpoint({next(iter(names))[0]!r})\n'
    files = _gdb(["--args", *map(str, command)], f"{settings}{breakpoint_}gdb.execute('run')", names, folder, "kill")
    assert len(files) == 1, list(files)
    return next(iter(files.values()))


def gdb_attached(process: int, names: Instructions, folder: Path) -> dict[str, Instructions]:
    """The same in a process that runs already, by file of debug information."""
    return _gdb(["-p", str(process)], "", names, folder, "detach")


def _gdb(arguments: Sequence[str], start: str, names: Instructions, folder: Path, end: str) -> dict[str, Instructions]:
    offsets: dict[str, list[int]] = {}
    for kernel, offset in names:
        offsets.setdefault(kernel, []).append(offset)
    script = folder / "gdb.py"
    script.write_text(_GDB_SCRIPT.format(start=start, offsets=offsets, end=end), encoding="utf-8")
    command = [need("gdb"), "-nx", "-batch", "-x", str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    files: dict[str, Instructions] = {}
    for line in done.stdout.splitlines():
        match = re.match(r"@ (.*?) @ (\S+) (\d+) (.*) @ (?:Line (\d+) of |)", line)
        if match:
            shown = Shown(op_in(match[4]), int(match[5] or 0))
            files.setdefault(match[1], {})[match[2], int(match[3])] = shown
    assert files, done.stdout + done.stderr
    return files


# ---- perf


_INSTRUCTION = re.compile(r"\s+[\d.]+ :\s+([0-9a-f]+):\s")
_BESIDE = re.compile(r"\s+: \d+\s+(.*)")


def perf_annotated(data: Path, symbol: str, texts: Mapping[str, int]) -> Iterator[tuple[int, Shown]]:
    """Address and what `perf annotate` shows above each instruction of a function.

    `texts`: the lines of the source by their text, without blanks at the ends.
    """
    command = [need("perf"), "annotate", "-i", str(data), "--stdio", "-l", "-s", symbol]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    op, line = "", 0
    for row in done.stdout.splitlines():
        if match := _INSTRUCTION.match(row):
            yield int(match[1], 16), Shown(op, line if op else 0)
        elif match := _BESIDE.match(row):
            if match[1].endswith("():"):
                op = op_in(match[1].removesuffix("():"))
            elif match[1].strip() in texts:
                line = texts[match[1].strip()]


# ---- callgrind


def callgrind_lines(file: Path) -> Iterator[tuple[str, int, str, int]]:
    """Object, address, file and line of each instruction that ran, as `callgrind --dump-instr=yes` wrote them."""
    names: dict[str, dict[str, str]] = {}
    current = {"ob": "", "fl": ""}
    address = line = 0
    skip = False
    for row in file.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := re.match(r"(c?)(ob|fl|fi|fe|fn)=\((\d+)\)(?: (.*))?$", row):
            kind = "fl" if match[2] in ("fl", "fi", "fe") else match[2]
            kind = {"cfl": "fl"}.get(kind, kind)
            if match[4]:
                names.setdefault(kind, {})[match[3]] = match[4]
            if not match[1]:
                current[kind] = names.get(kind, {}).get(match[3], "")
        elif row.startswith("calls="):
            skip = True
        elif match := re.match(r"(0x[0-9a-f]+|\+\d+|-\d+|\*) (\d+|\+\d+|-\d+|\*)(?: |$)", row):
            address = _relative(match[1], address)
            line = _relative(match[2], line)
            if not skip:
                yield current["ob"], address, current["fl"], line
            skip = False


def _relative(text: str, before: int) -> int:
    if text == "*":
        return before
    if text[0] in "+-":
        return before + int(text)
    return int(text, 0)


def valgrind_command(*words: str | Path, variables: Mapping[str, str]) -> list[str]:
    """Run valgrind without io_uring, in which version 3.19 hangs."""
    wrapper = [sys.executable, "-m", "tracemap.capture.valgrind_exec", "/usr/bin/env"]
    return [*wrapper, *(f"{name}={value}" for name, value in variables.items()), need("valgrind"), *map(str, words)]


def environment(library: Path, symbols: Path, jitdump: Path | None = None) -> dict[str, str]:
    """The variables that hand debug information to tools."""
    variables = {"LD_PRELOAD": str(library), "TRACEMAP_HOOK_DEBUG_INFO": str(symbols)}
    return variables | ({"TRACEMAP_HOOK_JITDUMP": str(jitdump)} if jitdump else {})


def run(command: Sequence[str | Path], variables: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
