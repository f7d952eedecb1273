"""Versions of a program for `tracemap bisect`: their builds, kept in a folder by content, and their recordings."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import structs

from tracemap.capture.run_names import free_recording_names
from tracemap.core.codec import Count, Record, decode, encode
from tracemap.core.errors import BundleInvalid, InputInvalid, ModelInvalid, ToolFailed, UsageInvalid
from tracemap.core.files import atomic_file
from tracemap.core.process.children import path_argument
from tracemap.core.releases import environment, is_at_least, own_release, run_with
from tracemap.core.toolchain import Progress
from tracemap.core.units import Integer, Unknown
from tracemap.ir.parsing import BYTECODE_MAGIC
from tracemap.options.measure import BisectOptions, CallOptions, RecordOptions, call_of
from tracemap.runs.runfile import read_run

if TYPE_CHECKING:
    from tracemap.map.bundle import Bundle
    from tracemap.map.bundle_documents import CallToKeep


@dataclass(frozen=True, slots=True)
class Version:
    """A way of building a program: its model and the model's name, flags of iree-compile, and IREE's release."""

    model: bytes
    name: str
    flags: tuple[str, ...]
    release: str


@dataclass(frozen=True)
class Versions:
    """Builds of versions in a folder, named by their content, so that each is compiled once.

    `good`: a bundle whose inputs and parameters all versions get.
    """

    folder: Path
    good: Bundle
    progress: Progress

    @cached_property
    def own_release(self) -> str:
        """The release of the compiler of this environment."""
        return own_release()

    @cached_property
    def _kept(self) -> CallToKeep:
        from tracemap.commands.programs import saved_inputs_to_copy

        return saved_inputs_to_copy(self.good)

    @cached_property
    def _kept_digests(self) -> tuple[str, ...]:
        """Texts that differ if the good bundle keeps other inputs or parameters."""
        texts = []
        for name, array in self._kept.inputs:
            texts.append(f"{name}={array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}")
        for scope, path in (*self._kept.parameters, *self._kept.references):
            try:
                with path.open("rb") as stream:
                    texts.append(f"{scope}={hashlib.file_digest(stream, 'sha256').hexdigest()}")
            except OSError as error:
                raise InputInvalid(f"{path}: cannot be read: {error.strerror}") from error
        return tuple(texts)

    def interpreter(self, release: str) -> Path | None:
        """The interpreter of a release's environment; None: this one.

        Raises:
            ToolMissing, TargetUnwritable: see `core.releases.environment`.
        """
        return None if release == self.own_release else environment(release, self.progress)

    # ---- builds

    def bundle(self, version: Version, *, timing: bool = False) -> Bundle:
        """The build of a version, from the folder if it is there.

        Raises:
            ModelInvalid: it cannot be compiled, now or earlier.
            TargetUnwritable: the folder cannot be written.
        """
        from tracemap.map.bundle import load

        target = self.path(version, timing=timing)
        try:
            return load(target)
        except BundleInvalid:
            pass
        failure = target.with_suffix(".failed")
        if message := _message_in(failure):
            raise ModelInvalid(message)
        try:
            return self.build(version, target, timing=timing)
        except ModelInvalid as error:
            _write(failure, str(error).encode(errors="replace"))
            raise

    def build(self, version: Version, target: Path, *, timing: bool = False) -> Bundle:
        """Build a version; replaces the target.

        Raises:
            ModelInvalid: it cannot be compiled.
        """
        from tracemap.map.build.build import BuildRequest, build
        from tracemap.map.bundle import load
        from tracemap.options.compile import BuildOptions

        python = self.interpreter(version.release)
        try:
            if python is None:
                options = BuildOptions(output=target, flags=version.flags, force=True, timing=timing)
                return build(BuildRequest(version.model, version.name, target, options, keeping=self._kept))
            words: list[str | Path] = [
                "build",
                self.model_file(version),
                "-o",
                target,
                "--force",
                *(["--timing"] if timing else []),
            ]
            run_with(python, [*words, *self._parameters(), "--", *version.flags])
            return load(target)
        except (ModelInvalid, ToolFailed) as error:
            raise ModelInvalid(str(error)) from error

    def _parameters(self) -> list[str]:
        """Options for the parameter files that the good bundle has."""
        files = (*self._kept.parameters, *self._kept.references)
        return [word for scope, path in files for word in ("--parameters", f"{scope}={path}")]

    def input_words(self, options: CallOptions) -> list[str]:
        """Options for the inputs that the good bundle keeps, unless the call has its own."""
        from tracemap.commands.programs import saved_inputs_of

        kept = () if options.inputs else saved_inputs_of(self.good).inputs
        return [word for file in kept for word in ("--input", f"@{file}")]

    def path(self, version: Version, *, timing: bool = False) -> Path:
        """The bundle of a version, whether it exists or not."""
        words = [version.release, *version.flags, *(["timing"] if timing else []), *self._kept_digests]
        key = hashlib.sha256("\0".join([*words, _digest(version.model)]).encode(errors="surrogatepass")).hexdigest()
        return self.folder / f"{key[:16]}.tracemap"

    def model_file(self, version: Version) -> Path:
        """A file with the model of a version, in the folder."""
        suffix = ".mlirbc" if version.model.startswith(BYTECODE_MAGIC) else ".mlir"
        path = self.folder / f"{_digest(version.model)[:16]}{suffix}"
        if not path.is_file():
            _write(path, version.model)
        return path

    def command(self, version: Version) -> tuple[str, ...]:
        """The command that builds a version; for another release, with that environment's interpreter."""
        python = self.interpreter(version.release)
        program = ["tracemap"] if python is None else [str(python), "-m", "tracemap"]
        return (*program, "build", path_argument(self.model_file(version)), "-o", "NEW.tracemap", "--", *version.flags)


# ---- recordings


class Pair(Record, frozen=True):
    """Two recordings in succession: the median times of an invocation, and the files of the runs in the bundles.

    Without files, IREE's own benchmark measured the times: its releases before 3.12 record no profiles.
    """

    before_ns: Count
    after_ns: Count
    before: str = ""
    after: str = ""

    @property
    def ratio(self) -> float:
        """The time after relative to the time before."""
        return self.after_ns / self.before_ns


class _Pairs(Record, frozen=True):
    """The recordings of two versions; `call`: the options of the call."""

    call: tuple[str, ...]
    seconds: float
    pairs: tuple[Pair, ...] = ()


_MOST_DOUBLINGS: Final = 6
_FIRST_WITH_PROFILES: Final = (3, 12)


@dataclass(frozen=True)
class Recordings:
    """Recordings of two versions in alternation; a file in the folder lists them, so that a search can go on."""

    versions: Versions
    sides: tuple[Version, Version]
    options: BisectOptions

    def pairs(self, count: int) -> tuple[Pair, ...]:
        """The first recordings of both versions; those that are missing are made.

        Every second pair is recorded in the other order, since the order may affect times.

        Raises:
            UsageInvalid: an invocation takes far longer than the time limit.
            TracemapError: see `commands.record.record`.
        """
        known = self._stored()
        while len(known.pairs) < count:
            sides = (0, 1) if len(known.pairs) % 2 == 0 else (1, 0)
            measured = {side: self._measured(self.sides[side], known.seconds) for side in sides}
            (before_ns, before), (after_ns, after) = measured[0], measured[1]
            if isinstance(before_ns, Unknown) or isinstance(after_ns, Unknown):
                known = self._with_more_time(known)
            else:
                known = structs.replace(known, pairs=(*known.pairs, Pair(before_ns, after_ns, before, after)))
                _write(self._file, encode(known))
        return known.pairs[:count]

    def runs(self) -> tuple[list[Path], list[Path]]:
        """The runs of both versions; none if they were measured without profiles."""
        pairs = [pair for pair in self._stored().pairs if pair.before]
        before, after = self._folders
        return [before / pair.before for pair in pairs], [after / pair.after for pair in pairs]

    @property
    def _folders(self) -> tuple[Path, Path]:
        """The folders of the runs of both versions."""
        before, after = (self.versions.path(version) / "runs" for version in self.sides)
        return before, after

    @property
    def _file(self) -> Path:
        before, after = (self.versions.path(version).stem for version in self.sides)
        return self.versions.folder / f"{before}-{after}.json"

    def _stored(self) -> _Pairs:
        """The recordings of an earlier search with the same call; none if their files are gone or damaged."""
        fresh = _Pairs(tuple(call_words(self.options)), self.options.seconds)
        try:
            known = decode(self._file.read_bytes(), _Pairs)
        except (OSError, ValueError):
            return fresh
        before, after = self._folders
        valid = all(
            pair.before_ns and pair.after_ns and (before / pair.before).exists() and (after / pair.after).exists()
            for pair in known.pairs
        )
        return known if valid and known.call == fresh.call else fresh

    def _with_more_time(self, known: _Pairs) -> _Pairs:
        """Recordings of twice the time: too few invocations fit into it to measure one."""
        if known.seconds >= self.options.seconds * 2**_MOST_DOUBLINGS:
            raise UsageInvalid(
                f"--seconds {self.options.seconds:g}: an invocation takes far longer; pass a longer time"
            )
        return _Pairs(known.call, known.seconds * 2)

    # ---- measuring

    def _measured(self, version: Version, seconds: float) -> tuple[Integer, str]:
        """The median time of an invocation, and the file of the run."""
        if all(is_at_least(each.release, _FIRST_WITH_PROFILES) for each in self.sides):
            run = self._record(version, seconds)
            return read_run(run).header.invocation.median_ns, run.name
        return self._benchmark(version, seconds), ""

    def _record(self, version: Version, seconds: float) -> Path:
        from tracemap.commands.record import record

        bundle, python = self.versions.bundle(version), self.versions.interpreter(version.release)
        if python is None:
            return record(bundle, RecordOptions(**call_of(self.options), seconds=seconds, launches=1)).path
        bundle.runs_path.mkdir(exist_ok=True)
        taken = [path.name for path in bundle.runs_path.iterdir()]
        path = bundle.runs_path / f"{next(free_recording_names(taken))}.parquet"
        words: list[str | Path] = ["record", bundle.path, "-o", path, "--seconds", str(seconds), "--launches", "1"]
        run_with(python, [*words, *self._call()])
        return path

    def _benchmark(self, version: Version, seconds: float) -> int:
        """The time of an invocation by IREE's own benchmark, summed over functions."""
        python = self.versions.interpreter(version.release) or Path(sys.executable)
        bundle = self.versions.bundle(version).path
        words: list[str | Path] = ["benchmark", bundle, "--min-time", str(seconds), "--time-unit", "ns"]
        printed = run_with(python, [*words, "--format", "json", *self._call()])
        times: list[float] = [each["real_time"] for each in json.loads(printed)["benchmarks"]]
        return round(sum(times))

    def _call(self) -> list[str]:
        return [*self.versions.input_words(self.options), *call_words(self.options)]


def call_words(options: CallOptions) -> list[str]:
    """The options of a call as words of a command line."""
    words = [] if isinstance(options.function, Unknown) else ["--function", options.function]
    words += [word for spec in options.inputs for word in ("--input", spec)]
    words += [] if isinstance(options.dim, Unknown) else ["--dim", str(options.dim)]
    words += [] if options.flagfile is None else ["--flagfile", str(options.flagfile)]
    words += ["--serial"] if options.serial else []
    return words


@cache
def _digest(model: bytes) -> str:
    """The SHA-256 of a model; kept, since every recording asks for it, and models may have gigabytes."""
    return hashlib.sha256(model).hexdigest()


def _message_in(failure: Path) -> str:
    """The compiler's message of an earlier search; "" if the file does not exist or is damaged."""
    try:
        return failure.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
