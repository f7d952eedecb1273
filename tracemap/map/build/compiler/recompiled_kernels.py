"""Recompiles a bundle's kernels: for valgrind, or with every dispatch repeated."""

from __future__ import annotations

import platform
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.core.errors import BundleInvalid, ModelInvalid, ToolFailed, UsageInvalid
from tracemap.core.toolchain import find_tool, run_tool
from tracemap.ir.parsing import BYTECODE_MAGIC, MlirParser, Module, Operation, ir, nested, walk
from tracemap.map.build.compiler.compilation import LINKERS, OUTPUT_FLAG_PREFIXES
from tracemap.map.build.compiler.failure_messages import compiler_error
from tracemap.map.build.compiler.library import CONFIGURED, write_module

# ---- repeated
#
# The bundle's module with every dispatch repeated, so that the overhead around kernels weighs less.
#
# Compilation continues from the module before code generation, with the flags of the bundle, so the kernels are the
# bundle's own. Each dispatch in a command buffer is followed by its repetitions, with barriers in between.

REPEAT: Final = "--iree-hal-benchmark-dispatch-repeat-count"


def build_repeated(configured: bytes, flags: Sequence[str], folder: Path, count: int) -> Path:
    """Compile a bundle's kernels with each dispatch repeated; returns the module.

    Args:
        configured: `Bundle.configured()`.
        flags: the bundle's compiler flags; those that dump files or name a linker are left out.
        folder: for the module and temporary files.
        count: how many times each dispatch runs in a call.

    Raises:
        ToolFailed: the compiler failed; the message is the compiler's.
        ToolMissing: there is no compiler.
    """
    source, target = folder / "configured.mlir", folder / "repeated.vmfb"
    source.write_bytes(configured)
    user_flags = [flag for flag in flags if not flag.startswith((*OUTPUT_FLAG_PREFIXES, *LINKERS, REPEAT))]
    repeat_flags = [f"--compile-from={CONFIGURED}", f"{REPEAT}={count}", "-o", str(target)]
    result = run_tool([find_tool("iree-compile"), source, *repeat_flags, *user_flags])
    if result.returncode != 0:
        raise compiler_error(ToolFailed, result.returncode, result.stderr, "the kernels cannot be compiled again: ")
    return target


# ---- simulated
#
# The bundle's kernels in machine code that valgrind can run.
#
# Compilation continues from the module before code generation, so kernels, tiles and lines of kernel IR are the
# bundle's own. Only the target differs:
#
# * no instructions beyond AVX2, since valgrind has no AVX-512;
# * fused multiply-adds only if valgrind runs them at a bearable speed;
# * generated code instead of microkernels;
# * shared objects for the system's loader, so that a simulator can distinguish them.

_KNOWN_FEATURES = (
    *("64bit", "cmov", "crc32", "cx16", "cx8", "fxsr", "mmx", "sahf", "x87"),
    *("sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"),
    *("avx", "avx2", "bmi", "bmi2", "lzcnt", "movbe"),
)
"""Features of x86-64 whose instructions valgrind 3.19 and newer run."""
_FUSED_FEATURES = ("fma", "f16c")
"""Features that older versions run about a thousand times slower."""
_FEATURE_NAMES = {"avx2": "AVX2", "avx": "AVX", "sse4.2": "SSE4.2"}
"""Display names of the widest vector features."""

_TARGET = re.compile(r'#hal\.executable\.target<"([^"]*)", "([^"]*)"')
_FEATURES = re.compile(r'\bcpu_features = "([^"]*)"')
_TRIPLE = re.compile(r'"(\w+)-unknown-unknown-eabi-elf"')
_KIND = re.compile(r'("llvm-cpu", )"embedded-elf-(\w+)"')
_BEGIN = re.compile(r'"llvm-cpu", "[\w-]+", \{')
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm_64"}
"""IREE's names for the architectures of machines."""

_LOWERED = "executable-targets"
"""The phase after which kernels are in LLVM's dialect, but not yet machine code."""
_LOSSLESS_FLAGS = {False: ("--emit-mlir-bytecode",), True: ("--mlir-print-debuginfo", "--mlir-print-op-generic")}
"""Flags that preserve the whole module between phases, for bytecode (False) or text (True)."""

_DROPPED_FLAGS = (
    *("--iree-llvmcpu-link-embedded", "--iree-llvmcpu-link-static", "--iree-llvmcpu-keep-linker-artifacts"),
    *LINKERS,
    *OUTPUT_FLAG_PREFIXES,
)
"""Prefixes of flags for linking, which is decided here, and for other outputs."""


@dataclass(frozen=True, slots=True)
class SimulatedModule:
    """A module for valgrind, and a description of its target."""

    path: Path
    build: str


def build_simulated(configured: bytes, flags: Sequence[str], folder: Path, *, fused: bool) -> SimulatedModule:
    """Compile a bundle's kernels for valgrind.

    Args:
        configured: `Bundle.configured()`.
        flags: the bundle's compiler flags.
        folder: for the module and temporary files.
        fused: whether valgrind runs fused multiply-adds at a bearable speed.

    Raises:
        BundleInvalid: the kernels are damaged.
        UsageInvalid: a target of the module is not a CPU like this one.
        ToolFailed: the kernels cannot be compiled for this target; the message is the compiler's.
        ToolMissing: there is no compiler.
    """
    parser = MlirParser()
    module, is_text = _read(parser, configured)
    build = _retarget(parser, module, fused=fused)
    own_flags = [flag for flag in flags if not flag.startswith(_DROPPED_FLAGS)]

    def recompile(source: Path, target: Path, *phase_flags: str) -> None:
        result = run_tool([find_tool("iree-compile"), source, *phase_flags, "-o", target, *own_flags])
        if result.returncode != 0:
            prefix = (
                f"the kernels, configured for the bundle's target, cannot be compiled for {build}, which valgrind "
                "needs; build the model for it (`-- --iree-llvmcpu-target-cpu=x86-64-v3`) and simulate that bundle: "
            )
            raise compiler_error(ToolFailed, result.returncode, result.stderr, prefix)

    source, begin, target = folder / "simulated.mlir", CONFIGURED, folder / "simulated.vmfb"
    write_module(module, source, as_text=is_text)
    if not fused and platform.machine() == "x86_64":
        lowered = folder / "lowered.mlir"
        recompile(source, lowered, f"--compile-from={begin}", f"--compile-to={_LOWERED}", *_LOSSLESS_FLAGS[is_text])
        module = parser.parse(lowered.read_bytes(), printed=True)
        _split_fma(parser, module)
        source, begin = folder / "divided.mlir", _LOWERED
        write_module(module, source, as_text=is_text)
    recompile(source, target, f"--compile-from={begin}", *_linking())
    return SimulatedModule(target, build)


def _split_fma(parser: MlirParser, module: Module) -> None:
    """Allow multiply-adds to be two instructions.

    Approximations of functions require fused ones. A target without them calls a helper function for each element,
    which also keeps the code around it from being vectorised.
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
    """The module, and whether it is stored as text."""
    try:
        return parser.parse(configured), not configured.startswith(BYTECODE_MAGIC)
    except ModelInvalid as error:
        raise BundleInvalid(f"the bundle's kernels are damaged ({error}); build the bundle again") from error


def _retarget(parser: MlirParser, module: Module, *, fused: bool) -> str:
    """Change all targets of a module; returns a description of the new targets."""
    builds = set()
    for operation, name in _attributes_outside_code(module):
        text = str(operation.attributes[name])
        if _TARGET.search(text):
            attribute, build = _retargeted(text, fused=fused)
            operation.attributes[name] = ir.Attribute.parse(attribute, parser.context)
            builds.add(build)
    if not builds:
        raise UsageInvalid("the module has no machine code for a CPU; caches can be simulated for CPUs only")
    return " and ".join(sorted(builds))


def _attributes_outside_code(module: Module) -> list[tuple[Operation, str]]:
    """The attributes that may hold targets: of the module, its top-level operations and the executables' variants."""
    holders = [module.operation]
    for operation in nested(module.operation):
        holders += [operation, *(nested(operation) if operation.name == "hal.executable" else [])]
    return [
        (holder, named if isinstance(named, str) else named.name) for holder in holders for named in holder.attributes
    ]


def _retargeted(text: str, *, fused: bool) -> tuple[str, str]:
    """Change the targets in an attribute; returns it with a description of the new targets.

    Raises:
        UsageInvalid: a target is not a CPU like this one.
    """
    here = _ARCHITECTURES.get(platform.machine(), platform.machine())
    for backend, kind in _TARGET.findall(text):
        if backend != "llvm-cpu" or kind not in {f"embedded-elf-{here}", f"system-elf-{here}"}:
            raise UsageInvalid(
                f"the module is compiled for {backend} ({kind}), but caches are simulated only for machine code of "
                f"this {here} machine; build the model for it"
            )
    text = _with_entry(_KIND.sub(r'\1"system-elf-\2"', text), "link_embedded", "false")
    text = _TRIPLE.sub(r'"\1-unknown-linux-gnu"', text)
    if here != "x86_64":
        return text, here
    features_kept = _supported_features(",".join(_FEATURES.findall(text)), fused=fused)
    name = next((name for feature, name in _FEATURE_NAMES.items() if feature in features_kept), "SSE2")
    features = ",".join(f"+{feature}" for feature in features_kept)
    # Microkernels are chosen by CPU features, but tile sizes were chosen for other features: use none.
    for key, value in (("cpu", '"x86-64"'), ("cpu_features", f'"{features}"'), ("ukernels", '"none"')):
        text = _with_entry(text, key, value)
    fma = " and FMA, without" if "fma" in features_kept else ", without FMA and"
    return text, f"x86-64 with {name}{fma} microkernels"


def _with_entry(text: str, key: str, value: str) -> str:
    """Set an entry in the configuration of all targets."""
    entry = re.compile(rf'([{{ ]{key} = )(?:"[^"]*"|true|false)')
    if entry.search(text):
        return entry.sub(lambda match: match[1] + value, text)
    return _BEGIN.sub(lambda match: f"{match[0]}{key} = {value}, ", text)


def _supported_features(features: str, *, fused: bool) -> list[str]:
    """The target's features that valgrind supports, sorted; of contradicting entries the last counts."""
    entry = {*_KNOWN_FEATURES, *(_FUSED_FEATURES if fused else ())}
    last = {feature[1:]: feature[0] == "+" for feature in features.split(",") if feature}
    return sorted(feature for feature, has in last.items() if has and feature in entry)


def _linking() -> list[str]:
    """Flags that link executables as shared objects, with the linker of the compiler's wheel or else the system's."""
    flags = ["--iree-llvmcpu-link-embedded=false"]
    linker = find_tool("iree-compile").with_name("iree-lld")
    if linker.is_file():
        flags.append(f"--iree-llvmcpu-system-linker-path={shlex.quote(str(linker))} -flavor gnu")
    return flags
