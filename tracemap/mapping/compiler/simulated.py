"""A bundle's kernels compiled again: for valgrind, or with every dispatch repeated."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.errors import BundleInvalid, ModelInvalid, ToolFailed, UsageInvalid
from tracemap.ir.parsing import BYTECODE_MAGIC, MlirParser, Module, Operation, ir, nested, walk
from tracemap.mapping.compiler.compiling import BESIDES, CONFIGURED, LINKERS
from tracemap.mapping.compiler.messages import failed
from tracemap.toolchain import find_tool, run_tool

# ---- repeated
#
# A bundle's module compiled once more with every dispatch repeated, so that what surrounds kernels weighs less.
#
# The module as it was before code generation is compiled again from there, with the flags of the bundle: kernels are
# the bundle's own. Behind each dispatch of a command buffer stand its repetitions, with barriers between them.


REPEAT: Final = "--iree-hal-benchmark-dispatch-repeat-count"


def build_repeated(configured: bytes, flags: Sequence[str], folder: Path, count: int) -> Path:
    """Compile a bundle's kernels with each dispatch repeated; returns the module.

    Args:
        configured: `Bundle.configured()`.
        flags: those that the bundle was compiled with, of which those that dump files or name a linker are left out.
        folder: where the module is put, and what is needed on the way.
        count: how often each dispatch runs in a call.

    Raises:
        ToolFailed: they cannot be compiled; the message is the compiler's.
        ToolMissing: there is no compiler.
    """
    source, target = folder / "configured.mlir", folder / "repeated.vmfb"
    source.write_bytes(configured)
    own = [flag for flag in flags if not flag.startswith((*BESIDES, *LINKERS, REPEAT))]
    ours = [f"--compile-from={CONFIGURED}", f"{REPEAT}={count}", "-o", str(target)]
    done = run_tool([find_tool("iree-compile"), source, *ours, *own])
    if done.returncode != 0:
        raise failed(ToolFailed, done.returncode, done.stderr, "the kernels cannot be compiled again: ")
    return target


# ---- simulated
#
# A bundle's kernels compiled once more, in machine code that valgrind can run.
#
# The module as it was before code generation is compiled again from there, so that kernels, tiles and steps are those
# of the bundle. Only the target is another one: no instructions beyond AVX2 (valgrind knows no AVX-512), fused
# multiply-adds only where valgrind runs them at a bearable speed, generated code in place of microkernels, and shared
# objects that the system's loader loads, so that a simulator tells them apart.


_KNOWN_FEATURES = (
    *("64bit", "cmov", "crc32", "cx16", "cx8", "fxsr", "mmx", "sahf", "x87"),
    *("sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"),
    *("avx", "avx2", "bmi", "bmi2", "lzcnt", "movbe"),
)
"""Features of x86-64 whose instructions valgrind 3.19 and newer run."""
_FUSED = ("fma", "f16c")
"""Those that older ones run as slowly as a thousand others."""
_NAMES = {"avx2": "AVX2", "avx": "AVX", "sse4.2": "SSE4.2"}
"""What the widest of a target's features is called."""

_TARGET = re.compile(r'#hal\.executable\.target<"([^"]*)", "([^"]*)"')
_FEATURES = re.compile(r'\bcpu_features = "([^"]*)"')
_TRIPLE = re.compile(r'"(\w+)-unknown-unknown-eabi-elf"')
_KIND = re.compile(r'("llvm-cpu", )"embedded-elf-(\w+)"')
_BEGIN = re.compile(r'"llvm-cpu", "[\w-]+", \{')
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm_64"}
"""What IREE calls the architecture of a machine."""

_LOWERED = "executable-targets"
"""The phase after which kernels are in LLVM's dialect, and not yet machine code."""
_KEEPING = {False: ("--emit-mlir-bytecode",), True: ("--mlir-print-debuginfo", "--mlir-print-op-generic")}
"""Flags that keep all there is in a module between phases: as bytecode, or as text."""

_NOT_OURS = (
    *("--iree-llvmcpu-link-embedded", "--iree-llvmcpu-link-static", "--iree-llvmcpu-keep-linker-artifacts"),
    *LINKERS,
    *BESIDES,
)
"""Beginnings of flags that say how to link, which is decided here, or what to write besides."""


@dataclass(frozen=True, slots=True)
class SimulatedModule:
    """A module for valgrind, and what it was compiled for, in words."""

    path: Path
    build: str


def build_simulated(configured: bytes, flags: Sequence[str], folder: Path, *, fused: bool) -> SimulatedModule:
    """Compile a bundle's kernels for valgrind.

    Args:
        configured: `Bundle.configured()`.
        flags: those that the bundle was compiled with.
        folder: where the module is put, and what is needed on the way.
        fused: whether valgrind runs fused multiply-adds at a bearable speed.

    Raises:
        BundleInvalid: the kernels are damaged.
        UsageInvalid: the module is not, or not only, for CPUs such as this one.
        ToolFailed: the kernels cannot be compiled for this target; the message is the compiler's.
        ToolMissing: there is no compiler.
    """
    parser = MlirParser()
    module, is_text = _read(parser, configured)
    build = _retarget(parser, module, fused=fused)
    compiler = _Compiler(tuple(flag for flag in flags if not flag.startswith(_NOT_OURS)), build)
    source, begin, target = folder / "simulated.mlir", CONFIGURED, folder / "simulated.vmfb"
    _write(module, source, is_text=is_text)
    if not fused and platform.machine() == "x86_64":
        lowered = folder / "lowered.mlir"
        compiler.run(source, lowered, f"--compile-from={begin}", f"--compile-to={_LOWERED}", *_KEEPING[is_text])
        module = parser.parse(lowered.read_bytes(), printed=True)
        _divide(parser, module)
        source, begin = folder / "divided.mlir", _LOWERED
        _write(module, source, is_text=is_text)
    compiler.run(source, target, f"--compile-from={begin}", *_linking())
    return SimulatedModule(target, build)


def _write(module: Module, target: Path, *, is_text: bool) -> None:
    with target.open("wb") as file:
        if is_text:  # bytecode would lose constants that are held as text
            module.operation.print(file=file, binary=True, enable_debug_info=True, print_generic_op_form=True)
        else:
            module.operation.write_bytecode(file)


def _divide(parser: MlirParser, module: Module) -> None:
    """Let multiply-adds be two instructions where they must be one.

    Approximations of functions want one. A target without it calls a function that makes up for it, element by element,
    and the code around no longer has vectors.
    """
    for old in [operation for operation in walk(module.operation) if operation.name == "llvm.intr.fma"]:
        names = [named if isinstance(named, str) else named.name for named in old.attributes]
        with parser.context:
            new = ir.Operation.create(
                "llvm.intr.fmuladd",
                results=[old.results[0].type],
                operands=list(old.operands),
                attributes={name: old.attributes[name] for name in names},
                loc=old.location,
                ip=ir.InsertionPoint(old),
            )
        old.results[0].replace_all_uses_with(new.results[0])
        old.erase()


def _read(parser: MlirParser, configured: bytes) -> tuple[Module, bool]:
    """The module, and whether it is kept as text."""
    try:
        return parser.parse(configured), not configured.startswith(BYTECODE_MAGIC)
    except ModelInvalid as error:
        raise BundleInvalid(f"the bundle's kernels are damaged; build it again ({error})") from error


def _retarget(parser: MlirParser, module: Module, *, fused: bool) -> str:
    """Change all targets of a module; returns in words what they become."""
    builds = set()
    for operation, name in _attributes_outside_code(module):
        text = str(operation.attributes[name])
        if _TARGET.search(text):
            changed, build = _retargeted(text, fused=fused)
            operation.attributes[name] = ir.Attribute.parse(changed, parser.context)
            builds.add(build)
    if not builds:
        raise UsageInvalid("the module has no machine code for a CPU; caches are simulated for CPUs only")
    return " and ".join(sorted(builds))


def _attributes_outside_code(module: Module) -> list[tuple[Operation, str]]:
    """Where targets stand: in attributes of the module, of what stands in it, and of the variants of executables."""
    holders = [module.operation]
    for operation in nested(module.operation):
        holders += [operation, *(nested(operation) if operation.name == "hal.executable" else [])]
    return [
        (holder, named if isinstance(named, str) else named.name) for holder in holders for named in holder.attributes
    ]


def _retargeted(text: str, *, fused: bool) -> tuple[str, str]:
    """An attribute with targets, changed, and what they become in words.

    Raises:
        UsageInvalid: one of them is not a CPU such as this one.
    """
    here = _ARCHITECTURES.get(platform.machine(), platform.machine())
    for backend, kind in _TARGET.findall(text):
        if backend != "llvm-cpu" or kind not in {f"embedded-elf-{here}", f"system-elf-{here}"}:
            raise UsageInvalid(
                f"the module is compiled for {backend} ({kind}); caches are simulated for machine code that this "
                f"{here} machine loads; build the model for it"
            )
    text = _with(_KIND.sub(r'\1"system-elf-\2"', text), "link_embedded", "false")
    text = _TRIPLE.sub(r'"\1-unknown-linux-gnu"', text)
    if here != "x86_64":
        return text, here
    kept = _kept(",".join(_FEATURES.findall(text)), fused=fused)
    name = next((name for feature, name in _NAMES.items() if feature in kept), "SSE2")
    features = ",".join(f"+{feature}" for feature in kept)
    # Microkernels are chosen by the processor's features for tiles chosen by others: they would be those for any.
    for key, value in (("cpu", '"x86-64"'), ("cpu_features", f'"{features}"'), ("ukernels", '"none"')):
        text = _with(text, key, value)
    fma = " and FMA, without" if "fma" in kept else ", without FMA and"
    return text, f"x86-64 with {name}{fma} microkernels"


def _with(text: str, key: str, value: str) -> str:
    """Targets with an entry of their configuration set."""
    known = re.compile(rf'([{{ ]{key} = )(?:"[^"]*"|true|false)')
    if known.search(text):
        return known.sub(lambda found: found[1] + value, text)
    return _BEGIN.sub(lambda found: f"{found[0]}{key} = {value}, ", text)


def _kept(features: str, *, fused: bool) -> list[str]:
    """Of a target's features those that valgrind knows, sorted; of several words on one the last counts."""
    known = {*_KNOWN_FEATURES, *(_FUSED if fused else ())}
    last = {feature[1:]: feature[0] == "+" for feature in features.split(",") if feature}
    return sorted(feature for feature, has in last.items() if has and feature in known)


def _linking() -> list[str]:
    """Flags that make executables shared objects; the linker is that of the compiler's wheel, else the system's."""
    flags = ["--iree-llvmcpu-link-embedded=false"]
    linker = find_tool("iree-compile").with_name("iree-lld")
    if linker.is_file():
        flags.append(f"--iree-llvmcpu-system-linker-path={shlex.quote(str(linker))} -flavor gnu")
    return flags


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Runs iree-compile with the bundle's own flags; `build` says what for."""

    flags: tuple[str, ...]
    build: str

    def run(self, source: Path, target: Path, *more: str) -> None:
        """Compile from one phase to another.

        Raises:
            ToolFailed: it does not work.
        """
        done = run_tool([find_tool("iree-compile"), source, *more, "-o", target, *self.flags])
        if done.returncode != 0:
            why = (
                f"the kernels, which were configured for the bundle's target, cannot be compiled for {self.build}, "
                "which valgrind needs; build the model for it (`-- --iree-llvmcpu-target-cpu=x86-64-v3`) and simulate "
                "that: "
            )
            raise failed(ToolFailed, done.returncode, done.stderr, why)
