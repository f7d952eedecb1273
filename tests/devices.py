"""Maps of the same models for other devices beside that for a processor: `python -m tests.devices [MODEL…]`.

No device is needed: bundles are built, not run. What must be the same is what became of each op, and which ops share a
kernel; where a backend does otherwise, the row says how. Prints a table of Markdown; ends with status 1 where anything
is not explained, an op has no outcome, or a site no member.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support import SAMPLES, run_cli
from tracemap.core.units import plural
from tracemap.map.bundle import load
from tracemap.map.model import Outcome, TraceGraph

MODELS: Final = ("hand_attention", "hand_convnet", "hand_mlp", "jax_cnn", "jax_gpt2_4l", "torch_resnet18_small")
BACKENDS: Final = {
    "llvm-cpu": (),
    "vmvx": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"),
    "vulkan-spirv": ("--iree-hal-target-device=vulkan", "--iree-vulkan-target=vp_android_baseline_2022"),
    "cuda": ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"),
    "rocm": ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942"),
}
"""Each with its flags; the first is what the others are compared with."""

_LAYOUT: Final = "_encoding_"
"""How the compiler names kernels that bring operands into the layout of tiled products; not every backend has such."""

_HEAD: Final = ("model", "backend", "kernels", "sites", "ops", "with steps", "outcomes", "ops that share a kernel")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A map beside the reference's.

    `outcomes`: ops whose outcome differs; `regrouped`: sets of members that only one of both maps has, without kernels
    for layouts; `layouts`: how many of these there are here, less those of the reference.
    `defects`: what no map may have, on any device.
    """

    outcomes: tuple[str, ...]
    regrouped: tuple[str, ...]
    layouts: int
    defects: tuple[str, ...]

    @property
    def explained(self) -> bool:
        """Whether nothing is different, but for kernels of layouts."""
        return not (self.outcomes or self.regrouped or self.defects)


def compare(reference: TraceGraph, graph: TraceGraph) -> Comparison:
    """What a map has otherwise than the reference, a map of the same model."""
    pairs = zip(reference.ops, graph.ops, strict=True)
    outcomes = tuple(
        f"{one.id} is {other.outcome}, not {one.outcome}" for one, other in pairs if one.outcome is not other.outcome
    )
    here, there = _groups(graph), _groups(reference)
    regrouped = tuple(f"{_named(each)} only here" for each in (here - there)) + tuple(
        f"{_named(each)} only there" for each in (there - here)
    )
    return Comparison(outcomes, regrouped, _layouts(graph) - _layouts(reference), tuple(defects(graph)))


def defects(graph: TraceGraph) -> Iterator[str]:
    """Ops without a outcome, sites without members or without a command, kernels without a text."""
    yield from (f"{op.id} has no outcome" for op in graph.ops if op.outcome is Outcome.UNKNOWN)
    yield from (f"{site.id} has no members" for site in graph.sites if not site.members)
    yield from (f"{site.id} has no command" for site in graph.sites if not isinstance(site.command_index, int))
    yield from (f"{kernel.name} has no steps" for kernel in graph.kernels if not kernel.steps)


def _groups(graph: TraceGraph) -> Counter[tuple[str, ...]]:
    """The members of each site, and how many sites have the same."""
    return Counter(
        tuple(sorted(member.op for member in site.members))
        for site in graph.sites
        if not site.kernel.startswith(_LAYOUT)
    )


def _layouts(graph: TraceGraph) -> int:
    return sum(site.kernel.startswith(_LAYOUT) for site in graph.sites)


def _named(group: Sequence[str]) -> str:
    return "+".join(group)


def built(model: str, backend: str, folder: Path, more: Sequence[str] = ()) -> TraceGraph | str:
    """The map of a sample for a backend; where the compiler refuses it, what it said first."""
    bundle = folder / f"{model}-{backend}.tracemap"
    file = SAMPLES / "models" / f"{model}.mlir"
    done = run_cli("build", file, "--no-sources", "-o", bundle, "--", *BACKENDS[backend], *more)
    if done.returncode == 0:
        return load(bundle).graph
    said = [line for line in done.stderr.splitlines() if "error: " in line and not line.startswith("tracemap:")]
    return (said or [done.stderr])[0].rpartition("error: ")[2][:80]


def rows(models: Sequence[str], folder: Path) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """A row for each model and backend, and whether it is as it must be."""
    for model in models:
        reference: TraceGraph | None = None
        for backend in BACKENDS:
            graph = built(model, backend, folder)
            if isinstance(graph, str):
                yield backend != next(iter(BACKENDS)), (model, backend, *["–"] * 4, "–", f"not compiled: {graph}")
                continue
            reference = reference or graph
            found = compare(reference, graph)
            yield found.explained, (model, backend, *_counts(graph), *_said(found))


def _counts(graph: TraceGraph) -> tuple[str, ...]:
    with_steps = sum(bool(kernel.steps) for kernel in graph.kernels)
    return tuple(map(str, (len(graph.kernels), len(graph.sites), len(graph.ops), with_steps)))


def _said(found: Comparison) -> tuple[str, str]:
    layouts = f"; {plural(abs(found.layouts), 'site')} of layouts {'more' if found.layouts > 0 else 'less'}"
    together = "; ".join((*found.regrouped, *found.defects)) or "same"
    return "; ".join(found.outcomes) or "same", together + (layouts if found.layouts else "")


def main(models: Sequence[str]) -> int:
    """Print the table; returns the exit status."""
    print("| " + " | ".join(_HEAD) + " |\n|" + "---|" * len(_HEAD))
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="tracemap-devices-") as folder:
        for right, cells in rows(models, Path(folder)):
            wrong += not right
            print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)
    print(f"\n{plural(wrong, 'row')} that nothing explains", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or MODELS))
