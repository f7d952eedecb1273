"""What tests share: the samples, the real command line as a subprocess, bundles and runs made once."""

from __future__ import annotations

import base64
import fcntl
import functools
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fork_server import fork_server
from tracemap.core.toolchain import find_tool
from tracemap.machine.images import CodeFunction, Image

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "samples"

PLAIN_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
"""What `tracemap build` compiles with by default; a plain iree-compile is compared with the same."""

Json = dict[str, Any]


def long_where(values: Sequence[Any], is_long: Callable[[int, Any], bool]) -> list[Any]:
    """Parameters of a test, of which those that `is_long` chooses by their place and value are only tried at length.

    Plain tuples are of several parameters.
    """

    def parameter(number: int, value: Any) -> Any:  # noqa: ANN401 - whatever pytest takes
        marks = (pytest.mark.long,) if is_long(number, value) else ()
        return pytest.param(*(value if type(value) is tuple else (value,)), marks=marks)

    return [parameter(number, value) for number, value in enumerate(values)]


def command_line(*arguments: str | Path) -> list[str]:
    """The program as a user starts it, by this interpreter."""
    return [sys.executable, "-m", "tracemap", *map(str, arguments)]


_WITH_CTRL_C: Final = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def interruptible(*arguments: str | Path) -> list[str]:
    """The same, with Ctrl-C as a user has it: where tests run in the background of a shell, children ignore it."""
    python, *words = command_line(*arguments)
    return [python, "-c", _WITH_CTRL_C, *words]


def run_cli(*arguments: str | Path, cwd: Path = SAMPLES, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run the real command line; the caller looks at status and output."""
    return fork_server().run(list(map(str, arguments)), cwd, stdin)


def check_cli(*arguments: str | Path, cwd: Path = SAMPLES) -> str:
    """Run the real command line and return its standard output.

    Raises:
        AssertionError: it failed; with what it said.
    """
    done = run_cli(*arguments, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(map(str, arguments))}: status {done.returncode}\n{done.stderr}"
    return done.stdout


def json_cli(*arguments: str | Path, cwd: Path = SAMPLES) -> Json:
    """Run the real command line with `--format json` and parse what it prints."""
    parsed = json.loads(check_cli(*arguments, "--format", "json", cwd=cwd))
    assert isinstance(parsed, dict)
    return parsed


@dataclass(frozen=True, slots=True)
class Corpus:
    """A folder of models (`*.mlir`) and flag files (`NAME.flags`, `NAME.FUNCTION.flags`), at any depth."""

    folder: Path

    def models(self) -> dict[str, Path]:
        """Models by name."""
        return {path.stem: path for path in sorted(self.folder.rglob("*.mlir"))}

    def flag_files(self) -> dict[str, Path]:
        """Flag files by name without `.flags`."""
        return {path.name.removesuffix(".flags"): path for path in sorted(self.folder.rglob("*.flags"))}

    def model_of(self, flags: str) -> str:
        """The model that a flag file belongs to: all of its name, or up to the dot before the function."""
        return flags if flags in self.models() else flags.split(".", maxsplit=1)[0]

    def build(self, model: str, bundle: Path) -> None:
        """Build a model's bundle through the command line, with the corpus's Python sources."""
        sources = self.folder / "sources"
        rooted: list[str | Path] = ["--source-root", sources] if sources.is_dir() else []
        check_cli("build", self.models()[model], *rooted, "-o", bundle, cwd=self.folder)

    def record(
        self,
        flags: str,
        bundle: Path,
        run: Path,
        options: Sequence[str] = ("--iterations", "3"),
        last: Sequence[str] = (),
    ) -> None:
        """Record a run through the command line; flag files name parameters relative to the corpus's folder."""
        given: tuple[str | Path, ...] = ("--flagfile", self.flag_files()[flags], *options, "-o", run, *last)
        check_cli("record", bundle, *given, cwd=self.folder)


@functools.cache
def has_device(driver: str) -> bool:
    """Whether a driver of the runtime finds a device here."""
    command = [str(find_tool("iree-run-module")), f"--list_devices={driver}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0 and bool(done.stdout.split())


@contextmanager
def made_once(target: Path) -> Iterator[bool]:
    """Yields whether `target` is still to be made; processes that test in parallel wait for the one that makes it."""
    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not target.exists()


@dataclass(frozen=True, slots=True)
class Flow:
    """What the flow phase of a plain compile says: the kernel of each site, in order, and all kernels."""

    sites: tuple[str, ...]

    @property
    def kernels(self) -> frozenset[str]:
        """The distinct kernels."""
        return frozenset(self.sites)


def flow_of_plain_compile(model: Path) -> Flow:
    """Compile a model up to the flow phase without tracemap and read the dispatches off its text."""
    arguments = [find_tool("iree-compile"), model, *PLAIN_FLAGS, "--compile-to=flow", "-o", "-"]
    elided = ["--mlir-elide-elementsattrs-if-larger=4", "--mlir-elide-resource-strings-if-larger=4"]
    done = subprocess.run([*map(str, arguments), *elided], capture_output=True, text=True, check=True)
    return Flow(tuple(re.findall(r"\bflow\.dispatch @[^:\s]+::@([\w$.]+)", done.stdout)))


def runs_of(image: Image, function: CodeFunction) -> Iterator[tuple[int, int, int]]:
    """The runs of a function's code with one line: first address, address behind the last, line."""
    ends = [*(address for address, _ in image.rows[1:]), function.high]
    for (low, line), high in zip(image.rows, ends, strict=False):
        if low < function.high and high > function.low:
            yield max(low, function.low), min(high, function.high), line


def page_data(text: str) -> Json:
    """What the script of a page works on."""
    found = re.findall(r'<script type="application/octet-stream" class="data">(.*?)</script>', text)
    assert found
    parts = [json.loads(zlib.decompress(base64.b64decode(part))) for part in found]
    return {name: value for part in parts for name, value in part.items()}
