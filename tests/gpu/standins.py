"""The stand-ins of libcuda and libcupti, a program that uses them, and what a GPU recorded, to be replayed by them."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.hook.support import need_compiler
from tests.support import SAMPLES, made_once
from tracemap.core.toolchain import find_tool
from tracemap.hook.compiling import CUDA_LIBRARY_NAME, compile_library, find_compiler

HERE = Path(__file__).parent
SOURCES = HERE / "standin"
RECORDED = HERE / "recorded"
_FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC")


NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel that a GPU ran: its name and its time."""

    name: str
    ns: int


def recorded_kernels(model: str) -> list[Launched]:
    """The last kernels of a model's calls on an H100, in order."""
    text = gzip.decompress((RECORDED / f"{model}.kernels.txt.gz").read_bytes()).decode()
    rows = (line.split() for line in text.splitlines())
    return [Launched(row[-1], int(row[2]) - int(row[1])) for row in rows]


@dataclass(frozen=True, slots=True)
class StandIns:
    """The folder of the compiled stand-ins, and the CUDA library, compiled from the sources as they are now."""

    folder: Path

    @property
    def library(self) -> Path:
        """The CUDA library."""
        return self.folder / CUDA_LIBRARY_NAME

    def variables(self, times: Path | None = None, **faults: int | str) -> dict[str, str]:
        """The environment that puts the stand-ins in the place of NVIDIA's libraries.

        Args:
            times: the times of kernels (see `times_of`).
            faults: what a stand-in does, such as `cupti=28`; see their sources.
        """
        return {
            "LD_LIBRARY_PATH": str(self.folder),
            "TRACEMAP_CUDA_CUPTI": str(self.folder / "libcupti.so.13"),
            **({} if times is None else {"STANDIN_TIMES": str(times)}),
            **{f"STANDIN_{name.upper()}": str(value) for name, value in faults.items()},
        }

    def injected(self, output: Path, settings: Mapping[str, str] = NOTHING, **faults: int | str) -> dict[str, str]:
        """The environment of a program that records itself into a folder."""
        own = {"CUDA_INJECTION64_PATH": str(self.library), "TRACEMAP_CUDA_OUTPUT": str(output)}
        return {**self.variables(None, **faults), **own, **settings}

    def host(
        self,
        kernels: Sequence[str],
        variables: Mapping[str, str],
        *,
        rounds: int = 1,
        then: str = "exit",
        limit_bytes: int = 0,
    ) -> subprocess.CompletedProcess[str]:
        """Run the program that launches kernels, to its end; `limit_bytes`: of each file that it writes."""
        listed = self.folder / f"{abs(hash((tuple(kernels), os.getpid())))}.list"
        listed.write_text("\n".join(kernels), encoding="utf-8")
        limit = ["prlimit", f"--fsize={limit_bytes}"] if limit_bytes else []
        command = [*limit, str(self.folder / "host"), str(listed), str(rounds), then]
        return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)


def build(folder: Path, sanitizer: str = "") -> StandIns:
    """Compile all once in a session, with a sanitizer if named; skips the test without a compiler."""
    need_compiler()
    more = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g") if sanitizer else ()
    target = folder / f"standins{sanitizer}"
    with made_once(target) as missing:
        if missing:
            partly = folder / f"{target.name}.partly"
            partly.mkdir()
            shared, compiler = ("-shared", "-fvisibility=hidden"), find_compiler()
            links = {
                "libcuda.so": (*shared, "-Wl,-soname,libcuda.so.1", SOURCES / "driver.c"),
                "libcupti.so.13": (*shared, SOURCES / "profiler.c"),
                "host": (SOURCES / "host.c",),
            }
            for name, words in links.items():
                command = [*compiler, *_FLAGS, *more, "-o", partly / name, *words, "-lpthread", "-ldl"]
                subprocess.run([str(word) for word in command], check=True)
            # Sanitizers have functions of their own in place of those that the hook looks up.
            without = ("-DTRACEMAP_HOOK_WITHOUT_PRELOAD",) if sanitizer else ()
            compile_library(partly / CUDA_LIBRARY_NAME, (*more, *without), CUDA_LIBRARY_NAME)
            partly.rename(target)
    return StandIns(target)


def times_of(folder: Path, model: str) -> Path:
    """The file with the times of a model's kernels on an H100, for the stand-in."""
    path = folder / f"{model}.times"
    path.write_text("".join(f"{kernel.ns} {kernel.name}\n" for kernel in recorded_kernels(model)), encoding="utf-8")
    return path


def run_module(bundle: Path, model: str, variables: Mapping[str, str], *flags: str) -> float:
    """Run the stock iree-benchmark-module on a bundle's module with the sample's inputs; returns ms per call."""
    command = [
        str(find_tool("iree-benchmark-module")),
        f"--module={bundle / 'module.vmfb'}",
        "--device=cuda",
        f"--flagfile={SAMPLES / 'flags' / model}.flags",
        *flags,
    ]
    done = subprocess.run(
        command, env={**os.environ, **variables}, cwd=SAMPLES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"real_time +([0-9.]+) (ns|us|ms|s) ", done.stdout)
    assert found, done.stdout
    return float(found[1]) * {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}[found[2]]
