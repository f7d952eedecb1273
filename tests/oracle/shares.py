"""Are shares inside of a kernel right? Kernels of two parts, of which one is made to do its work twice.

Two kernels differ in one op only. What the rule `measured` says that this op costs more in the one than in the other
must be what the one takes longer than the other. That holds where the parts do not overlap: loops one after the other.
Where a processor does both at once, the share is occupancy, and the table shows how far it is from the marginal cost,
without judging it.

`python -m tests.oracle.shares` prints the table; `make accuracy` calls it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tests.oracle.linalg import Program, epilogue, sum_then_chain
from tests.support import Json, check_cli, json_cli

MOST_ERROR = 0.15
_RATES_HZ = (1499, 1753, 1999)
"""Several, as one of them may fall into step with the calls, which take much the same time each."""
_RUNS = 5
_SIZE = "256x1024"


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel: its model with the work of one op done once and twice, the line of that op, whether parts overlap."""

    name: str
    once: str
    twice: str
    line: int
    iterations: int
    overlaps: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """Per call, in ns: what the kernel takes, what its op is said to cost more when done twice, and what it does."""

    case: Case
    kernel_ns: float
    predicted_ns: float
    measured_ns: float
    samples: int

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return abs(self.predicted_ns - self.measured_ns) / self.measured_ns if self.measured_ns > 0 else float("inf")

    @property
    def missed(self) -> bool:
        """Whether it is further off than it may be."""
        return not self.case.overlaps and self.error > MOST_ERROR


def _case(name: str, once: Program, twice: Program, asked: int, iterations: int, *, overlaps: bool = False) -> Case:
    return Case(name, once.text, twice.text, once.lines[asked], iterations, overlaps)


def cases() -> list[Case]:
    """The kernels: each op's work is done once and twice."""
    found = []
    for function in ("math.tanh", "math.exp", "math.log1p"):
        once, twice = (sum_then_chain(_SIZE, [("math.absf", 1)], [(function, times)]) for times in (1, 2))
        found.append(_case(f"sum, then {function[5:]}", once, twice, 1, 600))
    once, twice = (sum_then_chain(_SIZE, [("math.tanh", times)], [("math.exp", 1)]) for times in (1, 2))
    found.append(_case("sum of tanh, then exp", once, twice, 0, 600))
    # The epilogue of a tile is short: a processor does it while the product of the next tile begins.
    for inner, iterations in ((256, 1500), (16, 4000)):
        once, twice = (epilogue([("math.tanh", times)], inner=inner) for times in (1, 2))
        found.append(_case(f"product (K = {inner}), then tanh", once, twice, 0, iterations, overlaps=True))
    return found


class _Bench:
    """Bundles and runs of a case, in a folder of its own; serial, on one core's caches."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self._folder = folder

    def build(self, name: str, text: str) -> Path:
        """The bundle of a model."""
        model = self._folder / f"{name}.mlir"
        model.write_text(text, encoding="utf-8")
        bundle = model.with_suffix(".tracemap")
        check_cli("build", model, "-o", bundle)
        return bundle

    def costs(self, bundle: Path, longer: int, *sampling: str) -> Json:
        """What attribution says of one more run, that has so many times as many iterations."""
        run = self._folder / "run.parquet"
        flags = ("--serial", "--iterations", str(self._case.iterations * longer), "--warmup", "20", "--force")
        check_cli("record", bundle, "-o", run, *flags, *sampling)
        return json_cli("attribute", run, "--map", bundle)


def measure(case: Case) -> Outcome:
    """Compare a case's prediction with what doing its op's work twice costs.

    Raises:
        ValueError: the compiler did not make one kernel of the model.
    """
    with tempfile.TemporaryDirectory(prefix="tracemap-shares-") as folder:
        bench = _Bench(case, Path(folder))
        once, twice = bench.build("once", case.once), bench.build("twice", case.twice)
        times: dict[Path, list[float]] = {once: [], twice: []}
        for _ in range(_RUNS):  # in turn, so that what slows the machine down slows both
            for bundle, found in times.items():
                found.append(_kernel_ns(bench.costs(bundle, 1)))
        # What disturbs a run makes it slower: the least of several is what the kernel takes.
        takes = {bundle: min(found) for bundle, found in times.items()}
        shares = {bundle: _share(bench, bundle, case) for bundle in times}
    said = {bundle: share * takes[bundle] for bundle, (share, _) in shares.items()}
    samples = sum(samples for _, samples in shares.values())
    return Outcome(case, takes[once], said[twice] - said[once], takes[twice] - takes[once], samples)


def _share(bench: _Bench, bundle: Path, case: Case) -> tuple[float, int]:
    """The part of the kernel that is said to be the case's op's, and how many samples say so."""
    op, share, samples = _op_on(bundle, case.line), 0.0, 0
    for rate in _RATES_HZ:
        costs = bench.costs(bundle, 2, "--sample", str(rate))
        seen = next(int(metric["attributed"]) for metric in costs["metrics"] if metric["name"] == "samples")
        share += _share_of(costs, op) * seen
        samples += seen
    return share / samples, samples


def _kernel_ns(costs: Json) -> float:
    """The median call of the only site.

    Raises:
        ValueError: there are several.
    """
    if len(costs["sites"]) != 1:
        raise ValueError(f"{len(costs['sites'])} kernels where one was to be: nothing is fused")
    return float(costs["sites"][0]["metrics"]["cpu_ns"]["per_call"]["median"])


def _op_on(bundle: Path, line: int) -> str:
    shown = json_cli("show", bundle)
    return next(str(op["id"]) for op in shown["ops"] if op["line"] == line)


def _share_of(costs: Json, op: str) -> float:
    """An op's share of the kernel's time."""
    (total,) = (metric for metric in costs["sites"][0]["metrics"].items() if metric[0] == "cpu_ns")
    mine = next(each for each in costs["ops"] if each["op"] == op)
    return float(mine["metrics"]["cpu_ns"]["attributed"] / total[1]["total"])


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    rows = [
        "| kernel | time | predicted increase if its op runs twice | measured increase | error | samples |",
        "|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        error = f"{100 * each.error:.0f} %" + (" (overlaps)" if each.case.overlaps else "")
        times = " | ".join(f"{ns / 1000:.1f} µs" for ns in (each.kernel_ns, each.predicted_ns, each.measured_ns))
        rows.append(f"| {each.case.name} | {times} | {error} | {each.samples} |")
    return "\n".join(rows)


@click.command()
def main() -> None:
    """Print the table; status 1 where a prediction is too far off."""
    outcomes = []
    for case in cases():
        print(f"{case.name} …", file=sys.stderr)
        outcomes.append(measure(case))
    print(table(outcomes))
    missed = [each.case.name for each in outcomes if each.missed]
    if missed:
        print(f"further off than {MOST_ERROR:.0%}: {', '.join(missed)}", file=sys.stderr)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
