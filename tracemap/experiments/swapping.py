"""Kernels of a bundle replaced by edited ones: the thing to edit, what is wrong with a file, and the flags for IREE.

IREE takes an executable's source, configuration or object from a file of its own. It only warns where a name matches
nothing, and crashes on objects that do not fit; what it would do that with is refused here.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tracemap.errors import ModelInvalid, ModelUnreadable, QueryInvalid, ToolFailed, UsageInvalid
from tracemap.inputs import stored_bytes
from tracemap.ir.executables import Executable, executable_text, executables_of, formats_of, read_executables
from tracemap.ir.parsing import MlirParser
from tracemap.machine.images import read_images
from tracemap.mapping.compiler.compiling import CONFIGURED
from tracemap.mapping.compiler.messages import failed, not_loaded
from tracemap.mapping.tagging import Tags, unused_prefix, write_tagged
from tracemap.toolchain import find_tool, run_tool
from tracemap.units import listed

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle

Stage = Literal["source", "configuration", "object"]
_PHASES: Final[Mapping[str, str]] = {
    "source": "executable-sources",
    "configuration": CONFIGURED,
    "object": "executable-targets",
}
"""Where the compiler stops."""
_FLAG = "--iree-hal-substitute-executable-"
_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True)
class Swap:
    """An executable that is replaced: its name, the kernels in it, by what, and at which stage that is."""

    executable: str
    kernels: tuple[str, ...]
    file: Path
    stage: str

    @property
    def flag(self) -> str:
        """What tells IREE."""
        return f"{_FLAG}{self.stage}={self.executable}={self.file}"


class Swapping:
    """The executables of a bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._parser = MlirParser()
        self._module = self._parser.parse(bundle.configured())
        self._executables = executables_of(self._module)

    def named(self, name: str) -> Executable:
        """The executable of this name, or in which there is a kernel of this name.

        Raises:
            QueryInvalid: there is none; the message names those that are most like it.
        """
        by_kernel = {kernel: each for each in self._executables.values() for kernel in each.exports}
        found = self._executables.get(name) or by_kernel.get(name)
        if found is None:
            near = difflib.get_close_matches(name, [*by_kernel, *self._executables], 3, 0.3)
            meant = f"; did you mean {', '.join(near)}?" if near else ""
            raise QueryInvalid(f"{name}: the bundle has no kernel of this name{meant}")
        return found

    def swap(self, name: str, file: Path) -> Swap:
        """A replacement, looked at.

        Raises:
            QueryInvalid: the bundle has no such kernel.
            ModelUnreadable: the file cannot be read.
            UsageInvalid: it cannot take the executable's place; the message says why.
        """
        original = self.named(name)
        data = stored_bytes(file, ModelUnreadable)
        if data.startswith(_ELF):
            raise UsageInvalid(_object_fault(file, data, original, self._machines()))
        try:
            _module, found = read_executables(self._parser, data)
        except ModelInvalid as error:
            raise UsageInvalid(f"{file}: is neither MLIR nor an object: {error}") from error
        new = found.get(original.name)
        if new is None:
            names = listed(list(found)) or "none"
            raise UsageInvalid(f"{file}: holds no executable {original.name} (it holds: {names}); dump one with --dump")
        for export in original.exports:
            if export not in new.exports or export not in new.functions:
                raise UsageInvalid(f"{file}: has no code for the entry point {export} of {original.name}")
        if other := formats_of(new) - formats_of(original):
            wanted = ", ".join(sorted(formats_of(original)))
            raise UsageInvalid(f"{file}: is for {', '.join(sorted(other))}, and {original.name} for {wanted}")
        return Swap(original.name, original.exports, file.resolve(), new.stage)

    def folder_swaps(self, folder: Path, stage: Stage) -> list[Swap]:
        """Replacements at a stage by files of a folder, each of which is called after its executable.

        Raises:
            UsageInvalid: the folder has no such file, or one of another stage; else as `swap`.
        """
        files = {file.stem: file for file in sorted(folder.glob("*.mlir"))}
        named = {name: [files[stem] for stem in _stems(name, stage) if stem in files] for name in self._executables}
        found = [self.swap(name, its[0]) for name, its in named.items() if its]
        if not found:
            raise UsageInvalid(f"{folder}: holds no file that is called after an executable of the bundle")
        for each in found:
            if each.stage != stage:
                raise UsageInvalid(f"{each.file}: is of the stage {each.stage}, not of {stage}")
        return found

    def dumped(self, name: str, stage: Stage, folder: Path) -> str:
        """The text of the executable at a stage, with locations by which its ops are known again.

        Raises:
            QueryInvalid: there is no such kernel.
            UsageInvalid: the bundle has no model to compile.
            ToolFailed: the compiler fails; the message is its own.
        """
        executable = self.named(name)
        # Of what goes on from the model the locations name ops; the bundle's kernels have lines of their texts instead.
        source = self._configured(folder) if stage == "object" else self._tagged(folder)
        begin = (f"--compile-from={CONFIGURED}",) if stage == "object" else ()
        target = folder / "stage.mlir"
        flags = self._bundle.graph.module.flags
        stop = f"--compile-to={_PHASES[stage]}"
        program = find_tool("iree-compile")
        done = run_tool([program, source, *flags, *begin, stop, "--mlir-print-debuginfo", "-o", target])
        if done.returncode != 0:
            raise failed(ToolFailed, done.returncode, done.stderr, f"{name}: the stage {stage} cannot be made: ")
        if lost := not_loaded(done.stderr):
            raise ToolFailed(f"{name}: the stage {stage} cannot be made: {lost}")
        _module, found = read_executables(self._parser, target.read_bytes())
        if executable.name not in found:
            raise ToolFailed(f"{name}: has no code of its own at the stage {stage}; the compiler linked it with others")
        return executable_text(found[executable.name])

    def _machines(self) -> Set[str]:
        """The architectures that the bundle's module has code for, as ELF names them."""
        return {image.machine for image in read_images(self._bundle.module_path)}

    def _tagged(self, folder: Path) -> Path:
        model = self._bundle.model()
        if not model:
            raise UsageInvalid("the bundle does not keep its model (--no-sources), from which sources are made")
        name = self._bundle.graph.sources[0].name
        return write_tagged(self._parser.parse(model), Tags(unused_prefix(model)), name, folder)

    def _configured(self, folder: Path) -> Path:
        file = folder / "configured.mlir"
        file.write_bytes(self._bundle.configured())
        return file


def _stems(executable: str, stage: Stage) -> tuple[str, ...]:
    """What an executable's file may be called at a stage, likeliest first.

    IREE's own dumps are called after the module too, and lie in one folder: module_NAME, configured_module_NAME.
    """
    plain = (executable, f"module_{executable}")
    configured = tuple(f"configured_{stem}" for stem in plain)
    return (*configured, *plain) if stage == "configuration" else (*plain, *configured)


def _object_fault(file: Path, data: bytes, original: Executable, machines: Set[str]) -> str:
    """Why an object file is not taken: it does not fit, or the compiler does not take any."""
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(data))
        machine = str(elf["e_machine"])
        symbols = {each.name for section in elf.iter_sections("SHT_SYMTAB") for each in section.iter_symbols()}
    except Exception:  # the library checks little: what damage does to its assumptions ends in any kind of error
        return f"{file}: is a damaged object file"
    if machine not in machines:
        wanted = " or ".join(sorted(machines)) or "a CPU: the bundle has no code for one"
        return f"{file}: is an object for {machine}, not for {wanted}"
    missing = [export for export in original.exports if export not in symbols]
    if missing:
        return f"{file}: defines no {missing[0]}, the entry point of {original.name}"
    return (
        f"{file}: IREE takes no object files for CPUs, its compiler crashes on them; "
        "give what `--dump object` writes, in LLVM's dialect of MLIR"
    )


def swapped_flags(flags: Sequence[str], swaps: Sequence[Swap]) -> tuple[str, ...]:
    """A bundle's flags with replacements; those of the same executables that it had before are left out."""
    names = {swap.executable for swap in swaps}
    kept = [flag for flag in flags if not (flag.startswith(_FLAG) and flag.split("=")[1] in names)]
    return (*kept, *(swap.flag for swap in swaps))
