"""Limits of the shell and machine: one sentence that names the exhausted resource."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from tests.commands.test_streams import of_shell
from tests.conftest import Built, Recorded
from tests.support import SAMPLES, check_cli
from tracemap.core.errors import ModelInvalid, RunInvalid, SystemLimit, check_limits, limit_reached
from tracemap.core.process.children import start
from tracemap.core.process.limits import Group, free_in_group
from tracemap.map.build.compiler.failure_messages import compiler_error, failure_message


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (MemoryError(), "not enough memory; free some"),
        (SystemError("error return without exception set"), "not enough memory"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "not enough memory"),
        (duckdb.OutOfMemoryException("Out of Memory Error: Allocation failure"), "not enough memory"),
        (
            ImportError("IMPORTANT: read\nlibx.so: failed to map segment from shared object\n"),
            "memory (libx.so: failed",
        ),
        (RuntimeError("can't start new thread"), "no more programs or threads"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "x.csv"), "no more files can be opened"),
        (duckdb.IOException('IO Error: Cannot open file "x": Too many open files'), "no more files can be opened"),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG)), "a file exceeds the file size limit"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "a disk is full"),
        (OSError(errno.EACCES, os.strerror(errno.EACCES)), ""),
        (RuntimeError("Too many open files"), ""),
        (RunInvalid("There is not enough memory"), ""),
    ],
)
def test_errors_that_come_of_a_limit(error: Exception, what: str) -> None:
    said = limit_reached(error)
    assert what in said
    assert bool(said) == bool(what)
    assert len(said.splitlines()) <= 1
    if what:
        with pytest.raises(SystemLimit):
            check_limits(error)
    else:
        check_limits(error)


def test_files_that_may_not_be_large(built: Built, tmp_path: Path) -> None:
    bundle = shutil.copytree(built("hand_mlp"), tmp_path / "m.tracemap")
    done = of_shell('ulimit -f 4; "$@"', "bench", bundle, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("tracemap: error: a file exceeds the file size limit"), done.stderr
    assert done.stderr.endswith("[system-limit]\n")


@pytest.mark.long
def test_a_compiler_that_a_limit_has_ended_did_not_crash(tmp_path: Path) -> None:
    done = of_shell(
        'ulimit -f 24; "$@"', "build", SAMPLES / "models" / "jax_mlp.mlir", "-o", "m.tracemap", cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tracemap: error: jax_mlp.mlir: cannot be compiled: iree-compile was ended"), (
        done.stderr
    )
    assert "(SIGXFSZ), at a limit of the shell; raise it" in done.stderr
    assert done.stderr.endswith("[system-limit]\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGXFSZ, signal.SIGXCPU])
def test_a_limit_is_of_no_other_kind_whatever_was_compiled(number: signal.Signals) -> None:
    error = compiler_error(ModelInvalid, -number, "x.mlir:1:1: warning: odd", "m.mlir: cannot be compiled: ")
    assert isinstance(error, SystemLimit)
    assert str(error).startswith(f"m.mlir: cannot be compiled: iree-compile was ended by signal {number.value} ")
    assert "\n" not in str(error)
    assert type(compiler_error(ModelInvalid, -signal.SIGSEGV, "")) is ModelInvalid
    assert type(compiler_error(ModelInvalid, 1, "")) is ModelInvalid


def test_arguments_that_are_too_many_make_no_program_missing() -> None:
    with pytest.raises(SystemLimit, match=r"^true cannot be started: its arguments and .* give long values in files"):
        start(["true", *["x" * 100_000] * 100])


@pytest.mark.long
def test_too_few_open_files_damage_no_store(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Whoever takes away what is called damaged loses what is well; `--skip-bad` would answer without it."""
    check_cli("store", "add", recorded("hand_mlp"), "--map", built("hand_mlp"), "--store", "s", cwd=tmp_path)
    ended = []
    for most in range(5, 10):
        done = of_shell(f'ulimit -n {most}; "$@"', "store", "query", "--store", "s", "--skip-bad", cwd=tmp_path)
        assert "damaged" not in done.stderr
        assert "Traceback" not in done.stderr
        ended.append((done.returncode, done.stderr.endswith("[system-limit]\n")))
    assert (2, True) in ended
    assert set(ended) <= {(0, False), (2, True), (2, False)}


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = of_shell('cd gone; rmdir ../gone; "$@"', "attribute", "run.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "tracemap: error: the current folder was deleted; change to a folder that exists [usage-invalid]\n"
    )


_LIMITS = ("-v 400000", "-v 500000", "-v 700000", "-n 4", "-n 6", "-n 8", "-n 10")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_limit_damages_no_run(kind: str, built: Built, recorded: Recorded, tmp_path: Path) -> None:
    """Nor is more memory of the database's own asked for, which would help nobody there."""
    run = recorded("hand_mlp")
    if kind == "parquet":
        made = tmp_path / "run.parquet"
        duckdb.execute(f"COPY (FROM '{run}') TO '{made}'")
        run = made
    slugs = set()
    for limit in _LIMITS:
        done = of_shell(f'ulimit {limit}; "$@"', "attribute", run, "--map", built("hand_mlp"), cwd=tmp_path)
        if done.returncode == 2:
            slugs.add(done.stderr.rpartition("[")[2].strip("]\n"))
            assert "--memory" not in done.stderr
    assert slugs == {"system-limit"}


def test_free_memory_is_what_a_limit_of_the_shell_leaves() -> None:
    program = "from tracemap.core.process.limits import free_memory; print(free_memory())"
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 500000; exec "$@"', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < int(done.stdout) < 500_000 << 10


def test_free_memory_of_a_group_is_what_it_does_not_use(tmp_path: Path) -> None:
    """Of what it uses, pages that were only read lately are given back when programs need them."""
    written = {"max": "1000\n", "used": "700\n", "stat": "anon 500\ninactive_file 150\nactive_file 50\n"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    group = Group(tmp_path / "max", tmp_path / "used", tmp_path / "stat", "inactive_file")
    assert free_in_group(group) == 450
    (tmp_path / "max").write_text("max\n")
    assert free_in_group(group) == sys.maxsize


SPINNING = "import tracemap.commands.main as main; main._call = lambda: [None for _ in iter(int, 1)]; "
"""A command that computes for ever, begun as the program begins."""


def test_processor_time_that_is_used_up_is_named(tmp_path: Path) -> None:
    """`ulimit -t` sets the hard limit too, at which the system kills without a word."""
    words = (sys.executable, "-c", f"{SPINNING}from tracemap.commands.start import main; main()")
    done = subprocess.run(
        ["sh", "-c", 'ulimit -t 2; "$@"', "sh", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("tracemap: error: the limit of CPU time is reached; raise it: `ulimit -t`")
    assert done.stderr.endswith("[system-limit]\n")


def test_a_compiler_that_has_used_up_its_time_is_not_short_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "at the limit of processor time; raise it (`ulimit -t`" in failure_message(-signal.SIGXCPU, "")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 1))
    assert "the processor time of `ulimit -t` was used up" in failure_message(-signal.SIGKILL, "")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert "ulimit" not in failure_message(-signal.SIGKILL, "")


def test_a_small_stack_is_made_larger_where_it_may(tmp_path: Path) -> None:
    """Threads have what the limit was at the start: the program starts again."""
    words = (
        sys.executable,
        "-c",
        "import resource; from tracemap.commands.main import check_stack; check_stack(); "
        "print(resource.getrlimit(resource.RLIMIT_STACK)[0] >> 10)",
    )
    for limit, said in (("-S -s 256", "8192\n"), ("-s 1024", "1024\n"), ("-S -s 16384", "16384\n")):
        shell = ["sh", "-c", f'ulimit {limit}; "$@"', "sh", *words]
        done = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_a_stack_that_is_too_small_is_refused_at_the_start(built: Built, tmp_path: Path) -> None:
    done = of_shell('ulimit -s 256; "$@"', "show", built("hand_mlp"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "tracemap: error: the stack is limited to 256 kB, and 512 kB are needed; raise the limit: `ulimit -s` shows it "
        "[system-limit]\n"
    )
