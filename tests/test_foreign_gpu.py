"""What NVIDIA's tools measured on a GPU, read as it is: files of a real one, and the order of launches as their truth.

The files of Nsight Compute are its own, of an H100. That of Nsight Systems has what CUPTI, from which that tool has it,
recorded there, in the columns that `nsys stats` prints. Of straight-line programs the k-th launch of a call is the
k-th dispatch of the program, which needs no automaton to tell.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import graph, op
from tests.support import ROOT, SAMPLES, Json, check_cli, json_cli, made_once, run_cli
from tests.test_foreign_runs import attributed, refusal
from tracemap.attribution.join.launches import ordered
from tracemap.functions import Function
from tracemap.graph.bundle import load
from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import OpId
from tracemap.graph.program import Command, CommandBuffer, Kernel, Schedule, Submission
from tracemap.units import UNKNOWN

FILES = ROOT / "tests" / "programs" / "foreign"
MISSES = "lts__t_sectors_srcunit_tex_lookup_miss.sum"
Rows = list[dict[str, str]]
OnGpu = Callable[[str], Path]
"""A sample model -> its bundle for the GPU."""


@pytest.fixture(scope="session")
def on_gpu(made: Path) -> OnGpu:
    """Makes, once, the bundle of a sample model for CUDA."""

    def build(model: str) -> Path:
        bundle = made / f"{model}-cuda.tracemap"
        with made_once(bundle) as missing:
            if missing:
                source = SAMPLES / "models" / f"{model}.mlir"
                check_cli("build", source, "--device", "cuda", "-o", bundle, "--", "--iree-cuda-target=sm_80")
        return bundle

    return build


def table(name: str, first: str) -> Rows:
    """The rows of a file below the head, which begins with a text; up to an empty line."""
    lines = (FILES / name).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(first))
    return list(csv.DictReader(itertools.takewhile(str.strip, lines[start:])))


def launches_of(name: str) -> list[tuple[str, int, int]]:
    """Kernel, duration and misses of each launch of a file, in order."""
    if name.startswith("nsys"):
        rows = [row for row in table(name, "Start") if not row["Name"].startswith("[")]
        return [(row["Name"], int(row["Duration (ns)"]), 0) for row in rows]
    rows = table(name, '"ID"')

    def number(text: str) -> int:
        return int(text.replace(",", ""))

    if "gpu__time_duration.sum" in rows[0]:
        return [(r["Kernel Name"], number(r["gpu__time_duration.sum"]), number(r[MISSES])) for r in rows if r["ID"]]
    told: dict[str, dict[str, str]] = {}
    for row in rows:
        told.setdefault(row["ID"], {"kernel": row["Kernel Name"]})[row["Metric Name"]] = row["Metric Value"]
    return [
        (each["kernel"], number(each.get("gpu__time_duration.sum") or each["Duration"]), number(each.get(MISSES, "0")))
        for each in told.values()
    ]


def sites_in_order(bundle: Path) -> list[str]:
    """The sites of a program without branches, as it dispatches them."""
    made = load(bundle).graph
    (schedule,) = made.schedules
    buffers, place = [], schedule.first
    while place:
        (number,) = place
        buffers += [made.command_buffers[ordinal] for ordinal in schedule.submissions[number].buffers]
        place = schedule.submissions[number].next
    return [str(command.site) for buffer in buffers for command in buffer.commands if command.kind == "dispatch"]


def sums_by_site(result: Json, metric: str = "duration_ns") -> dict[str, int]:
    return {site["site"]: site["metrics"][metric]["total"] for site in result["sites"] if site["calls"]}


def slugs(result: Json) -> set[str]:
    return {told["slug"] for told in result["diagnostics"]}


STRAIGHT = {
    "ncu-details.csv": "hand_repeat12",
    "ncu-output.csv": "hand_mlp",
    "ncu-sections.csv": "hand_mlp",
    "ncu-raw.csv": "torch_resnet18_small",
    "ncu-raw-mlp.csv": "hand_mlp",
    "nsys-mlp.csv": "hand_mlp",
    "nsys-trace.csv": "jax_gpt2_4l",
}


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
        assert site["total"] + site["disturbance"] == truth[kernel]


def changed(tmp_path: Path, name: str, change: Callable[[str], str]) -> Path:
    file = tmp_path / name
    file.write_text(change((FILES / name).read_text(encoding="utf-8")), encoding="utf-8")
    return file


def without(pattern: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if not re.search(pattern, line))


def test_kernels_that_were_filtered_out_take_nothing_from_the_others(on_gpu: OnGpu, tmp_path: Path) -> None:
    bundle = on_gpu("jax_gpt2_4l")
    whole = sums_by_site(attributed(FILES / "nsys-trace.csv", bundle))
    file = changed(tmp_path, "nsys-trace.csv", without("reduction"))
    some = attributed(file, bundle)
    kernel_of = load(bundle).graph.site_by_id
    others = {site: cost for site, cost in whole.items() if "reduction" not in kernel_of[site].kernel}
    assert sums_by_site(some) == others
    assert "are taken for left out" in json.dumps(some["diagnostics"])


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
    assert "a part of the run's" in told
    equal = attributed(changed(tmp_path, "ncu-details.csv", without(r'^"[0-4]",')), on_gpu("hand_repeat12"))
    assert {"split-evenly", "sites-by-order"} <= slugs(equal)
    costs = sums_by_site(equal).values()
    assert max(costs) - min(costs) <= 1


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
    assert [row["metrics"]["duration_ns"] for row in result["residual"]] == [7]


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


def test_units_that_were_chosen_for_people_are_read(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Without `--print-units base`: each time in a unit of its own."""

    def in_units(text: str) -> str:
        return re.sub(r'"ns","([\d,]+)"', lambda found: f'"us","{int(found[1].replace(",", "")) / 1000:,.3f}"', text)

    bundle = on_gpu("hand_repeat12")
    plain = attributed(FILES / "ncu-details.csv", bundle)
    assert sums_by_site(attributed(changed(tmp_path, "ncu-details.csv", in_units), bundle)) == sums_by_site(plain)
    trace = changed(
        tmp_path, "nsys-trace.csv", lambda text: text.replace("Start (ns),Duration (ns)", "Start (us),Duration (us)")
    )
    longer = attributed(trace, on_gpu("jax_gpt2_4l"))
    shorter = attributed(FILES / "nsys-trace.csv", on_gpu("jax_gpt2_4l"))
    assert sums_by_site(longer) == {site: 1000 * cost for site, cost in sums_by_site(shorter).items()}


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


def test_metrics_that_do_not_add_up_are_named(on_gpu: OnGpu, tmp_path: Path) -> None:
    file = changed(tmp_path, "ncu-details.csv", lambda text: text.replace(MISSES, "lts__t_sector_hit_rate.pct"))
    result = attributed(file, on_gpu("hand_repeat12"))
    (told,) = [each["message"] for each in result["diagnostics"] if each["slug"] == "metrics-left-out"]
    assert told.startswith("1 metric of Nsight Compute's is left out (lts__t_sector_hit_rate.pct)")
    assert [metric["name"] for metric in result["metrics"]] == ["duration_ns"]


def test_a_metric_that_no_kernel_has_is_named(on_gpu: OnGpu, tmp_path: Path) -> None:
    """One that the chip does not have."""
    file = changed(
        tmp_path,
        "ncu-details.csv",
        lambda text: re.sub(f'"{MISSES}","sector","[^"]*"', '"no__such.sum","","n/a"', text),
    )
    result = attributed(file, on_gpu("hand_repeat12"))
    assert "could not measure no__such.sum of any kernel" in json.dumps(result["diagnostics"])
    assert [metric["name"] for metric in result["metrics"]] == ["duration_ns"]


def test_what_could_not_be_measured_is_unknown(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Of one launch: the others' misses stay."""
    file = changed(tmp_path, "ncu-output.csv", lambda text: text.replace('"ns","102,208"', '"","n/a"'))
    result = attributed(file, on_gpu("hand_mlp"))
    known = [time for kernel, time, _ in launches_of("ncu-output.csv") if "dispatch_1" not in kernel]
    assert sum(sums_by_site(result).values()) == sum(known)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("ncu-details.csv", lambda text: text[:-20], "line 75: cannot be read as a table"),
        ("ncu-details.csv", lambda text: text.replace('"5","', '"5","more","more","more","more","', 1), "19 cells"),
        ("ncu-raw.csv", without(r'^"",""'), "has no units"),
        ("nsys-trace.csv", lambda text: text.replace(",1248,", ",-1248,").replace(",1249,", ",-1249,"), "is no number"),
        ("nsys-trace.csv", lambda text: text.replace("Start (ns)", "Start (days)"), "times in 'days'"),
        ("nsys-trace.csv", without(r"^\d"), "nothing ran on the GPU"),
        ("ncu-output.csv", without(r'^"\d'), "no kernel was measured"),
        ("ncu-output.csv", lambda text: text.replace("mlp_dispatch_0_matmul_32x256x784_f32", ""), "names no kernel"),
    ],
)
def test_damaged_tables_are_refused(
    name: str, change: Callable[[str], str], said: str, on_gpu: OnGpu, tmp_path: Path
) -> None:
    assert said in refusal(changed(tmp_path, name, change), on_gpu("hand_mlp"))


def test_a_recording_that_was_not_printed_is_named(on_gpu: OnGpu, tmp_path: Path) -> None:
    (tmp_path / "run.ncu-rep").write_bytes(b"NVR\0" + bytes(64))
    assert "`ncu --import" in refusal(tmp_path / "run.ncu-rep", on_gpu("hand_mlp"))
    (tmp_path / "run.sqlite").write_bytes(b"SQLite format 3\0" + bytes(64))
    assert "`nsys stats" in refusal(tmp_path / "run.sqlite", on_gpu("hand_mlp"))


def test_results_are_of_use_in_other_commands(on_gpu: OnGpu, tmp_path: Path) -> None:
    """A store, a page and a comparison take the file as they take a run."""
    bundle, file = on_gpu("hand_repeat12"), FILES / "ncu-details.csv"
    check_cli("store", "add", file, "--store", tmp_path / "store", "--map", bundle)
    check_cli("attribute", file, "--map", bundle, "--html", tmp_path / "page.html")
    same = json_cli("diff", file, file, "--map-a", bundle, "--map-b", bundle)
    assert not [each for each in same["ops"] if each.get("finding")]
    done = run_cli("attribute", "-", "--map", bundle, stdin=file.read_bytes())
    assert done.returncode == 0


# ---- the automaton, against trying all ways

KERNELS = ("a", "b")


@st.composite
def programs(draw: st.DrawFn) -> TraceGraph:
    """Up to four places with any edges, of buffers with up to two dispatches; one buffer may run at load."""
    chains = draw(st.lists(st.lists(st.sampled_from(KERNELS), max_size=2), min_size=1, max_size=3))
    loading = draw(st.lists(st.sampled_from(KERNELS), max_size=2))
    numbers = itertools.count()

    def buffer(ordinal: int, kernels: Sequence[str], *, initializer: bool) -> CommandBuffer:
        commands = tuple(Command("dispatch", kernel, f"site{next(numbers)}") for kernel in kernels)
        return CommandBuffer(ordinal, "f", False, initializer, commands)

    buffers = [buffer(ordinal, chain, initializer=False) for ordinal, chain in enumerate(chains)]
    buffers.append(buffer(len(chains), loading, initializer=True))
    count = draw(st.integers(1, 4))
    places = st.lists(st.integers(0, count - 1), max_size=3, unique=True).map(tuple)
    choices = st.lists(st.integers(0, len(chains) - 1), min_size=1, max_size=2, unique=True).map(tuple)
    submissions = tuple(Submission(draw(choices), UNKNOWN, draw(places), draw(st.booleans())) for _ in range(count))
    first = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2, unique=True).map(tuple))
    return structs.replace(
        graph([op(1, 1)], []),
        kernels=tuple(Kernel(kernel, ()) for kernel in KERNELS),
        command_buffers=tuple(buffers),
        schedules=(Schedule("f", first, submissions),),
        functions=(Function("f", ()),),
    )


Launched = tuple[str, str]
"""A kernel and its site."""


def calls_of(made: TraceGraph, most: int) -> set[tuple[Launched, ...]]:
    """What a call can launch, if it is no more than so much and passes no more than seven places."""
    (schedule,) = made.schedules
    found: set[tuple[Launched, ...]] = set()

    def go(place: int, so_far: tuple[Launched, ...], passed: int) -> None:
        for ordinal in schedule.submissions[place].buffers:
            commands = made.command_buffers[ordinal].commands
            here = (*so_far, *((str(each.kernel), str(each.site)) for each in commands))
            if len(here) > most:
                continue
            if schedule.submissions[place].last:
                found.add(here)
            if passed:
                for after in schedule.submissions[place].next:
                    go(after, here, passed - 1)

    for place in schedule.first:
        go(place, (), 7)
    return found


def whole_runs(made: TraceGraph, length: int) -> Iterator[tuple[Launched, ...]]:
    """All runs of so many launches: with or without what runs at load, then whole calls."""
    calls = {call for call in calls_of(made, length) if call}
    loading = tuple((str(each.kernel), str(each.site)) for each in made.command_buffers[-1].commands)
    waiting = [start for start in {(), loading} if len(start) <= length]
    while waiting:
        start = waiting.pop()
        if len(start) == length:
            yield start
            continue
        waiting += [(*start, *call) for call in calls if len(start) + len(call) <= length]


@settings(max_examples=200, deadline=None)
@given(made=programs(), data=st.data())
def test_whole_calls_are_told_as_trying_all_ways_tells_them(made: TraceGraph, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 4))
    kernels = data.draw(st.lists(st.sampled_from(KERNELS), min_size=length, max_size=length))
    expected = sites_by_trying(made, kernels)
    if not expected:
        return
    order = ordered(made, kernels)
    assert order.whole
    assert [set(order.kinds[number].sites) for number in order.numbers] == expected


def sites_by_trying(made: TraceGraph, kernels: Sequence[str]) -> list[set[str]]:
    """For each launch the sites that it has in any run of these; empty: there is none."""
    runs = [run for run in whole_runs(made, len(kernels)) if [kernel for kernel, _ in run] == list(kernels)]
    return [{site for _, site in launches} for launches in zip(*runs, strict=True)]


@settings(max_examples=300, deadline=None)
@given(made=programs(), data=st.data())
def test_the_truth_is_among_what_is_told(made: TraceGraph, data: st.DataObject) -> None:
    """Of whole runs, of parts of them, and of those without a kernel."""
    runs = sorted(run for length in range(1, 6) for run in whole_runs(made, length))
    if not runs:
        return
    run = data.draw(st.sampled_from(runs))
    begin = data.draw(st.integers(0, len(run) - 1))
    parts: dict[str, Sequence[Launched]] = {
        "whole": run,
        "part": run[begin : begin + data.draw(st.integers(1, len(run)))],
        "filtered": [each for each in run if each[0] == run[0][0]],
    }
    some = parts[data.draw(st.sampled_from(list(parts)))]
    order = ordered(made, [kernel for kernel, _ in some])
    if order.whole and len(some) < len(run):
        return  # what may be whole calls is taken for these
    for number, (_, site) in zip(order.numbers, some, strict=True):
        assert site in order.kinds[number].sites


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
    assert (site["total"] + site["disturbance"], result["sites"][0]["calls"]) == (sum(truth), len(truth))


def test_copies_before_the_first_call_are_no_cost_of_calls(on_gpu: OnGpu, tmp_path: Path) -> None:
    """Parameters are copied once, at load; what each call begins with is its own."""
    copy = "{},500,1,,,,,,,,,,,,,,NVIDIA H100 80GB HBM3 (0),1,,13,[CUDA memcpy Host-to-Device]"

    def with_copies(text: str) -> str:
        head, *rows = text.split("\n\n", maxsplit=1)[0].splitlines()
        begins = [int(row.split(",")[0]) for row in rows if "dispatch_0" in row]
        own = [copy.format(begin - 5) for begin in begins]
        return "\n".join([head, copy.format(1), copy.format(2), *rows, *own]) + "\n"

    result = attributed(changed(tmp_path, "nsys-mlp.csv", with_copies), on_gpu("hand_mlp"))
    (row,) = [row for row in result["residual"] if "transfer" in row["reason"]]
    assert row["metrics"]["duration_ns"] == 500 * result["run"]["iterations"] == 1500


def test_a_window_is_refused(on_gpu: OnGpu) -> None:
    assert "no window of it can be cut" in refusal(FILES / "nsys-mlp.csv", on_gpu("hand_mlp"), "--from", "0.1")


def test_a_column_of_users_is_theirs(on_gpu: OnGpu, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("kernel,duration_ns,launch_on_queue,launch_order\nmlp_dispatch_0_matmul_32x256x784_f32,5,x,7\n")
    result = attributed(file, on_gpu("hand_mlp"))
    assert sums_by_site(result) == {"site0": 5}
    assert sums_by_site(result, "launch_order") == {"site0": 7}


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


def test_the_names_that_device_code_has_are_known(on_gpu: OnGpu) -> None:
    """PTX has `_` where a kernel's name has `$`."""
    made = load(on_gpu("torch_resnet18_small")).graph
    assert made.kernel_of_entry["main_async_dispatch_0_slow_memcpy"] == "main$async_dispatch_0_slow_memcpy"
    assert made.kernel_of_entry["main$async_dispatch_0_slow_memcpy"] == "main$async_dispatch_0_slow_memcpy"
