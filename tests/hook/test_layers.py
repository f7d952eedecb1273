"""The hook's C files include and call only lower layers, as the compiler sees it.
for calls, so that neither a declaration by hand nor assembly goes unseen.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook import support
from tracemap.hook.compiling import FLAGS, FOLDER, find_compiler

# From the bottom up. A unit is a header, a source, or both under one name; those of one row do not know each other.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("abi", "layout"),
    ("system",),
    ("images", "settings", "printing", "event_names", "files", "lock", "native_call"),
    ("debug_tables",),
    ("debugger", "jitdump", "code_files"),
    ("debug_info",),
    ("counters", "process", "statistics", "mapping"),
    ("samples", "report", "event_choice", "stops", "watching"),
    ("perf_source", "timer_source"),
    ("sampler",),
    ("thread", "native"),
    ("calls",),
    ("loading",),
    ("entries",),
)
LEVEL_OF = {unit: level for level, units in enumerate(LEVELS) for unit in units}

Uses = dict[str, set[str]]
"""Unit to the units that it uses, itself left out."""


def c_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in {".c", ".h"})


def includes(folder: Path) -> Uses:
    uses: Uses = defaultdict(set)
    for path in c_files(folder):
        text = path.read_text(encoding="utf-8")
        uses[path.stem] |= set(re.findall(r'^\s*#\s*include\s+"(\w+)\.h"', text, re.MULTILINE)) - {path.stem}
    return uses


def calls(folder: Path, objects: Path) -> Uses:
    """What each source takes of others: functions and variables, in C and in assembly."""
    defined: dict[str, str] = {}
    wanted: Uses = defaultdict(set)
    for path in c_files(folder):
        if path.suffix == ".c":
            for kind, name in symbols(path, objects / f"{path.stem}.o"):
                if kind == "U":
                    wanted[path.stem].add(name)
                else:
                    defined[name] = path.stem
    return {unit: {defined[name] for name in names if name in defined} for unit, names in wanted.items()}


def symbols(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Kind (`U`: taken from elsewhere) and name of what the linker sees of a source."""
    flags = [flag for flag in FLAGS if flag != "-shared" and not flag.startswith("-Wl,")]
    subprocess.run([*find_compiler(), *flags, "-c", str(source), "-o", str(target)], check=True)
    lister = shutil.which("nm") or shutil.which("llvm-nm")
    if lister is None:
        pytest.skip("needs nm, which comes with compilers (Debian: binutils)")
    listed = subprocess.run([lister, "--extern-only", str(target)], check=True, capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        *_, kind, name = line.split()
        yield kind, name


def upward(uses: Uses) -> list[str]:
    """What breaks the table, in words."""
    return sorted(
        f"{unit} uses {used}" for unit, useds in uses.items() for used in useds if LEVEL_OF[unit] <= LEVEL_OF[used]
    )


def test_every_file_is_in_the_table() -> None:
    assert {path.stem for path in c_files(FOLDER)} == set(LEVEL_OF)


def test_the_drawing_shows_every_unit() -> None:
    """What people read and what is checked are the same units."""
    drawing = (FOLDER / "entries.c").read_text(encoding="utf-8").split("*/")[0]
    assert set(LEVEL_OF) <= set(re.findall(r"\w+", drawing))


def test_includes_only_downwards() -> None:
    assert not upward(includes(FOLDER))


def test_calls_only_downwards_and_only_what_is_included(tmp_path: Path) -> None:
    support.need_compiler()
    found = calls(FOLDER, tmp_path)
    assert not upward(found)
    included = includes(FOLDER)
    assert not {(unit, used) for unit, useds in found.items() for used in useds - _reached(included, unit)}


def _reached(uses: Uses, unit: str) -> set[str]:
    """What a unit sees: what it includes, and what that does."""
    seen: set[str] = set()
    rest = [unit]
    while rest:
        for used in uses[rest.pop()] - seen:
            seen.add(used)
            rest.append(used)
    return seen


def test_a_source_begins_with_its_own_header() -> None:
    """So that every header holds all that it needs."""
    for path in c_files(FOLDER):
        if path.suffix == ".c" and path.with_suffix(".h").exists():
            assert path.read_text(encoding="utf-8").startswith(f'#include "{path.stem}.h"\n'), path.name


def hook_of(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def test_checker_sees_an_upward_include(tmp_path: Path) -> None:
    folder = hook_of(tmp_path, system_h='#pragma once\n#  include "calls.h"\n', calls_h='#include "system.h"\n')
    assert upward(includes(folder)) == ["system uses calls"]


def test_checker_sees_siblings_that_know_each_other(tmp_path: Path) -> None:
    assert upward(includes(hook_of(tmp_path, images_c='#include "settings.h"\n'))) == ["images uses settings"]


def test_checker_sees_calls_that_no_include_tells_of(tmp_path: Path) -> None:
    """By a declaration of one's own, by a variable, and by assembly."""
    support.need_compiler()
    folder = hook_of(
        tmp_path,
        system_c="extern int call(void);\nint text(void);\nint text(void) { return call(); }\n",
        images_c="extern int called;\nint take(void);\nint take(void) { return called; }\n",
        settings_c='__asm__(".pushsection .data\\n.quad call\\n.popsection\\n");\n',
        calls_c="int text(void);\nint called;\nint call(void);\nint call(void) { return text(); }\n",
    )
    found = calls(folder, tmp_path)
    assert upward(found) == ["images uses calls", "settings uses calls", "system uses calls"]
    assert found["calls"] == {"system"}
