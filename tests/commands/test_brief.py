"""`--brief`: every command that has JSON prints its figures in 4 KB, and commands that go on from there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from tests.commands.test_help import commands
from tests.commands.test_lower import AFFINE, PROGRAMS
from tests.conftest import Built, Recorded
from tests.hook.test_stats import calls_file
from tests.schemas import validator
from tests.support import SAMPLES, Json, check_cli, made_once, run_cli
from tracemap.commands.main import group
from tracemap.hook.compiling import FOLDER, LIBRARY_NAME
from tracemap.options.option import declared_options
from tracemap.reports.brief import LIMIT_BYTES

CASES: Final[dict[str, tuple[str, ...]]] = {
    "show": ("{bundle}", "op10"),
    "audit": ("{bundle}",),
    "lower": (str(PROGRAMS / "matmul_bias_relu.mlir"), "--pipeline", AFFINE),
    "benchmark": ("{bundle}", "--iterations", "1", "--flagfile", "{flags}"),
    "attribute": ("{bundle}",),
    "what-if": ("{bundle}",),
    "memory": ("{bundle}",),
    "numerics": ("{bundle}",),
    "remarks": ("{remarked}",),
    "diff": ("{bundle}", "{again}"),
    "bisect": ("{bundle}", "{other}", "--metric", "module_bytes", "-o", "{folder}/builds"),
    "debug-info": ("{bundle}", "-o", "{folder}/symbols"),
    "bench": ("{bundle}", "--top", "1", "--repetitions", "1", "--processes", "1", "--no-verify"),
    "swap": ("{bundle}", "{kernel}", "-o", "{folder}/new.tracemap", "--pairs", "0"),
    "tune": ("{bundle}", "--top", "1", "--candidates", "2", "--pairs", "0", "-o", "{folder}/spec.mlir"),
    "doctor": (),
    "events": (),
    "stats": ("{calls}",),
    "store add": ("{run}", "--store", "{folder}/other"),
    "store list": ("--store", "{store}"),
    "store query": ("--store", "{store}"),
    "store sites": ("--store", "{store}"),
    "store trend": ("--store", "{store}"),
    "store compare": ("--store", "{store}", "--before", "tag.side=a", "--after", "tag.side=b"),
}
"""The arguments of each command with JSON."""
SLOW: Final = ("bisect", "bench", "swap", "tune")
"""Commands that compile or measure for seconds."""
WRITING: Final = ("record", "build", "tune")
"""Next commands that compile, measure or write: tests parse them, but do not run them."""


@pytest.fixture(scope="module")
def words(
    made: Path, built: Built, recorded: Recorded, remarked: Built, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Values of the placeholders of the cases."""
    run, folder = recorded("hand_mlp"), tmp_path_factory.mktemp("brief")
    bundle, store = made / "brief" / "m.tracemap", made / "brief" / "store"
    with made_once(made / "brief") as missing:
        if missing:
            shutil.copytree(built("hand_mlp"), bundle)
            for side in ("a", "b"):
                check_cli("record", bundle, "--flagfile", SAMPLES / "flags" / "hand_mlp.flags", "--iterations", "3")
                check_cli("store", "add", bundle, "--store", store, "--tag", f"side={side}")
                if side == "a":
                    shutil.copytree(bundle, made / "brief" / "again.tracemap")
            model, other = SAMPLES / "models" / "hand_mlp.mlir", made / "brief" / "other.tracemap"
            check_cli("build", model, "-o", other, "--", "--iree-opt-level=O0")
    return {
        "bundle": str(bundle),
        "other": str(made / "brief" / "other.tracemap"),
        "again": str(made / "brief" / "again.tracemap"),
        "remarked": str(remarked("hand_attention")),
        "run": str(run),
        "flags": str(SAMPLES / "flags" / "hand_mlp.flags"),
        "calls": str(calls_file(folder / "calls.csv", 50)),
        "store": str(store),
        "folder": str(folder),
    }


def commands_with_json() -> Iterator[str]:
    """The commands that have --format json."""
    for name, command in commands():
        declared = declared_options(command.kind) if hasattr(command, "kind") else ()
        if any(option.name == "format" and "json" in option.choices for option in declared):
            yield name


def test_every_command_with_json_has_a_case() -> None:
    assert list(CASES) == list(commands_with_json())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in CASES]
)
def test_a_brief_form_is_small_and_goes_on(name: str, words: dict[str, str]) -> None:
    if name == "numerics" and not (FOLDER / LIBRARY_NAME).is_file():
        pytest.skip("the hook's library is not built: no C compiler when tracemap was installed")
    if name == "swap":
        kernel = Path(words["folder"], "kernel.mlir")
        first = kernels_of(Path(words["bundle"]))[0]
        check_cli("swap", words["bundle"], first, "--dump", "source", "-o", kernel, "--force")
        words = {**words, "kernel": f"{first}={kernel}"}
    answer = brief(name, *(text.format(**words) for text in CASES[name]))
    for command in answer["next"]:
        parse(command)
        if command[1] not in WRITING:
            check_cli(*command[1:])


def kernels_of(bundle: Path) -> list[str]:
    """The names of a bundle's kernels, by the files that it keeps."""
    return sorted(file.stem for file in (bundle / "kernels").glob("*_dispatch_*.mlir"))


def brief(name: str, *arguments: str) -> Json:
    """The brief form that a command prints."""
    text = check_cli(*name.split(), *arguments, "--brief")
    assert len(text.encode()) <= LIMIT_BYTES
    assert text.endswith("}\n")
    assert text.count("\n") == 1
    answer: Json = json.loads(text)
    validator("brief").validate(answer)
    assert answer["figures"] or answer["rows"]
    assert answer["next"]
    return answer


def parse(command: list[str]) -> None:
    """Parse a command line as the program does, without running it."""
    program, *rest = command
    assert program == "tracemap"
    context: click.Context = group.make_context("tracemap", list(rest))
    here: click.Command = group
    while isinstance(here, click.Group):
        _, found, rest = here.resolve_command(context, rest)
        assert found is not None
        here = found
    here.make_context(here.name, list(rest), parent=context)


# ---- what they say


def test_costs_name_op_line_kernel_and_share(words: dict[str, str]) -> None:
    """The figures are those of the table, and what is left out is counted."""
    whole = json.loads(check_cli("attribute", words["bundle"], "--format", "json"))
    answer = brief("attribute", words["bundle"], "--top", "2")
    first, second = answer["rows"]["costs"]
    costs = {op["op"]: op["metrics"]["cpu_ns"]["attributed"] for op in whole["ops"]}
    ranked = sorted(costs, key=lambda op: -costs[op])
    assert [first["op"], second["op"]] == ranked[:2]
    measured = next(metric for metric in whole["metrics"] if metric["name"] == "cpu_ns")
    per_invocation = costs[first["op"]] / measured["invocations"]
    assert first["cpu_ns"] == pytest.approx(per_invocation, rel=1e-3)
    assert first["share_percent"] == pytest.approx(100 * costs[first["op"]] / measured["work"], rel=1e-3)
    assert first["line"].startswith("hand_mlp.mlir:")
    assert "matmul" in first["kernel"]
    assert answer["left_out"]["costs"] == len(ranked) - 2
    assert ["tracemap", "show", words["bundle"], first["op"], "--brief"] in answer["next"]


def test_views_and_filters_select_the_rows(words: dict[str, str]) -> None:
    """The options for a table's rows, their order and columns have an effect."""
    kernels = brief("attribute", words["bundle"], "--by", "kernel")["rows"]["costs"]
    assert sorted(row["kernel"] for row in kernels) == kernels_of(Path(words["bundle"]))
    only = brief("attribute", words["bundle"], "--only", kernels[0]["kernel"])["rows"]["costs"]
    assert {row["kernel"] for row in only} == {kernels[0]["kernel"]}
    assert sum(row["cpu_ns"] for row in only) == pytest.approx(kernels[0]["cpu_ns"], rel=0.01)


def test_ops_that_the_user_names_come_first(words: dict[str, str]) -> None:
    ops = brief("show", words["bundle"], "op10")["rows"]["ops"]
    assert ops[0]["op"] == "op10"


def test_brief_is_json(words: dict[str, str]) -> None:
    done = run_cli("attribute", words["bundle"], "--brief", "--format", "csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave --format csv out" in done.stderr
    assert check_cli("doctor", "--brief", "--format", "json") == check_cli("doctor", "--brief")
