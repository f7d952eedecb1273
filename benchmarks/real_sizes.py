"""Networks of real sizes, with weights in archives of up to two gigabytes, through every command.

GPT-2 124M, BERT-base, ResNet-50 and a decoder like Llama with a cache and two entry points, made of random numbers;
only `make sizes` runs it. Time and memory are of tracemap itself and of the programs that it
starts, the compiler and the runtime, whose memory holds the weights. What the functions yield is compared with numpy,
costs with a bare sum of the run's table, and the bundle must not hold the weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.measure import Figure, OwnUsage, output_of, own_usage, run, tracemap
from benchmarks.models.material import Material, material
from benchmarks.models.program import Function
from benchmarks.models.sizes import REAL, Network
from tests.checks import (
    OUTLIERS,
    check_attribution,
    check_balance,
    check_bounds,
    check_links,
    check_page,
    count_of_run,
)
from tests.support import Json

ITERATIONS: Final = 3
SECONDS: Final = 20.0
EVIDENCE: Final = ("located", "fused", "absorbed")
"""Of members, the strongest first."""
NO_MEMBER: Final = "no member"
MOST_OWN_MIB: Final = 500.0
MOST_ELSEWHERE: Final = 0.01
"""Of the processors' time, at no op that is a member of a site."""
MOST_OF_WEIGHTS: Final = 0.05
"""How large a bundle may be beside its weights, which it refers to."""


@dataclass(frozen=True, slots=True)
class Called:
    """A function of a network: events of a run, milliseconds of a call, and the parts of the time by evidence.

    `shares`: by the rule alone; `sampled`: where samples tell which loop of a kernel took it.
    """

    name: str
    events: int
    call_ms: float
    shares: Mapping[str, float]
    sampled: Mapping[str, float]
    page_bytes: int
    steps: Mapping[str, OwnUsage]


@dataclass(frozen=True, slots=True)
class Through:
    """A network that went through every command."""

    name: str
    ops: int
    sites: int
    kernels: int
    weights_bytes: int
    bundle_bytes: int
    build: OwnUsage
    functions: tuple[Called, ...]


def measure(folder: Path) -> list[Figure]:
    """Every network of a real size, one after the other, each in a folder of its own that is cleared behind it."""
    through = [_measured(name, network, folder) for name, network in REAL.items()]
    print("\n" + "\n".join(_document(through)))
    return [figure for each in through for figure in _figures(each)]


def _measured(name: str, network: Network, folder: Path) -> Through:
    module = network.module()
    own_folder = folder / module.name
    own_folder.mkdir()
    through = put_through(name, material(module, own_folder), own_folder)
    print_through(through)
    shutil.rmtree(own_folder)
    return through


def _figures(through: Through) -> Iterator[Figure]:
    own = [through.build, *(step for called in through.functions for step in called.steps.values())]
    yield Figure(f"{through.name}, tracemap's own memory", max(each.peak_mib for each in own), "MiB", MOST_OWN_MIB)
    nowhere = max(called.shares[NO_MEMBER] for called in through.functions)
    yield Figure(f"{through.name}, time at no member", 100 * nowhere, "%", 100 * MOST_ELSEWHERE)
    for how, parts in (
        ("by the rule", [called.shares for called in through.functions]),
        ("sampled", [called.sampled for called in through.functions]),
    ):
        runs_left_out = max(1 - _telling(each) for each in parts)
        yield Figure(f"{through.name}, {how}, elsewhere", 100 * runs_left_out, "%", 100 * MOST_ELSEWHERE)
    yield Figure(
        f"{through.name}, bundle / weights", through.bundle_bytes / through.weights_bytes, "x", MOST_OF_WEIGHTS
    )


def _document(through: Sequence[Through]) -> Iterator[str]:
    """The table of `docs/accuracy.md`: a row for each function."""
    yield (
        "| network, function | ops | dispatches | weights MB | bundle MB | page MB | build CPU s | MiB | record CPU s "
        "| MiB | runtime MiB | attribute, page CPU s | MiB | located or fused, rule | samples |"
    )
    yield "|---" + "|--:" * 14 + "|"
    for each in through:
        for called in each.functions:
            recorded, paged = called.steps["record"], called.steps["attribute --html"]
            cells = (
                f"{each.name}, `{called.name}`",
                f"{each.ops:,}",
                f"{each.sites:,}",
                f"{each.weights_bytes / 1e6:,.0f}",
                f"{each.bundle_bytes / 1e6:.1f}",
                f"{called.page_bytes / 1e6:.1f}",
                *(f"{each.build.cpu_seconds:.1f}", f"{each.build.peak_mib:,.0f}"),
                *(f"{recorded.cpu_seconds:.1f}", f"{recorded.peak_mib:,.0f}", f"{recorded.programs_mib:,.0f}"),
                *(f"{paged.cpu_seconds:.1f}", f"{paged.peak_mib:,.0f}"),
                *(f"{100 * _telling(parts):.1f} %" for parts in (called.shares, called.sampled)),
            )
            yield f"| {' | '.join(cells)} |"


def put_through(name: str, made: Material, folder: Path, seconds: float = SECONDS) -> Through:
    """Build a network, run its functions and compare what they yield, record, attribute and page them.

    `seconds`: how long each function is sampled.

    Raises:
        AssertionError: something that must hold does not.
        SystemExit: a command failed, or outputs are not what numpy says.
    """
    bundle = folder / f"{made.module.name}.tracemap"
    build = own_usage("build", made.model, "-o", bundle)
    bundle_bytes = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
    shown: Json = json.loads(output_of(tracemap("show", bundle, "--format", "json")))
    check_links(shown)
    functions = tuple(_called(function, made, bundle, shown, folder, seconds) for function in made.module.functions)
    ops, sites, kernels = (len(shown[what]) for what in ("ops", "sites", "kernels"))
    return Through(name, ops, sites, kernels, made.archive.stat().st_size, bundle_bytes, build, functions)


def _called(function: str, made: Material, bundle: Path, shown: Json, folder: Path, seconds: float) -> Called:
    flags = ("--flagfile", made.flags[function])
    expected = [f"--expected-output=@{path}" for path in made.expected[function]]
    run(tracemap("run", bundle, *flags, *expected, "--atol", str(_tolerance(made.module.functions[function]))))
    recorded, sampled, page = (folder / f"{function}{end}" for end in (".parquet", "-sampled.parquet", ".html"))
    steps = {
        "record": own_usage("record", bundle, *flags, "--iterations", str(ITERATIONS), "-o", recorded),
        "record --sample": own_usage("record", bundle, *flags, "--sample", "--seconds", str(seconds), "-o", sampled),
        "attribute": own_usage("attribute", recorded, "--map", bundle, "--format", "json"),
        "attribute --html": own_usage("attribute", sampled, "--map", bundle, "--format", "json", "--html", page),
    }
    timed: Json = json.loads(steps["attribute"].output)
    check_attribution(timed, recorded)
    check_bounds(timed)
    seen: Json = json.loads(steps["attribute --html"].output)
    check_balance(seen, sampled)
    check_page(page, shown["module"]["name"])
    call_ms = timed["run"]["elapsed_ns"] / timed["run"]["iterations"] / 1e6
    parts = shares(timed, shown), shares(seen, shown)
    return Called(function, count_of_run(recorded), call_ms, *parts, page.stat().st_size, steps)


def _tolerance(function: Function) -> float:
    """How far outputs may be from numpy's: what is rounded to f16 in between differs by its last digit."""
    return 1e-2 if any(value.kind == "f16" for value in function.results) else 1e-4


def shares(attribution: Json, shown: Json) -> dict[str, float]:
    """The parts of the processors' time by the evidence of ops, the weakest of each; `no member`: what has none.

    What delayed calls, by chance, is left out: it has a name of its own, and is of no op.
    """
    (cpu,) = (metric for metric in attribution["metrics"] if metric["name"] == "cpu_ns")
    noisy = sum(row["metrics"]["cpu_ns"] for row in attribution["unattributed"] if row["reason"] == OUTLIERS)
    weakest: dict[str, int] = {}
    for site in shown["sites"]:
        for member in site["members"]:
            rank = EVIDENCE.index(member["evidence"])
            weakest[member["op"]] = max(rank, weakest.get(member["op"], 0))
    times = dict.fromkeys(EVIDENCE, 0)
    for op in attribution["ops"]:
        if op["op"] in weakest:
            times[EVIDENCE[weakest[op["op"]]]] += op["metrics"]["cpu_ns"]["attributed"]
    measured = cpu["measured"] - noisy
    return {**{name: ns / measured for name, ns in times.items()}, NO_MEMBER: 1 - sum(times.values()) / measured}


def _telling(parts: Mapping[str, float]) -> float:
    """The part that ops have by a location or fusion."""
    return parts["located"] + parts["fused"]


def print_through(through: Through) -> None:
    """The tables of a network."""
    print(
        f"\n{through.name}: {through.ops:,} ops, {through.sites:,} sites, {through.kernels:,} kernels, "
        f"weights {through.weights_bytes / 1e6:,.0f} MB, bundle {through.bundle_bytes / 1e3:,.0f} kB"
    )
    for called in through.functions:
        page = f"page {called.page_bytes / 1e3:,.0f} kB"
        print(f"  {called.name}: {called.call_ms:,.0f} ms a call, {called.events:,} events in {ITERATIONS}, {page}")
        for how, parts in (("by the rule", called.shares), ("with samples", called.sampled)):
            listed = ", ".join(f"{name} {100 * share:.2f} %" for name, share in parts.items())
            print(f"  time by evidence of ops, {how}: {listed}")
    print(f"  {'':28}{'s':>8}{'own CPU s':>11}{'own MiB':>9}{'programs MiB':>14}")
    _print_steps([("build", through.build)])
    for called in through.functions:
        _print_steps([(f"{step}, {called.name}", used) for step, used in called.steps.items()])


def _print_steps(steps: Sequence[tuple[str, OwnUsage]]) -> None:
    for name, used in steps:
        # The system counts for a program what it was a copy of before it became one: tracemap itself.
        bound = "≤ " if used.programs_mib <= used.peak_mib + 1 else ""
        programs = f"{bound}{used.programs_mib:,.0f}" if used.programs_mib else ""
        print(f"  {name:28}{used.seconds:8.1f}{used.cpu_seconds:11.2f}{used.peak_mib:9,.0f}{programs:>14}", flush=True)
