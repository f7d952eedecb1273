"""Pictures of perf, gdb and callgrind_annotate with debug information: what they print, drawn as a terminal."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from selenium.webdriver import Chrome

from tests.hook.native_tools import environment, need, run, valgrind_command
from tests.support import SAMPLES, check_cli
from tracemap.core.toolchain import find_tool
from tracemap.hook import library_path

TERMINALS: Final = ("perf", "gdb", "callgrind")
"""The names of the pictures."""
_COLUMNS: Final = 132
_STYLE: Final = """
body { margin: 0; background: #1e1e2e; color: #cdd6f4; }
pre { margin: 18px; font: 14px/1.35 'DejaVu Sans Mono', monospace; }
.command { color: #a6e3a1; } .op { color: #f9e2af; font-weight: bold; } .line { color: #89b4fa; }
"""
_OP: Final = re.compile(r"op\d+ \S+ \[[^\]]*\](\(\))?:?")
_LINE: Final = re.compile(r"[\w.]+\.mlir:\d+")


def take_terminals(browser: Chrome, folder: Path, gallery: Path) -> Iterator[Path]:
    """Write the pictures; yields their paths."""
    bundle, symbols = folder / "model.tracemap", folder / "symbols"
    model = SAMPLES / "models" / "jax_mlp.mlir"
    check_cli("build", model, "-o", bundle, "--", "--iree-llvmcpu-target-cpu=x86-64-v3")
    check_cli("debug-info", bundle, "-o", symbols)
    module = (
        f"--module={bundle / 'module.vmfb'}",
        "--device=local-sync",
        f"--flagfile={SAMPLES / 'flags/jax_mlp.flags'}",
    )
    run_module = "env $(tracemap hook env --debug-info symbols) iree-run-module …"
    shown = (
        ("perf annotate --stdio -l", _perf(symbols, module, folder)),
        (f"gdb --args {run_module}", _gdb(symbols, module, folder)),
        ("callgrind_annotate --show=Ir,D1mr,DLmr callgrind.out", _callgrind(symbols, module, folder)),
    )
    for name, (command, lines) in zip(TERMINALS, shown, strict=True):
        page, target = folder / f"{name}.html", gallery / f"{name}.png"
        page.write_text(_page(command, lines), encoding="utf-8")
        size = {"width": 1140, "height": 36 + 19 * (len(lines) + 2), "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        browser.save_screenshot(str(target))
        yield target


def _page(command: str, lines: list[str]) -> str:
    rows = [f'<span class="command">$ {html.escape(command)}</span>', ""]
    for line in lines:
        text = html.escape(line[:_COLUMNS], quote=False)
        text = _OP.sub(lambda match: f'<span class="op">{match[0]}</span>', text)
        rows.append(_LINE.sub(lambda match: f'<span class="line">{match[0]}</span>', text))
    return f"<!doctype html><meta charset=utf-8><style>{_STYLE}</style><pre>{chr(10).join(rows)}</pre>"


def _perf(symbols: Path, module: tuple[str, ...], folder: Path) -> list[str]:
    """The end of the hottest kernel: the ops that are fused into the matrix product."""
    data = folder / "perf.data"
    words = [need("perf"), "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", str(data)]
    command = [*words, str(find_tool("iree-benchmark-module")), *module, "--benchmark_min_time=1s"]
    done = run(command, environment(library_path(), symbols), folder)
    assert done.returncode == 0, done.stderr
    report = run([need("perf"), "report", "-i", str(data), "--stdio", "-q", "--sort", "sym"], {}, folder).stdout
    hottest = re.search(r"\[\.\] (op\d+ .*\S)", report)
    assert hottest, report
    text = run([need("perf"), "annotate", "-i", str(data), "--stdio", "-l", "-s", hottest[1]], {}, folder).stdout
    lines = [line for line in text.splitlines() if line.strip() not in (":", "")]
    last = max(index for index, line in enumerate(lines) if "maximum [" in line)
    return lines[last - 22 : last + 16]


def _gdb(symbols: Path, module: tuple[str, ...], folder: Path) -> list[str]:
    """A breakpoint at the line of a fused op, and what the frames and the code there are."""
    script = folder / "gdb.txt"
    steps = ["break jax_mlp.mlir:31", "run", "backtrace 3", "info line *$pc", "x/6i $pc"]
    settings = ["set breakpoint pending on", "set disassembly-flavor intel"]
    settings += [f"set environment {name} {value}" for name, value in environment(library_path(), symbols).items()]
    echoes = [line for step in steps for line in (f"echo (gdb) {step}\\n", step)]
    script.write_text("\n".join([*settings, *echoes, "kill"]), encoding="utf-8")
    command = [need("gdb"), "-nx", "-batch", "-x", str(script), "--args", str(find_tool("iree-run-module")), *module]
    text = run(command, {}, folder).stdout.replace(f"{symbols.parent}/", "")
    unwanted = re.compile(r"\[|Using host|EXEC|result|\d+x\d+xf32|Breakpoint 1 \(|No symbol|Kill|$")
    return [line for line in text.splitlines() if not unwanted.match(line)]


def _callgrind(symbols: Path, module: tuple[str, ...], folder: Path) -> list[str]:
    counts = folder / "callgrind.out"
    options = ("--tool=callgrind", "--cache-sim=yes", f"--callgrind-out-file={counts}")
    command = valgrind_command(
        *options, find_tool("iree-run-module"), *module, variables=environment(library_path(), symbols)
    )
    done = run(command, {}, folder)
    assert done.returncode == 0, done.stderr
    annotate = [need("callgrind_annotate"), "--auto=yes", "--show=Ir,D1mr,DLmr", str(counts)]
    text = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout.replace(f"{symbols.parent}/", "")
    section = text[text.index("-- Auto-annotated source: model.tracemap/source") :].splitlines()
    kept = [line for line in section if not re.match(r"-+$|-- line|$|\s*\.\s+\.\s+\.\s+#loc", line)]
    return kept[:26]


if __name__ == "__main__":
    sys.exit("run python -m tests.browser.gallery")
