"""Where what lies in a store: a folder that only grows, made of Parquet files alone, safe for many writers at once.

    runs/model=M/host=H/date=D/RUN.parquet     a run's header, as one row; a run is in the store when this is there
    calls/model=M/host=H/date=D/RUN.parquet    its events, each with the number of its target
    targets/…/RUN.parquet                      the places of each target
    aside/…/RUN.parquet                        what of the sums of targets is no work
    costs/…/RUN.parquet                        what each op has of each place; and what has no op, with its reason
    spreads/…/RUN.parquet                      what each op costs in an invocation
    ops/MAP.parquet                            the ops of a map
    maps/MAP.parquet                           what of a bundle is needed to match its ops with another's

A run's name is made of what it holds, so that adding it again, from wherever, finds it there. Files are written under a
name that no engine reads and get their own with the last byte; none is ever replaced.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tracemap.errors import StoreInvalid, TargetUnwritable
from tracemap.owned.home import beside
from tracemap.units import UNKNOWN, Text

STORE_VERSION: Final = 1
STORE_KEY: Final = "tracemap-store"
"""The key of the version in the key-value metadata of every file."""

RUNS, CALLS, TARGETS, ASIDE, COSTS, SPREADS, OPS, MAPS = (
    "runs",
    "calls",
    "targets",
    "aside",
    "costs",
    "spreads",
    "ops",
    "maps",
)
OF_RUNS: Final = (CALLS, TARGETS, ASIDE, COSTS, SPREADS)
"""The tables that each run has a file of, besides its header."""
SUFFIX: Final = ".parquet"

_RUN_NAME = re.compile(r"[0-9a-f]{15}")
_MAGIC = b"PAR1"
_LONGEST = 60
_LEAST_FILE = 12
_MOST_FOOTER = 1 << 24


def run_name(number: int) -> str:
    """What a run is called by people and files; `number` is the same for engines, which join numbers faster."""
    return f"{number:015x}"


def run_number(content: Iterable[bytes]) -> int:
    """The number of a run, made of what it holds."""
    digest = sha256()
    for part in content:
        digest.update(part)
    return int(digest.hexdigest()[:15], 16)


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file below a store that is none of its tables, and why."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a store.

    `files`: by table and the stem of the file's name. `bad`: what cannot be read. `unfinished`: how many runs another
    process is adding just now, or was when it was killed: they have no header yet.
    """

    files: Mapping[str, Mapping[str, Path]]
    bad: tuple[BadFile, ...] = ()
    unfinished: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A store's folder."""

    root: Path

    def run_file(self, table: str, name: str, partition: Mapping[str, Text]) -> Path:
        """Where a run's file of a table lies; the partition's values are texts of whatever kind."""
        parts = (f"{key}={_part(value)}" for key, value in partition.items())
        return self.root.joinpath(table, *parts, name + SUFFIX)

    def map_file(self, table: str, map_sha256: str) -> Path:
        """Where what is of a map lies."""
        return self.root / table / (map_sha256 + SUFFIX)

    def has_run(self, name: str) -> bool:
        """Whether a run is there, whatever model, host and date it was added with."""
        return any(True for _ in self.root.glob(f"{RUNS}/*/*/*/{name}{SUFFIX}"))

    def check_there(self) -> None:
        """Refuse to read what is no store.

        Raises:
            StoreInvalid: there is no such folder, or nothing was ever added to it.
        """
        if not self.root.is_dir():
            raise StoreInvalid(f"{self.root}: there is no such folder; tracemap store add makes it with the first run")
        if not (self.root / RUNS).is_dir():
            raise StoreInvalid(f"{self.root}: is no store, or an empty one; add runs with tracemap store add")

    def listed(self) -> Listing:
        """All its files; those that are no whole Parquet files are told apart by their first and last bytes.

        Raises:
            StoreInvalid: as `check_there`; or a folder cannot be read.
        """
        self.check_there()
        bad: list[BadFile] = []
        files = {table: self._of_table(table, bad) for table in (RUNS, *OF_RUNS, OPS, MAPS)}
        begun = {stem for table in OF_RUNS for stem in files[table]} - files[RUNS].keys()
        broken = {each.path.stem for each in bad}
        strange = [stem for stem in begun if not _RUN_NAME.fullmatch(stem)]
        for stem in sorted(strange):
            for table in OF_RUNS:
                if (path := files[table].get(stem)) is not None:
                    bad.append(BadFile(path, "is no file of a store"))
        return Listing(files, tuple(bad), len(begun - broken - set(strange)))

    def _of_table(self, table: str, bad: list[BadFile]) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for name in sorted(_parquet_files(self.root / table)):
            path = Path(name)
            if why := _fault_of(name):
                bad.append(BadFile(path, why))
            elif (other := found.setdefault(path.stem, path)) is not path:
                bad.append(BadFile(path, f"has the name of {other}"))
        return found


def _part(value: Text) -> str:
    """A value as a part of a path: nothing in it has a meaning, and none is longer than names of files may be."""
    if value is UNKNOWN or not value:
        return "unknown"
    encoded = value.encode(errors="backslashreplace")
    name = quote(encoded, safe=" ").replace(".", "%2E", 1 if value.startswith(".") else 0)
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST].rpartition('%')[0] or name[:_LONGEST]}-{sha256(encoded).hexdigest()[:12]}"


def _parquet_files(folder: Path) -> Iterator[str]:
    """The Parquet files below a folder, links not followed; names with a dot in front are of what is not there yet."""

    def raised(error: OSError) -> None:
        raise error

    try:
        for place, folders, names in os.walk(folder, onerror=raised):
            folders.sort()
            for name in names:
                if name.endswith(SUFFIX) and not name.startswith("."):
                    yield os.path.join(place, name)  # noqa: PTH118 - of ten thousand files paths take longer than reading
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreInvalid(f"{error.filename}: cannot be read: {error.strerror}; let it be read") from error


def _fault_of(path: str) -> str:
    """What is wrong with a file, by its first bytes and its footer, which says whose it is; "" if nothing is."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            about = os.fstat(file)
            if not stat.S_ISREG(about.st_mode):
                return "is no regular file"
            return _fault_of_parquet(file, about.st_size)
        finally:
            os.close(file)
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _fault_of_parquet(file: int, size: int) -> str:
    if os.pread(file, len(_MAGIC), 0) != _MAGIC:
        return "is no Parquet file"
    last = os.pread(file, 2 * len(_MAGIC), max(0, size - 2 * len(_MAGIC)))
    length = int.from_bytes(last[: len(_MAGIC)], "little")
    if size < _LEAST_FILE or not last.endswith(_MAGIC) or length + _LEAST_FILE > size:
        return "is cut off: its end is missing"
    footer = os.pread(file, min(length, _MOST_FOOTER), size - 2 * len(_MAGIC) - length)
    return "" if STORE_KEY.encode() in footer else "is no file of a store"


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A name to write to, which becomes the target when all went well and nobody else was first: what is there stays.

    Raises:
        TargetUnwritable: the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target) as temporary:
            yield temporary
            _keep(temporary, target)
    except OSError as error:
        raise TargetUnwritable(f"{target}: cannot be written: {error.strerror or error}") from error


def _keep(temporary: Path, target: Path) -> None:
    # A link is made only where nothing has the name: of two writers one is first, and both have written the same.
    with suppress(FileExistsError):
        try:
            os.link(temporary, target)
        except OSError as error:
            if isinstance(error, FileExistsError) or target.exists():
                return
            temporary.rename(target)  # a file system without links: whoever is last wins, with the same content
