"""Real perf, gdb and valgrind name the lines and ops of kernels in programs with the hook."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import FIXED, Built
from tests.hook import native_tools, support
from tests.hook.test_host import library, output  # noqa: F401 - fixtures
from tests.support import SAMPLES, check_cli, json_cli, made_once
from tracemap.core.toolchain import find_tool
from tracemap.hook.compiling import find_compiler
from tracemap.machine.images import elf_of, read_images
from tracemap.map.bundle import load
from tracemap.runs.hook.recording import read_recording

# ruff: noqa: F811 - fixtures

SERVER: Final = """
import sys
from pathlib import Path
import iree.runtime as rt
config, kept = rt.Config("local-sync"), []
for path in sys.argv[1:]:
    context = rt.SystemContext(config=config)
    context.add_vm_module(rt.VmModule.copy_buffer(config.vm_instance, Path(path).read_bytes()))
    kept.append(context)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["embedded", pytest.param("system", marks=pytest.mark.long)])
def elf(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def bundle(made: Path, elf: str) -> Path:
    return bundle_of(made, "hand_mlp", elf)


def bundle_of(made: Path, model: str, elf: str) -> Path:
    """A bundle with code without AVX-512, which valgrind does not know, built once; other tests share embedded ones."""
    target = made / (f"{model}-fixed.tracemap" if elf == "embedded" else f"{model}-debug.tracemap")
    system = ("--iree-llvmcpu-link-embedded=false", support.system_linker()) if elf == "system" else ()
    with made_once(target) as missing:
        if missing:
            file, sources = SAMPLES / "models" / f"{model}.mlir", SAMPLES / "sources"
            check_cli("build", file, "--source-root", sources, "-o", target, "--", *FIXED, *system)
    return target


@pytest.fixture
def symbols(bundle: Path, tmp_path: Path) -> Path:
    return symbols_of(bundle, tmp_path)


def symbols_of(bundle: Path, folder: Path, lines: str = "mlir") -> Path:
    target = folder / f"{bundle.stem}.{lines}"
    check_cli("debug-info", bundle, "-o", target, "--lines", lines)
    return target


def command(bundle: Path, tool: str = "iree-run-module", model: str = "hand_mlp") -> list[str]:
    """The tool on the bundle's module, with the sample's inputs."""
    flags = next(path for path in sorted((SAMPLES / "flags").glob(f"{model}*.flags")))
    fixed = ["--benchmark_min_time=0.3s"] if tool == "iree-benchmark-module" else []
    module = bundle / "module.vmfb"
    return [str(find_tool(tool)), f"--module={module}", "--device=local-sync", f"--flagfile={flags}", *fixed]


def low_addresses(bundle: Path) -> dict[str, int]:
    return {function.name: function.low for function in read_images(bundle / "module.vmfb")[0].functions}


def by_address(bundle: Path, names: native_tools.Instructions) -> dict[int, native_tools.Shown]:
    low = low_addresses(bundle)
    return {low[kernel] + offset: shown for (kernel, offset), shown in names.items()}


def assert_agree(found: native_tools.Instructions, names: native_tools.Instructions) -> None:
    """All instructions are as tracemap names them, and none is missing."""
    assert found.keys() == names.keys()
    wrong = {key: (shown, names[key]) for key, shown in found.items() if shown != names[key]}
    assert not wrong


# ---- gdb


def test_gdb_names_every_line_and_op(
    bundle: Path, symbols: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_tools.need("gdb")
    monkeypatch.chdir(SAMPLES)
    names = native_tools.expected(bundle)
    assert sum(bool(shown.op) for shown in names.values()) > 0.8 * len(names)
    variables = native_tools.environment(library, symbols)
    assert_agree(native_tools.gdb_lines(command(bundle), names, tmp_path, variables), names)


@pytest.mark.long
@pytest.mark.parametrize("lines", ["python", "kernel"])
@pytest.mark.parametrize(("model", "elf"), [("jax_mlp", "embedded"), ("onnx_mlp_named", "system")])
def test_gdb_names_other_lines(
    model: str, lines: str, made: Path, elf: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SAMPLES)
    bundle = bundle_of(made, model, elf)
    variables = native_tools.environment(library, symbols_of(bundle, tmp_path, lines))
    names = native_tools.expected(bundle, lines)
    found = native_tools.gdb_lines(command(bundle, model=model), names, tmp_path, variables)
    assert_agree(found, names)


def test_gdb_stops_at_a_line_of_the_model(bundle: Path, symbols: Path, library: Path, tmp_path: Path) -> None:
    """A breakpoint by line, the op as a frame of its own in the kernel, and the runtime below it."""
    gdb = native_tools.need("gdb")
    line = next(shown.line for shown in native_tools.expected(bundle).values() if shown.op)
    script = tmp_path / "script"
    variables = native_tools.environment(library, symbols)
    settings = [f"set environment {name} {value}" for name, value in variables.items()]
    where = f"hand_mlp.mlir:{line}"
    steps = ["set breakpoint pending on", *settings, f"break {where}", "run", "backtrace 3", "kill"]
    script.write_text("\n".join(steps), encoding="utf-8")
    words = [gdb, "-nx", "-batch", "-x", str(script), "--args", *command(bundle)]
    done = subprocess.run(words, cwd=SAMPLES, capture_output=True, text=True, check=False)
    frames = re.findall(r"^#(\d) +(.*)", done.stdout, re.MULTILINE)
    assert [number for number, _ in frames] == ["0", "1", "2"], done.stdout + done.stderr
    assert re.match(rf"op\d+ \S+ \[site\d.*\] \(\) at .*/source/{where}$", frames[0][1])
    assert "main" in frames[1][1] or "mlp" in frames[1][1]
    assert "iree_hal" in frames[2][1]
    assert "warning" not in done.stderr


@contextmanager
def server(variables: dict[str, str], *modules: Path) -> Iterator[int]:
    """A process that has loaded modules, and waits."""
    words = [sys.executable, "-c", SERVER, *map(str, modules)]
    with subprocess.Popen(
        words, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout
        assert program.stderr
        started = program.stdout.readline()
        assert started == b"ready\n", program.stderr.read()
        yield program.pid
        program.communicate()
        assert program.returncode == 0


@pytest.mark.long
def test_gdb_attaches_to_a_server_with_two_modules(made: Path, library: Path, tmp_path: Path) -> None:
    """Two kernels have the same name and are of other ops; each module is loaded twice."""
    native_tools.need("gdb")
    bundles = [bundle_of(made, "jax_mlp_train", "embedded"), bundle_of(made, "jax_mlp", "system")]
    folders = [symbols_of(bundle, tmp_path) for bundle in bundles]
    names = [native_tools.expected(bundle) for bundle in bundles]
    variables = native_tools.environment(library, folders[0])
    variables["TRACEMAP_HOOK_DEBUG_INFO"] += f":{folders[1]}"
    modules = [bundle / "module.vmfb" for bundle in (*bundles, bundles[0], bundles[1])]
    with server(variables, *modules) as process:
        mapped = Path(f"/proc/{process}/maps").read_text(encoding="utf-8")
        files = native_tools.gdb_attached(process, names[0] | names[1], tmp_path)
    # The second load of the file is of the runtime's own temporary file, registered like code in memory.
    assert len(files) == 4
    assert sum(str(folders[1]) in file for file in files) == 1
    agreeing = []
    for found in files.values():
        whole = [own for own in names if all(found.get(key) == shown for key, shown in own.items())]
        assert whole
        agreeing.append(names.index(whole[0]))
    assert sorted(agreeing) == [0, 0, 1, 1]
    assert all(str(folder) in mapped for folder in folders)


@pytest.mark.long
def test_nothing_stays_registered_when_executables_are_unloaded(
    bundle: Path, elf: str, symbols: Path, library: Path
) -> None:
    program = f"""
import ctypes, gc, sys
sys.argv = ["program", {str(bundle / "module.vmfb")!r}, "local-sync", "3", "1"]
exec(open({str(support.PROGRAM)!r}).read().replace('if __name__ == "__main__":', "if False:"))
hook = ctypes.CDLL({str(library)!r})
first = lambda: (ctypes.c_uint64 * 3).in_dll(hook, "__jit_debug_descriptor")[2]
config = rt.Config("local-sync")
context = rt.SystemContext(config=config)
context.add_vm_module(rt.VmModule.copy_buffer(config.vm_instance, Path(sys.argv[1]).read_bytes()))
count = lambda: {str(symbols)!r} in open("/proc/self/maps").read()
print(bool(first()), count())
del context
gc.collect()
print(bool(first()), count())
main(*sys.argv[1:3], 3, 1)
gc.collect()
print(bool(first()), count())
"""
    words = [sys.executable, "-c", program]
    done = native_tools.run(words, native_tools.environment(library, symbols), SAMPLES)
    lines = [line for line in done.stdout.splitlines() if " " in line]
    is_embedded = elf == "embedded"
    assert lines == [f"{is_embedded} True", "False False", "False False"], done.stderr


# ---- perf


@pytest.mark.long
def test_perf_names_every_line_and_op(bundle: Path, symbols: Path, library: Path, tmp_path: Path) -> None:
    """By the mapped file alone."""
    native_tools.need_samples(tmp_path)
    record(bundle, native_tools.environment(library, symbols), tmp_path / "perf.data")
    found = annotated(bundle, tmp_path / "perf.data", by_address(bundle, native_tools.expected(bundle)))
    assert found > 1000


@pytest.mark.long
def test_perf_learns_of_kernels_by_a_jitdump(bundle: Path, symbols: Path, library: Path, tmp_path: Path) -> None:
    """Every sample in a kernel has the op that the kernel has its name from, and its own line."""
    perf = native_tools.need_samples(tmp_path)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    variables = native_tools.environment(library, symbols, dumps)
    record(bundle, variables, tmp_path / "perf.data", "-k", "mono")
    (dump,) = dumps.glob("jit-*.dump")
    assert dump.stat().st_mode & 0o777 == 0o600
    inject = [perf, "inject", "--jit", "-i", str(tmp_path / "perf.data"), "-o", str(tmp_path / "jit.data")]
    assert native_tools.run(inject, {}, tmp_path).returncode == 0
    assert jitted_lines(bundle, tmp_path / "jit.data") > 100


@pytest.mark.long
def test_perf_shows_ops_as_inlined_frames(bundle: Path, symbols: Path, library: Path, tmp_path: Path) -> None:
    """Each sample in a kernel begins with the frame of the op of its address."""
    perf, data = native_tools.need_samples(tmp_path), tmp_path / "perf.data"
    record(bundle, native_tools.environment(library, symbols), data, "--call-graph", "dwarf,1024")
    script = [perf, "script", "-i", str(data), "-F", "ip,sym,symoff"]
    names, count = native_tools.expected(bundle), 0
    with_inlined = stacks(native_tools.run(script, {}, tmp_path).stdout)
    without = stacks(native_tools.run([*script, "--no-inline"], {}, tmp_path).stdout)
    for inlined, plain in zip(with_inlined, without, strict=True):
        place = re.match(r"\s+[0-9a-f]+ op\d+ \S+ \[.*\] (\S+)\+0x([0-9a-f]+)", plain[0])
        if place:
            frame = re.match(r"\s+[0-9a-f]+ (.*?)(\+0x[0-9a-f]+)?( \(inlined\))?$", inlined[0])
            assert frame
            assert native_tools.op_in(frame[1]) == names[place[1], int(place[2], 16)].op
            count += 1
    assert count > 100


def stacks(text: str) -> list[list[str]]:
    """The frames of each sample, innermost first."""
    return [block.splitlines() for block in re.split(r"\n\s*\n", text.strip("\n")) if block.strip()]


@pytest.mark.long
@pytest.mark.parametrize("by_jitdump", [False, True])
def test_attribute_reads_samples_of_perf(
    by_jitdump: bool, bundle: Path, symbols: Path, library: Path, tmp_path: Path
) -> None:
    """Every sample of `perf script` in a kernel is in the result, in machine code that the bundle has."""
    perf = native_tools.need_samples(tmp_path)
    data, dumps = tmp_path / "perf.data", tmp_path / "dumps"
    dumps.mkdir()
    variables = native_tools.environment(library, symbols, dumps if by_jitdump else None)
    record(bundle, variables, data, "-k", "mono")
    if by_jitdump:
        data = tmp_path / "jit.data"
        inject = [perf, "inject", "--jit", "-i", str(tmp_path / "perf.data"), "-o", str(data)]
        assert native_tools.run(inject, {}, tmp_path).returncode == 0
    printed = tmp_path / "samples.txt"
    script = native_tools.run([perf, "script", "-i", str(data), "-F", "ip,sym,symoff,dso"], {}, tmp_path)
    printed.write_text(script.stdout, encoding="utf-8")
    expected = Counter(re.findall(r" op\d+ \S+ \[.*\] (\S+)\+0x[0-9a-f]+ \(", script.stdout))
    assert sum(expected.values()) > 100
    result = json_cli("attribute", printed, "--map", bundle)
    kernel_of = {site.id: site.kernel for site in load(bundle).graph.sites}
    found = {kernel_of[site["site"]]: site["metrics"]["samples"]["total"] for site in result["sites"]}
    found = {kernel: samples for kernel, samples in found.items() if samples}
    assert found == expected
    assert "samples-astray" not in {diagnostic["slug"] for diagnostic in result["diagnostics"]}


@pytest.mark.long
def test_perf_attaches_to_a_server(made: Path, library: Path, tmp_path: Path) -> None:
    perf = native_tools.need_samples(tmp_path)
    bundle = bundle_of(made, "hand_mlp", "embedded")
    symbols, dumps = symbols_of(bundle, tmp_path), tmp_path / "dumps"
    dumps.mkdir()
    words = [sys.executable, str(support.PROGRAM), str(bundle / "module.vmfb"), "local-sync", "1", "100000"]
    variables = {**os.environ, **native_tools.environment(library, symbols, dumps)}
    with subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL) as program:
        deadline = time.monotonic() + 30
        while not any(dumps.glob("jit-*.dump")) and time.monotonic() < deadline:
            time.sleep(0.05)
        data = tmp_path / "perf.data"
        options = ["-q", "-k", "mono", "-e", "cpu-clock", "-F", "2000", "-o", str(data), "-p", str(program.pid)]
        subprocess.run([perf, "record", *options, "sleep", "1"], check=True, capture_output=True)
        program.kill()
    assert annotated(bundle, data, by_address(bundle, native_tools.expected(bundle))) > 300
    inject = [perf, "inject", "--jit", "-i", str(data), "-o", str(tmp_path / "jit.data")]
    assert native_tools.run(inject, {}, tmp_path).returncode == 0
    assert jitted_lines(bundle, tmp_path / "jit.data") > 100


def record(bundle: Path, variables: dict[str, str], data: Path, *options: str, model: str = "hand_mlp") -> None:
    words = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", *options, "-o", str(data)]
    done = native_tools.run([*words, *command(bundle, "iree-benchmark-module", model)], variables, SAMPLES)
    assert done.returncode == 0, done.stderr


def annotated(bundle: Path, data: Path, at: dict[int, native_tools.Shown]) -> int:
    """The number of instructions that `perf annotate` shows, all of them right."""
    report = ["perf", "report", "-i", str(data), "--stdio", "-q", "--sort", "sym"]
    symbols = re.findall(r"\[\.\] (op\d+ .*\S)", native_tools.run(report, {}, SAMPLES).stdout)
    texts: dict[str, int] = {}
    for source in load(bundle).graph.sources[:1]:
        text = (bundle / "source" / source.path).read_text(encoding="utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            texts.setdefault(line.strip(), number)
    shown: dict[int, native_tools.Shown] = {}
    for symbol in symbols:
        shown.update(native_tools.perf_annotated(data, symbol, texts))
    wrong = {address: (line, at[address]) for address, line in shown.items() if address in at and line != at[address]}
    assert not wrong
    return len(shown.keys() & at.keys())


def jitted_lines(bundle: Path, data: Path) -> int:
    """The number of samples in kernels, all of them with the right line."""
    at = native_tools.expected(bundle)
    script = ["perf", "script", "-i", str(data), "-F", "ip,sym,symoff,srcline"]
    rows = native_tools.run(script, {}, SAMPLES).stdout.splitlines()
    count = 0
    for row, below in pairwise(rows):
        match = re.match(r"\s+[0-9a-f]+ op\d+ .* (\S+)\+0x([0-9a-f]+)", row)
        if match:
            line = re.search(r":(\d+)$", below.strip())
            assert (int(line[1]) if line else 0) == at[match[1], int(match[2], 16)].line, row
            count += 1
    return count


# ---- callgrind


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "lines", "elf"),
    [("hand_mlp", "mlir", "embedded"), ("hand_mlp", "mlir", "system"), ("torch_tinygpt", "python", "embedded")],
)
def test_callgrind_names_every_line(
    model: str, lines: str, made: Path, elf: str, library: Path, tmp_path: Path
) -> None:
    """Also in a kernel whose code of one line is longer than valgrind reads at once."""
    bundle = bundle_of(made, model, elf)
    counts = simulated(bundle, model, symbols_of(bundle, tmp_path, lines), library, tmp_path)
    names = native_tools.expected(bundle, lines)
    assert right_lines(bundle, counts, names) > 0.5 * len(names)
    source = f"{bundle.resolve()}/source/" + ("hand_mlp.mlir" if lines == "mlir" else "python/")
    shown = subprocess.run(["callgrind_annotate", str(counts)], capture_output=True, text=True, check=True).stdout
    assert f"-- Auto-annotated source: {source}" in shown


def simulated(bundle: Path, model: str, symbols: Path, library: Path, folder: Path) -> Path:
    """The counts of a program under callgrind."""
    native_tools.need("valgrind")
    counts = folder / "callgrind.out"
    options = ("--tool=callgrind", f"--callgrind-out-file={counts}", "--dump-instr=yes", "--dump-line=yes")
    variables = native_tools.environment(library, symbols)
    words = native_tools.valgrind_command(*options, *command(bundle, model=model), variables=variables)
    done = native_tools.run(words, {}, SAMPLES)
    assert done.returncode == 0, done.stderr
    return counts


def right_lines(bundle: Path, counts: Path, names: native_tools.Instructions) -> int:
    """The number of executed instructions of kernels, all of them with the right line."""
    at, found = by_address(bundle, names), {}
    for file, address, _, line in native_tools.callgrind_lines(counts):
        if "/code/" in file and address in at:
            found[address] = line
    assert {address: line for address, line in found.items() if line != at[address].line} == {}
    return len(found)


# ---- all three


MANY: Final = (
    *(
        ("hand_attention", "embedded"),
        ("hand_convnet", "system"),
        ("hand_oneline", "embedded"),
        ("hand_loop", "system"),
    ),
    *(("hand_dynamic", "embedded"), ("jax_cnn", "system"), ("jax_mlp_train", "embedded"), ("torch_mlp", "system")),
    *(("torch_bert_tiny", "embedded"), ("onnx_tinygpt_named", "system"), ("fx_mlp_linalg", "embedded")),
)


@pytest.mark.long
@pytest.mark.parametrize(("model", "elf"), MANY)
def test_many_models_are_named_right_by_all_tools(
    model: str, made: Path, elf: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every instruction by gdb, those of sampled kernels by perf, the executed ones by callgrind."""
    native_tools.need_samples(tmp_path)
    monkeypatch.chdir(SAMPLES)
    bundle = bundle_of(made, model, elf)
    symbols, names = symbols_of(bundle, tmp_path), native_tools.expected(bundle)
    variables = native_tools.environment(library, symbols)
    assert_agree(native_tools.gdb_lines(command(bundle, model=model), names, tmp_path, variables), names)
    record(bundle, variables, tmp_path / "perf.data", model=model)
    assert annotated(bundle, tmp_path / "perf.data", by_address(bundle, names)) > 0
    assert right_lines(bundle, simulated(bundle, model, symbols, library, tmp_path), names) > 0


# ---- the program


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_the_program_and_its_record_are_as_without(
    driver: str, bundle: Path, symbols: Path, library: Path, output: Path, tmp_path: Path
) -> None:
    """Results to the last bit, and every call, while modules are loaded and unloaded."""
    words = support.python_command(bundle / "module.vmfb", driver, loads=2, calls=2)
    plain = support.run(words)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    variables = native_tools.environment(library, symbols, dumps) | support.hooked(library, output)
    assert support.run(words, variables) == plain
    assert read_recording(output).call_count > 0
    assert not read_recording(output).diagnostics
    alone = native_tools.environment(library, symbols)
    assert support.run(words, alone) == plain


def test_libraries_still_open_others_next_to_them(library: Path, tmp_path: Path) -> None:
    """The loader looks where the caller's RUNPATH says, so the caller must stay the same."""
    support.need_compiler()
    texts = {
        "inner.c": "int inner(void) { return 7; }",
        "outer.c": "#include <dlfcn.h>\n#include <stddef.h>\n"
        'int outer(void) { return dlopen("libinner.so", RTLD_NOW) != NULL; }',
        "main.c": "#include <dlfcn.h>\nint main(int count, char **words) { (void)count;\n"
        'int (*outer)(void) = (int (*)(void))dlsym(dlopen(words[1], RTLD_NOW), "outer");\n'
        "return !outer() || dlopen(words[2], RTLD_NOW) || !dlopen(0, RTLD_NOW); }",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    folder = tmp_path / "inside"
    folder.mkdir()
    compiler = find_compiler()
    shared = ["-shared", "-fPIC", "-ldl"]
    runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN"
    subprocess.run([*compiler, tmp_path / "inner.c", *shared, "-o", folder / "libinner.so"], check=True)
    subprocess.run([*compiler, tmp_path / "outer.c", *shared, runpath, "-o", folder / "libouter.so"], check=True)
    subprocess.run([*compiler, tmp_path / "main.c", "-ldl", "-o", tmp_path / "main"], check=True)
    words = [tmp_path / "main", folder / "libouter.so", folder / "iree_dylib_missing.so"]
    for variables in ({}, {"LD_PRELOAD": str(library)}):
        assert native_tools.run(words, variables, tmp_path).returncode == 0


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed > 0)) for seed in range(12)])
def test_damaged_files_change_nothing(seed: int, bundle: Path, symbols: Path, library: Path, tmp_path: Path) -> None:
    """They are left alone, with a sentence or without; the program goes on."""
    rng, damaged = random.Random(seed), 0
    for file in sorted((symbols / "code").iterdir()):
        data = bytearray(file.read_bytes())
        if seed % 3 == 0:
            del data[rng.randrange(len(data)) :]
        elif seed % 3 == 1:
            for _ in range(20):
                data[rng.randrange(min(len(data), 4096))] = rng.randrange(256)
        else:
            begin = rng.randrange(len(data))
            data[begin : begin + 64] = rng.randbytes(64)
        file.write_bytes(data)
        damaged += 1
    assert damaged == 2
    words = command(bundle)
    plain = native_tools.run(words, {}, SAMPLES)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    done = native_tools.run(words, native_tools.environment(library, symbols, dumps), SAMPLES)
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    said = [line for line in done.stderr.splitlines() if line not in plain.stderr.splitlines()]
    assert all(line.startswith("tracemap hook: ") and len(line) < 500 for line in said)


def test_code_of_another_build_is_left_alone(built: Built, made: Path, library: Path, tmp_path: Path) -> None:
    """A folder for other code: no table has its identity, so nothing is said or done."""
    bundle = bundle_of(made, "hand_mlp", "embedded")
    symbols = symbols_of(built("jax_mlp"), tmp_path)
    with server(native_tools.environment(library, symbols), bundle / "module.vmfb") as process:
        assert str(symbols) not in Path(f"/proc/{process}/maps").read_text(encoding="utf-8")


def test_a_code_file_with_other_code_is_not_loaded(bundle: Path, symbols: Path, library: Path) -> None:
    """Its table has the right identity, but the file has a changed byte in the code."""
    (file,) = (symbols / "code").glob("*.so")
    data = bytearray(file.read_bytes())
    segment = next(
        s for s in elf_of(read_images(bundle / "module.vmfb")[0]).iter_segments("PT_LOAD") if s["p_flags"] & 1
    )
    data[segment["p_offset"] + 100] ^= 0xFF
    file.write_bytes(data)
    with server(native_tools.environment(library, symbols), bundle / "module.vmfb") as process:
        assert file.name not in Path(f"/proc/{process}/maps").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TRACEMAP_HOOK_DEBUG_INFO": "/missing/folder"}, "/missing/folder is no folder"),
        ({"TRACEMAP_HOOK_JITDUMP": "/tmp"}, "needs TRACEMAP_HOOK_DEBUG_INFO"),
    ],
)
def test_wrong_settings_are_reported_once(variables: dict[str, str], message: str, made: Path, library: Path) -> None:
    bundle = bundle_of(made, "hand_mlp", "embedded")
    done = native_tools.run(command(bundle), {"LD_PRELOAD": str(library), **variables}, SAMPLES)
    assert done.returncode == 0
    assert done.stderr.count(message) == 1, done.stderr


def test_a_jitdump_that_cannot_be_written_is_reported(made: Path, library: Path, tmp_path: Path) -> None:
    bundle = bundle_of(made, "hand_mlp", "embedded")
    variables = native_tools.environment(library, symbols_of(bundle, tmp_path), tmp_path / "missing")
    done = native_tools.run(command(bundle), variables, SAMPLES)
    assert done.returncode == 0
    assert done.stderr.count("perf does not learn of kernels") == 1, done.stderr


# ---- without the hook


@pytest.mark.long
def test_gdb_finds_the_debug_file_by_build_id(made: Path, tmp_path: Path) -> None:
    """For an executable with a build-id of its own, whose debug information was removed."""
    gdb = native_tools.need("gdb")
    strip = native_tools.need("strip")
    target = made / "hand_mlp-build-id.tracemap"
    linker = support.system_linker() + " --build-id=sha1"
    with made_once(target) as missing:
        if missing:
            flags = (*FIXED, "--iree-llvmcpu-link-embedded=false", linker)
            check_cli("build", support.MODEL, "-o", target, "--", *flags)
    symbols = symbols_of(target, tmp_path)
    (image,) = read_images(target / "module.vmfb")
    stripped = tmp_path / "stripped.so"
    stripped.write_bytes(image.data)
    subprocess.run([strip, "--strip-all", stripped], check=True)
    shown = {shown.line for shown in native_tools.expected(target).values() if shown.op}
    function = image.functions[0]
    steps = [f"set debug-file-directory {symbols}", f"file {stripped}"]
    steps += [f"info line *{address}" for address in range(function.low, function.high, 8)]
    words = [gdb, "-nx", "-batch", *(word for step in steps for word in ("-ex", step))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = {int(line) for line in re.findall(r'Line (\d+) of ".*hand_mlp\.mlir"', done.stdout)}
    assert lines
    assert lines <= shown
    for file in (symbols / "code").glob("*.so"):
        assert shutil.which("readelf") is None or b"Build ID" in notes(file)


def notes(file: Path) -> bytes:
    return subprocess.run(["readelf", "-n", file], capture_output=True, check=True).stdout
