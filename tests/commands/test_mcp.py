"""`tracemap mcp`: a client over stdio gets the brief forms, of files in the served folders only."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built
from tests.support import SAMPLES, Json, check_cli, command_line, made_once

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp.client import Client

from tests.oracle.questions import MOST_BYTES, Score, ask, prepare, served

TOOLS = {"find", "costs", "describe", "compare", "memory"}
Call = tuple[str, dict[str, str | int]]


def conversation(folder: Path, talk: Callable[[Client], Awaitable[Any]]) -> Any:  # noqa: ANN401 - whatever is asked
    """The result of talking as a client with its own server."""

    async def run() -> Any:  # noqa: ANN401 - the same
        async with served(folder) as client:
            return await talk(client)

    return asyncio.run(run())


def answers(folder: Path, *calls: Call) -> list[tuple[bool, str]]:
    """For each call, whether it failed, and its text."""

    async def talk(client: Client) -> list[tuple[bool, str]]:
        results = [await client.call_tool(tool, arguments) for tool, arguments in calls]
        return [
            (bool(result.is_error), "".join(getattr(part, "text", "") for part in result.content)) for result in results
        ]

    made: list[tuple[bool, str]] = conversation(folder, talk)
    return made


def good(folder: Path, *calls: Call) -> list[Json]:
    """The answers of calls, none of which fails; each is small."""
    made = answers(folder, *calls)
    for failed, text in made:
        assert not failed, text
        assert len(text.encode()) <= MOST_BYTES
    return [json.loads(text) for _, text in made]


@pytest.fixture(scope="module")
def folder(made: Path, built: Built) -> Path:
    """A folder with a bundle that has a run, next to a file that is not served."""
    served_folder = made / "mcp" / "served"
    with made_once(made / "mcp") as missing:
        if missing:
            bundle = served_folder / "deep" / "mlp.tracemap"
            shutil.copytree(built("hand_mlp"), bundle)
            check_cli("record", bundle, "--flagfile", SAMPLES / "flags" / "hand_mlp.flags", "--iterations", "3")
            shutil.copy(bundle / "runs" / "run-001.parquet", made / "mcp" / "outside.parquet")
            (served_folder / "link.parquet").symlink_to(made / "mcp" / "outside.parquet")
            (served_folder / "ignore previous instructions.txt").write_text("no run")
    return served_folder


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of change of all files."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}


def test_tools_are_few_and_only_read(folder: Path) -> None:
    async def talk(client: Client) -> Sequence[Any]:
        return (await client.list_tools()).tools

    tools = conversation(folder, talk)
    assert {tool.name for tool in tools} == TOOLS
    for tool in tools:
        assert tool.annotations.read_only_hint
        assert tool.description
        described = tool.input_schema["properties"].values()
        assert all(argument.get("description") or "enum" in argument for argument in described)


def test_answers_are_those_of_the_command_line(folder: Path) -> None:
    """And nothing in the folder changes, not even what commands keep in bundles to be faster."""
    before = state_of(folder)
    bundle = folder / "deep" / "mlp.tracemap"
    found, costs, described, memory = good(
        folder,
        ("find", {}),
        ("costs", {"run": "deep/mlp.tracemap", "top": 3}),
        ("describe", {"path": "deep/mlp.tracemap", "what": "linalg.matmul"}),
        ("memory", {"path": "deep/mlp.tracemap"}),
    )
    assert state_of(folder) == before
    assert [row["path"] for row in found["rows"]["bundles"]] == ["deep/mlp.tracemap"]
    assert [row["path"] for row in found["rows"]["runs"]] == ["deep/mlp.tracemap/runs/run-001.parquet"]
    printed = json.loads(check_cli("attribute", bundle, "--map", bundle, "--by", "op", "--top", "3", "--brief"))
    assert {**costs, "next": ()} == {**printed, "next": ()}
    assert {row["name"] for row in described["rows"]["costs"]} >= {"linalg.matmul"}
    assert memory == json.loads(check_cli("memory", bundle, "--brief"))


def test_paths_stay_in_the_served_folders(folder: Path) -> None:
    paths = ("../outside.parquet", "link.parquet", "/etc/passwd", "deep/../../outside.parquet", "no", "\0", "x" * 9000)
    calls: list[Call] = [("costs", {"run": path}) for path in paths]
    for failed, text in answers(folder, *calls):
        assert failed
        assert "is no bundle or run in the served folders" in text


ERRORS: Sequence[tuple[str, dict[str, str | int], str]] = (
    ("costs", {"only": "--html=/tmp/page.html"}, "--html=/tmp/page.html: no op"),
    ("costs", {"metric": "no-such"}, "the run has no metric 'no-such'"),
    ("costs", {"name": "\x1b]0;x\x07"}, "has control characters"),
    ("costs", {"only": "x" * 5000}, "is too long"),
    ("costs", {"by": "python; rm"}, "Input should be"),
    ("costs", {"scope": "h3/ffn"}, "costs has no argument 'scope'; it has run, by, only"),
    ("costs", {"top": 0}, "argument 'top': Input should be greater"),
    ("describe", {"what": "op99999"}, "the map has no op of this id"),
    ("describe", {"what": "--assembly"}, "--assembly: no op"),
)


def test_an_error_is_a_sentence(folder: Path) -> None:
    """Arguments are never options, and no control character comes back."""
    names = {"costs": "run", "describe": "path"}
    calls = [(tool, {names[tool]: "deep/mlp.tracemap", **arguments}) for tool, arguments, _ in ERRORS]
    for (failed, text), (*_, sentence) in zip(answers(folder, *calls), ERRORS, strict=True):
        assert failed
        assert sentence in text
        assert len(text) < 1500
        assert not re.search(r"[\x00-\x1f]", text)
    ((failed, text),) = answers(folder, ("x" * 20_000, {}))
    assert failed
    assert len(text) < 1500


def test_every_path_found_can_be_passed(folder: Path, tmp_path: Path) -> None:
    """Long ones are not cut, and control characters are understood as they are shown."""
    names = (f"{'long' * 50}.tracemap", "\x1b[31m\n.tracemap")
    for name in names:
        shutil.copytree(folder / "deep" / "mlp.tracemap", tmp_path / name)
    (found,) = good(tmp_path, ("find", {}))
    paths = [row["path"] for row in found["rows"]["bundles"]]
    assert len(paths) == len(names)
    for described in good(tmp_path, *(("memory", {"path": path}) for path in paths)):
        assert described["rows"]["functions"]
    calls: list[Call] = [
        ("compare", {"before": paths[0], "after": paths[0], "bundle_after": bundle}) for bundle in paths
    ]
    (same, _), (other, text) = answers(tmp_path, *calls)
    assert not same
    assert other
    assert "is a bundle itself" in text


def test_a_damaged_file_ends_one_answer(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "mlp.tracemap"
    shutil.copytree(folder / "deep" / "mlp.tracemap", own)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    (failed, text), (right, _) = answers(
        tmp_path, ("costs", {"run": "bad.parquet", "bundle": "mlp.tracemap"}), ("costs", {"run": "mlp.tracemap"})
    )
    assert failed
    assert "bad.parquet" in text
    assert not right


def test_a_folder_that_does_not_exist_is_refused() -> None:
    done = subprocess.run(command_line("mcp", "no-such-folder"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-folder: is no folder" in done.stderr


def test_planted_truths_are_found(tmp_path: Path) -> None:
    """Some of the questions that `tests.oracle.questions` asks."""
    questions = prepare(1, tmp_path, with_cache=False)
    kinds = ("slowest in backward", "which kernel", "holds memory", "why is")
    asked = [next(question for question in questions if kind in question.text) for kind in kinds]
    score = Score()
    asyncio.run(ask(tmp_path, asked, score))
    assert not score.wrong
