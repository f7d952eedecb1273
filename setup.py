"""What `pyproject.toml` cannot say: the hook's C libraries, the tag of wheels, and archives that are always the same.

Without a C compiler everything else is installed all the same, and wheels are of pure Python.
"""

import gzip
import importlib.util
import os
import sys
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

ROOT = Path(__file__).parent
HOOK = ROOT / "tracemap" / "hook"

spec = importlib.util.spec_from_file_location("compiling", HOOK / "compiling.py")
assert spec
assert spec.loader
compiling = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiling)


def hook_can_be_built() -> bool:
    """Whether there is a compiler for a platform that the hook works on; says why not."""
    try:
        compiling.check_platform()
        compiling.find_compiler()
    except compiling.HookUnavailable as error:
        print(f"warning: {error}", file=sys.stderr)
        return False
    return True


def plain_mode(mode: int, *, folder: bool) -> int:
    """The permissions that a file or folder has in an archive."""
    return 0o755 if folder or mode & 0o100 else 0o644


PACKAGE = "tracemap.hook"
LIBRARIES = {"library": compiling.LIBRARY_NAME, "cuda_library": compiling.CUDA_LIBRARY_NAME}


class BuildHook(build_ext):
    """Compiles the libraries as `tracemap/hook/compiling.py` says; they are no Python modules."""

    def build_extension(self, ext: Extension) -> None:
        """Compile; a failure is a warning, since the extension is optional."""
        try:
            compiling.compile_library(
                Path(self.get_ext_fullpath(ext.name)), name=LIBRARIES[ext.name.rpartition(".")[2]]
            )
        except compiling.HookUnavailable as error:
            raise CompileError(str(error)) from error

    def get_ext_filename(self, fullname: str) -> str:
        """The library's own name, without Python's version in it."""
        *folders, name = fullname.split(".")
        return str(Path(*folders) / LIBRARIES[name])


class PlatformWheel(bdist_wheel):
    """The library is preloaded, not imported: a wheel fits every Python, and one without the library every platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform."""
        return ("py3", "none", super().get_tag()[2] if self.distribution.has_ext_modules() else "any")

    def write_wheelfile(self, *args: object, **options: object) -> None:
        """Write what is in the archive besides the package, of which all is in its folder by now."""
        os.umask(0o022)
        for path in Path(self.bdist_dir).rglob("*"):
            # Whatever the mask of the one who builds was.
            path.chmod(plain_mode(path.stat().st_mode, folder=path.is_dir()))
        super().write_wheelfile(*args, **options)


class ReproducibleSdist(sdist):
    """An archive that is the same, byte for byte, whoever makes it and when: of the time `SOURCE_DATE_EPOCH`."""

    def make_archive(self, base_name: str, *_args: object, **_options: object) -> str:
        """Write the archive of the folder that `base_name` ends in, below the working folder; returns its path."""
        folder, seconds = Path(base_name).name, int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
        target = f"{base_name}.tar.gz"

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.mode = plain_mode(member.mode, folder=member.isdir())
            return member

        with (
            Path(target).open("wb") as file,
            # The header of gzip would name the file and the time otherwise.
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=seconds) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(folder, filter=plain)
        return target


hooks = [
    Extension(f"{PACKAGE}.{name}", [str(path.relative_to(ROOT)) for path in compiling.sources(library)], optional=True)
    for name, library in LIBRARIES.items()
]
setup(
    ext_modules=hooks if hook_can_be_built() else [],
    cmdclass={"build_ext": BuildHook, "bdist_wheel": PlatformWheel, "sdist": ReproducibleSdist},
)
