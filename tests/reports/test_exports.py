"""Each export adds up to the measurement, to the unit, according to the format's own reader.

What was measured is a bare SQL sum over the run. Readers that are not installed are skipped and named; what they would
say is then checked by a reader of the test's own.
"""

from __future__ import annotations

import csv
import functools
import gzip
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import duckdb
import jsonschema
import pytest

import tracemap
from tests import builders
from tests.commands.test_benchmark import COMPARE
from tests.commands.test_errors import refused
from tests.conftest import Built, Recorded
from tests.core.test_sanitize import hostile, steering
from tests.support import ROOT, check_cli
from tracemap.attribution.model import Attribution, BalanceError, UnattributedReason
from tracemap.core.errors import TargetExists, ToolMissing, UsageInvalid
from tracemap.core.files import has_mark
from tracemap.options.reports import Format
from tracemap.reports.csv_tables import attribution_csv
from tracemap.reports.exports import pprof as pprof_format
from tracemap.reports.exports.callgrind import callgrind, event_names
from tracemap.reports.exports.charges import Ledger, ledger_of
from tracemap.reports.exports.flame_graphs import collapsed

__all__ = ["hostile"]

MODELS = ("jax_gpt2_4l", "hand_repeat6_calls")
"""One with scopes and Python frames, and one whose ops are reached by calls."""
FORMATS = get_args(Format)
SUFFIXES = {"pprof": "pb.gz", "parquet": "parquet"}
QUEUE = f"(unattributed) {UnattributedReason.QUEUE.value}"

Exporter = Callable[..., Path]


@pytest.fixture
def exported(built: Built, recorded: Recorded, tmp_path: Path) -> Exporter:
    """Writes a run of a sample in a format."""

    def write(model: str, to: str, **options: object) -> Path:
        target = tmp_path / f"{model}.{to}"
        tracemap.export(recorded(model), to, target, built(model), None, force=True, **options)
        return target

    return write


def measured(run: Path) -> dict[str, int]:
    """The sum of each clock over a run; of submissions what their dispatches' own rows do not have."""
    query = f"""SELECT sum(cpu_ns), sum(duration_ns) - sum(coalesce(covered_ns, 0))
                FROM '{run}' WHERE NOT warmup AND kind <> 'step'"""
    cpu, wall = rows_of(query)[0]
    return {"cpu_ns": int(cpu), "duration_ns": int(wall)}


def rows_of(query: str) -> list[Any]:
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


@functools.cache
def attributed(run: Path, bundle: Path) -> Attribution:
    """What `attribute` finds out, once for all tests that compare with it."""
    return tracemap.attribute([run], bundle)


def by_op(built: Built, recorded: Recorded, model: str, metric: str) -> Counter[str]:
    """What `attribute` gives each op, and each unattributed under the name of exports."""
    result = attributed(recorded(model), built(model))
    costs = Counter({str(op.op): op.metrics[metric].attributed for op in result.ops})
    costs.update({f"(unattributed) {row.reason.value}": row.metrics[metric] for row in result.unattributed})
    return +costs


def owner(name: str) -> str:
    """The op of a name such as `op12 linalg.matmul`; residuals are their own."""
    return name if name.startswith("(unattributed)") else name.partition(" ")[0]


def op_of(stack: Sequence[str]) -> str:
    """The op of a stack, outermost frame first: its last frame but one, which is a kernel or a transfer."""
    return owner(stack[-2] if len(stack) > 1 else stack[0])


# ---- pprof

Fields = Mapping[int, Sequence[Any]]


def fields_of(message: bytes) -> Fields:
    """The fields of a message of protobuf by number: whole numbers, or bytes of what has a length."""
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = varint(message, place)
        if key & 7 == 0:
            value, place = varint(message, place)
            found.setdefault(key >> 3, []).append(value)
        else:
            assert key & 7 == 2
            length, place = varint(message, place)
            found.setdefault(key >> 3, []).append(message[place : place + length])
            place += length
    return found


def varint(data: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if data[place - 1] < 128:
            return value - (1 << 64) if value >> 63 else value, place


def numbers(packed: Sequence[bytes]) -> Iterator[int]:
    """A list of numbers, which are packed."""
    for data in packed:
        place = 0
        while place < len(data):
            value, place = varint(data, place)
            yield value


class Profile:
    """A profile as it is on the wire: field numbers are those of profile.proto."""

    def __init__(self, path: Path) -> None:
        self.fields = fields_of(gzip.decompress(path.read_bytes()))
        self.texts = [text.decode() for text in self.fields[6]]
        functions = {each[1][0]: each for each in map(fields_of, self.fields[5])}
        self.lines = {}
        for location in map(fields_of, self.fields[4]):
            line = fields_of(location[4][0])
            function = functions[line[1][0]]
            file = self.texts[function.get(4, [0])[0]]
            self.lines[location[1][0]] = (self.texts[function[2][0]], file, line.get(2, [0])[0])
        self.samples = [fields_of(sample) for sample in self.fields[2]]

    @property
    def types(self) -> list[str]:
        return [self.texts[fields_of(each)[1][0]] for each in self.fields[1]]

    def values(self, number: int) -> Iterator[tuple[list[tuple[str, str, int]], int]]:
        """Stack, innermost first, and value."""
        for sample in self.samples:
            yield [self.lines[place] for place in numbers(sample[1])], list(numbers(sample[2]))[number]

    def labels(self, sample: Fields) -> dict[str, str]:
        pairs = map(fields_of, sample.get(3, ()))
        return {self.texts[pair[1][0]]: self.texts[pair[2][0]] for pair in pairs}


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_pprof_adds_up(model: str, exported: Exporter, built: Built, recorded: Recorded) -> None:
    profile = Profile(exported(model, "pprof"))
    assert profile.types == ["cpu_ns", "duration_ns"]
    assert profile.texts[profile.fields[14][0]] == "cpu_ns"
    for number, (metric, total) in enumerate(measured(recorded(model)).items()):
        costs: Counter[str] = Counter()
        for stack, value in profile.values(number):
            costs[op_of([name for name, _, _ in reversed(stack)])] += value
        assert costs.total() == total
        assert +costs == by_op(built, recorded, model, metric)


def test_pprof_has_lines_scopes_and_labels(exported: Exporter, built: Built) -> None:
    profile, graph = Profile(exported("jax_gpt2_4l", "pprof")), tracemap.load(built("jax_gpt2_4l")).graph
    seen = 0
    for sample, (stack, _) in zip(profile.samples, profile.values(0), strict=True):
        labels = profile.labels(sample)
        if not labels:
            assert [name.partition(" ")[0] for name, _, _ in stack] == ["(unattributed)"]
            continue
        kernel, (name, file, line), source, *around = stack
        op, site = graph.op_by_id[labels["op"]], graph.site_by_id[labels["site"]]
        assert (name, file, line) == (f"{op.id} {op.name}", op.file, op.line)
        assert (labels["kernel"], labels["line"]) == (site.kernel, f"{op.file}:{op.line}")
        assert kernel == (f"kernel {site.kernel}", f"kernels/{graph.kernel_by_name[site.kernel].text}", 0)
        assert source[0].split()[0] == f"{source[1]}:{source[2]}"
        assert around[-1][0] == "main"
        if op.scope and not any(member.path for member in site.members):
            assert [each for each, _, _ in around[:-1]] == ["/".join(op.scope[: n + 1]) for n in range(len(op.scope))][
                ::-1
            ]
            seen += 1
    assert seen > 20


def test_callers_are_the_lines_of_python(exported: Exporter, built: Built) -> None:
    profile = Profile(exported("jax_gpt2_4l", "pprof", callers="python", metrics=["duration_ns"]))
    assert profile.types == ["duration_ns"]
    graph = tracemap.load(built("jax_gpt2_4l")).graph
    stacks = {stack[1][0]: stack[2:] for stack, _ in profile.values(0) if len(stack) > 1}
    op = next(op for op in graph.ops if op.frames and f"{op.id} {op.name}" in stacks)
    frames = [(f"{frame.file}:{frame.line} {frame.function}", frame.file, frame.line) for frame in op.frames]
    around = stacks[f"{op.id} {op.name}"][:-1]
    assert around == [frame for frame in frames if frame in around]
    assert len(around) >= 3


def go_pprof() -> Path | None:
    """The program, which Go brings; Debian's golang-go has it."""
    folders = [Path("/usr/lib"), Path("/usr/local")]
    found = [path for folder in folders for path in folder.glob("go*/pkg/tool/*/pprof")]
    own = shutil.which("pprof")
    if own and Path(own).read_bytes()[:4] == b"\x7fELF":  # google-pprof of Debian, a Perl program, reads no protobuf
        found.append(Path(own))
    return found[0] if found else None


@pytest.mark.skipif(not go_pprof(), reason="pprof of Go (Debian: golang-go) is not installed")
def test_pprof_reads_it(exported: Exporter, recorded: Recorded) -> None:
    path = exported("jax_gpt2_4l", "pprof")
    command = [str(go_pprof()), "-symbolize=none", "-raw", str(path)]
    raw = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "cpu_ns/nanoseconds[dflt] duration_ns/nanoseconds" in raw
    values = re.findall(r"^ +(\d+) +(\d+):", raw, re.MULTILINE)
    sums = [sum(int(row[number]) for row in values) for number in range(2)]
    assert sums == list(measured(recorded("jax_gpt2_4l")).values())
    assert re.search(r"op:\[op\d+\] site:\[site\d+\]", raw)


def test_a_package_that_is_missing_is_named(exported: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    pprof_format.profile_class.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(ToolMissing, match=r"pip install tracemap\[pprof\]"):
        exported("hand_repeat6_calls", "pprof")


# ---- callgrind


def own_costs(text: str) -> Iterator[tuple[str, str, int, list[int]]]:
    """File, function, line and cost of each line that is no call's."""
    names: dict[str, str] = {}
    file = function = ""
    called = False
    for line in text.split("\n\n", 1)[1].splitlines():
        kind, _, rest = line.partition("=")
        if kind in ("fl", "fn", "cfi", "cfn"):
            (number, name), kinds = re.fullmatch(r"(\(\d+\))(?: (.*))?", rest).groups(), kind[-1] in "li"  # type: ignore[union-attr]
            name = names.setdefault(f"{number}{kinds}", name)
            file, function = (name if kind == "fl" else file), (name if kind == "fn" else function)
        elif kind == "calls":
            called = True
        elif line and not called:
            place, *costs = map(int, line.split())
            yield file, function, place, costs
        else:
            called = False


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("callers", ["scope", "python"])
def test_callgrind_adds_up_by_op(
    model: str, callers: str, exported: Exporter, built: Built, recorded: Recorded
) -> None:
    text = exported(model, "callgrind", callers=callers).read_text()
    costs: Counter[str] = Counter()
    for _, function, _, (cpu, _) in own_costs(text):
        costs[owner(function)] += cpu
    assert +costs == by_op(built, recorded, model, "cpu_ns")
    assert f"summary: {' '.join(map(str, measured(recorded(model)).values()))}\n" in text


def test_the_cost_is_of_ops_or_of_kernels(exported: Exporter, built: Built, recorded: Recorded) -> None:
    model = "jax_gpt2_4l"
    of_ops = list(own_costs(exported(model, "callgrind").read_text()))
    of_kernels = list(own_costs(exported(model, "callgrind", self_cost="kernels").read_text()))
    assert {function.split()[0] for _, function, _, _ in of_kernels} == {"kernel", "(unattributed)"}
    assert not any(function.startswith("kernel ") for _, function, _, _ in of_ops)
    total = measured(recorded(model))["cpu_ns"]
    for rows in (of_ops, of_kernels):
        assert sum(costs[0] for *_, costs in rows) == total
    result = tracemap.attribute([recorded(model)], built(model))
    graph = tracemap.load(built(model)).graph
    per_kernel: Counter[str] = Counter()
    for site in result.sites:
        shares = sum(share.attributed["cpu_ns"] for share in site.shares)
        per_kernel[f"kernel {graph.site_by_id[site.site].kernel}"] += shares
    found: Counter[str] = Counter()
    for file, function, line, costs in of_kernels:
        found[function] += costs[0]
        if function.startswith("kernel "):
            lines = (built(model) / file).read_text().split("\n")
            assert 1 <= line <= len(lines)
    assert {name: found[name] for name in per_kernel} == per_kernel


@pytest.mark.skipif(not shutil.which("callgrind_annotate"), reason="callgrind_annotate (valgrind) is not installed")
def test_callgrind_annotate_reads_it(exported: Exporter, built: Built, recorded: Recorded) -> None:
    """Totals, costs of functions and of lines; with all that it calls, the entry has all but residuals."""
    model = "jax_gpt2_4l"
    path = exported(model, "callgrind")
    command = ["callgrind_annotate", "--threshold=100", f"-I={built(model) / 'source'}", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed, _, lines = shown.partition("-- Auto-annotated source")
    assert f"{measured(recorded(model))['cpu_ns']:,} (100.0%)" in listed
    costs: Counter[str] = Counter()
    for amount, name in re.findall(
        r"^ *([\d,]+) \([ \d.]+%\) .*? +\S*?:((?:op\d+|\(unattributed\)) \S+)", listed, re.MULTILINE
    ):
        costs[owner(name)] += int(amount.replace(",", ""))
    assert costs == by_op(built, recorded, model, "cpu_ns")
    op = next(op for op in tracemap.load(built(model)).graph.ops if costs[op.id] == max(costs.values()))
    text = (built(model) / "source" / str(op.file)).read_text().split("\n")[int(str(op.line)) - 1]
    assert re.search(rf"^ *{costs[op.id]:,} \(.*{re.escape(text.strip()[:30])}", lines, re.MULTILINE)
    inclusive = subprocess.run([*command, "--inclusive=yes"], capture_output=True, text=True, check=True).stdout
    entry = re.search(r"^ *([\d,]+) .*:main", inclusive, re.MULTILINE)
    assert entry
    assert int(entry[1].replace(",", "")) == sum(cost for name, cost in costs.items() if name.startswith("op"))


def test_names_of_metrics_are_events_of_their_own() -> None:
    assert event_names(["cpu_ns", "a b", "a.b", "7", ""]) == ["cpu_ns", "a_b", "a_b_2", "m_7", "m_"]


# ---- speedscope


@pytest.mark.parametrize("model", MODELS)
def test_speedscope_adds_up_and_is_of_its_schema(
    model: str, exported: Exporter, built: Built, recorded: Recorded
) -> None:
    document = json.loads(exported(model, "speedscope").read_text())
    schema = json.loads((ROOT / "tests" / "programs" / "schemas" / "speedscope.json").read_text())
    jsonschema.validate(document, schema)
    frames = document["shared"]["frames"]
    for profile, (metric, total) in zip(document["profiles"], measured(recorded(model)).items(), strict=True):
        assert (profile["name"], profile["unit"], profile["endValue"]) == (metric, "nanoseconds", total)
        costs: Counter[str] = Counter()
        for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
            costs[op_of([frames[number]["name"] for number in stack])] += weight
        assert costs == by_op(built, recorded, model, metric)


# ---- collapsed stacks


def stacks_of(text: str) -> Iterator[tuple[list[str], int]]:
    """Frames and amount of each line, as flamegraph.pl reads it, with a second amount for differences."""
    for line in text.split("\n")[:-1]:
        stack, amount = re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", line).groups()  # type: ignore[union-attr]
        assert not re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", stack)
        yield stack.split(";"), int(amount)


@pytest.mark.parametrize("model", MODELS)
def test_collapsed_stacks_add_up(model: str, exported: Exporter, built: Built, recorded: Recorded) -> None:
    for metric, total in measured(recorded(model)).items():
        stacks = list(stacks_of(exported(model, "collapsed", metrics=[metric]).read_text()))
        costs: Counter[str] = Counter()
        for stack, amount in stacks:
            costs[op_of(stack)] += amount
        assert costs.total() == total
        assert costs == by_op(built, recorded, model, metric)
        assert len({tuple(stack) for stack, _ in stacks}) == len(stacks)
    first = check_cli("export", recorded(model), "--map", built(model), "--to", "collapsed")
    assert first == exported(model, "collapsed", metrics=["cpu_ns"]).read_text()


def test_collapsed_stacks_are_scopes_lines_ops_and_kernels(exported: Exporter, built: Built) -> None:
    graph = tracemap.load(built("jax_gpt2_4l")).graph
    for callers in ("scope", "python"):
        for stack, _ in stacks_of(exported("jax_gpt2_4l", "collapsed", callers=callers).read_text()):
            if len(stack) == 1:
                continue
            *around, source, op, kernel = stack
            assert re.fullmatch(r"\S+:\d+ \S+", source)
            assert op == f"{op.split()[0]} {graph.op_by_id[op.split()[0]].name}"
            assert kernel.removeprefix("kernel ") in graph.kernel_by_name
            assert around[0] == "main"
            assert all(re.match(r"\S+:\d+ ", frame) for frame in around[1:]) == (callers == "python" or not around[1:])


def test_onnx_nodes_are_source_frames_of_ops_without_python() -> None:
    ops = [
        builders.op(1, 3, name="onnx.Conv", scope=("down",), node="down/conv\n5x5"),
        builders.op(2, 4, name="onnx.Add", node="add", frames=[("net.py", 7)]),
    ]
    map_ = builders.graph(ops, [builders.site(0, 1, 2)])
    ledger = ledger_of(map_, builders.attribution(map_, {"duration_ns": {"site0": 10}}), "scope", ())
    of_conv, of_add = ledger.charges
    assert [frame.name for frame in of_conv.enclosing] == ["main", "down", r"down/conv\n5x5"]
    assert (of_conv.enclosing[-1].file, of_conv.enclosing[-1].line) == ("model.mlir", 3)
    assert of_add.enclosing[-1].name == "net.py:7"


def test_names_do_not_break_collapsed_stacks() -> None:
    name = " a;b\n layer 42"
    ops = [builders.op(1, 3, name=name, scope=("7", "", "x 8", ";")), builders.op(2, 3, name="a:b", scope=())]
    map_ = builders.graph(ops, [builders.site(0, 1, 2, kernel="k 42")], name=name)
    ledger = ledger_of(map_, builders.attribution(map_, {"duration_ns": {"site0": 10}}), "scope", ())
    stacks = list(stacks_of(collapsed(ledger)))
    assert sum(amount for _, amount in stacks) == 10
    stack = next(stack for stack, _ in stacks if "op1" in stack[-2])
    assert stack[-2:] == [r"op1  a:b\n layer_42", "kernel k_42"]
    assert len(stack) == len(next(charge for charge in ledger.charges if charge.frame.name.startswith("op1")).stack)


def test_collapsed_stacks_have_one_metric(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    with pytest.raises(UsageInvalid, match="cpu_ns,duration_ns: collapsed stacks hold a single metric"):
        tracemap.export(run, "collapsed", tmp_path / "x", bundle, metrics=["cpu_ns", "duration_ns"])


# ---- tables


def test_parquet_and_csv_are_the_table_of_attribute(exported: Exporter, built: Built, recorded: Recorded) -> None:
    model = "hand_repeat6_calls"
    table = exported(model, "csv").read_text()
    assert table == check_cli("attribute", recorded(model), "--map", built(model), "--format", "csv")
    columns, *rows = csv.reader(io.StringIO(table))
    table = f"'{exported(model, 'parquet')}'"
    assert [name for name, *_ in rows_of(f"DESCRIBE FROM {table}")] == columns
    assert [["" if cell is None else str(cell) for cell in row] for row in rows_of(f"FROM {table}")] == rows
    for metric, total in measured(recorded(model)).items():
        ((found,),) = rows_of(f"SELECT sum(attributed) FROM {table} WHERE metric = '{metric}'")
        assert found == total


def test_google_benchmark_has_means_and_sums(exported: Exporter, built: Built, recorded: Recorded) -> None:
    model = "jax_gpt2_4l"
    document = json.loads(exported(model, "google-benchmark").read_text())
    rows = document["benchmarks"]
    for metric, key in (("cpu_ns", "cpu_time"), ("duration_ns", "real_time")):
        expected = by_op(built, recorded, model, metric)
        assert sum(row[metric] for row in rows) == measured(recorded(model))[metric]
        assert {owner(row["name"]): row[metric] for row in rows if row[metric]} == expected
        assert all(row[key] == row[metric] / 3 and row["iterations"] == 3 for row in rows)
    assert any(re.fullmatch(r"op\d+ stablehlo\.\w+/jax_gpt2_4l\.mlir:\d+", row["name"]) for row in rows)
    assert [row["family_index"] for row in rows] == list(range(len(rows)))


@pytest.mark.skipif(
    not COMPARE.is_file() or not importlib.util.find_spec("scipy"),
    reason="compare.py (Debian: libbenchmark-tools) or scipy is not installed",
)
def test_compare_of_google_benchmark_reads_it(exported: Exporter, tmp_path: Path) -> None:
    """Of the rules `model` and `root` one op has another part of a kernel, and all are matched by name."""
    paths = [tmp_path / f"{rule}.json" for rule in ("model", "root")]
    for path in paths:
        shutil.copy(exported("hand_mlp", "google-benchmark", rule=path.stem), path)
    command = [sys.executable, str(COMPARE), "--no-color", "benchmarks", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    roots, rows = (json.loads(path.read_text())["benchmarks"] for path in reversed(paths))
    common = {row["name"] for row in rows} & {row["name"] for row in roots}
    assert len(common) >= 4
    assert all(re.search(rf"^{re.escape(name)} .*[+-]\d", done.stdout, re.MULTILINE) for name in common)


# ---- all formats


@pytest.mark.parametrize("to", FORMATS)
def test_exports_are_replaced_where_the_format_has_room_for_a_mark(
    to: str, built: Built, recorded: Recorded, tmp_path: Path
) -> None:
    run, bundle = recorded("hand_mlp"), built("hand_mlp")
    tracemap.export(run, to, tmp_path / "x", bundle)
    for path in tmp_path.iterdir():
        assert has_mark(path) == (to not in {"csv", "collapsed"}), path
    if to not in {"csv", "collapsed"}:
        tracemap.export(run, to, tmp_path / "x", bundle)
    else:
        with pytest.raises(TargetExists):
            tracemap.export(run, to, tmp_path / "x", bundle)


def test_files_of_others_have_no_mark(tmp_path: Path) -> None:
    texts = ("creators: tracemap 1", "see `creator: tracemap 1`", '{"exporter": "speedscope"}', "# tracemap", "")
    packed = [gzip.compress(b"tracemap.pprof"), b"\x1f\x8b\x08\x08" + bytes(6) + b"profile.pb\0"]
    for data in (*(text.encode() for text in texts), *packed):
        (tmp_path / "x").write_bytes(data)
        assert not has_mark(tmp_path / "x"), data


@pytest.mark.long
@pytest.mark.parametrize("to", FORMATS)
def test_the_same_costs_are_the_same_bytes(to: str, exported: Exporter) -> None:
    first = exported("hand_repeat6_calls", to).read_bytes()
    assert exported("hand_repeat6_calls", to).read_bytes() == first


@pytest.mark.long
@pytest.mark.parametrize("to", [to for to in FORMATS if to != "perfetto"])  # its own test reads its messages
def test_hostile_names_take_no_effect(to: str, hostile: Path, recorded: Recorded, tmp_path: Path) -> None:
    target = tmp_path / "out"
    tracemap.export([recorded("hand_mlp")], to, target, hostile)
    data = target.read_bytes()
    if to == "parquet":
        text = "\n".join(str(cell) for row in rows_of(f"FROM read_parquet('{target}')") for cell in row)
    else:
        text = gzip.decompress(data).decode(errors="replace") if to == "pprof" else data.decode()
        # Protobuf has lengths and numbers between its texts.
        text = "\n".join(Profile(target).texts) if to == "pprof" else text
    assert "cmd|" in text
    assert not steering(text)


def test_options_that_a_format_does_not_have_are_refused(recorded: Recorded, tmp_path: Path) -> None:
    run = recorded("hand_mlp")
    said = refused("usage-invalid", "export", run, "--to", "csv", "-o", "x.csv", "--metric", "cpu_ns", cwd=tmp_path)
    assert "csv always has all metrics of the run; --metric can add bytes_read" in said
    said = refused("usage-invalid", "export", run, "--to", "pprof", "-o", "-", cwd=tmp_path)
    assert "name a file" in said


def test_what_is_asked_for_must_be_there(built: Built, recorded: Recorded, tmp_path: Path) -> None:
    run, bundle, target = recorded("hand_mlp"), built("hand_mlp"), tmp_path / "x"
    with pytest.raises(UsageInvalid, match="no metric 'L1'; it has: cpu_ns, duration_ns"):
        tracemap.export(run, "pprof", target, bundle, metrics=["L1"])
    assert not target.exists()
    target.touch()
    with pytest.raises(TargetExists):
        tracemap.export(run, "speedscope", target, bundle)
    with pytest.raises(UsageInvalid, match="the same command reads this file"):
        tracemap.export(run, "csv", run, bundle, force=True)


def test_the_command_prints_texts(built: Built, recorded: Recorded, exported: Exporter) -> None:
    """On standard output is what Python writes to a file, with the rule that is asked for."""
    model = "hand_mlp"
    path = exported(model, "speedscope", rule="root")
    words = ("--map", built(model), "--to", "speedscope", "--rule", "root", "-o", "-")
    assert check_cli("export", recorded(model), *words) == path.read_text()


SMALL = builders.graph([builders.op(1, 3), builders.op(2, 4)], [builders.site(0, 1, 2)])


def small(values: Mapping[str, int]) -> Attribution:
    return builders.attribution(SMALL, {name: {"site0": value} for name, value in values.items()})


def test_amounts_that_a_format_cannot_hold_are_refused() -> None:
    below = ledger_of(SMALL, small({"duration_ns": 10, "balance": -8}), "scope", ())
    with pytest.raises(UsageInvalid, match="balance has negative amounts"):
        callgrind(below, "ops")
    huge = small({"duration_ns": 2**62, "other": 2**62})
    assert callgrind(ledger_of(SMALL, huge, "scope", ()), "ops")


def test_a_ledger_adds_up() -> None:
    ledger = ledger_of(SMALL, small({"duration_ns": 11}), "scope", ())
    assert ledger.totals == (11,)
    with pytest.raises(BalanceError):
        Ledger(SMALL, ledger.attribution, ledger.metrics, ledger.charges[1:])


def test_submissions_are_a_residual(exported: Exporter, recorded: Recorded) -> None:
    """Time in which something was submitted, and no kernel of it ran, has its own line."""
    costs = {function: row for _, function, _, row in own_costs(exported("jax_gpt2_4l", "callgrind").read_text())}
    query = "SELECT sum(duration_ns - covered_ns) FROM '{}' WHERE kind = 'execute' AND NOT warmup"
    ((expected,),) = rows_of(query.format(recorded("jax_gpt2_4l")))
    assert costs[QUEUE] == [0, expected]


def test_the_table_of_costs_is_shared(built: Built, recorded: Recorded) -> None:
    result = tracemap.attribute(recorded("hand_mlp"), built("hand_mlp"))
    text = attribution_csv(tracemap.load(built("hand_mlp")).graph, result)
    assert text.count("\n") == 1 + len(result.metrics) * (len(result.ops) + len(result.unattributed))
