"""The capabilities that are tried, each with a truth made without tracemap: by name what tries it.

Each returns what is to be said beside "yes"; it raises `Refused` where the release lacks it and tracemap says so.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import duckdb

from tests.checks import OUTLIERS, check_attribution, check_bounds, check_links, check_map, check_page
from tests.compat.place import Place, cli
from tests.hook.support import hooked, hooked_by_plugin, module, python_command, recorded_calls, tool_command
from tests.hook.support import run as run_program
from tests.map.test_kernel_lines import code_of, plain_module
from tests.support import PLAIN_FLAGS, SAMPLES, Json, json_cli, run_cli
from tracemap.core.toolchain import find_tool
from tracemap.core.units import plural
from tracemap.hook import environment, library_path
from tracemap.machine.images import read_images
from tracemap.map.bundle import load

MLP = SAMPLES / "models" / "hand_mlp.mlir"
MLP_FLAGS = SAMPLES / "flags" / "hand_mlp.flags"
_INEXACT = frozenset({"commands-by-order", "sites-without-command"})
_WHOLE_RUNS = ("jax_mlp", "jax_gpt2_4l", "onnx_tinygpt_named", "torch_resnet18_small")
"""Models of which every call runs the same commands."""


# ---- the map


def maps(place: Place) -> str:
    """Of every sample that the compiler takes, the map is the flow phase's, and each site has its command."""
    for name, flow in place.flows.items():
        shown = json_cli("show", place.bundle(name))
        check_map(shown, flow)
        check_links(shown)
        slugs = {diagnostic.slug for diagnostic in load(place.bundle(name)).graph.diagnostics}
        assert not slugs & _INEXACT, (name, slugs)
    others = [name for name in place.chosen if name not in place.flows]
    for name in others:
        refusal = refusal_of_build(place, name)
        assert refusal == "model-invalid", (name, refusal)
    said = f"{plural(len(place.flows), 'sample')} of {len(place.chosen)}"
    return said + (f"; iree-compile itself does not take {', '.join(others)} (model-invalid)" if others else "")


def refusal_of_build(place: Place, name: str) -> str:
    """The slug by which a sample is refused that the compiler does not take."""
    done = run_cli("build", place.corpus.models()[name], "-o", place.folder / "refused.tracemap")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.rstrip().rpartition("[")[2].removesuffix("]")


def same_code(place: Place) -> str:
    """The machine code is a plain compile's, instruction for instruction."""
    names = [name for name in (*_WHOLE_RUNS, "torch_bert_tiny", "hand_dynamic") if name in place.flows]
    for name in names:
        ours = read_images(load(place.bundle(name)).module_path)
        plain = read_images(plain_module(place.corpus.models()[name], place.new(f"plain-{name}")))
        assert [code_of(image) for image in ours] == [code_of(image) for image in plain], name
        assert sum(len(code) for image in plain for _, code in code_of(image)) > 100, name
    return plural(len(names), "sample")


def kernel_texts(place: Place) -> str:
    """Kernels have their final IR, and steps; of the rest the map says that it has none."""
    without = []
    for name in place.flows:
        graph = load(place.bundle(name)).graph
        if any(diagnostic.slug == "kernels-unknown" for diagnostic in graph.diagnostics):
            without.append(name)
        else:
            assert all(kernel.steps for kernel in graph.kernels), name
    assert len(without) < len(place.flows) / 2, without
    return f"not of {', '.join(without)} (kernels-unknown)" if without else ""


def from_dumps(place: Place) -> str:
    """The dumps of a plain compile make a map with the same sites."""
    folder = place.new("dumps")
    flags = [*PLAIN_FLAGS, "--mlir-print-debuginfo", f"--dump-compilation-phases-to={folder / 'phases'}"]
    command = [find_tool("iree-compile"), MLP, *flags, "-o", folder / "m.vmfb"]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    target = folder / "m.tracemap"
    cli("build", "--from-dumps", folder / "phases", "--module", folder / "m.vmfb", MLP, "-o", target)
    assert _kernels(target) == _kernels(place.bundle("hand_mlp"))
    return ""


def wrapped(place: Place) -> str:
    """A command of a build system makes its own output, and a bundle beside it."""
    folder = place.new("wrapped")
    command = [str(find_tool("iree-compile")), str(MLP), *PLAIN_FLAGS, "-o", str(folder / "m.vmfb")]
    cli("build", "--", *command)
    plain = plain_module(MLP, folder)
    ours = read_images(folder / "m.vmfb")
    assert [code_of(image) for image in ours] == [code_of(image) for image in read_images(plain)]
    assert _kernels(folder / "m.tracemap") == _kernels(place.bundle("hand_mlp"))
    return ""


def _kernels(bundle: Path) -> list[str]:
    return [site["kernel"] for site in json_cli("show", bundle)["sites"]]


# ---- questions to it


def shows(place: Place) -> str:
    """What the map has is told of a line, an op, a site, a scope and a kernel with its machine code."""
    bundle = place.bundle("jax_gpt2_4l")
    kernel = _kernels(bundle)[0]
    for what in ("jax_gpt2_4l.mlir:386", "op355", "site1", "h0/attn"):
        assert cli("show", bundle, what)
    assert "ret" in cli("show", bundle, kernel, "--assembly")
    return ""


def audits(place: Place) -> str:
    """The phase that lost each op is told, and for one op the pass."""
    bundle = place.bundle("hand_repeat12")
    equal = [op.id for op in load(bundle).graph.ops if op.name == "linalg.generic"]
    found = json.loads(cli("audit", bundle, "--pass", equal[1], "--format", "json"))
    assert found["locations"]["ops"] == len(load(bundle).graph.ops)
    (spot,) = found["spots"]
    assert (spot["phase"], spot["argument"]) == ("flow", "iree-flow-deduplicate-executables")
    return ""


def lowers(place: Place) -> str:
    """Pipelines of iree-opt are run, and the loops they make told."""
    model = Path(__file__).parents[1] / "programs" / "lower" / "matmul_bias_relu.mlir"
    pipeline = "builtin.module(func.func(convert-linalg-to-affine-loops))"
    target = place.folder / "lowered.json"
    cli("lower", model, "--pipeline", pipeline, "--format", "json", "-o", target)
    assert json.loads(target.read_bytes())["stages"]
    return ""


def reports(place: Place) -> str:
    """The page of a map."""
    page = place.folder / "map.html"
    cli("report", place.bundle("jax_mlp"), "-o", page)
    check_page(page, load(place.bundle("jax_mlp")).graph.module.name)
    return ""


# ---- runs


def records(place: Place) -> str:
    """Every sample's run balances to the nanosecond, and no dispatch is without an owner."""
    done = 0
    for flags, file in place.corpus.flag_files().items():
        model = place.corpus.model_of(flags)
        if model not in place.flows:
            continue
        run = place.folder / f"{flags}.parquet"
        cli("record", place.bundle(model), "--flagfile", file, "--iterations", "3", "-o", run)
        _check_run(place, model, run)
        done += 1
    return plural(done, "run")


def _check_run(place: Place, model: str, run: Path) -> None:
    page = run.with_suffix(".html")
    printed = cli("attribute", run, "--map", place.bundle(model), "--html", page, "--format", "json")
    attribution: Json = json.loads(printed)
    check_attribution(attribution, run)
    check_bounds(attribution)
    check_page(page, load(place.bundle(model)).graph.module.name)


def recording_with(*options: str, metric: str = "") -> Callable[[Place], str]:
    """What tries a recording with more options, and that its run has the metric."""

    def tryout(place: Place) -> str:
        run = place.folder / f"with{options[0]}.parquet"
        cli("record", place.bundle("hand_mlp"), "--flagfile", MLP_FLAGS, *options, "-o", run)
        attribution = json.loads(cli("attribute", run, "--map", place.bundle("hand_mlp"), "--format", "json"))
        for total in attribution["metrics"]:
            assert total["attributed"] + total["unattributed"] == total["measured"], total["name"]
        assert not metric or metric in {total["name"] for total in attribution["metrics"]}
        return ""

    return tryout


# ---- the hook


def hook_preloaded(place: Place) -> str:
    """Every call of every dispatch is recorded, in the order of the map's commands; the run's output stays the same."""
    names = [name for name in _WHOLE_RUNS if name in place.flows]
    for name in names:
        calls = _recorded(place, name)
        expected = _kernels_of_commands(place.bundle(name))
        rows = duckdb.execute(
            "SELECT kernel FROM read_parquet(?) GROUP BY kernel, call ORDER BY min(start_ns)", [str(calls)]
        ).fetchall()
        assert [kernel for (kernel,) in rows] == expected, name
    return f"{plural(len(names), 'sample')}: every call is the map's command"


def _recorded(place: Place, name: str) -> Path:
    """The table of all calls of workgroups of one invocation on local-sync."""
    table = place.folder / f"calls-{name}.parquet"
    if table.exists():
        return table
    folder = place.new(f"calls-{name}")
    vmfb = load(place.bundle(name)).module_path
    flags = place.corpus.flag_files()[name]
    command = [str(find_tool("iree-run-module")), f"--module={vmfb}", "--device=local-sync", f"--flagfile={flags}"]
    assert run_program(command, environment(folder)) == run_program(command)
    cli("stats", folder, "--calls", table)
    return table


def _kernels_of_commands(bundle: Path) -> list[str]:
    """The kernels of all dispatches of the map, those of initializers first."""
    buffers = load(bundle).graph.command_buffers
    ordered = sorted(buffers, key=lambda buffer: (not buffer.initializer, buffer.ordinal))
    return [str(command.kernel) for buffer in ordered for command in buffer.commands if command.kind == "dispatch"]


def hook_as_plugin(place: Place) -> str:
    """The library is a plugin of the runtime, of embedded and of system executables."""
    return _kinds(place, "plugin")


def hook_kinds(place: Place) -> str:
    """Preloaded, on both drivers, both kinds of executables have the same calls."""
    return _kinds(place, "preloaded")


def _kinds(place: Place, way: str) -> str:
    found = []
    for elf in ("embedded", "system"):
        vmfb = module(place.folder, elf)
        for driver in ("local-sync", "local-task"):
            output = place.new(f"{way}-{elf}-{driver}")
            more = (f"--executable_plugin={library_path()}",) if way == "plugin" else ()
            variables = hooked_by_plugin(output) if way == "plugin" else hooked(library_path(), output)
            run_program(tool_command("iree-run-module", vmfb, driver, *more), variables)
            found.append(recorded_calls(output))
    assert all(each == found[0] and each for each in found), found
    return ""


def hook_attached(place: Place) -> str:
    """Attached inside of Python; what the program computes stays the same."""
    vmfb, output = module(place.folder, "embedded"), place.new("attached")
    plain = run_program(python_command(vmfb, "local-task"))
    assert run_program(python_command(vmfb, "local-task", f"attach={output}={library_path()}")) == plain
    assert recorded_calls(output)
    return ""


def calls_attributed(place: Place) -> str:
    """A table of calls is a run: it balances over the ops."""
    for name in _tables(place):
        printed = cli("attribute", _recorded(place, name), "--map", place.bundle(name), "--format", "json")
        (measured,) = (metric for metric in json.loads(printed)["metrics"] if metric["name"] == "cpu_ns")
        rows = duckdb.execute("SELECT sum(duration_ns) FROM read_parquet(?)", [str(_recorded(place, name))]).fetchall()
        assert measured["measured"] == measured["attributed"] + measured["unattributed"] == rows[0][0]
        # Every call is of a kernel of the map, whose site is known; what is left was delayed.
        reasons = {row["reason"] for row in json.loads(printed)["unattributed"] if any(row["metrics"].values())}
        assert reasons <= {OUTLIERS}, (name, reasons)
    return ""


def _tables(place: Place) -> Iterator[str]:
    return (name for name in _WHOLE_RUNS if name in place.flows)


def outputs_and_times(place: Place) -> str:
    """Outputs are those that the release's own program prints, the comparison agrees, and dispatches are repeated."""
    bundle, flags = place.bundle("hand_mlp"), ("--flagfile", MLP_FLAGS)
    tool = [str(find_tool("iree-run-module")), "--device=local-task", f"--module={bundle / 'module.vmfb'}"]
    own = subprocess.run([*tool, f"--flagfile={MLP_FLAGS}"], cwd=SAMPLES, capture_output=True, text=True, check=True)
    assert cli("run", bundle, *flags) == own.stdout
    kept = place.folder / "expected.npy"
    cli("run", bundle, *flags, f"--output=@{kept}", "--force")
    assert cli("run", bundle, *flags, f"--expected-output=@{kept}", "--exact").endswith(": as expected\n")
    for repeat in ("1", "3"):
        times = ("--iterations", "4", "--dispatch-repeat", repeat, "--format", "json")
        (row,) = json.loads(cli("benchmark", bundle, *flags, *times))["benchmarks"]
        assert row["iterations"] == 4 * int(repeat)
    return ""


CAPABILITIES: Mapping[str, Callable[[Place], str]] = {
    "build: maps of all samples": maps,
    "build: code of a plain compile": same_code,
    "build: texts of kernels": kernel_texts,
    "build --from-dumps": from_dumps,
    "build -- iree-compile": wrapped,
    "show": shows,
    "audit, audit --pass": audits,
    "lower": lowers,
    "report": reports,
    "run, benchmark": outputs_and_times,
    "record, attribute": records,
    "record --sample": recording_with("--sample", "--seconds", "1", metric="samples"),
    "record --counters": recording_with("--counters", "page-faults", "--iterations", "3", metric="page-faults"),
    "record --cache-sim": recording_with("--cache-sim", "--iterations", "3", metric="Ir"),
    "record --compare-devices": recording_with("--compare-devices", "local-sync,local-task", "--iterations", "3"),
    "hook: preloaded": hook_preloaded,
    "hook: embedded and system ELF": hook_kinds,
    "hook: as a plugin": hook_as_plugin,
    "hook: attached in Python": hook_attached,
    "stats --calls, attribute": calls_attributed,
}
