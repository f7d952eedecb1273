"""The samples of a program that still runs, counted while the hook writes them: each of them is read once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracemap.measurements.hook.head import FileHead, read_head, read_records
from tracemap.measurements.hook.process import known_executables, read_processes
from tracemap.measurements.hook.samples import OUTSIDE, SAMPLES_FILE, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tracemap.measurements.hook.process import HookExecutable


class GrowingSamples:
    """Counts the samples in executables that the hook has written into a folder by now."""

    def __init__(self, folder: Path) -> None:
        """Nothing needs to be there yet."""
        self.read = 0
        """How many samples were read so far, in executables and outside."""
        self._folder = folder
        self._heads: dict[Path, FileHead] = {}
        self._read_of: dict[Path, int] = {}
        self._times_ns: list[npt.NDArray[Any]] = []
        self._since_ns = self._count = 0

    def inside_since(self, begin_ns: int) -> int:
        """How many samples were taken in executables since a time. One that is asked for again costs what is new.

        Raises:
            RunEmpty: the hook has written nothing yet.
            RunInvalid: its files are made at this moment, or damaged.
        """
        new = self._read_on()
        if begin_ns != self._since_ns:
            self._since_ns, self._count, new = begin_ns, 0, self._times_ns
        self._count += sum(int((times >= begin_ns).sum()) for times in new)
        return self._count

    def _read_on(self) -> list[npt.NDArray[Any]]:
        """When the samples were taken, in executables, that were not read before."""
        files = read_processes(self._folder)
        found = []
        for process in files.values():
            known = list(known_executables(process, files).values())
            for path in process.thread_files("samples"):
                times = self._new_of(path, known)
                found.append(times)
        self._times_ns += found
        return found

    def _new_of(self, path: Path, known: Sequence[HookExecutable]) -> npt.NDArray[Any]:
        import numpy as np

        head = self._heads.get(path) or read_head(path, SAMPLES_FILE)
        if head is None:
            return np.zeros(0, dtype=np.uint64)
        self._heads[path] = head
        done = self._read_of.get(path, 0)
        records = read_records(path, head, skip=done)
        written = int(np.argmin(whole)) if not (whole := records["time_ns"] != 0).all() else len(records)
        self._read_of[path] = done + written
        self.read += written
        taken = records[:written]
        executable, _ = resolve(taken["ip"], taken["time_ns"], known)
        times: npt.NDArray[Any] = taken["time_ns"][executable != OUTSIDE]
        return times
