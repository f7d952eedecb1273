"""MLIR's and LLVM's own tools: `mlir-opt`, `mlir-translate` and `clang`, all of one release."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracemap.core.errors import ModelInvalid, PipelineInvalid, ToolMissing, UsageInvalid
from tracemap.core.toolchain import run_tool, signal_text
from tracemap.ir.source_model import TEXT_FILE
from tracemap.map.build.native.pipeline import PassNode

_RELEASES: Final = range(40, 14, -1)
"""Releases whose tools have their number in their name, as in Debian: `mlir-opt-19`."""
_INSTALL: Final = "install MLIR's and LLVM's tools of one release (Debian: apt-get install mlir-19-tools clang-19)"
_GENERIC: Final = ("--mlir-print-op-generic", "--mlir-print-debuginfo", "--mlir-print-local-scope")
_ANY_DIALECT: Final = "--allow-unregistered-dialect"
_RESOURCE: Final = "dense_resource<"
_RESOURCES: Final = "\n{-#"
"""The section with the values of resources, at the end of a module's text."""
_ERROR: Final = re.compile(r"\berror:|Assertion|LLVM ERROR")
_UNDEFINED: Final = re.compile(r"undefined (?:reference to|symbol)")
"""A message of GNU's or LLVM's linker; clang's own says only that it failed."""
_PLACE: Final = re.compile(rf"^{re.escape(TEXT_FILE)}:(?=\d)")
"""The model's file, where a location that mlir-opt made up is named."""


@dataclass(frozen=True, slots=True)
class MlirTools:
    """The programs, and the release that they report."""

    opt: Path
    translate: Path
    clang: Path
    release: str

    @classmethod
    def installed(cls) -> MlirTools:
        """The tools on PATH: those without a number, else those of the newest release.

        Raises:
            ToolMissing: one of them is not installed.
        """
        opt = next(_named("mlir-opt"), None)
        if opt is None:
            raise ToolMissing(f"mlir-opt is not installed; {_INSTALL}")
        folder = opt.resolve().parent
        translate, clang = _of_release(opt, folder, "mlir-translate"), _of_release(opt, folder, "clang")
        printed = run_tool([opt, "--version"]).stdout
        match = re.search(r"version (\d[\w.]*)", printed)
        return cls(opt, translate, clang, match[1] if match else "unknown")

    def generic(self, source: Path, name: str, *, pipeline: PassNode | None = None) -> str:
        """A module in generic form with all locations, after a pipeline if one is given.

        Args:
            source: the module; it lies in the folder to run in, and its name is its file in new locations.
            name: the model's name in error messages.
            pipeline: the passes to run first.

        Raises:
            ModelInvalid: mlir-opt rejects the module.
            PipelineInvalid: it rejects the pipeline, or the pipeline the module.
        """
        text = self._opt(source, name, pipeline, *_GENERIC)
        if _RESOURCE not in text:
            return text
        # In local scope, mlir-opt leaves out the values of resources.
        _, begin, resources = self._opt(source, name, pipeline).rpartition(_RESOURCES)
        return f"{text}{begin}{resources}"

    def pretty(self, source: Path, name: str) -> str:
        """A module in its dialects' own forms, without locations.

        Raises:
            ModelInvalid: mlir-opt rejects the module.
        """
        return self._opt(source, name, None)

    def dump_passes(self, source: Path, name: str, pipeline: PassNode, folder: Path) -> str:
        """Run a pipeline and dump the program after each pass below a folder; returns the pipeline in full.

        Raises:
            PipelineInvalid: as `generic`.
        """
        flags = ["--mlir-print-ir-after-all", f"--mlir-print-ir-tree-dir={folder}", "--mlir-disable-threading"]
        flags += ["--dump-pass-pipeline", f"--pass-pipeline={pipeline}", "-o", "/dev/null"]
        done = run_tool([self.opt, _ANY_DIALECT, *flags, source])
        if done.returncode:
            raise _rejection(done.returncode, done.stderr, source, name, pipeline)
        match = re.search(r"^builtin\.module\(.*\)$", done.stderr, re.MULTILINE)
        return match[0] if match else str(pipeline)

    def _opt(self, source: Path, name: str, pipeline: PassNode | None, *flags: str) -> str:
        passes = [] if pipeline is None or not pipeline.inside else [f"--pass-pipeline={pipeline}"]
        done = run_tool([self.opt, _ANY_DIALECT, *passes, *flags, source])
        if done.returncode:
            raise _rejection(done.returncode, done.stderr, source, name, pipeline)
        return done.stdout

    def llvm_ir(self, source: Path, target: Path, name: str) -> None:
        """Translate a module of the LLVM dialect to LLVM's IR.

        Raises:
            PipelineInvalid: the pipeline left operations of other dialects.
        """
        done = run_tool([self.translate, "--mlir-to-llvmir", source, "-o", target])
        if done.returncode:
            raise PipelineInvalid(
                f"{name}: the pipelines must end in the llvm dialect, but mlir-translate says: "
                f"{_first_error(done.stderr, source, name)}"
            )

    def link(self, ir: Path, target: Path, flags: Sequence[str]) -> None:
        """Compile LLVM's IR to a shared library.

        Raises:
            UsageInvalid: clang rejects a flag, or a function that the code calls is in no library.
        """
        fixed = ["-fPIC", "-shared", "-Wl,--build-id=sha1", "-Wl,-z,defs", "-Wno-override-module"]
        done = run_tool([self.clang, *fixed, "-x", "ir", ir, "-x", "none", *flags, "-o", target, *self._libraries()])
        if done.returncode:
            raise UsageInvalid(f"clang: {_first_error(done.stderr, ir, ir.name)}; flags for it follow --")

    def _libraries(self) -> list[str]:
        """The libraries that generated code may call: mathematics, and MLIR's own helpers where they are installed."""
        folder = self.opt.resolve().parent.parent / "lib"
        helpers = sorted(folder.glob("libmlir_c_runner_utils.so*"))
        return ["-lm", *([str(helpers[0]), f"-Wl,-rpath,{folder}"] if helpers else [])]


def _named(name: str) -> Iterator[Path]:
    for candidate in (name, *(f"{name}-{release}" for release in _RELEASES)):
        if path := shutil.which(candidate):
            yield Path(path)


def _of_release(opt: Path, folder: Path, name: str) -> Path:
    """A tool of the same release as `opt`: in its folder, else with the same ending, else any."""
    if (folder / name).is_file():
        return folder / name
    ending = opt.name.removeprefix("mlir-opt")
    path = shutil.which(f"{name}{ending}") or next(map(str, _named(name)), None)
    if path is None:
        raise ToolMissing(f"{name} is not installed, but {opt} is; {_INSTALL}")
    return Path(path)


def _first_error(printed: str, source: Path, name: str) -> str:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    undefined = next((line for line in lines if _UNDEFINED.search(line)), None)
    line = undefined or next((line for line in lines if _ERROR.search(line)), [*lines, "it does not say why"][0])
    return _PLACE.sub(f"{name}:", line.replace(str(source), name)).removeprefix("<unknown>:0: error: ")


def _rejection(
    status: int, printed: str, source: Path, name: str, pipeline: PassNode | None
) -> ModelInvalid | PipelineInvalid:
    outcome = "rejects it" if status > 0 else f"{signal_text(-status)} in it"
    error = _first_error(printed, source, name)
    if pipeline is None:
        return ModelInvalid(f"{name}: cannot be parsed: mlir-opt {outcome}: {error}")
    return PipelineInvalid(f"{pipeline}: mlir-opt {outcome}: {error}")
