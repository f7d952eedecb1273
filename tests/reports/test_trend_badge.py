"""The badge of a store: what it says, in valid XML, whatever models are called, readable in light and dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec import structs

from tests.conftest import Built
from tests.support import check_cli, json_cli, run_cli
from tracemap.core.codec import encode
from tracemap.core.errors import UsageInvalid
from tracemap.core.units import UNKNOWN
from tracemap.map.bundle import load
from tracemap.reports.trend_badge import trend_badge
from tracemap.runs.model import UNKNOWN_HEADER, UNKNOWN_MACHINE
from tracemap.store.model import QueryScope, StorePoint, StoreSeries, StoreTrend, StoreTrends
from tracemap.store.queries import ALL_OPS

SVG = "{http://www.w3.org/2000/svg}"


def series(costs: Sequence[int], cpu_model: str = "CPU", begin: int = 1) -> StoreSeries:
    points = tuple(StorePoint(f"2026-11-{begin + index:02}", cost) for index, cost in enumerate(costs))
    return StoreSeries(ALL_OPS, cpu_model, points)


def trend(*program: StoreSeries, model: str = "gpt2") -> StoreTrend:
    nights = sorted({point.night for one in program for point in one.points})
    return StoreTrend(
        model=model,
        function="main",
        inputs=UNKNOWN,
        nights=len(nights),
        hosts=1,
        cpu_models=len(program),
        series=0,
        runs_left_out=0,
        changes=(),
        outliers=(),
        most_expensive=(),
        in_order=tuple(nights),
        program=program,
    )


def trends(*models: StoreTrend) -> StoreTrends:
    looked = QueryScope(runs=1, unfinished=0, ahead=0, skipped=())
    return StoreTrends(metric="cpu_ns", over="date", models=models, looked=looked)


def texts(badge: str) -> dict[str, str]:
    """The texts by style; the title too."""
    root = ElementTree.fromstring(badge)
    assert root.tag == f"{SVG}svg"
    found = {str(text.get("class")): text.text or "" for text in root.iter(f"{SVG}text")}
    title = root.find(f"{SVG}title")
    assert title is not None
    assert root.get("aria-label") == title.text
    return {**found, "title": title.text or ""}


@pytest.mark.parametrize(
    ("costs", "style", "change"),
    [
        ([1_000_000] * 5 + [1_120_000], "change slower", "▲ +12.0 %"),
        ([1_000_000] * 5 + [900_000], "change faster", "▼ -10.0 %"),
        ([1_000_000, 1_010_000, 990_000, 1_004_000], "change", "+0.4 %"),
        ([1_000_000], "", ""),
        ([0, 0], "", ""),
    ],
)
def test_the_last_cost_and_its_change(costs: list[int], style: str, change: str) -> None:
    found = texts(trend_badge(trends(trend(series(costs))), 2.0))
    assert found["name"] == "gpt2"
    assert found.get(style, "") == change
    assert found["title"].startswith(f"gpt2 on CPU: {found['last']} of cpu_ns per invocation, 2026-11-0{len(costs)}")
    assert (f"{change} against the median" in found["title"]) == bool(change)


def test_points_are_as_high_as_their_costs() -> None:
    costs = [100_000, 400_000, 200_000, 300_000]
    root = ElementTree.fromstring(trend_badge(trends(trend(series(costs))), 2.0))
    (line,) = root.iter(f"{SVG}polyline")
    positions = [tuple(map(float, pair.split(","))) for pair in str(line.get("points")).split()]
    assert [x for x, _ in positions] == sorted(x for x, _ in positions)
    heights = [y for _, y in positions]
    assert sorted(range(4), key=lambda index: -heights[index]) == sorted(range(4), key=lambda index: costs[index])
    assert heights[1] == pytest.approx(4)
    assert heights[0] == pytest.approx(16)
    assert heights[2] == pytest.approx(12)
    assert all(0 <= x <= float(str(root.get("width"))) for x, _ in positions)


def test_a_processor_that_became_slower_is_shown() -> None:
    usual, slower, gone = series([100] * 9, "A"), series([100] * 4 + [150], "B", 5), series([100, 900], "C")
    assert "on B: " in texts(trend_badge(trends(trend(usual, slower, gone)), 2.0))["title"]
    assert "on A: " in texts(trend_badge(trends(trend(usual, series([100, 101], "B", 8))), 2.0))["title"]


@pytest.mark.parametrize(
    "model", ['<script>alert("1")</script>', "a & b \x1b[31m\x00\ufffe\ud800 \u202e ]]>", "x" * 500]
)
def test_names_are_escaped_and_cut(model: str) -> None:
    badge = trend_badge(trends(trend(series([1, 2], "<b>"), model=model)), 2.0)
    found = texts(badge)
    assert "<script" not in badge
    assert not re.search("[\x00-\x08\x1b\u202e\ud800-\udfff\ufffe\uffff]", badge)
    assert len(found["name"]) <= 120
    assert float(str(ElementTree.fromstring(badge).get("width"))) < 1100


def test_other_stores_are_refused() -> None:
    with pytest.raises(UsageInvalid, match=r"2 programs.*select one with --where model=NAME"):
        trend_badge(trends(trend(series([1])), trend(series([1]), model="bert")), 2.0)
    with pytest.raises(UsageInvalid, match="no op has a cost in every night"):
        trend_badge(trends(trend()), 2.0)


def _luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[begin : begin + 2], 16) / 255 for begin in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_in_both_themes() -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 against the badge's own background."""
    style = re.search("<style>(.*)</style>", trend_badge(trends(trend(series([1, 2]))), 2.0), re.DOTALL)
    assert style is not None
    light, dark = style[1].split("@media (prefers-color-scheme: dark)")
    for rules in (light, dark):
        fills = dict[str, str]()
        for names, body in re.findall(r"([.\w, ]+) \{([^}]*)\}", rules):
            if colour := re.search("fill: (#[0-9a-f]{6})", body):
                fills.update(dict.fromkeys(names.replace(" ", "").split(","), colour[1]))
        back = _luminance(fills[".back"])
        for name in (".name", ".last", ".change", ".slower", ".faster"):
            bright, dim = sorted((back, _luminance(fills[name])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, name


def test_the_badge_of_a_store(built: Built, tmp_path: Path) -> None:
    """Nights of one machine, written by hand; the last one takes 1.5 times as long."""
    bundle = built("hand_mlp")
    kernels = [site.kernel for site in load(bundle).graph.sites]
    runs, expected = [], 0
    for night in range(1, 5):
        costs = {kernel: (15_000 if night == 4 else 10_000) * (index + 1) for index, kernel in enumerate(kernels)}
        expected = sum(costs.values())
        run = tmp_path / f"{night}.csv"
        rows = [f"{kernel},0,{cost}" for kernel, cost in costs.items()]
        run.write_text("\n".join(["kernel,invocation,cpu_ns", *rows, ""]), encoding="utf-8")
        recorded_ns = (20_400 + night) * 86_400 * 10**9
        machine = structs.replace(UNKNOWN_MACHINE, host="ci-1", cpu_model="Fictional 1", recorded_ns=recorded_ns)
        header = structs.replace(UNKNOWN_HEADER, machine=machine, iterations=1)
        run.with_name(f"{run.name}.json").write_bytes(encode(header))
        runs.append(run)
    check_cli("store", "add", *runs, "--map", bundle, "--store", tmp_path / "s")
    badge = tmp_path / "trend.svg"
    (model,) = json_cli("store", "trend", "--store", tmp_path / "s", "--svg", badge)["models"]
    assert [point["cost"] for point in model["program"][0]["points"]][-1] == expected
    found = texts(badge.read_text(encoding="utf-8"))
    assert found["change slower"] == "▲ +50.0 %"
    assert found["name"] == "hand_mlp"
    check_cli("store", "trend", "--store", tmp_path / "s", "--svg", badge)  # tracemap's own files are replaced
    badge.write_text("<svg/>", encoding="utf-8")
    refused = run_cli("store", "trend", "--store", tmp_path / "s", "--svg", badge)
    assert (refused.returncode, "[target-exists]" in refused.stderr) == (2, True)
