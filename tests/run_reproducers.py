"""Programs whose truth is known, through the real command line: `make reproducers REPRODUCERS=FOLDER`.

Beside each `NAME.mlir` lies its truth, `NAME.json`, as a plain compile tells it without any location: on which kernels
the op of a line works, its possible outcomes, how often it runs. Prints what holds of each program and what does not;
ends with status 1 where anything does not. A truth may name outcomes as earlier maps did (`fates`).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.checks import OWNERLESS
from tests.support import ROOT, Json, check_cli, json_cli
from tracemap.core.units import plural

PROGRAMS = ROOT / "tests" / "programs" / "reproducers"
_OF_THE_STREAM_PHASE = ("_encoding_", "__builtin_")
"""How the compiler names the kernels that it adds after the flow phase, whose dispatches the truth counts as sites."""

_OUTCOMES = {
    "transfer": "copy",
    "load_time": "load-time",
    "constant": "constant-folded",
    "folded": "fused-into-indexing",
}
"""By their names in earlier maps."""
_MODES: Mapping[str, tuple[Callable[[set[str], set[str]], bool], str]] = {
    "in": (lambda found, wanted: found == wanted, "exactly"),
    "has": (lambda found, wanted: found >= wanted, "at least"),
    "sub": (lambda found, wanted: bool(found) and found <= wanted, "some and no other of"),
}
"""How the kernels that an op is found in are compared with those of the truth."""


_LOOKING_INSIDE: Mapping[str, tuple[str, ...]] = {
    "sample": ("--iterations", "6000", "--sample", "1999", "--serial"),
    "sim": ("--iterations", "3", "--cache-sim", "--serial"),
    "model": ("--iterations", "2000", "--serial"),  # as `attribute` splits it where nobody asked for anything
}


def main(folder: Path) -> int:
    """Try every program, print a line for each and what does not hold; returns the exit status."""
    programs = sorted(folder.glob("*.json"))
    if not programs:
        print(f"{folder}: no truth (*.json) here", file=sys.stderr)
        return 2
    failures = 0
    for truth in programs:
        wrong = list(differences(truth))
        failures += bool(wrong)
        print(f"{truth.stem}: {'holds' if not wrong else plural(len(wrong), 'difference')}", flush=True)
        print("".join(f"  {each}\n" for each in wrong), end="", flush=True)
    print(f"\n{plural(len(programs), 'program')}, {failures} wrong")
    return 1 if failures else 0


def differences(path: Path) -> Iterator[str]:
    """What a program's map and runs say otherwise than its truth; nothing where all of it holds."""
    truth: Json = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="tracemap-reproducer-") as work:
        bundle = Path(work, "program.tracemap")
        check_cli("build", path.with_suffix(".mlir"), "-o", bundle, "--", *truth["flags"])
        shown = json_cli("show", bundle)
        yield from _differences_of_map(truth, shown)
        for name, run in truth.get("runs", {}).items():
            table = Path(work, f"{name}.parquet")
            check_cli("record", bundle, *run["args"], "--iterations", "3", "-o", table)
            for text in _differences_of_run(run["calls"], shown, json_cli("attribute", table, "--map", bundle)):
                yield f"run {name}: {text}"
        for name, inside in truth.get("inside", {}).items():
            table = Path(work, f"{name}.inside.parquet")
            check_cli("record", bundle, *inside["args"], *_LOOKING_INSIDE[inside["how"]], "-o", table)
            for text in differences_inside(inside["shares"], json_cli("attribute", table, "--map", bundle)):
                yield f"run {name}: {text}"


def _differences_of_map(truth: Json, shown: Json) -> Iterator[str]:
    kernels = [kernel["name"] for kernel in shown["kernels"]]
    if "kernels" in truth and sorted(kernels) != sorted(truth["kernels"]):
        yield f"kernels {_listed(kernels)}, should be {_listed(truth['kernels'])}"
    flow_sites = [site for site in shown["sites"] if not site["kernel"].startswith(_OF_THE_STREAM_PHASE)]
    if "sites" in truth and len(flow_sites) != truth["sites"]:
        yield f"{plural(len(flow_sites), 'site')}, should be {truth['sites']}"
    for site in shown["sites"]:
        if not site["members"]:
            yield f"{site['id']} {site['kernel']} has no member"
    kernel_of = {site["id"]: site["kernel"] for site in shown["sites"]}
    for wanted in truth["ops"]:
        yield from _differences_of_op(wanted, _ops_at(shown, str(wanted["line"])), kernel_of)


def _differences_of_op(wanted: Json, ops: list[Json], kernel_of: Mapping[str, str]) -> Iterator[str]:
    where = f"line {wanted['line']} {' '.join(op['name'] for op in ops)}"
    if not ops:
        yield f"{where}: no op"
        return
    found = {kernel_of[site] for op in ops for site in op["sites"]}
    if "mode" in wanted:
        holds, words = _MODES[wanted["mode"]]
        if not holds(found, set(wanted["kernels"])):
            yield f"{where}: works in {_listed(found)}, should be in {words} {_listed(wanted['kernels'])}"
    outcomes = {op["outcome"] for op in ops}
    possible = [_OUTCOMES.get(name, name) for name in wanted.get("outcomes") or wanted.get("fates", [])]
    if possible and not outcomes & set(possible):
        yield f"{where}: {_listed(outcomes)}, should be one of {_listed(possible)}"


def _differences_of_run(calls: Mapping[str, int], shown: Json, attribution: Json) -> Iterator[str]:
    for row in attribution["unattributed"]:
        if row["reason"] in OWNERLESS:
            yield f"{row['metrics']['cpu_ns']} ns {row['reason']}"
    found = {op["op"]: op["calls"] for op in attribution["ops"]}
    iterations = attribution["run"]["iterations"]
    for line, wanted in calls.items():
        called = max((found.get(op["id"], 0) for op in _ops_at(shown, line)), default=0)
        if called != wanted * iterations:
            yield f"line {line}: {called / iterations:g} calls per invocation, should be {wanted}"


def differences_inside(wanted: Sequence[tuple[int | list[int], str, float, float]], attribution: Json) -> Iterator[str]:
    """Shares of a metric that the ops of a line, or of several together, have of what all ops have."""
    for asked, metric, least, most in wanted:
        lines = asked if isinstance(asked, list) else [asked]
        costs = [(op["line"], op["metrics"][metric]["attributed"]) for op in attribution["ops"]]
        share = sum(cost for at, cost in costs if at in lines) / (sum(cost for _, cost in costs) or 1)
        if not least <= share <= most:
            where = " and ".join(map(str, lines))
            yield f"line {where}: {share:.0%} of {metric}, should be {least:.0%} to {most:.0%}"


def _ops_at(shown: Json, line: str) -> list[Json]:
    """The ops that begin on a line."""
    return [op for op in shown["ops"] if str(op["line"]) == line]


def _listed(names: object) -> str:
    assert isinstance(names, (list, set))
    return ", ".join(sorted(names)) or "none"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PROGRAMS))
