"""Build, record, attribute and report every sample through the command line; and what must hold."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.checks import check_attribution, check_bounds, check_links, check_map, check_page, count_of_run
from tests.conftest import Built, Recorded
from tests.support import PLAIN_FLAGS, SAMPLES, Corpus, Json, check_cli, flow_of_plain_compile, json_cli, long_where
from tracemap.core.toolchain import find_tool
from tracemap.map.bundle import load

HALF = sorted(Corpus(SAMPLES).models())[::2]
A_THIRD = sorted(Corpus(SAMPLES).flag_files())[::3]
"""Half of the models, and a third of the flag files: `make corpus` tries all in the same way."""


@pytest.mark.long
@pytest.mark.parametrize("model", long_where(HALF, lambda _, model: model == "onnx_tinygpt_named"))
def test_map_is_the_flow_phases(model: str, built: Built, samples: Corpus) -> None:
    shown = json_cli("show", built(model))
    check_map(shown, flow_of_plain_compile(samples.models()[model]))
    check_links(shown)


@pytest.mark.long
@pytest.mark.parametrize("flags", A_THIRD)
def test_all_time_has_an_owner_or_a_reason(
    flags: str, built: Built, recorded: Recorded, samples: Corpus, tmp_path: Path
) -> None:
    bundle, run, page = built(samples.model_of(flags)), recorded(flags), tmp_path / "page.html"
    printed = check_cli("attribute", run, "--map", bundle, "--html", page, "--format", "json")
    attribution: Json = json.loads(printed)
    check_attribution(attribution, run)
    check_bounds(attribution)
    check_page(page, json_cli("show", bundle)["module"]["name"])


@pytest.mark.long
@pytest.mark.parametrize("rule", ["model", "root", "equal"])
def test_every_rule_balances(rule: str, built: Built, recorded: Recorded) -> None:
    run = recorded("jax_gpt2_4l")
    attribution = json_cli("attribute", run, "--map", built("jax_gpt2_4l"), "--rule", rule)
    assert attribution["rule"] == rule
    check_attribution(attribution, run)
    check_bounds(attribution)


@pytest.mark.long
def test_a_function_without_kernels_gives_a_valid_run(built: Built, recorded: Recorded) -> None:
    run = recorded("hand_multifunc.no_compute")
    assert count_of_run(run, "kind = 'dispatch'") == 0
    attribution = json_cli("attribute", run, "--map", built("hand_multifunc"))
    assert all(metric["attributed"] == 0 for metric in attribution["metrics"])
    assert all(op["calls"] == 0 for op in attribution["ops"])


@pytest.mark.long
def test_iterations_are_exact(recorded: Recorded) -> None:
    """Three iterations of twelve dispatches: no event more, and none of the warm-up counted."""
    assert count_of_run(recorded("hand_repeat12"), "kind = 'dispatch'") == 3 * 12


@pytest.fixture(scope="module")
def foreign_profile(built: Built, samples: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile that somebody made with the stock tool, five calls of twelve dispatches, without tracemap."""
    profile = tmp_path_factory.mktemp("foreign") / "run.ireeprof"
    arguments = [
        *(find_tool("iree-benchmark-module"), "--device=local-task", "--benchmark_min_time=5x"),
        *(f"--module={built('hand_repeat12') / 'module.vmfb'}", f"--flagfile={samples.flag_files()['hand_repeat12']}"),
        "--device_profiling_mode=queue-events,host-execution,executable-metadata",
        f"--device_profiling_output={profile}",
    ]
    subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)
    return profile


@pytest.mark.long
def test_a_profile_made_elsewhere_is_attributed(foreign_profile: Path, built: Built) -> None:
    attribution = json_cli("attribute", foreign_profile, "--map", built("hand_repeat12"))
    assert [site["calls"] for site in attribution["sites"]] == [5] * 12
    assert "run-unverified" in {diagnostic["slug"] for diagnostic in attribution["diagnostics"]}
    assert not {"unmatched-event", "compiler-made"} & {row["reason"] for row in attribution["unattributed"]}


@pytest.mark.long
def test_a_profile_that_was_cut_is_read_up_to_its_last_record(
    foreign_profile: Path, built: Built, tmp_path: Path
) -> None:
    """As a killed program leaves it; what is missing is said, and what is there is attributed."""
    cut = tmp_path / "cut.ireeprof"
    data = foreign_profile.read_bytes()
    cut.write_bytes(data[: len(data) * 2 // 3])
    attribution = json_cli("attribute", cut, "--map", built("hand_repeat12"))
    calls = sum(site["calls"] for site in attribution["sites"])
    assert 0 < calls < 5 * 12
    assert attribution["diagnostics"]


@pytest.mark.long
def test_shared_kernel_sites_name_their_own_layer(built: Built, samples: Corpus) -> None:
    shown = json_cli("show", built("hand_repeat12"))
    ops = {op["id"]: op for op in shown["ops"]}
    assert (len(shown["sites"]), len(shown["kernels"])) == (12, 1)
    text = samples.models()["hand_repeat12"].read_text(encoding="utf-8").splitlines()
    for name in ("linalg.matmul", "linalg.generic"):
        lines = [number for number, line in enumerate(text, start=1) if re.search(rf"= {name}\b", line)]
        named = [
            [ops[member["op"]]["line"] for member in site["members"] if ops[member["op"]]["name"] == name]
            for site in shown["sites"]
        ]
        assert named == [[line] for line in lines]


@pytest.mark.long
def test_parts_of_a_shared_kernel_are_known(built: Built) -> None:
    """The generic's own addition and maximum stand below it, each with a line of its own layer."""
    generics = [op for op in load(built("hand_repeat12")).graph.ops if op.name == "linalg.generic"]
    assert len(generics) == 12
    parts = [[part.name for part in op.parts] for op in generics]
    assert all({"arith.addf", "arith.maximumf"} <= set(names) for names in parts)
    lines = [part.line for op in generics for part in op.parts if part.name == "arith.addf"]
    assert len(set(lines)) == 12


@pytest.mark.long
def test_sites_of_a_real_model_are_told_apart(built: Built) -> None:
    shown = json_cli("show", built("jax_gpt2_4l"))
    assert (len(shown["sites"]), len(shown["kernels"])) == (61, 15)
    assert len({(root_of(site), tuple(site["path"])) for site in shown["sites"]}) == 61


@pytest.mark.long
def test_sites_are_told_apart_where_locations_collide(built: Built) -> None:
    shown = json_cli("show", built("torch_bert_tiny"))
    assert len({(root_of(site), site["kernel"]) for site in shown["sites"]}) == 51


@pytest.mark.long
def test_python_sources_and_scopes_are_kept(built: Built) -> None:
    shown = json_cli("show", built("jax_gpt2_4l"))
    roots = {root_of(site) for site in shown["sites"]}
    scopes = {"/".join(op["scope"]) for op in shown["ops"] if op["id"] in roots}
    assert {f"h{layer}/{half}" for layer in range(4) for half in ("attn", "ffn")} <= scopes
    sources = json.loads((built("jax_gpt2_4l") / "map.json").read_text(encoding="utf-8"))["sources"]
    kept = {source["name"]: built("jax_gpt2_4l") / "source" / source["path"] for source in sources}
    assert list(kept) == ["jax_gpt2_4l.mlir", "jax_models.py"]
    assert kept["jax_models.py"].read_bytes() == (SAMPLES / "sources" / "jax_models.py").read_bytes()


@pytest.mark.long
def test_building_twice_gives_the_same_bytes(built: Built, samples: Corpus, tmp_path: Path) -> None:
    samples.build("hand_mlp", tmp_path / "hand_mlp.tracemap")
    for name in ("map.json", "module.vmfb"):
        assert (tmp_path / "hand_mlp.tracemap" / name).read_bytes() == (built("hand_mlp") / name).read_bytes(), name


@pytest.mark.long
def test_attributing_twice_gives_the_same_bytes(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("a.html", "b.html")]
    arguments = ("attribute", recorded("jax_gpt2_4l"), "--map", built("jax_gpt2_4l"), "--format", "json", "--html")
    assert check_cli(*arguments, pages[0]) == check_cli(*arguments, pages[1])
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(
    "model",
    long_where(
        ["hand_convnet", "hand_loop", "jax_gpt2_4l", "torch_resnet18_small", "onnx_tinygpt_named"],
        lambda number, _: number > 2,
    ),
)
def test_the_traced_module_is_the_plain_one(model: str, samples: Corpus, tmp_path: Path) -> None:
    """Instruction for instruction; names of files, which lie among the constants, may move addresses."""
    source = samples.models()[model]
    kinds = ("intermediates", "binaries")
    dumped = {
        name: [f"--iree-hal-dump-executable-{kind}-to={tmp_path / name}" for kind in kinds]
        for name in ("plain", "traced")
    }
    arguments = [find_tool("iree-compile"), source, *PLAIN_FLAGS, *dumped["plain"], "-o", tmp_path / "plain.vmfb"]
    subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)
    check_cli("build", source, "-o", tmp_path / "traced.tracemap", "--", *dumped["traced"])
    instructions = assembly(tmp_path / "plain")
    assert len(instructions) > 100
    assert assembly(tmp_path / "traced") == instructions
    (library,) = (tmp_path / "traced").glob("*.so")
    assert library.read_bytes() in (tmp_path / "traced.tracemap" / "module.vmfb").read_bytes()


def assembly(folder: Path) -> list[str]:
    """Labels and instructions of the code that the compiler dumped, without directives and labels of debug sections."""
    (file,) = folder.glob("*.s")
    in_code, found = True, []
    for text in file.read_text(encoding="utf-8").splitlines():
        line = text.partition("#")[0].rstrip()
        if line.startswith(("\t.section", "\t.text", "\t.data", "\t.bss")):
            in_code = ".debug" not in line
        if in_code and line and not line.startswith(("\t.", ".Ltmp")):
            found.append(line)
    return found


def root_of(site: Json) -> str:
    """The op that gave the site's kernel its name."""
    return next(str(member["op"]) for member in site["members"] if member["root"])
