"""Devices that need no driver: other backends, the synchronous host device, several in one module.

What a module is compiled for decides what its kernels are, not what they are of: each event has its site on every one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec import structs

from tests.checks import check_attribution, count_of_run
from tests.devices import BACKENDS, MODELS, Comparison, built, compare, defects
from tests.support import ROOT, SAMPLES, Corpus, Json, check_cli, has_device, json_cli, made_once, run_cli
from tracemap.commands.programs import device_of
from tracemap.core.units import UNKNOWN, Text
from tracemap.map.build.compiler.flags import targets_of
from tracemap.map.bundle import load
from tracemap.map.model import Outcome, TraceGraph

REPEATED = "hand_repeat12"
"""Twelve sites of one kernel: only an exact join tells them apart."""

INEXACT = {"split-evenly", "commands-by-order", "sites-merged", "sites-without-command"}
VMVX = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
BOTH = (*VMVX, "--iree-hal-local-target-device-backends=llvm-cpu")
WITH_VULKAN = (
    *("--iree-hal-target-backends=llvm-cpu", "--iree-hal-target-backends=vulkan-spirv"),
    "--iree-hal-link-executables=false",  # else the compiler (IREE 3.13) forgets to link one of the two
)

Bundles = Callable[[str, Sequence[str]], Path]
"""Name, flags -> the bundle of the repeated layers."""


@pytest.fixture(scope="session")
def bundles(made: Path) -> Bundles:
    """Makes, once, the bundle of the repeated layers, compiled with flags."""

    def build(name: str, flags: Sequence[str]) -> Path:
        bundle = made / f"{REPEATED}-{name}.tracemap"
        with made_once(bundle) as missing:
            if missing:
                check_cli("build", SAMPLES / "models" / f"{REPEATED}.mlir", "-o", bundle, "--", *flags)
        return bundle

    return build


def recorded(bundle: Path, run: Path, *devices: str) -> Json:
    """Record two calls on devices, and attribute them: all checks of a run, and every site with its calls."""
    flags = ("--", *(f"--device={device}" for device in devices)) if devices else ()
    Corpus(SAMPLES).record(REPEATED, bundle, run, ("--iterations", "2"), last=flags)
    attribution = json_cli("attribute", run, "--map", bundle)
    check_attribution(attribution, run)
    assert not INEXACT & {each["slug"] for each in attribution["diagnostics"]}
    assert [site["calls"] for site in attribution["sites"]] == [2] * 12
    assert count_of_run(run, "kind = 'dispatch'") == 24
    return attribution


@pytest.mark.long
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize(("name", "flags"), [("vmvx", VMVX), ("both", BOTH)])
def test_each_event_has_its_site_on_other_backends(
    name: str, flags: Sequence[str], device: str, bundles: Bundles, tmp_path: Path
) -> None:
    recorded(bundles(name, flags), tmp_path / "run.parquet", device)


@pytest.mark.long
@pytest.mark.parametrize("device", ["local-task", "vulkan"])
def test_a_dispatch_of_a_module_for_several_backends_is_one_command(
    device: str, bundles: Bundles, tmp_path: Path
) -> None:
    """Each has its own workgroups, so only what all have is known; the place of the command is the same for all."""
    if not has_device(device):
        pytest.skip(f"no device of {device} here")
    bundle = bundles("with-vulkan", WITH_VULKAN)
    (buffer,) = load(bundle).graph.command_buffers
    dispatches = [command for command in buffer.commands if command.kind == "dispatch"]
    assert [command.site for command in dispatches] == [f"site{number}" for number in range(12)]
    assert {command.workgroups[0] for command in dispatches} == {UNKNOWN}
    recorded(bundle, tmp_path / "run.parquet", device)


@pytest.mark.long
def test_a_program_that_is_spread_over_two_devices(tmp_path: Path) -> None:
    """One kernel, once on each: both devices are handed to the runtime, and each has events of its own."""
    flags = ("--iree-hal-target-device=first=local[0]", "--iree-hal-target-device=second=local[1]")
    bundle, run = tmp_path / "two.tracemap", tmp_path / "run.parquet"
    model = ROOT / "tests" / "programs" / "two_devices.mlir"
    check_cli("build", model, "-o", bundle, "--", *flags, "--iree-hal-local-target-device-backends=llvm-cpu")
    two = ("--device=local-task", "--device=local-task")
    check_cli("record", bundle, "--iterations", "2", "-o", run, "--", *two)
    attribution = json_cli("attribute", run, "--map", bundle)
    check_attribution(attribution, run)
    assert len(load(bundle).graph.kernels) == 1
    assert [(site["site"], site["calls"]) for site in attribution["sites"]] == [("site0", 2), ("site1", 2)]
    assert not INEXACT & {each["slug"] for each in attribution["diagnostics"]}
    alone = run_cli("record", bundle, "--iterations", "2", "-o", tmp_path / "alone.parquet", "--", *two[:1])
    assert alone.returncode != 0
    assert "HAL device `second` not found" in alone.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "hip"),
        ("--", "--iree-hal-target-device=hip"),
        ("--", "--iree-hal-target-device=local", "--iree-hal-target-device=gpu=amdgpu[1]"),
        ("--", "--iree-hal-target-backends=rocm"),
    ],
)
def test_the_chip_of_an_amd_gpu_is_asked_for(words: Sequence[str], tmp_path: Path) -> None:
    """In a sentence of ours, before the compiler is started, which has many more."""
    done = run_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", tmp_path / "b.tracemap", *words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert (
        "no AMD GPU chip is set, and IREE has no default; add it after the options: -- --iree-rocm-target=gfx942"
        in line
    )
    assert line.endswith("[usage-invalid]")


def test_targets_as_flags_name_them() -> None:
    flags = ("--iree-hal-target-device=a=hip[0]", "--iree-hal-target-backends=vulkan-spirv", "--iree-opt-level=O3")
    assert targets_of((*flags, '--iree-hal-target-device=#hal.device.target<"local">')) == ["hip", "vulkan-spirv"]


GPUS = [backend for backend in BACKENDS if backend not in ("llvm-cpu", "vmvx")]


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TraceGraph]:
    """Makes, once, the map of a sample for a backend."""
    folder = tmp_path_factory.mktemp("maps")

    @functools.cache
    def build(model: str, backend: str, *more: str) -> TraceGraph:
        own = folder / "-".join((model, backend, *more))
        own.mkdir()
        graph = built(model, backend, own, more)
        assert not isinstance(graph, str), graph
        return graph

    return build


@pytest.mark.long
@pytest.mark.parametrize("backend", GPUS)
@pytest.mark.parametrize("model", ["hand_attention", "jax_cnn"])
def test_maps_of_gpus_are_as_that_of_a_processor(model: str, backend: str, maps: Callable[..., TraceGraph]) -> None:
    """What became of each op, and which share a kernel; without a device. `python -m tests.devices` does more."""
    assert model in MODELS
    graph = maps(model, backend)
    assert compare(maps(model, "llvm-cpu"), graph) == Comparison((), (), 0, ())
    assert {kernel.name for kernel in graph.kernels} == {kernel.name for kernel in maps(model, "llvm-cpu").kernels}


@pytest.mark.long
@pytest.mark.parametrize(("backend", "fewer"), [("vulkan-spirv", -7), ("cuda", -7), ("rocm", 0)])
def test_kernels_of_layouts_are_what_tiled_products_differ_in(
    backend: str, fewer: int, maps: Callable[..., TraceGraph]
) -> None:
    """IREE has layouts of tiled products for some backends only; that apart, the maps are the same."""
    tiled = "--iree-opt-data-tiling"
    found = compare(maps("hand_mlp", "llvm-cpu", tiled), maps("hand_mlp", backend, tiled))
    assert found == Comparison((), (), fewer, ())


@pytest.mark.long
def test_what_differs_is_said(maps: Callable[..., TraceGraph]) -> None:
    """A map that lost what it knew has defects, and is not the same any more."""
    fused = maps("hand_mlp", "rocm")
    lost = structs.replace(
        fused,
        ops=tuple(structs.replace(op, outcome=Outcome.UNKNOWN) for op in fused.ops),
        sites=tuple(structs.replace(site, members=()) for site in fused.sites),
    )
    assert compare(fused, fused).explained
    assert len(compare(fused, lost).outcomes) == len(fused.ops)
    assert [text for text in defects(lost) if "members" in text] == [f"{site.id} has no members" for site in lost.sites]
    assert compare(fused, lost).regrouped


@pytest.mark.long
def test_the_compiler_is_quoted_no_further_than_one_reads(tmp_path: Path) -> None:
    """A backend that compiles nothing prints each kernel several times, and the module, as operations."""
    flag = "--iree-hal-target-backends=vmvx-inline"
    done = run_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", tmp_path / "b.tracemap", "--", flag)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"iree-compile rejects {flag}: failed to serialize executable" in done.stderr
    assert "current operation" not in done.stderr
    assert not re.search(r"%\w+ = |\^", done.stderr)


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "device"),
    [
        (("--iree-hal-target-backends=vulkan-spirv",), "vulkan"),
        (("--iree-hal-target-backends=rocm", "--iree-rocm-target=gfx942"), "hip"),
        (("--iree-hal-target-device=gpu=cuda[0]",), "cuda"),
        (WITH_VULKAN, UNKNOWN),
        (VMVX, UNKNOWN),
    ],
)
def test_a_bundle_is_run_on_what_it_was_compiled_for(flags: Sequence[str], device: Text, tmp_path: Path) -> None:
    """However the flags name it; where they name several, or the host, the runtime's default is taken."""
    check_cli("build", SAMPLES / "models" / "hand_mlp.mlir", "-o", tmp_path / "b.tracemap", "--", *flags)
    bundle = load(tmp_path / "b.tracemap")
    assert device_of(bundle, ()) == device
    assert device_of(bundle, ("--device=local-sync",)) is UNKNOWN
