"""Tries under a watchdog: each in a worker process that may hang, crash or take all memory without harm to the rest."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import click

from tests.mutations.changes import Change
from tests.mutations.databases import hand_on_databases
from tests.mutations.readers import Reader
from tests.support import ROOT
from tracemap.core.errors import TracemapError

_START_S = 120
"""Within which a worker has to have imported all and read the undamaged files."""
_UNDAMAGED = 3
"""How often the undamaged files are read before the first try; what fails then is no finding."""
_ADDRESS_SPACE_BYTES = 8 << 30
"""More than any honest try reserves; a request beyond it fails in the worker instead of harming the machine."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a try may take."""

    time_s: float = 10
    memory_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a try ended: `read`, the slug of the error that refused the file, or a finding and its details."""

    number: int
    ending: str
    finding: bool = False
    details: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """Tries of one worker: the numbers of a reader's tries, with a seed, on copies of the inputs."""

    reader: Reader
    inputs: Path
    seed: int
    numbers: Sequence[int]
    limits: Limits = Limits()


def dice_of(reader: str, seed: int, number: int) -> random.Random:
    """The dice of a try; the same for the same try on any machine."""
    return random.Random(f"{reader}/{seed}/{number}")


def damaged(reader: Reader, folder: Path, dice: random.Random) -> tuple[Path, bytes]:
    """Which file of a folder a try damages, and what it becomes. The folder is not changed."""
    there = [target for target in reader.targets if any(folder.glob(target[0]))]
    pattern, change = dice.choice(there)
    path = dice.choice(sorted(folder.glob(pattern)))
    return path, _really_changed(path.read_bytes(), change, dice)


def _really_changed(data: bytes, change: Change, dice: random.Random) -> bytes:
    """Some changes change nothing, such as a swap of equals; a try is for a damaged file."""
    for _ in range(10):
        if (changed := change(data, dice)) != data:
            return changed
    return data + b"\0"


def tried(reader: Reader, folder: Path, seed: int, number: int) -> Outcome:
    """Damage one file of a folder, read it, and put it right again."""
    dice = dice_of(reader.name, seed, number)
    path, data = damaged(reader, folder, dice)
    whole = path.read_bytes()
    path.write_bytes(data)
    try:
        return ended(number, reader, folder, dice)
    finally:
        path.write_bytes(whole)


def ended(number: int, reader: Reader, folder: Path, dice: random.Random) -> Outcome:
    """How the reading of a folder ends, of which a file is damaged."""
    try:
        reader.read(folder, dice)
    except TracemapError as error:
        return Outcome(number, error.slug)
    except click.ClickException as error:
        return Outcome(number, type(error).__name__)
    except BaseException as error:
        return Outcome(number, signature(error), finding=True, details=traceback.format_exc()[-4000:])
    return Outcome(number, "read")


def signature(error: BaseException) -> str:
    """The kind of an error and the place in tracemap that it came through last, for findings of one cause."""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(ROOT / "tracemap") + os.sep
    mine = [frame for frame in frames if frame.filename.startswith(package)]
    place = f"{mine[-1].filename.removeprefix(package)}: {mine[-1].name}" if mine else "outside of tracemap"
    return f"{type(error).__name__} in {place}"


# ---- workers


def run_tasks(tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Run tasks side by side, each in a worker of its own, and yield outcomes as they come.

    A worker that hangs, dies or has taken too much memory is replaced by one that goes on behind the try that did it.

    Raises:
        RuntimeError: the undamaged files cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        workers = [_Worker(task, Path(scratch) / str(place)) for place, task in enumerate(tasks) if task.numbers]
        try:
            while workers:
                ready = wait([worker.connection for worker in workers], timeout=0.2)
                for worker in workers:
                    yield from worker.news(worker.connection in ready)
                workers = [worker for worker in workers if not worker.done]
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, task: Task, scratch: Path) -> None:
        self.done = False
        self._task = task
        self._scratch = scratch
        self._left = deque(task.numbers)
        self._start()

    def _start(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(self._task, self._left, self._scratch, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._deadline = time.monotonic() + _START_S
        self._started = False

    def news(self, ready: bool) -> Iterator[Outcome]:
        """What there is to say since the last time."""
        if not ready:
            if time.monotonic() > self._deadline:
                yield self._lost("hangs", self._stacks())
            return
        try:
            message = self.connection.recv()
        except EOFError:
            self._process.join()
            yield self._lost(f"the process ends with {self._process.exitcode}", self._stacks())
            return
        self._deadline = time.monotonic() + self._task.limits.time_s
        if isinstance(message, Outcome):
            self._left.popleft()
            yield message
            if not self._left:
                self.stop()
                self.done = True
            elif message.ending == _TOO_LARGE:
                self.stop()
                self._start()
        else:
            self._started = True

    def _lost(self, ending: str, stacks: str) -> Outcome:
        self.stop()
        if not self._started:
            self.done = True
            raise RuntimeError(f"{self._task.reader.name}: the undamaged files are not read: {ending}\n{stacks}")
        outcome = Outcome(self._left.popleft(), ending, finding=True, details=stacks)
        if self._left:
            self._start()
        else:
            self.done = True
        return outcome

    def _stacks(self) -> str:
        """Where the process is, or where it was when it died; one that gets no processor is not waited for for ever."""
        stacks, end = self._scratch / "stacks", time.monotonic() + _ANSWER_S
        if self._process.is_alive():
            with suppress(ProcessLookupError, TypeError):
                os.kill(self._process.pid or 0, signal.SIGUSR1)
            while not _size_of(stacks) and self._process.is_alive() and time.monotonic() < end:
                time.sleep(0.02)
            time.sleep(0.1)  # until all of it is written
        return stacks.read_text(encoding="utf-8", errors="replace")[-4000:] if stacks.exists() else ""

    def stop(self) -> None:
        """End the process and all that it started."""
        pid = self._process.pid
        if pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # it leads a group of its own, see _work
            self._process.kill()
        self._process.join()
        self.connection.close()


_TOO_LARGE = "takes too much memory"
_ANSWER_S: Final = 10


def _size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _work(task: Task, numbers: Iterable[int], scratch: Path, connection: Connection) -> None:
    """The worker: try after try, an outcome each."""
    os.setsid()
    with (scratch / "stacks").open("w", encoding="utf-8") as stacks:
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
        folder, temporary = scratch / "files", scratch / "temporary"
        shutil.copytree(task.inputs, folder)
        temporary.mkdir()
        tempfile.tempdir = str(temporary)
        hand_on_databases()
        try:
            for number in range(-_UNDAMAGED, 0):
                task.reader.read(folder, dice_of(task.reader.name, task.seed, number))
        except BaseException:
            stacks.write(traceback.format_exc())
            raise
        connection.send("ready")
        for number in numbers:
            connection.send(_within_memory(tried(task.reader, folder, task.seed, number), task.limits))
            for left in temporary.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def _within_memory(outcome: Outcome, limits: Limits) -> Outcome:
    """The outcome, unless the process has become too large; it is replaced after that, so the peak is this try's."""
    peak_bytes = _peak_bytes()
    if peak_bytes <= limits.memory_bytes or outcome.finding:
        return outcome
    return Outcome(outcome.number, _TOO_LARGE, finding=True, details=f"{peak_bytes} bytes; ended as {outcome.ending}")


def _peak_bytes() -> int:
    """The most memory that this program has had; `ru_maxrss` would begin with what its parent had when it forked."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))


# ---- what was found


@dataclass(frozen=True, slots=True)
class Summary:
    """The outcomes of a reader's tries."""

    reader: str
    seed: int
    outcomes: tuple[Outcome, ...]

    @property
    def findings(self) -> tuple[Outcome, ...]:
        """Tries that ended in something else than a file read or refused, by number."""
        return tuple(outcome for outcome in self.outcomes if outcome.finding)

    def text(self) -> str:
        """A line of counts, and one for each cause of findings with how to repeat its first."""
        endings = Counter(outcome.ending for outcome in self.outcomes if not outcome.finding)
        counts = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
        head = f"{self.reader}: {len(self.outcomes)} tries with seed {self.seed}: {counts}"
        causes: dict[str, list[int]] = {}
        for finding in self.findings:
            causes.setdefault(finding.ending, []).append(finding.number)
        lines = [
            f"  {len(numbers)} x {cause}; repeat: "
            f"python -m tests.mutations --reader {self.reader} --seed {self.seed} --only {numbers[0]}"
            for cause, numbers in sorted(causes.items(), key=lambda item: -len(item[1]))
        ]
        return "\n".join([f"{head}; {len(self.findings)} findings", *lines])


def try_reader(
    reader: Reader, inputs: Path, count: int, seed: int, jobs: int = 1, limits: Limits = Limits()
) -> Summary:
    """Make so many tries, by so many workers."""
    tasks = [Task(reader, inputs, seed, range(first, count, jobs), limits) for first in range(jobs)]
    outcomes = sorted(run_tasks(tasks), key=lambda outcome: outcome.number)
    return Summary(reader.name, seed, tuple(outcomes))
