"""Modules that run kernels alone: the bundle's kernels, with one function per kernel that records calls of it.

Executables are taken from the bundle before code generation, so the compiler generates the same code. The host program
around them is new, in the dialect of IREE's own executable benchmarks. Calls are recorded into a command buffer once
and executed many times, as in IREE's own programs. Recording is interpreted and takes 0.2 us per call, so it must not
be part of the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracemap.core.errors import BundleInvalid, ToolFailed
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.ir.executables import Dispatch
from tracemap.ir.parsing import Module, nested, string_attribute
from tracemap.kernels.runner_jobs import EXECUTE
from tracemap.machine.integers import signed
from tracemap.map.build.compiler.compilation import OUTPUT_FLAG_PREFIXES
from tracemap.map.build.compiler.failure_messages import failure_message
from tracemap.map.build.compiler.library import CONFIGURED
from tracemap.map.build.compiler.recompiled_kernels import REPEAT

_EXCLUDED_FLAGS = (
    *OUTPUT_FLAG_PREFIXES,
    *("--iree-hal-substitute-executable-source", "--iree-hal-substitute-executable-configuration"),
    *("--iree-codegen-tuning-spec-path=", REPEAT),
)
"""Flags that write extra files, apply a change a second time, or repeat dispatches."""


def function_name(number: int) -> str:
    """Name of the function that records calls of the dispatch with this index."""
    return f"record_{number}"


def benchmark_module_text(module: Module, dispatches: Sequence[Dispatch]) -> str:
    """The text of a module that calls these dispatches. Removes everything but the executables from `module`.

    Args:
        module: `Bundle.configured()`, parsed.
        dispatches: the dispatches to call; all their sizes are known.

    Raises:
        BundleInvalid: the module has no device.
    """
    tops = nested(module.operation)
    devices = (top for top in tops if top.name == "util.global" and str(top.attributes["type"]) == "!hal.device")
    device = next(devices, None)
    if device is None:
        raise BundleInvalid("the bundle's kernels name no device; build the bundle again")
    name = string_attribute(device, "sym_name")
    executables = {dispatch.target[0] for dispatch in dispatches}
    for top in reversed(tops):
        if top != device and (top.name != "hal.executable" or string_attribute(top, "sym_name") not in executables):
            top.erase()
    text = module.operation.get_asm(enable_debug_info=False)
    functions = [_function(number, dispatch, name) for number, dispatch in enumerate(dispatches)]
    body, _, blobs = text.partition("\n{-#")
    end = body.rstrip().rfind("}")
    execute = _EXECUTE.format(name=EXECUTE, device=_symbol([name]))
    return "\n".join([body[:end], *functions, execute, "}", *([f"{{-#{blobs}"] if blobs else []), ""])


def _symbol(names: Sequence[str]) -> str:
    return "::".join('@"' + name.replace("\\", "\\5C").replace('"', "\\22") + '"' for name in names)


def _function(number: int, dispatch: Dispatch, device: str) -> str:
    """A function that returns a command buffer of `batch` calls, which cycle through `copies` copies of the buffers."""
    bindings = range(len(dispatch.bindings))
    arguments = "".join(f", %view{at}: !hal.buffer_view, %moved{at}: i64" for at in bindings)
    buffers = ", ".join(f"(%buffer{at} : !hal.buffer)[%offset{at}, %length{at}]" for at in bindings)
    target, executable = _symbol(dispatch.target), _symbol(dispatch.target[:1])
    lines = [
        f"util.func public @{function_name(number)}(%batch: i32, %copies: i32{arguments}) -> !hal.command_buffer",
        "attributes {iree.abi.stub} {",
        "%zero = arith.constant 0 : index",
        "%one = arith.constant 1 : index",
        "%count = arith.index_cast %batch : i32 to index",
        "%turns = arith.index_cast %copies : i32 to index",
    ]
    for at, (value, kind) in enumerate(zip(dispatch.constants, dispatch.constant_types, strict=True)):
        number = signed(value, 64 if kind == "index" else int(kind[1:]))
        lines.append(f"%constant{at} = arith.constant {number} : {kind}")
    for at, value in enumerate(dispatch.workload):
        lines.append(f"%workload{at} = arith.constant {value} : index")
    for at, binding in enumerate(dispatch.bindings):
        lines += [
            f"%buffer{at} = hal.buffer_view.buffer<%view{at} : !hal.buffer_view> : !hal.buffer",
            f"%length{at} = arith.constant {binding.length} : index",
            f"%step{at} = arith.index_cast %moved{at} : i64 to index",
        ]
    lines += [
        f"%device, %affinity = hal.device.resolve on(#hal.device.affinity<{_symbol([device])}>) : !hal.device, i64",
        '%commands = hal.command_buffer.create device(%device : !hal.device) mode("None") '
        "categories(Dispatch) affinity(%affinity) : !hal.command_buffer",
        f"%x, %y, %z = hal.executable.calculate_workgroups device(%device : !hal.device) target({target})"
        f"{_list('workload', 'workload', len(dispatch.workload))} : index, index, index",
        f"%executable = hal.executable.lookup device(%device : !hal.device) executable({executable}) : !hal.executable",
        f"%function = hal.executable.lookup.function target(%executable : !hal.executable) function({target}) : i64",
        "scf.for %call = %zero to %count step %one {",
        "%turn = arith.remui %call, %turns : index",
        *(f"%offset{at} = arith.muli %turn, %step{at} : index" for at in bindings),
        "hal.command_buffer.dispatch<%commands : !hal.command_buffer> target(%executable : !hal.executable)[%function] "
        f"workgroups([%x, %y, %z]){_list('constants', 'constant', len(dispatch.constants))} bindings([{buffers}]) "
        'flags("None")',
        "hal.command_buffer.execution_barrier<%commands : !hal.command_buffer> "
        'source("Dispatch|CommandRetire") target("CommandIssue|Dispatch") flags("None")',
        "}",
        "hal.command_buffer.finalize<%commands : !hal.command_buffer>",
        "util.return %commands : !hal.command_buffer",
        "}",
    ]
    return "\n".join(lines)


def _list(keyword: str, name: str, count: int) -> str:
    names = ", ".join(f"%{name}{at}" for at in range(count))
    return f" {keyword}([{names}])" if names else ""


_EXECUTE = """\
util.func public @{name}(%commands: !hal.command_buffer, %times: i32) attributes {{iree.abi.stub}} {{
%zero = arith.constant 0 : index
%one = arith.constant 1 : index
%count = arith.index_cast %times : i32 to index
%device, %affinity = hal.device.resolve on(#hal.device.affinity<{device}>) : !hal.device, i64
%nothing = util.null : !hal.fence
%forever = arith.constant -1 : i32
scf.for %time = %zero to %count step %one {{
%fence = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
hal.device.queue.execute<%device : !hal.device> affinity(%affinity) wait(%nothing) signal(%fence) \
commands(%commands) flags("None")
%status = hal.fence.await until([%fence]) timeout_millis(%forever) flags("None") : i32
util.status.check_ok %status, "the kernel failed"
}}
util.return
}}"""


def compile_benchmark_module(text: str, flags: Sequence[str], folder: Path, name: str = "kernels") -> Path:
    """Compile the text of `wrapped` with a bundle's flags; returns the path of the module.

    Raises:
        ToolFailed: the compiler fails; the message is the compiler's.
        ToolMissing: the compiler is not installed.
    """
    source, target = folder / f"{name}.mlir", folder / f"{name}.vmfb"
    source.write_text(text, encoding="utf-8")
    usable = [flag for flag in flags if not flag.startswith(_EXCLUDED_FLAGS)]
    done = run_tool([find_tool("iree-compile"), source, f"--compile-from={CONFIGURED}", "-o", target, *usable])
    if done.returncode != 0:
        raise ToolFailed(f"the kernels cannot be compiled alone: {failure_message(done.returncode, done.stderr)}")
    return target
