"""Standard streams that are full, closed, oddly encoded or unread; wrong usage."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Built
from tests.support import SAMPLES, Corpus, command_line, run_cli

FULL = "/dev/full"
RECORD = ("record", "{bundle}", "--iterations", "2", "-o", "run.csv")
WORDS = [("--help",), ("show", "--help"), ("--version",), ("hook", "--help"), ("show", "{bundle}"), RECORD]


def of_shell(script: str, *words: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as `"$@"` of a shell's script, which says what its streams are."""
    command = ["sh", "-c", script, "sh", *command_line(*words)]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **variables}, timeout=60
    )


def put_in(words: tuple[str, ...], bundle: Path) -> list[str]:
    """The words, with a bundle in its place."""
    return [word.format(bundle=bundle) for word in words]


@pytest.mark.long
@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize(("stream", "why"), [(f"> {FULL}", "No space left"), (">&-", "Bad file descriptor")])
def test_output_that_cannot_be_written(
    words: tuple[str, ...], stream: str, why: str, built: Built, tmp_path: Path
) -> None:
    done = of_shell(f'"$@" {stream}', *put_in(words, built("hand_mlp")), cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tracemap: error: standard output cannot be written: " + why)
    assert last.endswith("[target-unwritable]")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("stream", [f"2> {FULL}", "2>&-"])
def test_words_for_people_may_be_lost(stream: str, built: Built, tmp_path: Path) -> None:
    done = of_shell(f'"$@" {stream}', *put_in(RECORD, built("hand_mlp")), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "run.csv\n")
    done = of_shell(f'"$@" {stream}', "show", "absent", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    "words", [("build", "-", "-o", "m.tracemap"), ("attribute", "-", "--map", "{bundle}")], ids=lambda words: words[0]
)
def test_standard_input_that_is_closed(words: tuple[str, ...], built: Built, tmp_path: Path) -> None:
    done = of_shell('"$@" <&-', *put_in(words, built("hand_mlp")), cwd=tmp_path)
    assert done.stderr.startswith("tracemap: error: standard input: cannot be read: Bad file descriptor")
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", WORDS[:5], ids=lambda words: " ".join(words[:2]))
def test_a_reader_that_has_gone_ends_the_command_as_others(
    words: tuple[str, ...], built: Built, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = command_line(*put_in(words, built("hand_mlp")))
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_what_an_encoding_lacks_is_written_as_an_escape(built: Built, tmp_path: Path) -> None:
    plain = of_shell('"$@"', "show", built("hand_mlp"), cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert plain.returncode == 0, plain.stderr
    listed = of_shell('"$@"', "events", cwd=tmp_path, PYTHONIOENCODING="ascii:strict")
    assert listed.returncode == 0, listed.stderr


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1", "cp1252"])
def test_data_is_utf_8_whatever_people_read(encoding: str, tmp_path: Path) -> None:
    """The same bytes as those that a file gets; escapes of an encoding are none of JSON's."""
    shutil.copy(SAMPLES / "models" / "hand_mlp.mlir", tmp_path / "größe_µ.mlir")
    of_shell('"$@"', "build", "größe_µ.mlir", "-o", "m.tracemap", cwd=tmp_path)
    show = ("show", "m.tracemap", "--format", "json")
    odd, plain = (of_shell('"$@"', *show, cwd=tmp_path, PYTHONIOENCODING=each) for each in (encoding, "utf-8"))
    assert "größe_µ" in plain.stdout
    assert odd.stdout == plain.stdout


@pytest.mark.long
@pytest.mark.parametrize("columns", ["0", "00", ""])
def test_a_width_of_nothing_is_none(columns: str, built: Built, tmp_path: Path) -> None:
    """Some shells say so in pipes, where they do not know it."""
    show = ("show", built("hand_mlp"))
    odd, plain = (of_shell('"$@"', *show, cwd=tmp_path, COLUMNS=each).stdout for each in (columns, "100"))
    assert odd == plain != ""


@pytest.mark.long
def test_a_path_is_printed_byte_for_byte(tmp_path: Path) -> None:
    name = os.fsdecode(b"m\x1b\xff.tracemap")
    command = command_line("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", name)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"m\x1b\xff.tracemap\n"
    assert b"\x1b" not in done.stderr


def test_what_is_said_cannot_steer_a_terminal(tmp_path: Path) -> None:
    done = run_cli("show", "\x1b[31mred\x9b0m\u202e.tracemap", cwd=tmp_path)
    assert r"\x1b[31mred\x9b0m\u202e.tracemap" in done.stderr
    assert done.stderr.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("words", "command", "why"),
    [
        (("frobnicate",), "tracemap", "No such command 'frobnicate'"),
        (("show",), "tracemap show", "Missing argument 'BUNDLE'"),
        (("record", "m", "--bad"), "tracemap record", "No such option '--bad'"),
        (("record", "m", "--iterations", "x"), "tracemap record", "'x' is not a valid"),
        (("attribute", "r", "--format", "xml"), "tracemap attribute", "'xml' is not one of"),
        (("hook", "frob"), "tracemap hook", "No such command 'frob'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_one_sentence(words: tuple[str, ...], command: str, why: str, tmp_path: Path) -> None:
    done = run_cli(*words, cwd=tmp_path)
    assert done.stderr.startswith(f"tracemap: error: {command}: ")
    assert why in done.stderr
    assert re.search(rf"[Ss]ee {command} --help \[usage-invalid\]\n$", done.stderr)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


_INTERRUPTED = """
import os, signal, sys
from tracemap.commands.start import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever is done with it where the tests run

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "tracemap.commands.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
main()
"""


def test_ctrl_c_while_the_program_is_loaded_is_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.long
def test_a_status_of_its_own_is_told_where_output_can_be_written(samples: Corpus, built: Built, tmp_path: Path) -> None:
    words: list[str | Path] = ["diff", "--fail-over", "5"]
    for side, flags in (("a", "jax_mlp"), ("b", "jax_mlp_train")):
        bundle, run = built(samples.model_of(flags)), tmp_path / f"{flags}.csv"
        samples.record(flags, bundle, run, ("--iterations", "30"))
        words += [f"--map-{side}", bundle, run]
    done = run_cli(*words, cwd=tmp_path)
    assert done.stderr.startswith("over 5 %: ")
    assert done.returncode == 1
    assert "30 invocations" in done.stdout
    full = of_shell(f'"$@" > {FULL}', *words, cwd=tmp_path)
    assert full.stderr.splitlines()[-1].startswith("tracemap: error: standard output cannot be written: No space left")
    assert full.returncode == 2


_LAST = """
#include <unistd.h>
__attribute__((destructor)) static void end(void) {
  if (write(2, "the end\\n", 8) < 0) _exit(3);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_is_preloaded_sees_the_end_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "last.c").write_text(_LAST)
    library = tmp_path / "last.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "last.c"], check=True)
    done = of_shell('LD_PRELOAD=./last.so exec "$@"', "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "the end\n")
