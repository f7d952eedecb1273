"""A module whose functions each call one kernel, so often as they are told: the bundle's kernels without their program.

Executables are taken from the bundle as they were before code generation, so that the same code comes out; the program
around them is made anew, in the dialect that IREE's own dumped benchmarks of executables are in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracemap.errors import BundleInvalid, ToolFailed
from tracemap.ir.dispatches import Dispatch
from tracemap.ir.parsing import Module, Operation, nested, string_attribute
from tracemap.mapping.compiler.compiling import CONFIGURED, failure
from tracemap.toolchain import find_tool, run_tool

_NOT_OURS = (
    *("--iree-hal-dump-", "--dump-", "--mlir-print-", "--print-"),
    *("--iree-hal-substitute-executable-source", "--iree-hal-substitute-executable-configuration"),
    "--iree-codegen-tuning-spec-path=",
)
"""Flags that write something besides, or change what was changed already."""


def function_name(number: int) -> str:
    """The function that calls the kernel of the `number`-th dispatch that was asked for."""
    return f"call_{number}"


def wrapped(module: Module, dispatches: Sequence[Dispatch]) -> str:
    """The text of the module; the one that is given is left with its executables only.

    Args:
        module: `Bundle.configured()`, parsed.
        dispatches: what to call, all of whose sizes are known.

    Raises:
        BundleInvalid: the module has no device.
    """
    tops = nested(module.operation)
    device = next((top for top in tops if _is_device(top)), None)
    if device is None:
        raise BundleInvalid("the bundle's kernels name no device; build it again")
    name = string_attribute(device, "sym_name")
    wanted = {dispatch.target[0] for dispatch in dispatches}
    for top in reversed(tops):
        if top != device and (top.name != "hal.executable" or string_attribute(top, "sym_name") not in wanted):
            top.erase()
    text = module.operation.get_asm(enable_debug_info=False)
    functions = [_function(number, dispatch, name) for number, dispatch in enumerate(dispatches)]
    body, _, blobs = text.partition("\n{-#")
    end = body.rstrip().rfind("}")
    return "\n".join([body[:end], *functions, "}", *([f"{{-#{blobs}"] if blobs else []), ""])


def _is_device(top: Operation) -> bool:
    return top.name == "util.global" and str(top.attributes["type"]) == "!hal.device"


def _symbol(names: Sequence[str]) -> str:
    return "::".join('@"' + name.replace("\\", "\\5C").replace('"', "\\22") + '"' for name in names)


def _function(number: int, dispatch: Dispatch, device: str) -> str:
    """A function that records `batch` calls, one after the other, on `copies` copies of the buffers in turn."""
    arguments = "".join(f", %view{at}: !hal.buffer_view, %moved{at}: i64" for at in range(len(dispatch.bindings)))
    lines = [
        f"util.func public @{function_name(number)}(%batch: i32, %copies: i32{arguments})",
        "attributes {iree.abi.stub} {",
        *_numbers(dispatch),
        f"%device, %affinity = hal.device.resolve on(#hal.device.affinity<{_symbol([device])}>) : !hal.device, i64",
        '%commands = hal.command_buffer.create device(%device : !hal.device) mode("OneShot|AllowInlineExecution") '
        "categories(Dispatch) affinity(%affinity) : !hal.command_buffer",
        *_calls(dispatch),
        *_SUBMISSION,
        "}",
    ]
    return "\n".join(lines)


def _numbers(dispatch: Dispatch) -> Iterator[str]:
    """The numbers and buffers that the calls need."""
    yield "%zero = arith.constant 0 : index"
    yield "%one = arith.constant 1 : index"
    yield "%count = arith.index_cast %batch : i32 to index"
    yield "%turns = arith.index_cast %copies : i32 to index"
    for at, (value, kind) in enumerate(zip(dispatch.constants, dispatch.constant_types, strict=True)):
        yield f"%constant{at} = arith.constant {_written(value, kind)} : {kind}"
    for at, value in enumerate(dispatch.workload):
        yield f"%workload{at} = arith.constant {value} : index"
    for at, each in enumerate(dispatch.bindings):
        yield f"%buffer{at} = hal.buffer_view.buffer<%view{at} : !hal.buffer_view> : !hal.buffer"
        yield f"%length{at} = arith.constant {each.length} : index"
        yield f"%step{at} = arith.index_cast %moved{at} : i64 to index"


def _calls(dispatch: Dispatch) -> Iterator[str]:
    """The loop that records the calls."""
    target, executable = _symbol(dispatch.target), _symbol(dispatch.target[:1])
    yield (
        f"%x, %y, %z = hal.executable.calculate_workgroups device(%device : !hal.device) target({target})"
        f"{_workload(dispatch)} : index, index, index"
    )
    yield (
        f"%executable = hal.executable.lookup device(%device : !hal.device) executable({executable}) : !hal.executable"
    )
    yield f"%function = hal.executable.lookup.function target(%executable : !hal.executable) function({target}) : i64"
    yield "scf.for %call = %zero to %count step %one {"
    yield "%turn = arith.remui %call, %turns : index"
    for at in range(len(dispatch.bindings)):
        yield f"%offset{at} = arith.muli %turn, %step{at} : index"
    yield (
        "hal.command_buffer.dispatch<%commands : !hal.command_buffer> target(%executable : !hal.executable)[%function] "
        f'workgroups([%x, %y, %z]){_constants(dispatch)} bindings([{_bindings(dispatch)}]) flags("None")'
    )
    yield (
        "hal.command_buffer.execution_barrier<%commands : !hal.command_buffer> "
        'source("Dispatch|CommandRetire") target("CommandIssue|Dispatch") flags("None")'
    )
    yield "}"


_SUBMISSION = (
    "hal.command_buffer.finalize<%commands : !hal.command_buffer>",
    "%nothing = util.null : !hal.fence",
    '%fence = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence',
    "hal.device.queue.execute<%device : !hal.device> affinity(%affinity) wait(%nothing) signal(%fence) "
    'commands(%commands) flags("None")',
    "%forever = arith.constant -1 : i32",
    '%status = hal.fence.await until([%fence]) timeout_millis(%forever) flags("None") : i32',
    'util.status.check_ok %status, "the kernel failed"',
    "util.return",
)


def _written(value: int, kind: str) -> str:
    """A number as MLIR takes it for its type, which has a sign."""
    bits = 64 if kind == "index" else int(kind[1:])
    return str(value - (1 << bits) if value >> (bits - 1) else value)


def _workload(dispatch: Dispatch) -> str:
    names = ", ".join(f"%workload{at}" for at in range(len(dispatch.workload)))
    return f" workload([{names}])" if names else ""


def _constants(dispatch: Dispatch) -> str:
    names = ", ".join(f"%constant{at}" for at in range(len(dispatch.constants)))
    return f" constants([{names}])" if names else ""


def _bindings(dispatch: Dispatch) -> str:
    return ", ".join(f"(%buffer{at} : !hal.buffer)[%offset{at}, %length{at}]" for at in range(len(dispatch.bindings)))


def compile_wrapped(text: str, flags: Sequence[str], folder: Path, name: str = "kernels") -> Path:
    """Compile such a module with a bundle's flags; returns where it is.

    Raises:
        ToolFailed: the compiler does not take it; the message is the compiler's.
        ToolMissing: there is none.
    """
    source, target = folder / f"{name}.mlir", folder / f"{name}.vmfb"
    source.write_text(text, encoding="utf-8")
    kept = [flag for flag in flags if not flag.startswith(_NOT_OURS)]
    done = run_tool([find_tool("iree-compile"), source, *kept, f"--compile-from={CONFIGURED}", "-o", target])
    if done.returncode != 0:
        raise ToolFailed(f"the kernels cannot be compiled alone: {failure(done.returncode, done.stderr)}")
    return target
