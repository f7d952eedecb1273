"""What must hold for every model: checks of maps, attributions and pages, for tests and for whole folders of models.

The other side of each comparison is made without tracemap: a plain compile's flow phase, and the run's table as a bare
SQL sum.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import duckdb

from tests.support import Flow, Json

TRANSFERS = "transfer-without-op"
OUTLIERS = "outliers"
OWNERLESS = frozenset({"compiler-made", "unmatched-event"})
"""Reasons of dispatch time that has no owner; on local-task none may have any."""


def check_map(shown: Json, flow: Flow) -> None:
    """Sites and kernels are the flow phase's, in order, and every site has a member that its own body names."""
    assert [site["kernel"] for site in shown["sites"]] == list(flow.sites)
    assert {kernel["name"] for kernel in shown["kernels"]} == flow.kernels
    for site in shown["sites"]:
        evidence = {member["evidence"] for member in site["members"]}
        assert evidence & {"located", "fused"}, f"{site['id']} has no located or fused member"
        assert [member["root"] for member in site["members"]].count(True) == 1, f"{site['id']} has no single root"


def check_links(shown: Json) -> None:
    """Ids lead to what they name, both ways, and the coverage counts what is there."""
    ops = {op["id"]: op for op in shown["ops"]}
    sites = {site["id"]: site for site in shown["sites"]}
    assert len(ops) == len(shown["ops"])
    assert len(sites) == len(shown["sites"])
    assert all(op in ops for site in sites.values() for op in [*site["path"], *_members(site)])
    for op in ops.values():
        assert op["sites"] == [site["id"] for site in shown["sites"] if op["id"] in _members(site)], op["id"]
    for kernel in shown["kernels"]:
        assert kernel["sites"] == [site["id"] for site in shown["sites"] if site["kernel"] == kernel["name"]]
    coverage = shown["coverage"]
    assert coverage["ops"] == len(ops) == sum(coverage["by_outcome"].values())
    assert coverage["sites"] == coverage["sites_with_members"] == len(sites)


def check_balance(attribution: Json, run: Path) -> None:
    """Parts add up to the last unit, to the run's own sums; of sampled runs too."""
    for total in attribution["metrics"]:
        name = total["name"]
        attributed = sum(op["metrics"][name]["attributed"] for op in attribution["ops"])
        unattributed = sum(row["metrics"][name] for row in attribution["unattributed"])
        assert attributed == total["attributed"], name
        assert unattributed == total["unattributed"], name
        assert attributed + unattributed == total["measured"], name
        assert total["measured"] == measured_of_run(run, name), name


def check_attribution(attribution: Json, run: Path) -> None:
    """Balance to the last unit, against the run's own sums; and no dispatch without an owner."""
    check_balance(attribution, run)
    totals = {metric["name"]: metric for metric in attribution["metrics"]}
    for name, total in totals.items():
        # Copies and fills of an op's own are no sites: what is neither a site's nor without an op is theirs.
        of_sites = sum(site["metrics"][name]["total"] for site in attribution["sites"])
        without_op = sum(row["metrics"][name] for row in attribution["unattributed"] if row["reason"] == TRANSFERS)
        transferred = sum_of_run(run, name, "kind IN ('copy', 'fill', 'update')")
        # Outliers of calls are named at their sites; the rest are of transfers.
        outliers = sum(row["metrics"][name] for row in attribution["unattributed"] if row["reason"] == OUTLIERS)
        of_transfers = outliers - sum(site["metrics"][name]["outliers"] for site in attribution["sites"])
        assert of_transfers >= 0, name
        assert of_sites + transferred - of_transfers - without_op == total["attributed"], name
    if "cpu_ns" in totals:
        of_sites = sum(site["metrics"]["cpu_ns"]["outliers"] for site in attribution["sites"])
        assert totals["cpu_ns"]["attributed"] + of_sites == sum_of_run(run, "cpu_ns", "kind = 'dispatch'")
    for row in attribution["unattributed"]:
        assert row["reason"] not in OWNERLESS or not any(row["metrics"].values()), f"time without an owner: {row}"
    assert not {"unmatched-event"} & {row["reason"] for row in attribution["unattributed"]}


def check_bounds(attribution: Json) -> None:
    """What the rule gives an op lies between what the evidence proves and the whole."""
    for op in attribution["ops"]:
        for name, cost in op["metrics"].items():
            assert 0 <= cost["low"] <= cost["attributed"] <= cost["high"] <= cost["inclusive"], (op["op"], name)


def check_page(page: Path, module: str) -> None:
    """One self-contained document that names its module and fetches nothing."""
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert module in text
    fetched = re.findall(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)\s*=", text) + re.findall(
        r"@import|url\(", text
    )
    assert not fetched, f"the page fetches something: {fetched[:3]}"


def sum_of_run(run: Path, column: str, condition: str = "true") -> int:
    """The sum of a column over the measured rows of a run's table, warm-up left out."""
    return _asked(run, f'coalesce(sum("{column}"), 0)::HUGEINT', condition)


def measured_of_run(run: Path, column: str) -> int:
    """The same, but what submissions and their dispatches have both once."""
    return sum_of_run(run, column) - (_covered_ns(run) if column == "duration_ns" else 0)


def _covered_ns(run: Path) -> int:
    """The time of submissions in which a dispatch of theirs ran: one interval after the other."""
    what = (
        "submission_id, start_ns, start_ns + duration_ns FROM '{run}' WHERE NOT warmup AND kind = '{kind}' ORDER BY 2"
    )
    with duckdb.connect() as connection:
        executes = connection.execute(f"SELECT {what.format(run=run, kind='execute')}").fetchall()
        dispatches = connection.execute(f"SELECT {what.format(run=run, kind='dispatch')}").fetchall()
    by_submission: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for submission, begin, end in dispatches:
        by_submission[submission].append((begin, end))
    covered = 0
    for submission, reached, last in executes:
        for begin, end in by_submission[submission]:
            covered += max(0, min(end, last) - max(begin, reached))
            reached = max(reached, min(end, last))  # noqa: PLW2901 - how far it is covered by now
    return covered


def count_of_run(run: Path, condition: str = "true") -> int:
    """The number of measured rows of a run's table that fulfil a condition."""
    return _asked(run, "count(*)", condition)


def _asked(run: Path, what: str, condition: str) -> int:
    with duckdb.connect() as connection:
        row = connection.execute(f"SELECT {what} FROM '{run}' WHERE NOT warmup AND ({condition})").fetchone()
    assert row is not None
    return int(row[0])


def _members(site: Json) -> list[str]:
    return [member["op"] for member in site["members"]]
