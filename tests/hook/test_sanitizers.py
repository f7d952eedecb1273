"""The hook in programs with sanitizers, and a sanitized hook in the stock runtime.

A sanitizer stands before many functions of libc. It asks for the real ones through dlsym, which is the hook's, before
its own can be called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.hook import support
from tests.hook.test_host import HERE, kernels, library, output
from tests.support import SAMPLES, made_once
from tracemap.hook import environment
from tracemap.hook.compiling import LIBRARIES, find_compiler
from tracemap.runs.hook.recording import read_recording

__all__ = ["kernels", "library", "output"]

# ---- what the entries call


ENTRIES = ("mmap", "mmap64", "mprotect", "munmap", "dlsym", "dlopen", "dlclose", "clock_gettime")

ALLOWED = {"dlvsym", "__errno_location"}
"""Imports that an entry may reach at any time: no sanitizer stands before them, and neither allocates."""

LATER = {
    "query_symbol": "the name is that of IREE's query symbol",
    "closed": "a library of IREE's was opened",
    "look_at_reserved": "code in a reservation is made executable",
    "end_reserved": "an executable is unloaded",
    "open_temporary": "IREE loads an executable",
    "release": "an executable is unloaded",
    "stops_add": "the constructor has read TRACEMAP_HOOK_STOPS",
}
"""Functions that an entry reaches only under a condition that comes true later."""


@dataclass
class Function:
    """What the disassembly tells of a function."""

    name: str
    imports: set[str] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)


BRANCH = re.compile(r"\t(?:call|jmp|j\w+|bl|b|b\.\w+|cbn?z|tbn?z)\s.*?([0-9a-f]+) <([^>]+)>")


def disassembled(path: Path) -> dict[int, Function]:
    """The functions of a library by their addresses."""
    lister = shutil.which("objdump") or shutil.which("llvm-objdump")
    if lister is None:
        pytest.skip("needs objdump, which comes with compilers (Debian: binutils)")
    command = [lister, "-d", "--no-show-raw-insn", str(path)]
    found: dict[int, Function] = {}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if head := re.fullmatch(r"([0-9a-f]+) <(.+)>:", line):
            function = found[int(head[1], 16)] = Function(head[2])
        elif branch := BRANCH.search(line):
            if "@" in branch[2]:
                function.imports.add(branch[2].partition("@")[0])
            elif "+0x" not in branch[2] and "*" not in branch[0]:  # within a function, and by a pointer
                function.calls.add(int(branch[1], 16))
    return found


def reached(functions: dict[int, Function], entry: str) -> Iterator[Function]:
    """The functions that an entry may run at any time."""
    rest = [address for address, function in functions.items() if function.name == entry]
    assert rest, f"{entry} is no function of the library"
    seen = set(rest)
    while rest:
        function = functions[rest.pop()]
        if function.name.partition(".")[0] in LATER:
            continue
        yield function
        new = function.calls - seen
        seen |= new
        rest.extend(new)


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_calls_nothing_that_another_library_may_stand_before(entry: str, library: Path) -> None:
    functions = disassembled(library)
    imports = {name for function in reached(functions, entry) for name in function.imports}
    assert imports <= ALLOWED
    assert {name for function in functions.values() for name in function.imports} >= {"dlvsym", "vsnprintf", "open"}


# ---- programs with a sanitizer


@dataclass(frozen=True)
class Build:
    """A compiler with the flags of a sanitizer; `runtime` is preloaded before the hook, where it insists on that."""

    compiler: str
    flags: tuple[str, ...]
    runtime: str = ""

    def __str__(self) -> str:
        return "".join((self.compiler, *self.flags)).replace("-fsanitize=", "-")


BUILDS = (
    *(
        Build(compiler, (f"-fsanitize={kind}",))
        for compiler in ("gcc", "clang")
        for kind in ("thread", "undefined", "leak")
    ),
    Build("gcc", ("-fsanitize=thread", "-static-libtsan")),
    Build("gcc", ("-fsanitize=address", "-static-libasan")),
    Build("gcc", ("-fsanitize=address",), "libasan.so"),
    Build("clang", ("-fsanitize=address",)),
    Build("clang", ("-fsanitize=address", "-shared-libasan"), "libclang_rt.asan-x86_64.so"),
    Build("clang", ("-fsanitize=memory",)),
)


def runtime_path(compiler: str, name: str) -> str:
    """A sanitizer's library as the compiler finds it; skips where there is none."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"{compiler} has no {name}")
    return path


def sanitized(target: Path, build: Build, *words: str | Path) -> Path:
    """A program built so; skips where the compiler has no such sanitizer."""
    if not shutil.which(build.compiler):
        pytest.skip(f"needs {build.compiler} (Debian: clang libclang-rt-14-dev)")
    with made_once(target) as missing:
        if missing:
            command = [build.compiler, *support.FLAGS, "-g", "-O1", *build.flags, *map(str, words), "-o", str(target)]
            done = subprocess.run([*command, *LIBRARIES], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{build.compiler} has no {build.flags[0]}: {done.stderr.splitlines()[0]}")
    return target


Ended = tuple[int, str]
Preloaded = list[str | Path]


def ended(command: Sequence[str | Path], preloaded: Preloaded, variables: dict[str, str]) -> tuple[Ended, str]:
    """Status and output of a program, and what it said on standard error."""
    environment = {**os.environ, **variables, "LD_PRELOAD": " ".join(map(str, preloaded))}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment, cwd=SAMPLES, capture_output=True, text=True, check=False, timeout=120)
    return (done.returncode, done.stdout), done.stderr


@pytest.mark.long
@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_a_program_with_a_sanitizer_ends_as_without_the_hook(
    build: Build, library: Path, kernels: Path, made: Path, output: Path
) -> None:
    first: Preloaded = [runtime_path(build.compiler, build.runtime)] if build.runtime else []
    program = sanitized(made / f"host-preloaded-{build}", build, HERE / "host.c")
    command: list[str | Path] = [program, kernels, "printing", "2", "100"]
    variables = {"TRACEMAP_HOOK_OUTPUT": str(output), "LSAN_OPTIONS": "detect_leaks=0"}
    without, _ = ended(command, first, variables)
    with_hook, said = ended(command, [*first, library], variables)
    assert with_hook == without == (0, "printed\n"), said
    assert read_recording(output).call_count == 100


def test_an_address_sanitizer_that_is_not_first_says_so_itself(library: Path, kernels: Path, made: Path) -> None:
    """As of any other library that is preloaded before it."""
    build = Build("gcc", ("-fsanitize=address",))
    program = sanitized(made / f"host-preloaded-{build}", build, HERE / "host.c")
    command: list[str | Path] = [program, kernels, "printing", "2", "100"]
    with_other, other_said = ended(command, ["libm.so.6"], {})
    with_hook, said = ended(command, [library], {})
    assert with_hook == with_other
    assert with_hook[0] == 1
    message = "ASan runtime does not come first"
    assert message in said
    assert message in other_said
    unasked, _ = ended(command, [library], {"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0"})
    assert unasked == (0, "printed\n")


# ---- a sanitizer beside the hook in the stock runtime


def stock_command(made: Path, elf: str, driver: str) -> list[str]:
    return support.tool_command("iree-run-module", support.module(made, elf), driver)


@pytest.mark.parametrize("hook_first", [True, False])
@pytest.mark.parametrize("runtime", ["libasan.so", "libtsan.so", "liblsan.so"])
def test_the_stock_runtime_beside_a_preloaded_sanitizer(
    runtime: str, hook_first: bool, library: Path, made: Path, output: Path
) -> None:
    if runtime == "libasan.so" and hook_first:
        pytest.skip("that one insists on being the first; it says so itself")
    preloaded: Preloaded = [runtime_path("gcc", runtime), library]
    command = stock_command(made, "embedded", "local-task")
    without, _ = ended(command, preloaded[:1], UNREPORTED)
    variables = {**UNREPORTED, "TRACEMAP_HOOK_OUTPUT": str(output)}
    with_hook, said = ended(command, preloaded[::-1] if hook_first else preloaded, variables)
    assert with_hook == without, said
    assert with_hook[0] == 0
    assert read_recording(output).call_count > 0


UNREPORTED = {
    "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
    "ASAN_OPTIONS": "detect_leaks=0",
    "LSAN_OPTIONS": "detect_leaks=0",
}
"""What a sanitizer would report of the stock runtime, of which it sees a part."""

SANITIZED_HOOKS = {"thread": ("libtsan.so",), "address,undefined": ("libasan.so", "libubsan.so")}


@pytest.mark.long
@pytest.mark.parametrize("elf", ["embedded", "system"])
@pytest.mark.parametrize("driver", ["local-task", "local-sync"])
@pytest.mark.parametrize("sanitizer", SANITIZED_HOOKS)
def test_sanitizers_find_nothing_in_the_preloaded_hook(
    sanitizer: str, driver: str, elf: str, made: Path, output: Path
) -> None:
    support.need_compiler()
    runtimes: Preloaded = [runtime_path("gcc", name) for name in SANITIZED_HOOKS[sanitizer]]
    if "clang" in Path(os.path.realpath(shutil.which(find_compiler()[0]) or "")).name:
        pytest.skip("the runtimes are those of gcc")
    # Optimised, since an entry must hand on a call of dlsym as a tail call.
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-O2"]
    hook = support.built_library(made, f"preloaded-{sanitizer}", flags)
    command = stock_command(made, elf, driver)
    without, _ = ended(command, runtimes, UNREPORTED)
    variables = {**UNREPORTED, "TRACEMAP_HOOK_OUTPUT": str(output), "TRACEMAP_HOOK_SAMPLE_HZ": "997"}
    with_hook, said = ended(command, [*runtimes, hook], {**variables, "TRACEMAP_HOOK_SAMPLER": "timer"})
    assert with_hook == without, said
    assert with_hook[0] == 0
    assert "Sanitizer" not in said
    assert "runtime error" not in said
    assert read_recording(output).call_count > 0


def test_a_sanitizer_that_is_preloaded_already_stays_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    others = ("/usr/lib/libjemalloc.so.2", "/usr/lib/libasan.so.8", "/opt/libclang_rt.tsan-x86_64.so")
    monkeypatch.setenv("LD_PRELOAD", " ".join(others))
    allocator, *sanitizers = others
    *first, library, last = environment(tmp_path)["LD_PRELOAD"].split()
    assert (first, last) == (sanitizers, allocator)
    assert library.endswith("libtracemap_hook.so")
