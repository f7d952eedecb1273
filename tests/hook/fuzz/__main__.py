"""`python -m tests.hook.fuzz`: fuzz the hook's C, guided by coverage, under AddressSanitizer and UBSan."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from tests.hook import support
from tests.hook.fuzz import FOLDER, HARNESSES
from tests.support import ROOT
from tracemap.hook.compiling import LIBRARIES, sources

WORK = ROOT / "tests" / "actual" / "fuzz" / "hook"
"""Ignored by git. What was found to lead further stays here, for the next run."""
_FLAGS = (
    *("-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
    "-DTRACEMAP_HOOK_WITHOUT_PRELOAD",
    "-Dreal_clock_gettime=hook_clock_gettime",  # the sanitizer's library has a function of this name
)
_LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=20000")


@click.command()
@click.option("--harness", "names", multiple=True, type=click.Choice(HARNESSES), help="Only this one; repeatable.")
@click.option("--count", default=100_000, show_default=True, help="How many cases of each.")
@click.option("--replay", type=click.Path(exists=True, path_type=Path), help="Only this file, and say what goes wrong.")
def command(names: tuple[str, ...], count: int, replay: Path | None) -> None:
    """Fuzz the hook's C; status 1 where a case was found on which it goes wrong."""
    compiler = next((found for name in ("clang", "clang-19") if (found := shutil.which(name))), None)
    if compiler is None or not _can_fuzz(compiler):
        click.echo("the hook's C is not fuzzed: there is no clang with libFuzzer (Debian: clang libclang-rt-dev)")
        return
    failed = False
    for name in names or HARNESSES:
        program = _built(compiler, name)
        if replay is not None:
            sys.exit(subprocess.run([program, *_LIMITS, replay], check=False).returncode)
        failed = not _fuzzed(name, program, count) or failed
    sys.exit(failed)


def _can_fuzz(compiler: str) -> bool:
    harness = "int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return data && size > 1u << 30; }"
    with tempfile.TemporaryDirectory() as folder:
        made = [compiler, *_FLAGS, "-x", "c", "-", "-o", f"{folder}/fuzzer"]
        return not subprocess.run(made, input=harness, capture_output=True, text=True, check=False).returncode


def _built(compiler: str, name: str) -> Path:
    program = WORK / name / "fuzzer"
    program.parent.mkdir(parents=True, exist_ok=True)
    own = (str(FOLDER / f"{name}.c"), *map(str, sources()))
    subprocess.run([compiler, *support.FLAGS, *_FLAGS, *own, "-o", str(program), *LIBRARIES], check=True)
    return program


def _fuzzed(name: str, program: Path, count: int) -> bool:
    """Whether nothing was found in so many cases."""
    corpus, findings, log = (WORK / name / part for part in ("corpus", "findings", "log"))
    corpus.mkdir(exist_ok=True)
    findings.mkdir(exist_ok=True)
    folders = [corpus, FOLDER / "cases" / name]
    where = f"-artifact_prefix={findings}/"
    with log.open("wb") as output:  # what the hook says in each case is of no interest
        words = [str(program), f"-runs={count}", *_LIMITS, where, "-close_fd_mask=3", *map(str, folders)]
        good = not subprocess.run(words, stderr=output, stdout=output, check=False).returncode
    click.echo(f"{name}: {_said(log)}")
    if not good:
        newest = max(findings.iterdir(), key=lambda path: path.stat().st_mtime)
        click.echo(f"  1 finding; repeat: python -m tests.hook.fuzz --harness {name} --replay {newest}")
    return good


def _said(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith(("Done ", "SUMMARY: "))), "ended otherwise")


if __name__ == "__main__":
    command()
