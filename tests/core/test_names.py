"""Names that break files or sentences: refused or escaped by all commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tracemap
from tests.commands.test_errors import refused
from tests.conftest import Built, Recorded
from tests.support import SAMPLES, run_cli
from tracemap.core.errors import TracemapError, UsageInvalid
from tracemap.core.files import atomic_file, check_file, is_file
from tracemap.options.measure import RecordOptions
from tracemap.reports.html import environment

MODEL = SAMPLES / "models" / "hand_mlp.mlir"
LONG = "a" * 3000
AT_MOST = "b" * 250 + ".json"
"""As long as the file system takes, so that nothing can be put before or behind it."""

COMMANDS = [
    ("model-unreadable", "build", "{name}"),
    ("target-unwritable", "build", "{model}", "-o", "{name}"),
    ("target-unwritable", "build", "{model}", "-o", "{name}/m.tracemap"),
    ("bundle-invalid", "show", "{name}"),
    ("target-unwritable", "lower", "{model}", "--pipeline", "builtin.module(cse)", "-o", "{name}"),
    ("target-unwritable", "run", "{bundle}", "--output", "@{name}.npy"),
    ("input-invalid", "run", "{bundle}", "--input", "@{name}.npy"),
    ("usage-invalid", "run", "{bundle}", "--flagfile", "{name}"),
    ("target-unwritable", "record", "{bundle}", "-o", "{name}"),
    ("target-unwritable", "record", "{bundle}", "-o", "{name}.csv"),
    ("run-invalid", "attribute", "{name}"),
    ("target-unwritable", "attribute", "{run}", "--map", "{bundle}", "--html", "{name}"),
    ("target-unwritable", "report", "{bundle}", "-o", "{name}"),
    ("target-unwritable", "export", "{run}", "--map", "{bundle}", "--to", "pprof", "-o", "{name}"),
    ("run-invalid", "bench", "{bundle}", "--run", "{name}"),
    ("run-invalid", "store", "add", "{name}", "--store", "s"),
    ("store-invalid", "store", "add", "{run}", "--map", "{bundle}", "--store", "{name}"),
    ("store-invalid", "store", "list", "--store", "{name}"),
    ("run-invalid", "diff", "{name}", "{run}"),
    ("target-unwritable", "tune", "{bundle}", "--top", "1", "-o", "{name}"),
    ("target-unwritable", "sweep", "matmul", "-o", "{name}"),
    ("run-invalid", "stats", "{name}"),
    ("target-unwritable", "hook", "env", "-o", "{name}"),
]


@pytest.mark.long
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[1:]))
def test_a_name_that_is_too_long_is_one_sentence(
    words: tuple[str, ...], built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    given = {"name": LONG, "model": MODEL, "bundle": built("hand_mlp"), "run": recorded("hand_mlp")}
    slug, *command = (word.format(**given) for word in words)
    assert LONG in refused(slug, *command, cwd=tmp_path)


def test_a_name_as_long_as_may_be_is_written(tmp_path: Path) -> None:
    target = tmp_path / AT_MOST
    check_file(target, force=False)
    with atomic_file(target) as temporary:
        temporary.write_text("{}", encoding="utf-8")
    assert target.read_text(encoding="utf-8") == "{}"
    assert [path.name for path in tmp_path.iterdir()] == [AT_MOST]


def test_what_is_named_may_have_any_name() -> None:
    """Whoever reads it says what is wrong with the name."""
    assert is_file(LONG)
    assert is_file("a\0b")
    assert not is_file("-")


def test_a_nul_in_a_path_is_refused() -> None:
    with pytest.raises(UsageInvalid, match="without a NUL"):
        RecordOptions(flagfile=Path("a\0b"))


def test_a_nul_in_a_name_is_refused_wherever_it_is_handed_in(built: Built) -> None:
    bundle, name = built("hand_mlp"), "a\0b"
    for call in (
        lambda: tracemap.build(name),
        lambda: tracemap.build(MODEL, name),
        lambda: tracemap.load(name),
        lambda: tracemap.record(bundle, name),
        lambda: tracemap.attribute(name),
        lambda: tracemap.attribute(name, bundle),
        lambda: tracemap.diff(name, bundle),
        lambda: tracemap.swap(bundle, {"x": name}, output="n.tracemap"),
        lambda: tracemap.store_list(name),
        lambda: tracemap.store_add(name, "store"),
    ):
        with pytest.raises(TracemapError):
            call()


ODD = "m\n\x1b[31m"


def test_line_ends_of_names_do_not_end_a_sentence(tmp_path: Path) -> None:
    said = refused("model-unreadable", "build", ODD, cwd=tmp_path)
    assert said.startswith(r"m\n\x1b[31m: cannot be read")
    assert "\n" not in said
    assert "\n" not in refused("run-invalid", "attribute", ODD, cwd=tmp_path)
    assert "\n" not in refused("usage-invalid", "attribute", "x", f"--{ODD}", cwd=tmp_path)
    assert "\n" not in refused("usage-invalid", "export", "x", cwd=tmp_path)  # it lists what may be chosen


def test_the_compilers_words_have_lines_and_the_models_name_has_none(tmp_path: Path) -> None:
    (tmp_path / ODD).write_text("func.func @f() -> i32 { return }", encoding="utf-8")
    said = refused("model-invalid", "build", ODD, "-o", "m.tracemap", cwd=tmp_path)
    first, second, *_ = said.splitlines()
    assert first == r"m\n\x1b[31m: cannot be compiled: iree-compile failed (status 1):"
    assert "'func.return' op has 0 operands" in second


def test_what_is_said_of_a_page_is_one_line(built: Built, tmp_path: Path) -> None:
    done = run_cli("report", built("hand_mlp"), "-o", os.path.join(tmp_path, ODD), cwd=tmp_path)  # noqa: PTH118 - its very bytes
    assert (done.returncode, done.stderr.count("\n")) == (0, 3)  # the bundle has no run, which takes two lines
    assert done.stderr.startswith("page: ")


def test_a_store_whose_name_is_not_utf8_is_refused_before_it_is_made(
    built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    command = ("store", "add", recorded("hand_mlp"), "--map", built("hand_mlp"), "--store", "s\udcff")
    assert "the name is not UTF-8" in refused("store-invalid", *command, cwd=tmp_path)
    assert "the name is not UTF-8" in refused("store-invalid", "store", "list", "--store", "s\udcff", cwd=tmp_path)


def test_a_store_without_a_name_is_not_the_working_folder(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    command = ("store", "add", recorded("hand_mlp"), "--map", built("hand_mlp"), "--store", "")
    assert refused("usage-invalid", *command, cwd=tmp_path).startswith("store is empty; name a folder")


def test_what_a_page_shows_steers_no_terminal() -> None:
    """Some look at pages with `less`; lines stay lines, and markup is what was made as such."""
    made = environment().from_string("<p title='{{ text }}'>{{ text }}</p>{{ markup | safe }}")
    shown = made.render(text="a\x1b[31m\u202e\n<b>", markup="<i>\n</i>")
    text = "a\\x1b[31m\\u202e\n&lt;b&gt;"
    assert shown == f"<p title='{text}'>{text}</p><i>\n</i>"
