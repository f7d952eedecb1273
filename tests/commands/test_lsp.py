"""`tracemap lsp`: a real server over its streams, and a client of our own that speaks JSON-RPC."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec import structs

from tests.conftest import Built, Recorded
from tests.language_client import LanguageClient, Message
from tests.support import SAMPLES, check_cli, command_line, run_cli
from tracemap.commands.workspace import moved_lines
from tracemap.core.codec import encode
from tracemap.map.bundle import load
from tracemap.reports.escaping import for_markdown
from tracemap.runs.model import UNKNOWN_HEADER

pytest.importorskip("pygls")

REFRESHES: Message = {"workspace": {"codeLens": {"refreshSupport": True}}}
WATCHES: Message = {"workspace": {**REFRESHES["workspace"], "didChangeWatchedFiles": {"dynamicRegistration": True}}}

# A small product, and a remainder of 65,536 elements, each of which is a call of a function: its line is advised on.
SMALL, LARGE = 6, 8
# The function's name is that of a model that wants to do harm in an editor; those of its kernels begin with it.
FUNCTION = "<img src=x onerror=alert(1)> [a](command:b) `c`"
A, B = "tensor<16x16xf32>", "tensor<256x256xf32>"
PLANTED = f"""#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @"{FUNCTION}"(%a: {B}, %s: {A}) -> ({B}, {A}) {{
  %zero = arith.constant 0.0 : f32
  %e0 = tensor.empty() : {A}
  %z0 = linalg.fill ins(%zero : f32) outs(%e0 : {A}) -> {A}
  %0 = linalg.matmul ins(%s, %s : {A}, {A}) outs(%z0 : {A}) -> {A}
  %e1 = tensor.empty() : {B}
  %1 = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a : {B}) outs(%e1 : {B}) {{
  ^bb0(%x: f32, %y: f32):
    %c = arith.constant 1.0e-7 : f32
    %r = arith.remf %x, %c : f32
    linalg.yield %r : f32
  }} -> {B}
  return %1, %0 : {B}, {A}
}}
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and its recorded bundle; tests must not change it."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.mlir").write_text(PLANTED, encoding="utf-8")
    check_cli("build", "planted.mlir", cwd=folder)
    check_cli("record", "planted.tracemap", "--iterations", "30", cwd=folder)
    return folder


@pytest.fixture
def folder(planted: Path, built: Built, recorded: Recorded, tmp_path: Path) -> Path:
    """A workspace with three files and two bundles: of the planted model, and of a JAX program and its model.

    Its name is escaped in addresses.
    """
    work = tmp_path / "wörk space"
    shutil.copytree(planted, work)
    shutil.copy(SAMPLES / "models" / "jax_mlp.mlir", work)
    shutil.copy(SAMPLES / "sources" / "jax_models.py", work)
    shutil.copytree(built("jax_mlp"), work / "sub" / "jax_mlp.tracemap")
    shutil.copy(recorded("jax_mlp"), work / "sub" / "jax_mlp.tracemap" / "runs" / "run-001.parquet")
    return work


@pytest.fixture
def client(folder: Path) -> Iterator[LanguageClient]:
    client = LanguageClient(command_line("lsp"), folder, os.environ)
    yield client
    client.close()


def opened(client: LanguageClient, file: Path, text: str = "") -> str:
    """Open a file; returns its address."""
    client.open(file.as_uri(), text or file.read_text(encoding="utf-8"))
    return file.as_uri()


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)


def tags_of(markdown: str) -> set[str]:
    """The elements that a text of Markdown has when it is shown."""
    tags = _Tags()
    tags.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))
    return tags.names


def wait_for_lenses(client: LanguageClient, uri: str) -> None:
    """Wait until the first look for bundles has found that of a file."""
    until = time.monotonic() + 30
    while not client.lenses(uri):
        assert time.monotonic() < until
        time.sleep(0.05)


def most_expensive(lenses: Mapping[int, list[str]]) -> int:
    """The line with the highest share of its own."""
    own = {line: title.split(" · with calls ")[0] for line, (title,) in lenses.items()}
    shares = {line: float(title.split(" %")[0].split(" · ")[1]) for line, title in own.items() if " · " in title}
    return max(shares, key=lambda line: shares[line])


def write_run(bundle: Path, name: str, large_ns: int, small_ns: int) -> None:
    """A run in which the two kernels take these times."""
    kernels = [kernel.name for kernel in load(bundle).graph.kernels]
    times = {name: small_ns if "matmul" in name else large_ns for name in kernels}
    rows = [f"{kernel},{call},{time_ns}" for call in range(3) for kernel, time_ns in times.items()]
    header = structs.replace(UNKNOWN_HEADER, iterations=3)
    (bundle / "runs" / f"{name}.json").write_bytes(encode(header))
    temporary = bundle / "runs" / "temporary"
    temporary.write_text("\n".join(["kernel,invocation,cpu_ns", *rows, ""]), encoding="utf-8")
    temporary.rename(bundle / "runs" / name)


def test_lenses_and_hovers_of_three_files_and_a_new_run(client: LanguageClient, folder: Path) -> None:
    capabilities = client.start(folder, REFRESHES)
    assert capabilities["executeCommandProvider"]["commands"] == ["tracemap.details"]
    files = [opened(client, folder / name) for name in ("planted.mlir", "jax_mlp.mlir", "jax_models.py")]
    client.wait_for("workspace/codeLens/refresh")
    for uri in files:
        wait_for_lenses(client, uri)
    linalg, stablehlo, python = files
    assert most_expensive(client.lenses(linalg)) == LARGE
    lines = (folder / "jax_mlp.mlir").read_text(encoding="utf-8").splitlines()
    (largest,) = (number for number, line in enumerate(lines, 1) if "tensor<32x784xf32>, tensor<784x256xf32>)" in line)
    assert most_expensive(client.lenses(stablehlo)) == largest
    source = (folder / "jax_models.py").read_text(encoding="utf-8").splitlines()
    (linear,) = (number for number, line in enumerate(source, 1) if line == '    return x @ p["w"] + p["b"]')
    assert most_expensive(client.lenses(python)) == linear

    shown = client.hover(linalg, LARGE)
    kernel = next(
        kernel.name for kernel in load(folder / "planted.tracemap").graph.kernels if "matmul" not in kernel.name
    )
    assert kernel.startswith(FUNCTION)
    assert for_markdown(kernel) in shown
    assert tags_of(shown) == {"p", "strong", "ul", "li"}
    assert "calls a function for each element" in shown
    assert "linalg.matmul" in client.hover(linalg, SMALL)  # below 1 % of the program: no lens
    assert client.hover(linalg, 1) == ""
    arguments = {"command": "tracemap.details", "arguments": [linalg, LARGE - 1]}
    client.ask("workspace/executeCommand", arguments)
    message = client.wait_for("window/showMessage")["params"]["message"]
    assert kernel in message
    assert "advice (not-vectorized)" in message

    before = len(client.notices)
    write_run(folder / "planted.tracemap", "run-002.csv", large_ns=1000, small_ns=4000)
    client.wait_for("workspace/codeLens/refresh", after=before)
    assert client.lenses(linalg) == {SMALL: ["4.00 µs · 80.0 % of cpu"], LARGE: ["1.00 µs · 20.0 % of cpu"]}
    assert client.stop() == 0
    assert client.broken == []


def test_lenses_move_with_lines_of_an_edited_file(client: LanguageClient, folder: Path) -> None:
    write_run(folder / "planted.tracemap", "run-002.csv", large_ns=1000, small_ns=4000)
    client.start(folder, {})  # an editor that cannot refresh: the answer comes with the costs
    uri = opened(client, folder / "planted.mlir")
    assert set(client.lenses(uri)) == {SMALL, LARGE}
    lines = PLANTED.splitlines(keepends=True)
    client.change(uri, 2, "// a comment\n" + "".join(lines[: LARGE - 1]) + "\n\n" + "".join(lines[LARGE - 1 :]))
    older = " · measured on an older version"
    assert client.lenses(uri) == {
        SMALL + 1: [f"4.00 µs · 80.0 % of cpu{older}"],
        LARGE + 3: [f"1.00 µs · 20.0 % of cpu{older}"],
    }
    assert "older version" in client.hover(uri, SMALL + 1)
    client.change(uri, 3, PLANTED.replace("%1 = linalg.generic", "%one = linalg.generic"))
    assert set(client.lenses(uri)) == {SMALL}  # what the edited line costs is unknown
    client.change(uri, 4, "another = 'file'\n")
    assert client.lenses(uri) == {}
    shutil.copytree(folder / "planted.tracemap", folder / "planted_again.tracemap")
    client.change(uri, 5, PLANTED)
    assert set(client.lenses(uri)) == {SMALL, LARGE}
    other = opened(client, folder / "copy.mlir", PLANTED)  # wakes the search
    names = {title.rsplit(" · ", 1)[1] for title in client.lenses(other)[LARGE]}
    assert names == {"planted", "planted_again"}
    assert client.stop() == 0


def test_watched_files_and_what_is_no_measured_file(client: LanguageClient, folder: Path, tmp_path: Path) -> None:
    (folder / "half.tracemap" / "source").mkdir(parents=True)
    (folder / "half.tracemap" / "source" / "planted.mlir").write_text(PLANTED, encoding="utf-8")
    (folder / "half.tracemap" / "runs").mkdir()
    (folder / "half.tracemap" / "map.json").write_text('{"schema_version"', encoding="utf-8")
    (folder / "half.tracemap" / "runs" / "run-001.csv").write_text("kernel", encoding="utf-8")
    (folder / "empty.tracemap").write_text("a file", encoding="utf-8")
    client.start(folder, WATCHES)
    registration = client.wait_for("client/registerCapability")["params"]["registrations"][0]
    assert registration["method"] == "workspace/didChangeWatchedFiles"
    uri = opened(client, folder / "planted.mlir")
    client.open("untitled:Untitled-1", PLANTED)
    outside = opened(client, tmp_path / "elsewhere" / "planted.mlir", PLANTED.replace("linalg.", "other."))
    large = "\n".join(f"x{number} = {number}" for number in range(20_000))
    huge = opened(client, folder / "huge.py", large)
    wait_for_lenses(client, uri)
    assert most_expensive(client.lenses(uri)) == LARGE
    assert most_expensive(client.lenses("untitled:Untitled-1")) == LARGE  # the same text
    assert client.lenses(outside) == {}  # its lines with costs differ
    assert client.lenses("file:///nowhere/else.mlir") == {}
    begun = time.monotonic()
    client.change(huge, 2, f"# {large}\n")
    assert client.lenses(huge) == {}
    assert client.hover(huge, 10_000) == ""
    assert time.monotonic() - begun < 3
    messages = [notice["params"]["message"] for notice in client.notices if notice["method"] == "window/logMessage"]
    assert any("half.tracemap: has no costs: " in message for message in messages), messages
    before = len(client.notices)
    write_run(folder / "planted.tracemap", "run-002.csv", large_ns=1000, small_ns=4000)
    changed = {"uri": (folder / "planted.tracemap" / "runs" / "run-002.csv").as_uri(), "type": 1}
    client.notify("workspace/didChangeWatchedFiles", {"changes": [changed]})
    client.wait_for("workspace/codeLens/refresh", after=before)
    assert most_expensive(client.lenses(uri)) == SMALL
    assert client.stop() == 0
    assert client.broken == []


@pytest.mark.parametrize("way", ["end of input", "SIGTERM"])
def test_the_server_ends_with_its_editor(client: LanguageClient, folder: Path, way: str) -> None:
    client.start(folder, REFRESHES)
    opened(client, folder / "planted.mlir")
    assert client.server.stdin is not None
    if way == "SIGTERM":
        client.server.terminate()
    else:
        client.server.stdin.close()
    assert client.server.wait(timeout=10) == (-signal.SIGTERM if way == "SIGTERM" else 0)


HOSTILE = (
    '<img src=x onerror="alert(1)"> [run](command:evil) ![a](http://b/c) https://d.example www.e.example `f` **g** _h_ '
    "&lt; #i | ~~j~~ a@b.example \\` \u202e ![][k] <https://l> {m} $n$ \n# heading\n- item"
)


def test_names_of_a_model_have_no_effect_in_a_hover() -> None:
    assert tags_of(f"- {for_markdown(HOSTILE)}") == {"ul", "li"}
    shown = for_markdown(HOSTILE)
    assert "http:" not in shown  # editors make links of bare addresses
    assert "https:" not in shown
    assert "www." not in shown
    assert "\u202e" not in shown


def test_costs_of_a_bundle_are_printed(folder: Path) -> None:
    write_run(folder / "planted.tracemap", "run-002.csv", large_ns=1000, small_ns=4000)
    printed = json.loads(check_cli("lsp", "--print", folder / "planted.tracemap"))
    (file,) = printed["files"]
    assert {line["line"]: line["lens"] for line in file["lines"]} == {
        SMALL: "4.00 µs · 80.0 % of cpu",
        LARGE: "1.00 µs · 20.0 % of cpu",
    }
    (counted,) = (folder / "planted.tracemap" / "runs").glob("run-002.csv")
    rows = counted.read_text(encoding="utf-8").splitlines()
    table = [f"{rows[0]},page-faults", *(f"{row},{number}" for number, row in enumerate(rows[1:]))]
    counted.write_text("\n".join([*table, ""]), encoding="utf-8")
    (file,) = json.loads(check_cli("lsp", "--print", folder / "planted.tracemap"))["files"]
    assert all(re.fullmatch(r".* · .* of cpu · [\d.]+ page-faults", line["lens"]) for line in file["lines"])
    shutil.rmtree(folder / "planted.tracemap" / "runs")
    refused = run_cli("lsp", "--print", folder / "planted.tracemap")
    assert (refused.returncode, "has no run" in refused.stderr) == (2, True)


def test_without_the_package_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "pygls").mkdir()
    (tmp_path / "pygls" / "__init__.py").write_text("raise ImportError(name='pygls')", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command_line("lsp"), check=False, input="", capture_output=True, text=True, env=environment)
    assert (done.returncode, "pip install 'tracemap[lsp]'" in done.stderr) == (2, True)


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.lists(st.sampled_from("abcdef"), max_size=12))
def test_moved_lines_are_equal_and_in_order(old: list[str], new: list[str]) -> None:
    moved = sorted(moved_lines(old, new).items())
    assert all(old[one - 1] == new[other - 1] for one, other in moved)
    assert all(before[1] < after[1] for before, after in pairwise(moved))


def test_moved_lines() -> None:
    old = ["a", "b", "c", "b", "d"]
    assert moved_lines(old, old) == {number: number for number in range(1, 6)}
    assert moved_lines(old, ["x", *old]) == {number: number + 1 for number in range(1, 6)}
    assert moved_lines(old, ["a", "b", "d"]) == {1: 1, 2: 2, 5: 3}
    assert moved_lines(["a", "b", "b", "c"], ["a", "b", "b", "b", "c"]) == {1: 1, 2: 2, 3: 3, 4: 5}
    assert moved_lines(["m", "n"], ["n", "m"]) in ({1: 2}, {2: 1})
    assert moved_lines([], []) == moved_lines([], old) == moved_lines(old, []) == {}
    scattered = [str(number) for number in range(20_000)]
    edited = [f"{line} " if number % 17 == 0 else line for number, line in enumerate(scattered)]
    begun = time.monotonic()
    moved = moved_lines(scattered, edited)
    assert time.monotonic() - begun < 3
    assert len(moved) == sum(number % 17 != 0 for number in range(20_000))
    assert all(one == other for one, other in moved.items())
