"""Builds the hook's C library with the package; without a C compiler everything else is installed all the same."""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

ROOT = Path(__file__).parent
HOOK = ROOT / "tracemap" / "hook"

spec = importlib.util.spec_from_file_location("compiling", HOOK / "compiling.py")
assert spec
assert spec.loader
compiling = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compiling)


class BuildHook(build_ext):
    """Compiles the library as `tracemap/hook/compiling.py` says; it is no Python module."""

    def build_extension(self, ext: Extension) -> None:
        """Compile; a failure is a warning, since the extension is optional."""
        try:
            compiling.compile_library(Path(self.get_ext_fullpath(ext.name)))
        except compiling.HookUnavailable as error:
            raise CompileError(str(error)) from error

    def get_ext_filename(self, fullname: str) -> str:
        """The library's own name, without Python's version in it."""
        return str(Path(*fullname.split(".")[:-1]) / compiling.LIBRARY_NAME)


sources = [str(path.relative_to(ROOT)) for path in compiling.sources()]
setup(ext_modules=[Extension("tracemap.hook.library", sources, optional=True)], cmdclass={"build_ext": BuildHook})
