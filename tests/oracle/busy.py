"""Whether costs of ops stand on a busy machine: `python -m tests.oracle.busy --recordings 20`.

A model of four equal layers, that of `make demo`, is recorded as it is there, while two processes spin and while none
does, in turn. Ops that do the same in each layer are a group of equal ops; one that has no equal is none. The same five
groups must lead every time, and of two of them of which one costs more in each quiet recording, that one must. Ops of a
group must not lie further apart than in quiet recordings, and no op of more than a hundredth of the whole may have
another share of it than in the quiet recordings right before and right behind. Those of other minutes tell less: a
virtual machine shares caches and cores with others, so that shares drift by more than what is looked for. By how much
quiet recordings differ from the quiet ones around them is told beside, and judges nothing: where that is more than what
is allowed, the machine is no place to look.

Recordings run the program ahead of others where the system allows it. There it is recorded on the busy machine with
`--nice 0` as well, which is told beside and judges nothing: what others leave of the caches makes kernels slower that
live by them, in all of their calls, so that shares change in truth.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path

import click

from tests.documents import DOCS, write_part
from tests.support import SAMPLES, Json, command_line
from tracemap.capture.noise import niceness_to_run_at
from tracemap.core.units import UNKNOWN

_MODEL = "jax_gpt2_4l"
_LEADING = 5
_SPINNING = 2
_QUIET = "quiet"
BUSY = "busy"
BESIDE = "busy, --nice 0"
WITHOUT, WITH = "without noise", "with it"

MOST_APART = 0.10
"""By how much more the ops of a group may lie apart on a busy machine, of their mean."""
MOST_CHANGE = 0.15
"""By how much the share of an op may differ from that in the quiet recordings around, of itself."""
_LARGE = 0.01

Group = tuple[str, ...]
Shares = Mapping[str, float]
"""Of the work of all ops, by op."""


@dataclass(frozen=True)
class Judged:
    """What recordings on a busy machine tell beside quiet ones."""

    same_leaders: int
    """Recordings in which the same groups lead."""
    same_order: int
    """Recordings that keep what all quiet ones say of the order of these groups."""
    same_places: int
    """Recordings that keep the order of all, those too that change places among quiet ones; judges nothing."""
    recordings: int
    apart_quiet: float
    apart_busy: float
    change_quiet: float
    """Of quiet recordings, each laid against those around it."""
    change: float

    @property
    def missed(self) -> bool:
        """Whether a target is."""
        ranked = self.same_leaders == self.same_order == self.recordings
        apart = self.apart_busy > self.apart_quiet + MOST_APART
        return not ranked or apart or self.change > MOST_CHANGE


def judge(groups: Mapping[Group, Sequence[str]], quiet: Sequence[Shares], busy: Sequence[Shares]) -> Judged:
    """Compare recordings, made in turn: a quiet one more than busy ones.

    Which groups lead and which ops are large is told by the median of quiet ones, op by op.
    """
    usual = {op: statistics.median(each[op] for each in quiet) for op in quiet[0]}
    leading = leaders(groups, usual)
    agreed = frozenset.intersection(*(order(groups, leading, each) for each in quiet))
    large = [op for op, share in usual.items() if share > _LARGE]
    return Judged(
        same_leaders=sum(set(leaders(groups, each)) == set(leading) for each in busy),
        same_order=sum(agreed <= order(groups, leading, each) for each in busy),
        same_places=sum(leaders(groups, each) == leading for each in busy),
        recordings=len(busy),
        apart_quiet=max(apart(groups, leading, each) for each in quiet),
        apart_busy=max(apart(groups, leading, each) for each in busy),
        change_quiet=change(large, quiet[1:-1], zip(quiet, quiet[2:], strict=False)),
        change=change(large, busy, pairwise(quiet)),
    )


def leaders(groups: Mapping[Group, Sequence[str]], shares: Shares) -> list[Group]:
    """The groups that cost most, the costliest first."""
    return sorted(groups, key=lambda group: -cost(groups[group], shares))[:_LEADING]


def order(
    groups: Mapping[Group, Sequence[str]], among: Sequence[Group], shares: Shares
) -> frozenset[tuple[Group, Group]]:
    """Of each two of these groups, which one costs more than which other."""
    costs = {group: cost(groups[group], shares) for group in among}
    return frozenset((more, less) for more, less in permutations(among, 2) if costs[more] > costs[less])


def cost(ops: Sequence[str], shares: Shares) -> float:
    """What a group costs, of the work of all ops."""
    return sum(shares[op] for op in ops)


def apart(groups: Mapping[Group, Sequence[str]], among: Sequence[Group], shares: Shares) -> float:
    """How far the ops of a group lie apart, of their mean; of that group of which they do most."""
    found = ([shares[op] for op in groups[group]] for group in among)
    return max((max(each) - min(each)) / statistics.mean(each) for each in found)


def change(ops: Sequence[str], shares: Sequence[Shares], around: Iterable[tuple[Shares, Shares]]) -> float:
    """By how much the share of an op differs at most from its mean in the recordings before and behind; 0: of none."""
    return max(
        (
            abs(each[op] / statistics.mean((before[op], behind[op])) - 1)
            for each, (before, behind) in zip(shares, around, strict=True)
            for op in ops
        ),
        default=0.0,
    )


def equal_ops(shown: Json) -> dict[Group, list[str]]:
    """Ops of one name and scope, but for the number of the layer, at the same place in sites of the same kernels."""
    kernel_of = {each["id"]: each["kernel"] for each in shown["sites"]}
    found: dict[Group, list[str]] = defaultdict(list)
    alike: Counter[Group] = Counter()
    for op in shown["ops"]:
        if op["sites"]:
            scope = re.sub(r"\d+", "*", "/".join(op["scope"]))
            own: Group = (op["name"], *op["sites"])
            found[op["name"], scope, str(alike[own]), *(kernel_of[place] for place in op["sites"])].append(op["id"])
            alike[own] += 1
    return {group: ops for group, ops in found.items() if len(ops) > 1}


def shares_of(result: Json) -> Shares:
    """The share of each op of all that is attributed."""
    costs = {op["op"]: op["metrics"]["cpu_ns"]["attributed"] for op in result["ops"]}
    whole = sum(costs.values())
    return {op: cost / whole for op, cost in costs.items()}


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """So many processes that always have something to do, each in a session of its own, as those of others are."""
    spin = (sys.executable, "-c", "while True: pass")
    others = [subprocess.Popen(spin, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def _run(*words: str | Path) -> str:
    return subprocess.run(command_line(*words), check=True, capture_output=True, text=True, cwd=SAMPLES).stdout


def _record(bundle: Path, run: Path, others: int, *words: str) -> None:
    with spinning(others):
        flags = SAMPLES / "flags" / f"{_MODEL}.flags"
        _run("record", bundle, "--flagfile", flags, "--force", "-o", run, *words)


Found = Mapping[tuple[str, str], Judged]
"""By the kind of recordings, and whether costs are with what delayed them."""


def is_missed(found: Found) -> bool:
    """Whether a target is, of recordings at defaults."""
    return found[BUSY, WITHOUT].missed


def measure(recordings: int, folder: Path) -> Found:
    """What holds with and without fences, on the same recordings."""
    bundle = folder / f"{_MODEL}.tracemap"
    _run("build", f"models/{_MODEL}.mlir", "--force", "-o", bundle)
    groups = equal_ops(json.loads(_run("show", bundle, "--format", "json")))
    kinds: dict[str, tuple[int, tuple[str, ...]]] = {_QUIET: (0, ()), BUSY: (_SPINNING, ())}
    if niceness_to_run_at(UNKNOWN) is not UNKNOWN:
        kinds[BESIDE] = (_SPINNING, ("--nice", "0"))
    found: dict[tuple[str, str], list[Shares]] = defaultdict(list)
    for number, kind in enumerate((*tuple(kinds) * recordings, _QUIET)):
        run = folder / f"{number:02}.parquet"
        others, words = kinds[kind]
        _record(bundle, run, others, *words)
        for costs, flags in ((WITHOUT, ()), (WITH, ("--keep-outliers",))):
            result = json.loads(_run("attribute", run, "--map", bundle, "--format", "json", *flags))
            found[kind, costs].append(shares_of(result))
    return {
        (kind, costs): judge(groups, found[_QUIET, costs], found[kind, costs])
        for kind, costs in found
        if kind != _QUIET
    }


def table(judged: Found) -> str:
    """The judgements as a table of Markdown."""
    heads = [
        "same five groups lead",
        "in the order that all quiet ones agree on",
        "in the full order",
        "spread of equal ops: quiet",
    ]
    rows = [f"| recordings | costs | {' | '.join(heads)} | busy | change of shares: quiet | busy |", "|---" * 9 + "|"]
    for (kind, costs), each in judged.items():
        leading = f"{each.same_leaders} of {each.recordings} | {each.same_order} | {each.same_places}"
        told = (each.apart_quiet, each.apart_busy, each.change_quiet, each.change)
        numbers = " | ".join(f"{number:.0%}" for number in told)
        rows.append(f"| {kind} | {costs} | {leading} | {numbers} |")
    return "\n".join(rows)


@click.command()
@click.option("--recordings", type=click.IntRange(1), default=20, show_default=True, help="Of either kind.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, exists=True),
    help="Leave what was recorded in this folder.",
)
@click.option("--write-docs", is_flag=True, help="Put the table into docs/accuracy.md.")
def main(recordings: int, keep: Path | None, *, write_docs: bool) -> None:
    """Print the table; status 1 where a target is missed."""
    with tempfile.TemporaryDirectory(prefix="tracemap-busy-") as folder:
        judged = measure(recordings, keep or Path(folder))
    print(table(judged))
    if write_docs:
        write_part(DOCS / "accuracy.md", "busy", table(judged))
    sys.exit(is_missed(judged))


if __name__ == "__main__":
    main()
