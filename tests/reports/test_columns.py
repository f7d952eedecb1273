"""Every column of every cost table, computed again from a run's rows in plain Python.

A column without an entry in `EXPECTED` fails its test: a new one brings a few lines here.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Final

import duckdb
import pytest
from msgspec import structs

from tests.attribution.test_invocations import expected as distribution
from tests.attribution.test_outliers import fence
from tests.builders import MODEL, graph, op, site
from tracemap.attribution.attribute import Request, attribute
from tracemap.attribution.model import Attribution, Errors
from tracemap.attribution.numeric_errors import with_errors
from tracemap.core.diagnostics import Diagnostic
from tracemap.map.model import SourceFile, TraceGraph
from tracemap.options.results import AttributeOptions, Rule
from tracemap.reports.cost_lookup import MapCosts
from tracemap.reports.views.costs import TEXT, Cell, Column, View
from tracemap.reports.views.selection import VIEWS, selected_costs
from tracemap.runs.model import CACHE_SIMULATED, UNKNOWN_HEADER
from tracemap.runs.runfile import read_run, write_run

pytestmark = pytest.mark.quick

INVOCATIONS: Final = 40
WORKERS: Final = 2
LINE, SIMULATED_LINE = 128, 64
TIMES = ("cpu_ns", "duration_ns")
EXECUTE_NS, COVERED_NS = 80, 40
COUNTED = ("instructions", "cache-misses")
SIMULATED = ("Ir", "ILmr", "D1mr", "DLmr", "DLmw")

Row = dict[str, int | str | bool]


@dataclass(frozen=True)
class Told:
    """What the test says of an op: its line, name, scope, lines of Python from the inside out, and pass."""

    line: int
    name: str
    scope: tuple[str, ...]
    frames: tuple[int, ...]
    step: str = ""
    plain: str = "h0"
    """The scope without the names that JAX adds."""


OPS: Final = {
    "op1": Told(1, "a.dot", ("h0",), (5, 20)),
    "op2": Told(1, "a.add", ("transpose(jvp(h0))", "x"), (5, 21), "backward", "h0/x"),
    "op3": Told(2, "a.add", ("jvp(h0)",), (7, 22), "forward"),
    "op4": Told(3, "b.neg", (), (), plain="(no scope)"),
    "op5": Told(4, "stablehlo.tanh", ("transpose(jvp(h0))", "checkpoint", "rematted_computation"), (), "recompute"),
    "op6": Told(4, "b.neg", ("adam",), (), "optimizer", "adam"),
}
"""Line 5 of Python is called from two lines, so it is a shared helper's."""
SITES: Final = {
    "site0": ("k0", ("op1", "op2")),
    "site1": ("k1", ("op2",)),
    "site2": ("k1", ("op3", "op4", "op2")),
    "site3": ("k2", ("op5", "op6")),
}
"""Kernel and members, the first of which is the root."""
CALLS: Final = {"site0": 1, "site1": 2, "site2": 1, "site3": 1}
"""In each invocation."""
TILES: Final = {"site0": (4, 2, 1), "site1": (3, 1, 1), "site2": (5, 1, 2), "site3": (1, 1, 1)}

ERRORS: Final = {"site0": (3, 4), "site1": (7, 7), "site2": (1, 9)}
"""Errors of dispatches, isolated and accumulated; the others were not compared."""


def made_rows() -> list[Row]:
    """Calls of which some were noisy, and what a simulator saw in one invocation; counts divide by all members."""
    chance, rows = random.Random(7), list[Row]()
    for invocation in range(INVOCATIONS):
        for place, (kernel, _) in SITES.items():
            for _ in range(CALLS[place]):
                wall = chance.randint(9_000, 11_000)
                waited = 5_000_000 if invocation % 17 == 3 and place == "site0" else 0
                row: Row = {"kind": "dispatch", "site": place, "kernel": kernel, "invocation": invocation}
                row |= {"warmup": False, "duration_ns": wall + waited, "start_ns": len(rows) * 1000}
                row |= {"cpu_ns": chance.randint(wall, 2 * wall) + waited}
                row |= dict(zip(("workgroups_x", "workgroups_y", "workgroups_z"), TILES[place], strict=True))
                row |= {"instructions": 6 * chance.randint(200, 400), "cache-misses": 6 * chance.randint(0, 15)}
                rows.append(row)
        # Half of the submission is what its dispatches' own rows have already.
        own = {"duration_ns": EXECUTE_NS, "covered_ns": COVERED_NS}
        rows.append({"kind": "execute", "invocation": invocation, "warmup": False, **own})
    for place, (kernel, _) in SITES.items():
        counts = {name: 6 * chance.randint(1, 900) for name in SIMULATED}
        rows.append({"kind": "step", "site": place, "kernel": kernel, "warmup": False, "step": 1, **counts})
    return rows


def the_graph() -> TraceGraph:
    ops = [
        op(number, told.line, name=told.name, scope=told.scope, frames=[("net.py", line) for line in told.frames])
        for number, told in enumerate(OPS.values(), start=1)
    ]
    sites = [
        site(number, *(int(member[2:]) for member in members), kernel=kernel)
        for number, (kernel, members) in enumerate(SITES.values())
    ]
    sources = (MODEL, SourceFile(name="net.py", path="net.py", language="python"))
    return graph(ops, sites, sources=sources)


def attributed(folder: Path, rows: Sequence[Row]) -> Attribution:
    header = structs.replace(
        UNKNOWN_HEADER,
        function="main",
        workers=WORKERS,
        iterations=INVOCATIONS,
        line_bytes=LINE,
        simulated_line_bytes=SIMULATED_LINE,
        diagnostics=(Diagnostic(CACHE_SIMULATED, "one call"),),
    )
    names = list(dict.fromkeys(name for row in rows for name in row))
    types = {"kind": "VARCHAR", "site": "VARCHAR", "kernel": "VARCHAR", "warmup": "BOOLEAN"}
    with duckdb.connect() as connection:
        columns = ", ".join(f'"{name}" {types.get(name, "BIGINT")}' for name in names)
        connection.execute(f"CREATE TABLE events ({columns})")
        cells = [[row.get(name) for name in names] for row in rows]
        connection.executemany(f"INSERT INTO events VALUES ({', '.join('?' * len(names))})", cells)
        write_run(header, connection.table("events"), folder / "run.parquet", force=False)
    result = attribute(Request(the_graph(), "cd" * 32, [read_run(folder / "run.parquet")], Rule.EQUAL))
    return with_errors(result, {place: Errors(*error) for place, error in ERRORS.items()})


# ---- the truth


class Truth:
    """What the rows say, by the rule that all members of a site have the same."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.calls = {place: [row for row in rows if row.get("site") == place and "cpu_ns" in row] for place in SITES}

    def values(self, place: str, metric: str) -> list[int]:
        """Of single calls; of what is simulated, the one value."""
        return [int(row[metric]) for row in self.rows if row.get("site") == place and metric in row]

    def worked(self, place: str, metric: str) -> list[int]:
        """The same, without what lies beyond the fence."""
        values = self.values(place, metric)
        return [min(value, int(fence(values))) for value in values] if metric in TIMES else values

    def of_site(self, place: str, metric: str) -> Fraction:
        return Fraction(sum(self.worked(place, metric)))

    def of_op(self, name: str, metric: str, places: Iterable[str] = SITES) -> Fraction:
        own = [place for place in places if name in SITES[place][1]]
        return sum((self.of_site(place, metric) / len(SITES[place][1]) for place in own), Fraction())

    def of_ops(self, names: Iterable[str], metric: str) -> Fraction:
        return sum((self.of_op(name, metric) for name in names), Fraction())

    @cached_property
    def whole(self) -> Mapping[str, Fraction]:
        """All work by metric: of sites, and the half of submissions in which nothing ran."""
        metrics = (*TIMES, *COUNTED, *SIMULATED)
        found = {metric: sum((self.of_site(place, metric) for place in SITES), Fraction()) for metric in metrics}
        return {**found, "duration_ns": found["duration_ns"] + 40 * INVOCATIONS}

    def shares(self, name: str, metric: str) -> list[Fraction]:
        """What an op has in each invocation."""
        found: dict[int, Fraction] = defaultdict(Fraction, dict.fromkeys(range(INVOCATIONS), Fraction()))
        for place, (_, members) in SITES.items():
            if name in members:
                for row, value in zip(self.calls[place], self.worked(place, metric), strict=True):
                    found[int(row["invocation"])] += Fraction(value, len(members))
        return list(found.values())


Amount = Callable[[str], Fraction]
"""The sum of a metric over what a row is of."""


def divisor(metric: str) -> int:
    return 1 if metric in SIMULATED else INVOCATIONS


def common(amount: Amount, truth: Truth) -> dict[str, Fraction]:
    """The columns of costs that all views have, per invocation."""
    found = {metric: amount(metric) / divisor(metric) for metric in (*TIMES, *COUNTED, *SIMULATED)}
    found["share"] = 100 * amount("cpu_ns") / truth.whole["cpu_ns"]
    for misses in ("ILmr", "D1mr", "DLmr", "DLmw"):
        found[f"{misses}/Ir"] = 1000 * amount(misses) / amount("Ir")
    found["cache-misses/instructions"] = 1000 * amount("cache-misses") / amount("instructions")
    found["LL-bytes"] = SIMULATED_LINE * (found["ILmr"] + found["DLmr"] + found["DLmw"])
    found["cache-bytes"] = LINE * found["cache-misses"]
    return found


Cells = Mapping[str, Fraction | str]
"""A row by the keys of columns; what is not there has no value."""


def errors_of(places: Iterable[str]) -> dict[str, Fraction]:
    """The largest errors of dispatches."""
    own = [ERRORS[place] for place in places if place in ERRORS]
    return dict(zip(("error", "accumulated"), map(Fraction, map(max, zip(*own, strict=True))), strict=False))


def places_of(names: Iterable[str]) -> list[str]:
    return [place for place, (_, members) in SITES.items() if {*members} & {*names}]


def of_ops(names: Sequence[str], truth: Truth) -> dict[str, Fraction | str]:
    costs = common(lambda metric: truth.of_ops(names, metric), truth)
    by_cost = sorted(names, key=lambda name: -truth.of_op(name, "cpu_ns"))
    short = [OPS[name].name.removeprefix("stablehlo.") for name in by_cost]
    return {
        **{**costs, "ops": Fraction(len(names)), "names": and_more(short)},
        **of_passes(names, truth),
        **errors_of(places_of(names)),
    }


def of_passes(names: Sequence[str], truth: Truth) -> dict[str, Fraction | str]:
    steps = [step for step in ("forward", "backward", "recompute", "optimizer") if step in {OPS[n].step for n in names}]
    if not steps:
        return {}
    costs: dict[str, Fraction | str] = {
        step: truth.of_ops([n for n in names if OPS[n].step == step], "cpu_ns") / INVOCATIONS for step in steps
    }
    return {"pass": "+".join(steps), **costs}


def and_more(texts: Sequence[str]) -> str:
    different = list(dict.fromkeys(texts))
    return different[0] + (f" +{len(different) - 1}" if len(different) > 1 else "")


def op_rows(truth: Truth) -> dict[str, Cells]:
    found: dict[str, Cells] = {}
    for name, told in OPS.items():
        places = [place for place, (_, members) in SITES.items() if name in members]
        sole = [place for place in places if SITES[place][1] == (name,)]
        whole = sum((truth.of_site(place, "cpu_ns") for place in places), Fraction())
        spread = distribution(truth.shares(name, "cpu_ns"))
        assert None not in spread.values()
        found[name] = {
            **{"op": name, "line": f"model.mlir:{told.line}", "scope": "/".join(told.scope)},
            **{"name": told.name.removeprefix("stablehlo."), "pass": told.step},
            "python": f"net.py:{told.frames[0]}" if told.frames else "",
            "calls": Fraction(sum(CALLS[place] for place in places)),
            **common(lambda metric, name=name: truth.of_op(name, metric), truth),  # type: ignore[misc] # bound at once
            **{key: value for key, value in spread.items() if value is not None},
            **errors_of(places),
            "inclusive": whole / INVOCATIONS,
            "high": whole / INVOCATIONS,
            "low": sum((truth.of_site(place, "cpu_ns") for place in sole), Fraction()) / INVOCATIONS,
        }
    return found


def line_rows(truth: Truth) -> dict[str, Cells]:
    groups = grouped(lambda told: [f"model.mlir:{told.line}"])
    scopes = {key: and_more(["/".join(OPS[name].scope) for name in names]) for key, names in groups.items()}
    return {key: {"line": key, "scope": scopes[key], **of_ops(names, truth)} for key, names in groups.items()}


def name_rows(truth: Truth) -> dict[str, Cells]:
    groups = grouped(lambda told: [told.name.removeprefix("stablehlo.")])
    return {key: {"name": key, **of_ops(names, truth)} for key, names in groups.items()}


def grouped(keys: Callable[[Told], Iterable[str]]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name, told in OPS.items():
        for key in dict.fromkeys(keys(told)):
            found[key].append(name)
    return dict(found)


def frames_of(told: Told) -> list[str]:
    return [f"net.py:{line}" for line in told.frames] or ["(no frame)"]


def python_rows(truth: Truth) -> dict[str, Cells]:
    """Lines of which no op is made have nothing but what is below them."""
    own = grouped(lambda told: frames_of(told)[:1])
    found: dict[str, Cells] = {}
    for key, around in grouped(frames_of).items():
        below = truth.of_ops(around, "cpu_ns") / INVOCATIONS
        cells = of_ops(own[key], truth) if key in own else {"ops": Fraction(), "cpu_ns": Fraction()}
        found[key] = {"line": key, "function": "" if key == "(no frame)" else "–", **cells, "inclusive": below}
    return found


def caller_rows(truth: Truth) -> dict[str, Cells]:
    groups = grouped(lambda told: [next((at for at in frames_of(told) if at != "net.py:5"), "")])
    return {
        key: {"line": key, "function": "" if key == "(no frame)" else "–", **of_ops(names, truth)}
        for key, names in groups.items()
    }


def source_rows(truth: Truth) -> dict[str, Cells]:
    groups = grouped(lambda told: frames_of(told)[:1] if told.frames else [f"model.mlir:{told.line}"])
    return {
        key: {
            "line": key,
            "function": "" if key.startswith("model.mlir") else "–",
            "kernel": kernels_of(names, truth),
            **of_ops(names, truth),
        }
        for key, names in groups.items()
    }


def kernels_of(names: Sequence[str], truth: Truth) -> str:
    costs: Counter[str] = Counter()
    for place, (kernel, members) in SITES.items():
        if own := len({*names} & {*members}):
            costs[kernel] += float(own * truth.of_site(place, "cpu_ns") / len(members))  # type: ignore[assignment] # costs
    return and_more([kernel for kernel, _ in costs.most_common()])


def scope_rows(truth: Truth) -> dict[str, Cells]:
    own = grouped(lambda told: [told.plain])
    return {
        key: {
            "scope": key,
            "own": truth.of_ops(own.get(key, []), "cpu_ns") / INVOCATIONS,
            **of_ops(names, truth),
        }
        for key, names in grouped(lambda told: [told.plain, "h0"] if told.plain == "h0/x" else [told.plain]).items()
    }


def pass_rows(truth: Truth) -> dict[str, Cells]:
    groups = grouped(lambda told: [told.step or "(no pass)"])
    return {key: {**of_ops(names, truth), "pass": key} for key, names in groups.items()}


def function_rows(truth: Truth) -> dict[str, Cells]:
    """The frames tell no function, so that all ops with frames are made by one that is unknown."""
    groups = grouped(lambda told: ["–" if told.frames else "main"])
    return {
        key: {
            **{"function": key, "file": "net.py" if key == "–" else ""},
            **of_ops(names, truth),
            "inclusive": truth.of_ops(names, "cpu_ns") / INVOCATIONS,
        }
        for key, names in groups.items()
    }


def site_rows(truth: Truth) -> dict[str, Cells]:
    found: dict[str, Cells] = {}
    for place, (kernel, members) in SITES.items():
        told, measured = OPS[members[0]], sorted(truth.values(place, "cpu_ns"))
        work = {metric: truth.of_site(place, metric) for metric in TIMES}
        ranks = {"p10": 10, "median": 50, "p90": 90}
        x, y, z = TILES[place]
        found[place] = {
            "site": place,
            "kernel": kernel,
            **{"root": f"{members[0]} {told.name}", "line": f"model.mlir:{told.line}"},
            "calls": Fraction(CALLS[place]),
            **common(lambda metric, place=place: truth.of_site(place, metric), truth),  # type: ignore[misc] # bound at once
            "outliers": (sum(measured) - work["cpu_ns"]) / INVOCATIONS,
            **{key: Fraction(measured[-(-len(measured) * rank // 100) - 1]) for key, rank in ranks.items()},
            "slowest": Fraction(max(truth.values(place, "duration_ns"))),
            "imbalance": Fraction(round(100 * WORKERS * work["duration_ns"] / work["cpu_ns"]), 100),
            "tiles": Fraction(x * y * z),
            **errors_of([place]),
        }
    return found


def kernel_rows(truth: Truth) -> dict[str, Cells]:
    found: dict[str, Cells] = {}
    for kernel in dict.fromkeys(kernel for kernel, _ in SITES.values()):
        places = [place for place, (own, _) in SITES.items() if own == kernel]

        def of_kernel(metric: str, places: Sequence[str] = tuple(places)) -> Fraction:
            return sum((truth.of_site(place, metric) for place in places), Fraction())

        found[kernel] = {
            "kernel": kernel,
            "root": OPS[SITES[places[0]][1][0]].name,
            "sites": Fraction(len(places)),
            "calls": Fraction(sum(CALLS[place] for place in places)),
            **common(of_kernel, truth),
            **errors_of(places),
        }
    return found


EXPECTED: Final[Mapping[str, Callable[[Truth], Mapping[str, Cells]]]] = {
    "op": op_rows,
    "line": line_rows,
    "python": python_rows,
    "source": source_rows,
    "caller": caller_rows,
    "function": function_rows,
    "scope": scope_rows,
    "pass": pass_rows,
    "kernel": kernel_rows,
    "site": site_rows,
    "name": name_rows,
}
OF_SAMPLES: Final = ("likely_low", "likely_high", "uncertain")
"""Columns of runs with samples in kernels; `tests/attribution/test_kernel_lines.py` has tests of their own."""
OF_TIMELINE: Final = ("overhead_ns", "gain", "gain_range")
"""`test_overhead.py` and `test_what_if.py` in `tests/attribution` have tests of what the moments of events decide."""

# ---- columns


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return made_rows()


@pytest.fixture(scope="module")
def found(rows: list[Row], tmp_path_factory: pytest.TempPathFactory) -> Attribution:
    return attributed(tmp_path_factory.mktemp("columns"), rows)


def view_of(by: str, found: Attribution) -> View:
    return VIEWS[by](MapCosts(the_graph(), found), selected_costs(found, AttributeOptions()))


def key_of(by: str, row: Mapping[str, Cell]) -> str:
    return str(row["line" if by in {"python", "caller", "source"} else by])


def columns() -> list[tuple[str, str]]:
    """The columns of all views: which there are depends on metrics alone."""
    with tempfile.TemporaryDirectory() as folder:
        result = attributed(Path(folder), made_rows())
    left_out = {*OF_SAMPLES, *OF_TIMELINE}
    return [(by, column.key) for by in EXPECTED for column in view_of(by, result).columns if column.key not in left_out]


@pytest.mark.parametrize(("by", "key"), columns())
def test_a_column_says_what_the_rows_of_the_run_say(by: str, key: str, rows: list[Row], found: Attribution) -> None:
    view, truth = view_of(by, found), EXPECTED[by](Truth(rows))
    (column,) = (column for column in view.columns if column.key == key)
    assert sorted(key_of(by, row) for row in view.rows) == sorted(truth)
    told = 0
    for row in view.rows:
        expected = truth[key_of(by, row)]
        cell = row.get(key)
        if key not in expected:
            # What no op of a row has is nothing; all that any row has must be computed here.
            assert not cell, (key_of(by, row), cell)
            continue
        told += 1
        assert_cell(column, cell, expected[key])
    assert told, f"nothing computes the column {key} of the table by {by}"


def assert_cell(column: Column, cell: Cell, expected: Fraction | str) -> None:
    """Times are rounded at each site, before they are divided; all else is exact but for that."""
    if column.unit == TEXT:
        assert cell == expected
        return
    assert isinstance(expected, Fraction)
    assert isinstance(cell, int | Fraction)
    slack = Fraction(1) if column.unit == "ns" else expected / 10_000 if column.unit == "%" else Fraction(0)
    assert abs(Fraction(cell) / column.divisor - expected) <= slack


# ---- statistics of the JSON


def test_the_balance_of_each_metric_is_that_of_the_rows(rows: list[Row], found: Attribution) -> None:
    truth = Truth(rows)
    for total in found.metrics:
        covered = COVERED_NS * INVOCATIONS if total.name == "duration_ns" else 0
        assert total.measured == sum(int(row[total.name]) for row in rows if total.name in row) - covered
        assert total.work == truth.whole[total.name]
        assert total.invocations == divisor(total.name)
        assert total.attributed == sum(truth.of_site(place, total.name) for place in SITES)
    unattributed = Counter({row.reason.value: row.metrics["duration_ns"] for row in found.unattributed})
    assert unattributed["submission-and-queue"] == (EXECUTE_NS - COVERED_NS) * INVOCATIONS
    wall = sum(sum(truth.values(place, "duration_ns")) - truth.of_site(place, "duration_ns") for place in SITES)
    assert unattributed["outliers"] == wall > 0


@pytest.mark.parametrize("metric", [*TIMES, *COUNTED])
def test_statistics_of_each_metric_are_those_of_the_rows(metric: str, rows: list[Row], found: Attribution) -> None:
    truth = Truth(rows)
    for result in found.ops:
        cost = result.metrics[metric]
        for name, value in distribution(truth.shares(result.op, metric)).items():
            assert value is not None
            assert abs(getattr(cost.per_invocation, name) - value) <= 1
        assert abs(cost.attributed - truth.of_op(result.op, metric)) <= len(SITES)
    for place in found.sites:
        values = sorted(truth.values(place.site, metric))
        spread = place.metrics[metric].per_call
        assert spread is not None
        for name, rank in {"p10": 10, "median": 50, "p90": 90}.items():
            assert getattr(spread, name) == values[-(-len(values) * rank // 100) - 1]
        assert place.metrics[metric].total == truth.of_site(place.site, metric)
        assert place.metrics[metric].outliers == sum(values) - truth.of_site(place.site, metric)
