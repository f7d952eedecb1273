"""The documents match the program: commands, help, options; no file names a machine."""

from __future__ import annotations

import functools
import importlib
import re
import subprocess
from pathlib import Path

import click
import pytest

from tests.browser.gallery import GALLERY, VIEWS
from tests.browser.terminal_gallery import TERMINALS
from tests.documents import BLOCK, DOCUMENTS
from tests.support import ROOT, check_cli, command_line
from tracemap.attribution.model import UnattributedReason
from tracemap.commands.main import COMMANDS
from tracemap.map.model import Evidence, Outcome
from tracemap.options.results import Rule
from tracemap.runs.model import COLUMNS, STEP_METRICS

TEXT_OF = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in DOCUMENTS}
README, EVERYTHING = TEXT_OF[Path("README.md")], "\n".join(TEXT_OF.values())

# Written in two pieces, so that this file does not name what it forbids.
FOLDERS = "|".join(["wor" + "k", "roo" + "t", "hom" + "e", "Use" + "rs"])
MACHINE_PATHS = re.compile(rf"(?<![\w.])/(?:{FOLDERS})/\w\w")  # names of one letter are examples

REGISTRY_HOSTS = re.compile("|".join(["pypi" + r"\.org", "python" + "hosted", "index" + "-url", "find" + "-links"]))


def command(name: str) -> click.Command:
    found = importlib.import_module(f"tracemap.commands.{name.replace('-', '_')}").command
    assert isinstance(found, click.Command)
    return found


@functools.cache
def help_of(name: str) -> str:
    return check_cli(name, "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_help_with_an_example(name: str) -> None:
    text = help_of(name)
    assert re.search(rf"Examples?:\n\s+(\$ )?(cd .*\n\s+)?tracemap {name}\b", text), text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    for parameter in command(name).params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_in_the_readme(name: str) -> None:
    assert f"tracemap {name}" in README


@functools.cache
def code_blocks() -> str:
    return "\n".join(text for language, text in BLOCK.findall(EVERYTHING) if not language.startswith("{"))


def test_commands_of_the_documents_exist_and_take_their_options() -> None:
    used = re.findall(r"^\s*(?:\$ )?tracemap (\w[\w-]*)(.*)$", code_blocks(), re.MULTILINE)
    assert used
    for name, rest in used:
        assert name in COMMANDS, name
        made = command(name)
        if isinstance(made, click.Group) and (inner := rest.split()[:1]):
            made = made.commands.get(inner[0], made)
        known = {option for parameter in made.params for option in parameter.opts}
        ours = rest.split(" -- ")[0]
        for option in re.findall(r"(?<=\s)--?[a-z][\w-]*", ours):
            assert option in known | {"--help"}, f"tracemap {name} has no {option}"


def test_columns_of_runs_are_those_of_the_code() -> None:
    """Names and types of the table in the section on runs; the table of calls is made from the code."""
    types = {"BIGINT": "integer", "VARCHAR": "text", "BOOLEAN": "truth"}
    section = TEXT_OF[Path("docs/formats.md")].split("\n## Runs\n")[1].split("\n## ")[0]
    shown: dict[str, str] = {}
    for names, kinds in re.findall(r"^\| ([^|]*`[^|]*) \| ([^|]*) \|", section, re.MULTILINE):
        columns, words = re.findall(r"`([^`]+)`", names), kinds.split(", ")
        shown |= dict(zip(columns, words * len(columns) if len(words) == 1 else words, strict=False))
    described = {name: types[kind] for name, kind in COLUMNS.items()}
    assert shown == described | dict.fromkeys(STEP_METRICS, types["BIGINT"])


def test_make_targets_of_the_documents_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    for text in (EVERYTHING, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        assert set(re.findall(r"`?\bmake ([a-z]+)\b`", text)) <= targets


@pytest.mark.parametrize("words", [Evidence, Outcome, UnattributedReason], ids=lambda words: str(words.__name__))
def test_every_word_of_the_reports_is_in_the_documents(words: type[Evidence | Outcome | UnattributedReason]) -> None:
    missing = [word.value for word in words if f"`{word.value}`" not in EVERYTHING]
    assert not missing


@pytest.mark.parametrize("words", [Evidence, Outcome, Rule], ids=lambda words: str(words.__name__))
def test_the_glossary_explains_every_value(words: type[Evidence | Outcome | Rule]) -> None:
    glossary = TEXT_OF[Path("docs/glossary.md")]
    assert [word.value for word in words if f"`{word.value}`" not in glossary] == []


def test_readme_is_short() -> None:
    assert README.count("\n") <= 150


def test_readme_leads_to_every_document() -> None:
    assert [str(path) for path in TEXT_OF if f"]({path})" not in README and path.name != "README.md"] == []


def test_links_of_the_documents_resolve() -> None:
    for path in (*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "samples" / "README.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                name, _, anchor = target.partition("#")
                other = path.parent / name if name else path
                assert other.exists(), f"{path.name}: {target}"
                assert not anchor or anchor in _anchors(other), f"{path.name}: {target}"


def test_what_was_found_is_held_by_tests_that_exist() -> None:
    """And every small file by which a reader went wrong once is named there."""
    tests = ROOT / "tests"
    said = TEXT_OF[Path("docs/found.md")]
    named = re.findall(r"`((?:\w+/)*\w+\.py)::(\w+)`", said)
    assert len(named) > 100
    for file, name in named:
        assert f"def {name}(" in (tests / file).read_text(encoding="utf-8"), f"{file}::{name}"
    for case in re.findall(r"`((?:mutations|hook/fuzz)/cases/[^`]+)`", said):
        assert (tests / case).is_file(), case
    for path in (tests / "mutations" / "cases").glob("*/*"):
        assert f"`{path.relative_to(tests).as_posix()}`" in said, path


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {_anchor(heading) for heading in headings}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@functools.cache
def committed_texts() -> list[tuple[Path, str]]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of committed files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    texts = []
    for path in paths:
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" not in data:
            texts.append((path.relative_to(ROOT), data.decode("utf-8", errors="replace")))
    return texts


@pytest.mark.parametrize(("what", "pattern"), [("a machine's path", MACHINE_PATHS), ("a registry", REGISTRY_HOSTS)])
def test_committed_files_name_no_machine(what: str, pattern: re.Pattern[str]) -> None:
    found = [
        f"{path}:{number}: {line.strip()[:80]}"
        for path, text in committed_texts()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not found, f"committed files name {what}: {found}"


def test_module_runs_as_the_program_does() -> None:
    """`python -m tracemap` and the installed `tracemap` are one program."""
    arguments = command_line("--version")
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tracemap, version ")


def test_pictures_of_the_documents_are_those_of_the_gallery() -> None:
    shown = set(re.findall(r"gallery/([\w-]+)\.png", EVERYTHING))
    assert shown == {*VIEWS, *TERMINALS} == {path.stem for path in GALLERY.iterdir()}
