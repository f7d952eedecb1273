"""NVIDIA's tools: files from a real GPU; the order of launches is the truth.

The files of Nsight Compute are its own, of an H100. That of Nsight Systems has what CUPTI, from which that tool has it,
recorded there, in the columns that `nsys stats` prints. Of straight-line programs the k-th launch of a call is the
k-th dispatch of the program, which needs no automaton to tell.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.gpu import FILES, MISSES, OnGpu, changed, launches_of, sites_in_order, slugs, sums_by_site, without
from tests.runs.test_readers import attributed
from tracemap.map.bundle import load
from tracemap.map.model import OpId

STRAIGHT = {
    "ncu-details.csv": "hand_repeat12",
    "ncu-output.csv": "hand_mlp",
    "ncu-sections.csv": "hand_mlp",
    "ncu-raw.csv": "torch_resnet18_small",
    "ncu-raw-mlp.csv": "hand_mlp",
    "nsys-mlp.csv": "hand_mlp",
    "nsys-trace.csv": "jax_gpt2_4l",
}


@pytest.mark.long
@pytest.mark.parametrize("name", STRAIGHT)
def test_each_launch_is_of_the_site_of_its_place(name: str, on_gpu: OnGpu) -> None:
    """Twelve equal sites, four equal layers: time and misses of each are its own."""
    bundle = on_gpu(STRAIGHT[name])
    result = attributed(FILES / name, bundle)
    sites, launched = sites_in_order(bundle), launches_of(name)
    called = [launch for launch in launched if not launch[0].startswith("_initializer")]
    calls, rest = divmod(len(called), len(sites))
    assert (result["run"]["iterations"], rest) == (calls, 0)
    times: Counter[str] = Counter()
    misses: Counter[str] = Counter()
    for site, (_, duration_ns, missed) in zip(itertools.cycle(sites), called, strict=False):
        times[site] += duration_ns
        misses[site] += missed
    assert sums_by_site(result) == dict(times)
    if any(misses.values()):
        assert sums_by_site(result, MISSES) == dict(misses)
    assert {"sites-by-order", "device-clock"} <= slugs(result)
    assert "split-evenly" not in slugs(result)


@pytest.mark.long
def test_equal_layers_cost_the_same(on_gpu: OnGpu) -> None:
    """Four layers of one model: what each op of theirs takes in its median call."""
    bundle = on_gpu("jax_gpt2_4l")
    result = attributed(FILES / "nsys-trace.csv", bundle)
    made = load(bundle).graph
    costs: dict[str, list[int]] = {}
    for each in result["ops"]:
        layer, _, part = "/".join(made.op_by_id[OpId(each["op"])].scope).partition("/")
        median = each["metrics"]["duration_ns"]["per_invocation"]["median"]
        if re.fullmatch(r"h\d", layer) and median > 50_000:
            costs.setdefault(f"{part} {each['name']} {median // 20_000}", []).append(median)
    assert sum(map(len, costs.values())) == 16
    assert all(len(medians) % 4 == 0 for medians in costs.values())
    for medians in costs.values():
        assert max(medians) < 1.05 * min(medians)


def test_a_loop_takes_its_ways(on_gpu: OnGpu) -> None:
    """Five trips that alternate between two kernels, three calls; where a call begins the order does not tell."""
    result = attributed(FILES / "ncu-loop.csv", on_gpu("hand_loop"))
    assert [site["calls"] for site in result["sites"]] == [15, 9, 6]
    assert result["run"]["iterations"] is None
    truth: Counter[str] = Counter()
    for kernel, duration_ns, _ in launches_of("ncu-loop.csv"):
        truth[kernel] += duration_ns
    for number, kernel in enumerate(sorted(truth)):
        site = result["sites"][number]["metrics"]["duration_ns"]
        assert site["total"] + site["outliers"] == truth[kernel]


def test_kernels_that_were_filtered_out_take_nothing_from_the_others(on_gpu: OnGpu, tmp_path: Path) -> None:
    bundle = on_gpu("jax_gpt2_4l")
    whole = sums_by_site(attributed(FILES / "nsys-trace.csv", bundle))
    file = changed(tmp_path, "nsys-trace.csv", without("reduction"))
    some = attributed(file, bundle)
    kernel_of = load(bundle).graph.site_by_id
    others = {site: cost for site, cost in whole.items() if "reduction" not in kernel_of[site].kernel}
    assert sums_by_site(some) == others
    assert "count as filtered out" in json.dumps(some["diagnostics"])


@pytest.mark.long
def test_a_part_of_a_run_keeps_what_its_order_tells(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Without its first launches: sites that differ are told apart, the twelve equal ones are not."""
    bundle = on_gpu("jax_gpt2_4l")
    first = launches_of("nsys-trace.csv")[:20]
    start = (FILES / "nsys-trace.csv").read_text(encoding="utf-8").splitlines()[:23]
    lost = {line for line in start if not line.startswith(("Start", "Processing")) and line.strip()}
    assert len([line for line in lost if "[CUDA" not in line]) <= len(first)
    file = changed(tmp_path, "nsys-trace.csv", lambda text: "\n".join(x for x in text.split("\n") if x not in lost))
    part = attributed(file, bundle)
    assert "split-evenly" not in slugs(part)
    assert part["run"]["iterations"] is None
    (told,) = [each["message"] for each in part["diagnostics"] if each["slug"] == "sites-by-order"]
    assert "count as a part of the run" in told
    equal = attributed(changed(tmp_path, "ncu-details.csv", without(r'^"[0-4]",')), on_gpu("hand_repeat12"))
    assert {"split-evenly", "sites-by-order"} <= slugs(equal)
    costs = sums_by_site(equal).values()
    assert max(costs) - min(costs) <= 1


@pytest.mark.long
def test_kernels_of_others_are_passed_over(on_gpu: OnGpu, tmp_path: Path) -> None:
    bundle = on_gpu("hand_repeat12")
    whole = sums_by_site(attributed(FILES / "ncu-details.csv", bundle))
    other = '"4","9","x","h","their_kernel","1","13","(8, 8, 1)","(8, 1, 1)","0","9.0","s","gpu__time_duration.sum",'

    def among(text: str) -> str:
        lines = text.splitlines(keepends=True)
        place = next(number for number, line in enumerate(lines) if line.startswith('"5",'))
        pid = lines[place].split('"')[3]
        return "".join([*lines[:place], other.replace('"9"', f'"{pid}"', 1) + '"ns","7"\n', *lines[place:]])

    result = attributed(changed(tmp_path, "ncu-details.csv", among), bundle)
    assert sums_by_site(result) == whole
    assert [row["metrics"]["duration_ns"] for row in result["unattributed"]] == [7]


@pytest.mark.long
def test_an_order_that_the_program_does_not_have_is_said(on_gpu: OnGpu, tmp_path: Path) -> None:
    file = changed(tmp_path, "ncu-output.csv", lambda text: re.sub('mlp_dispatch_2_[^"]*', "mlp_dispatch_9", text))
    assert "launches-astray" not in slugs(attributed(file, on_gpu("hand_mlp")))
    lines = (FILES / "ncu-output.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join([*lines[:-2], lines[-1], lines[-2]]), encoding="utf-8")
    result = attributed(file, on_gpu("hand_mlp"))
    assert "launches-astray" in slugs(result)
    assert sum(sums_by_site(result).values()) == sum(time for _, time, _ in launches_of("ncu-output.csv"))


def test_several_streams_tell_no_order(on_gpu: OnGpu, tmp_path: Path) -> None:
    file = changed(tmp_path, "ncu-details.csv", lambda text: text.replace('"13","(8', '"14","(8', 2))
    result = attributed(file, on_gpu("hand_repeat12"))
    assert {"several-queues", "split-evenly"} <= slugs(result)
    assert "sites-by-order" not in slugs(result)


@pytest.mark.long
def test_sums_of_kernels_are_read(on_gpu: OnGpu, tmp_path: Path) -> None:
    """The second table of the file alone: it has the sums of the first."""
    bundle = on_gpu("jax_gpt2_4l")
    file = changed(tmp_path, "nsys-trace.csv", lambda text: text[text.index("\n\nProcessing") :])
    result = attributed(file, bundle)
    assert {"means-only", "split-evenly", "device-clock"} <= slugs(result)
    truth: Counter[str] = Counter()
    for kernel, duration_ns, _ in launches_of("nsys-trace.csv"):
        truth[kernel] += duration_ns
    found: Counter[str] = Counter()
    for site, cost in sums_by_site(result).items():
        found[load(bundle).graph.site_by_id[site].kernel] += cost
    assert found == truth


def test_a_part_has_no_cut_calls(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Without its first launch: calls that are whole have numbers, the first has none."""
    file = changed(
        tmp_path,
        "nsys-mlp.csv",
        lambda text: "".join(text.splitlines(keepends=True)[:1] + text.splitlines(keepends=True)[2:]),
    )
    result = attributed(file, on_gpu("hand_mlp"))
    assert result["run"]["iterations"] is None
    launched = launches_of("nsys-mlp.csv")
    truth = sorted(time for kernel, time, _ in launched[4:] if "dispatch_0" in kernel)
    site = result["sites"][0]["metrics"]["duration_ns"]
    assert (site["total"] + site["outliers"], result["sites"][0]["calls"]) == (sum(truth), len(truth))


def test_copies_before_the_first_call_are_no_cost_of_calls(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Parameters are copied once, at load; what each call begins with is its own."""
    copy = "{},500,1,,,,,,,,,,,,,,NVIDIA H100 80GB HBM3 (0),1,,13,[CUDA memcpy Host-to-Device]"

    def with_copies(text: str) -> str:
        head, *rows = text.split("\n\n", maxsplit=1)[0].splitlines()
        begins = [int(row.split(",")[0]) for row in rows if "dispatch_0" in row]
        own = [copy.format(begin - 5) for begin in begins]
        return "\n".join([head, copy.format(1), copy.format(2), *rows, *own]) + "\n"

    result = attributed(changed(tmp_path, "nsys-mlp.csv", with_copies), on_gpu("hand_mlp"))
    (row,) = [row for row in result["unattributed"] if "transfer" in row["reason"]]
    assert row["metrics"]["duration_ns"] == 500 * result["run"]["iterations"] == 1500


@pytest.mark.long
def test_what_may_be_of_several_sites_is_split_over_these(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Two launches of a part: four layers have them in this order, and other sites of their kernels have nothing."""
    bundle = on_gpu("jax_gpt2_4l")
    order = [load(bundle).graph.site_by_id[site].kernel for site in sites_in_order(bundle)]
    pairs = Counter(itertools.pairwise(order))
    pair = next(pair for pair, count in pairs.items() if count == 4 and order.count(pair[0]) > 4)
    rows = (FILES / "nsys-trace.csv").read_text(encoding="utf-8").splitlines()
    head = next(row for row in rows if row.startswith("Start"))
    two = [next(row for row in rows if row.endswith(f",{kernel}")) for kernel in pair]
    two[1] = re.sub(r"^\d+", str(int(two[0].split(",")[0]) + 10**6), two[1])
    file = tmp_path / "two.csv"
    file.write_text("\n".join([head, *two]) + "\n", encoding="utf-8")
    result = attributed(file, bundle)
    found = {site["site"] for site in result["sites"] if site["metrics"]["duration_ns"]["total"]}
    sites = sites_in_order(bundle)
    expected = {
        sites[place + shift]
        for place in range(len(sites) - 1)
        for shift in (0, 1)
        if (order[place], order[place + 1]) == pair
    }
    assert found == expected


@pytest.mark.long
def test_the_names_that_device_code_has_are_known(on_gpu: OnGpu) -> None:
    """PTX has `_` where a kernel's name has `$`."""
    made = load(on_gpu("torch_resnet18_small")).graph
    assert made.kernel_of_entry["main_async_dispatch_0_slow_memcpy"] == "main$async_dispatch_0_slow_memcpy"
    assert made.kernel_of_entry["main$async_dispatch_0_slow_memcpy"] == "main$async_dispatch_0_slow_memcpy"
