"""The checks in `tests/checks.py` accept sound results and refuse damaged ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.checks import check_attribution, check_bounds, check_links, check_map, check_page
from tests.support import Flow, Json

pytestmark = pytest.mark.quick

FLOW = Flow(("main_dispatch_0", "main_dispatch_0"))


def shown() -> Json:
    member = {"op": "op1", "evidence": "located", "root": True, "operations": 8, "bytes_read": 6, "bytes_written": 2}
    site = {"kernel": "main_dispatch_0", "path": [], "members": [member]}
    return {
        "ops": [{"id": "op1", "sites": ["site0", "site1"]}, {"id": "op2", "sites": []}],
        "sites": [{"id": "site0", **copy.deepcopy(site)}, {"id": "site1", **copy.deepcopy(site)}],
        "kernels": [{"name": "main_dispatch_0", "sites": ["site0", "site1"]}],
        "coverage": {
            "ops": 2,
            "by_outcome": {"dispatched": 1, "structural": 1},
            "sites": 2,
            "sites_with_members": 2,
        },
    }


def attribution() -> Json:
    cost = {"inclusive": 30, "attributed": 30, "low": 30, "high": 30}
    return {
        "metrics": [{"name": "cpu_ns", "measured": 35, "attributed": 30, "unattributed": 5}],
        "ops": [{"op": "op1", "metrics": {"cpu_ns": cost}}],
        "sites": [{"site": "site0", "metrics": {"cpu_ns": {"total": 30, "outliers": 0}}}],
        "unattributed": [{"reason": "submission-and-queue", "metrics": {"cpu_ns": 5}}],
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two dispatches, one submission, and a warm-up that must not count."""
    rows = "('dispatch', 10, false), ('dispatch', 20, false), ('execute', 5, false), ('dispatch', 99, true)"
    with duckdb.connect() as connection:
        table = f"SELECT * FROM (VALUES {rows}) AS rows(kind, cpu_ns, warmup)"
        connection.execute(f"COPY ({table}) TO '{tmp_path / 'run.parquet'}' (FORMAT parquet)")
    return tmp_path / "run.parquet"


def test_sound_results_pass(run: Path, tmp_path: Path) -> None:
    check_map(shown(), FLOW)
    check_links(shown())
    check_attribution(attribution(), run)
    check_bounds(attribution())
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><title>mlp</title><script>1</script></html>\n", encoding="utf-8")
    check_page(page, "mlp")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data["sites"].pop(),
        lambda data: data["sites"].append(data["sites"][0]),
        lambda data: data["sites"][0].update(kernel="main_dispatch_1"),
        lambda data: data["sites"][1]["members"].clear(),
        lambda data: data["sites"][1]["members"][0].update(evidence="absorbed"),
        lambda data: data["sites"][1]["members"][0].update(root=False),
        lambda data: data["kernels"].append({"name": "main_dispatch_1", "sites": []}),
    ],
)
def test_wrong_maps_are_noticed(spoil: Callable[[Json], object]) -> None:
    data = shown()
    spoil(data)
    with pytest.raises(AssertionError):
        check_map(data, FLOW)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data["ops"][0]["sites"].pop(),
        lambda data: data["ops"][1]["sites"].append("site0"),
        lambda data: data["sites"][0]["path"].append("op9"),
        lambda data: data["kernels"][0]["sites"].pop(),
        lambda data: data["coverage"].update(ops=3),
        lambda data: data["coverage"]["by_outcome"].update(structural=2),
        lambda data: data["coverage"].update(sites_with_members=1),
    ],
)
def test_broken_links_are_noticed(spoil: Callable[[Json], object]) -> None:
    data = shown()
    spoil(data)
    with pytest.raises(AssertionError):
        check_links(data)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data["metrics"][0].update(measured=36),
        lambda data: data["metrics"][0].update(attributed=29, unattributed=6),
        lambda data: data["ops"][0]["metrics"]["cpu_ns"].update(attributed=29),
        lambda data: data["sites"][0]["metrics"]["cpu_ns"].update(total=29),
        lambda data: data["sites"][0]["metrics"]["cpu_ns"].update(outliers=1),
        lambda data: data["unattributed"][0].update(reason="compiler-made"),
        lambda data: data["unattributed"][0]["metrics"].update(cpu_ns=4),
        lambda data: data["unattributed"].append({"reason": "unmatched-event", "metrics": {"cpu_ns": 0}}),
    ],
)
def test_imbalance_is_noticed(spoil: Callable[[Json], object], run: Path) -> None:
    data = attribution()
    spoil(data)
    with pytest.raises(AssertionError):
        check_attribution(data, run)


def test_a_warm_up_that_was_counted_is_noticed(run: Path) -> None:
    data = attribution()
    data["metrics"][0].update(measured=134, attributed=129)
    data["ops"][0]["metrics"]["cpu_ns"].update(attributed=129)
    data["sites"][0]["metrics"]["cpu_ns"].update(total=129)
    with pytest.raises(AssertionError):
        check_attribution(data, run)


@pytest.mark.parametrize("bounds", [{"low": 31}, {"high": 29}, {"inclusive": 29}, {"low": -1}])
def test_shares_beyond_the_evidence_are_noticed(bounds: dict[str, int]) -> None:
    data = attribution()
    data["ops"][0]["metrics"]["cpu_ns"].update(bounds)
    with pytest.raises(AssertionError):
        check_bounds(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!doctype html><title>mlp</title>",
        "<!doctype html><title>other</title></html>",
        '<!doctype html><title>mlp</title><script src="a.js"></script></html>',
        '<!doctype html><title>mlp</title><link rel="stylesheet" href="a.css"></html>',
        "<!doctype html><title>mlp</title><style>@import 'a.css'</style></html>",
    ],
)
def test_pages_that_are_cut_or_fetch_are_noticed(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError):
        check_page(page, "mlp")
