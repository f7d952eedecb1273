"""Bundles from dumps of untraced compilations: what locations prove, and how far."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands.test_errors import everything_in, refused
from tests.conftest import Built
from tests.support import (
    PLAIN_FLAGS,
    ROOT,
    SAMPLES,
    check_cli,
    flow_of_plain_compile,
    json_cli,
    long_where,
    made_once,
    run_cli,
)
from tracemap.core.toolchain import find_tool
from tracemap.map.build.from_dumps import Dumps
from tracemap.map.bundle import load
from tracemap.map.model import Evidence, Outcome, Site, TraceGraph

FIVE = ["hand_mlp", "hand_repeat6_calls", "jax_gpt2_4l", "torch_bert_tiny", "onnx_mlp_named"]
MODELS = SAMPLES / "models"
PROGRAMS = ROOT / "tests" / "programs" / "from_dumps"
SAMPLED = sorted(path.stem for path in MODELS.glob("*.mlir"))
LONG = ("jax_gpt2_small_12l", "torch_resnet18_small")
KNOWN = {
    "fx_mlp_linalg": 0,
    "hand_convnet": 8,
    "hand_loczoo": 11,
    "hand_mlp_unknown": 0,
    "jax_gpt2_4l": 23,
    "jax_gpt2_4l_scan": 6,
    "jax_gpt2_small_12l": 63,
    "jax_mlp": 3,
    "jax_mlp_train": 8,
    "torch_bert_tiny": 6,
    "torch_mlp": 0,
    "torch_resnet18_small": 0,
    "torch_tinygpt": 0,
}
"""At how many sites of a sample locations tell all ops; at all of the others'."""
WITHOUT_LOCATIONS_IN_INPUT = ("onnx_mlp_named",)
"""Of the five those whose ops, as they are in the dump of the input phase, share their locations at every site."""


def compile_by_hand(model: Path, folder: Path, *flags: str) -> None:
    """As somebody without tracemap does it: the dumps into `dumps`, the module beside it."""
    printing = flags or ("--mlir-print-debuginfo",)
    dumping = f"--dump-compilation-phases-to={folder / 'dumps'}"
    arguments = [find_tool("iree-compile"), model, *PLAIN_FLAGS, *printing, dumping, "-o", folder / "m.vmfb"]
    subprocess.run([str(argument) for argument in arguments], check=True, capture_output=True)


@pytest.fixture(scope="session")
def by_hand(made: Path) -> Path:
    """A folder per model of the five, compiled once."""
    for name in FIVE:
        folder = made / "by_hand" / name
        folder.parent.mkdir(exist_ok=True)
        with made_once(folder) as missing:
            if missing:
                folder.mkdir()
                compile_by_hand(MODELS / f"{name}.mlir", folder)
    return made / "by_hand"


def from_dumps(folder: Path, target: Path, *model: str | Path) -> TraceGraph:
    check_cli("build", "--from-dumps", folder / "dumps", "--module", folder / "m.vmfb", *model, "-o", target)
    return load(target).graph


def memberships(graph: TraceGraph, *kinds: Evidence) -> set[tuple[int, str]]:
    found = ((site.ordinal, member) for site in graph.sites for member in site.members)
    return {(ordinal, member.op) for ordinal, member in found if not kinds or member.evidence in kinds}


@pytest.mark.long
@pytest.mark.parametrize("name", FIVE)
def test_sites_and_kernels_are_those_of_the_compilation(name: str, by_hand: Path, tmp_path: Path) -> None:
    graph = from_dumps(by_hand / name, tmp_path / "b.tracemap", MODELS / f"{name}.mlir")
    assert tuple(site.kernel for site in graph.sites) == flow_of_plain_compile(MODELS / f"{name}.mlir").sites
    assert (tmp_path / "b.tracemap" / "module.vmfb").read_bytes() == (by_hand / name / "m.vmfb").read_bytes()
    assert (by_hand / name / "m.vmfb").exists()


def differences(ours: TraceGraph, theirs: TraceGraph) -> list[str]:
    """What a map made from dumps says otherwise than that of a build with tags, and does not call unknown."""
    assert [op.id for op in ours.ops] == [op.id for op in theirs.ops]
    assert [site.kernel for site in ours.sites] == [site.kernel for site in theirs.sites]
    sites = zip(ours.sites, theirs.sites, strict=True)
    transfers = zip(ours.transfers, theirs.transfers, strict=True)
    ops = zip(ours.ops, theirs.ops, strict=True)
    return [
        *(f"{site.id}: {found}" for site, other in sites if (found := members_that_differ(site, other))),
        *(f"{one.id}: {one.ops}" for one, other in transfers if not {*one.ops} <= {*other.ops}),
        *(
            f"{op.id}: {op.outcome}, not {other.outcome}"
            for op, other in ops
            if op.outcome not in (Outcome.UNKNOWN, other.outcome)
        ),
    ]


def members_that_differ(ours: Site, theirs: Site) -> set[str]:
    """The members that only one of two sites has: of one that has members no other is missing, as costs are shared."""
    found = {member.op for member in ours.members}
    return found ^ {member.op for member in theirs.members} if found else set()


@pytest.mark.long
@pytest.mark.parametrize("name", long_where(SAMPLED, lambda _, name: name in LONG))
def test_ops_by_location_are_those_by_tag(name: str, built: Built, tmp_path: Path) -> None:
    compile_by_hand(MODELS / f"{name}.mlir", tmp_path)
    ours = from_dumps(tmp_path, tmp_path / "b.tracemap", MODELS / f"{name}.mlir")
    assert differences(ours, load(built(name)).graph) == []
    assert sum(1 for site in ours.sites if site.members) >= KNOWN.get(name, len(ours.sites))


@pytest.mark.long
@pytest.mark.parametrize("name", ["callsites", "all_at_one_call", "one_place"])
def test_called_and_shared_locations(name: str, tmp_path: Path) -> None:
    """Inlining puts calls around locations that are calls already; several ops have one and the same place."""
    program = PROGRAMS / f"{name}.mlir"
    compile_by_hand(program, tmp_path)
    check_cli("build", program, "-o", tmp_path / "plain.tracemap")
    ours = from_dumps(tmp_path, tmp_path / "b.tracemap", program)
    assert differences(ours, load(tmp_path / "plain.tracemap").graph) == []
    assert bool(ours.sites[0].members) is (name == "callsites")


@pytest.mark.long
@pytest.mark.parametrize("name", ["hand_mlp", "hand_repeat6_calls"])
def test_hand_written_models_lose_nothing(name: str, by_hand: Path, built: Built, tmp_path: Path) -> None:
    ours = from_dumps(by_hand / name, tmp_path / "b.tracemap", MODELS / f"{name}.mlir")
    theirs = load(built(name)).graph
    assert memberships(ours, Evidence.LOCATED) == memberships(theirs)
    assert [site.path for site in ours.sites] == [site.path for site in theirs.sites]
    assert [op.outcome for op in ours.ops] == [op.outcome for op in theirs.ops]
    assert [op.last_phase for op in ours.ops] == [op.last_phase for op in theirs.ops]


@pytest.mark.long
@pytest.mark.parametrize("name", FIVE)
def test_input_phase_stands_in_for_the_model(name: str, by_hand: Path, tmp_path: Path) -> None:
    graph = from_dumps(by_hand / name, tmp_path / "b.tracemap")
    assert re.fullmatch(r".*\.1\.input\.mlir", graph.sources[0].name)
    assert any(site.members for site in graph.sites) is (name not in WITHOUT_LOCATIONS_IN_INPUT)
    assert json_cli("show", tmp_path / "b.tracemap")["coverage"]["ops"] == len(graph.ops)


@pytest.mark.long
def test_shared_locations_are_reported_and_leave_sites_without_ops(tmp_path: Path) -> None:
    """Two products share line 7: neither is told from the other. The first shares line 3 with its initial value."""
    program = ROOT / "tests" / "programs" / "shared_places.mlir"
    compile_by_hand(program, tmp_path)
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", program)
    first, second, third = (op.id for op in graph.ops if op.name == "linalg.matmul")
    evidence = [{member.op: member.evidence for member in site.members} for site in graph.sites]
    assert evidence == [{first: Evidence.LOCATED}, {}, {}]
    assert {op.id for op in graph.ops if op.outcome is Outcome.UNKNOWN} == {second, third}
    note = next(note for note in graph.diagnostics if note.slug == "identity-by-location")
    assert "the ops of 1 of 3 dispatch sites are known" in note.message


@pytest.mark.long
def test_stripped_locations_identify_no_ops_and_the_map_says_so(tmp_path: Path) -> None:
    model = MODELS / "hand_mlp_unknown.mlir"
    compile_by_hand(model, tmp_path)
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", model)
    assert not memberships(graph)
    slugs = [note.slug for note in graph.diagnostics]
    assert {"identity-by-location", "locations-absent"} <= set(slugs)
    assert "0 of 16 ops have a location of their own" in graph.diagnostics[0].message


@pytest.mark.long
def test_bundle_records_and_attributes(by_hand: Path, tmp_path: Path) -> None:
    from_dumps(by_hand / "hand_mlp", tmp_path / "mlp.tracemap", MODELS / "hand_mlp.mlir")
    flags = SAMPLES / "flags" / "hand_mlp.flags"
    check_cli("record", "mlp.tracemap", "--flagfile", flags, "--iterations", "2", "-o", "run.csv", cwd=tmp_path)
    result = json_cli("attribute", "run.csv", "--map", "mlp.tracemap", cwd=tmp_path)
    cpu = next(metric for metric in result["metrics"] if metric["name"] == "cpu_ns")
    assert cpu["attributed"] == cpu["measured"] > 0


@pytest.mark.long
def test_file_names_of_models_need_not_be_those_of_the_compilation(tmp_path: Path) -> None:
    """Compiled from standard input, given as a file; the same model under another folder."""
    text = (MODELS / "hand_mlp.mlir").read_bytes()
    arguments = [find_tool("iree-compile"), "-", *PLAIN_FLAGS, "--mlir-print-debuginfo", "-o", tmp_path / "m.vmfb"]
    dumping = f"--dump-compilation-phases-to={tmp_path / 'dumps'}"
    subprocess.run([*map(str, arguments), dumping], input=text, check=True, capture_output=True)
    (tmp_path / "renamed.mlir").write_bytes(text)
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", tmp_path / "renamed.mlir")
    assert len(memberships(graph, Evidence.LOCATED)) == 7


# --- refusals


@pytest.mark.long
@pytest.mark.parametrize("phase", ["input", "dispatch-creation", "flow", "hal"])
def test_missing_dump_is_named(phase: str, by_hand: Path, tmp_path: Path) -> None:
    dumps = shutil.copytree(by_hand / "hand_mlp" / "dumps", tmp_path / "dumps")
    next(dumps.glob(f"*.{phase}.mlir")).unlink()
    module = by_hand / "hand_mlp" / "m.vmfb"
    said = refused("dumps-invalid", "build", "--from-dumps", dumps, "--module", module, cwd=tmp_path)
    assert f"no dump of the phase {phase} " in said
    if phase == "input":  # which the model stands in for
        check_cli("build", "--from-dumps", dumps, "--module", module, MODELS / "hand_mlp.mlir", cwd=tmp_path)


@pytest.mark.long
def test_fewer_phases_are_enough(by_hand: Path, tmp_path: Path) -> None:
    dumps = shutil.copytree(by_hand / "hand_mlp" / "dumps", tmp_path / "dumps")
    for phase in ("input", "abi", "preprocessing", "global-optimization", "stream", "vm"):
        next(dumps.glob(f"*.{phase}.mlir")).unlink()
    shutil.copy(by_hand / "hand_mlp" / "m.vmfb", tmp_path / "m.vmfb")
    graph = from_dumps(tmp_path, tmp_path / "b.tracemap", MODELS / "hand_mlp.mlir")
    assert len(memberships(graph, Evidence.LOCATED)) == 7


@pytest.mark.long
def test_dumps_without_locations(tmp_path: Path) -> None:
    compile_by_hand(MODELS / "hand_mlp.mlir", tmp_path, "--iree-opt-level=O0")
    said = refused("dumps-invalid", *build_words(tmp_path), MODELS / "hand_mlp.mlir", cwd=tmp_path)
    assert "--mlir-print-debuginfo" in said


def build_words(folder: Path) -> tuple[str | Path, ...]:
    return ("build", "--from-dumps", folder / "dumps", "--module", folder / "m.vmfb", "-o", folder / "b.tracemap")


@pytest.mark.long
def test_dumps_of_two_compilations(by_hand: Path, tmp_path: Path) -> None:
    for name in ("hand_mlp", "jax_gpt2_4l"):
        shutil.copytree(by_hand / name / "dumps", tmp_path / "dumps", dirs_exist_ok=True)
    shutil.copy(by_hand / "hand_mlp" / "m.vmfb", tmp_path / "m.vmfb")
    assert "several dumps" in refused("dumps-invalid", *build_words(tmp_path), cwd=tmp_path)


@pytest.mark.long
def test_module_of_another_compilation(by_hand: Path, tmp_path: Path) -> None:
    shutil.copytree(by_hand / "hand_mlp" / "dumps", tmp_path / "dumps")
    shutil.copy(by_hand / "jax_gpt2_4l" / "m.vmfb", tmp_path / "m.vmfb")
    assert "no function mlp" in refused("dumps-invalid", *build_words(tmp_path), cwd=tmp_path)


def mixed(folder: Path, dumps: Path, module: Path) -> str:
    """What is said of the dumps of one compilation with the module of another."""
    shutil.copytree(dumps, folder / "dumps")
    shutil.copy(module, folder / "m.vmfb")
    said = refused("dumps-invalid", *build_words(folder), cwd=folder)
    assert "m.vmfb: does not belong to the dumps: it " in said
    assert not (folder / "b.tracemap").exists()
    return said


@pytest.mark.long
@pytest.mark.parametrize(("dumps", "module"), [("jax_gpt2_4l", "torch_bert_tiny"), ("torch_bert_tiny", "jax_gpt2_4l")])
def test_module_of_another_model_with_a_function_of_that_name(
    dumps: str, module: str, by_hand: Path, tmp_path: Path
) -> None:
    said = mixed(tmp_path, by_hand / dumps / "dumps", by_hand / module / "m.vmfb")
    assert re.search(r"it has no kernel \S+_dispatch_\d+_\w+; ", said)


ELEMENTWISE = """func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {{
  %y = math.{op} %x : tensor<64xf32>
  return %y : tensor<64xf32>
}}
"""


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """Two models whose functions and kernels have the same names, compiled into folders of their own."""
    for op in ("exp", "tanh"):
        (tmp_path / op).mkdir()
        (tmp_path / op / "model.mlir").write_text(ELEMENTWISE.format(op=op), encoding="utf-8")
        compile_by_hand(tmp_path / op / "model.mlir", tmp_path / op)
    return tmp_path


@pytest.mark.long
def test_module_of_another_model_with_kernels_of_the_same_names(alike: Path) -> None:
    graphs = [from_dumps(alike / op, alike / f"{op}.tracemap", alike / op / "model.mlir") for op in ("exp", "tanh")]
    assert [kernel.name for kernel in graphs[0].kernels] == [kernel.name for kernel in graphs[1].kernels]
    (alike / "mixed").mkdir()
    said = mixed(alike / "mixed", alike / "exp" / "dumps", alike / "tanh" / "m.vmfb")
    assert "it does not contain the code of executable 0 in model.12.vm.mlir" in said


@pytest.mark.long
def test_module_of_the_same_compilation_made_again(alike: Path) -> None:
    """It is the same module, byte for byte: whether dumps were made does not show in it."""
    again = [find_tool("iree-compile"), alike / "exp" / "model.mlir", *PLAIN_FLAGS, "-o", alike / "exp" / "m.vmfb"]
    subprocess.run([str(word) for word in again], check=True, capture_output=True)
    assert from_dumps(alike / "exp", alike / "b.tracemap").sites


@pytest.mark.long
def test_executables_of_other_devices_are_found_too(tmp_path: Path) -> None:
    target = ("--mlir-print-debuginfo", "--iree-hal-target-device=vulkan")
    flags = [flag for flag in PLAIN_FLAGS if "target-device" not in flag]
    dumping = f"--dump-compilation-phases-to={tmp_path / 'dumps'}"
    words = [find_tool("iree-compile"), MODELS / "hand_mlp.mlir", *flags, *target, dumping, "-o", tmp_path / "m.vmfb"]
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    assert len(list(Dumps(tmp_path / "dumps", model_given=True).executables())) == 4
    assert len(from_dumps(tmp_path, tmp_path / "b.tracemap").sites) == 4


@pytest.mark.long
def test_damaged_dump_is_named(by_hand: Path, tmp_path: Path) -> None:
    dumps = shutil.copytree(by_hand / "hand_mlp" / "dumps", tmp_path / "dumps")
    shutil.copy(by_hand / "hand_mlp" / "m.vmfb", tmp_path / "m.vmfb")
    flow = next(dumps.glob("*.flow.mlir"))
    flow.write_text(flow.read_text(encoding="utf-8")[:2000] + " loc(", encoding="utf-8")
    assert "the phase flow does not parse" in refused("dumps-invalid", *build_words(tmp_path), cwd=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ("--from-dumps", "."),
        ("--module", "m.vmfb"),
        ("--from-dumps", ".", "--module", "m.vmfb", "--", "--iree-opt-level=O2"),
    ],
)
def test_options_that_go_together(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "m.vmfb").write_bytes(b"x")
    assert "--from-dumps" in refused("usage-invalid", "build", *words, cwd=tmp_path)


@pytest.mark.long
def test_passes_of_a_compilation_made_elsewhere(by_hand: Path, tmp_path: Path) -> None:
    graph = from_dumps(by_hand / "hand_mlp", tmp_path / "b.tracemap", MODELS / "hand_mlp.mlir")
    lost = next(op.id for op in graph.ops if op.name == "func.return")
    assert "dumps" in refused("usage-invalid", "audit", "b.tracemap", "--pass", lost, cwd=tmp_path)
    assert run_cli("audit", "b.tracemap", cwd=tmp_path).returncode == 0
    assert "b.tracemap" in everything_in(tmp_path)
