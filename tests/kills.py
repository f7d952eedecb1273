"""`python -m tests.kills`: commands killed at any moment, by each signal, and whether they leave nothing behind.

A command that is asked to end (SIGTERM, SIGINT) leaves no program, no folder and no memory. After SIGKILL the next one
clears what was left. No target is ever half there, and the same command works again, without --force.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from tests.recording import events
from tests.support import SAMPLES, check_cli, command_line
from tracemap.core.errors import TracemapError
from tracemap.map.bundle import is_bundle, load
from tracemap.runs.runfile import read_run

MODEL = SAMPLES / "models" / "jax_mlp.mlir"
MEMORY = Path("/dev/shm")
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
_END_S = 20
"""Within which a command that was asked to end has to have done so."""

# What whoever starts tests in the background of a shell has ignored, a user's commands have not.
_AS_A_USER = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@dataclass(frozen=True, slots=True)
class Victim:
    """A command to kill: its words, in which BUNDLE and RUN stand for files, and what it makes."""

    name: str
    words: tuple[str, ...]
    target: str


_RECORD = ("record", "BUNDLE", "--iterations", "300", "-o", "run.csv")
VICTIMS = (
    Victim("build", ("build", str(MODEL), "-o", "new.tracemap"), "new.tracemap"),
    Victim("record", _RECORD, "run.csv"),
    Victim("record until enough", ("record", "BUNDLE", "--seconds", "2", "-o", "run.csv"), "run.csv"),
    Victim("record --counters", (*_RECORD, "--counters", "page-faults"), "run.csv"),
    Victim("record --sample", (*_RECORD, "--sample"), "run.csv"),
    Victim("record --cache-sim", (*_RECORD, "--cache-sim"), "run.csv"),
    Victim("attribute", ("attribute", "RUN", "--map", "BUNDLE", "-o", "ops.txt", "--html", "page.html"), "ops.txt"),
)


@dataclass(slots=True)
class Place:
    """Where a command runs: a folder of its own with a folder for temporary things, a bundle and a run."""

    folder: Path
    bundle: Path
    run: Path
    temporary: Path = field(init=False)
    work: Path = field(init=False)

    def __post_init__(self) -> None:
        self.temporary, self.work = self.folder / "temporary", self.folder / "work"

    def clear(self) -> None:
        """Begin anew."""
        for folder in (self.temporary, self.work):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()

    def command(self, victim: Victim) -> list[str]:
        """The command line, started as a user's."""
        files = {"BUNDLE": str(self.bundle), "RUN": str(self.run)}
        made = command_line(*(files.get(word, word) for word in victim.words))
        return [made[0], "-c", _AS_A_USER, *made[1:]]

    @property
    def surroundings(self) -> Mapping[str, str]:
        """The environment; its folder for temporary things also marks the programs that a command starts."""
        return {**os.environ, "TMPDIR": str(self.temporary)}

    def memory(self) -> set[str]:
        """What lies in shared memory."""
        return {path.name for path in MEMORY.glob("tracemap-*")}

    def stays_in_memory(self, before: set[str]) -> set[str]:
        """What came into shared memory and stays there; what other programs have there goes with them."""
        left, end = self.memory() - before, time.monotonic() + _END_S
        while left and time.monotonic() < end:
            time.sleep(0.2)
            left &= self.memory()
        return left

    def programs(self) -> list[str]:
        """The programs that were started here and still run, other than this one."""
        return list(_programs_with(str(self.temporary)))


def _programs_with(word: str) -> Iterator[str]:
    """Programs whose environment or arguments hold a word."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            said = (process / "cmdline").read_bytes()
            if word.encode() in said or word.encode() in (process / "environ").read_bytes():
                yield f"{process.name}: {said.replace(bytes(1), b' ').decode(errors='replace')[:100]}"
        except OSError:  # it has just ended, or is somebody else's
            continue


def duration_s(place: Place, victim: Victim) -> float:
    """How long a command takes when nobody disturbs it.

    Raises:
        subprocess.CalledProcessError: it fails.
    """
    place.clear()
    begin = time.monotonic()
    subprocess.run(place.command(victim), cwd=place.work, env=place.surroundings, check=True, capture_output=True)
    return time.monotonic() - begin


def findings_of_kill(place: Place, victim: Victim, number: int, after_s: float) -> list[str]:
    """Kill a command so long after it has started, and run it again; what is wrong then, in words."""
    place.clear()
    memory = place.memory()
    process = subprocess.Popen(
        place.command(victim), cwd=place.work, env=place.surroundings, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _wait_for_handlers(process)
    time.sleep(after_s)
    process.send_signal(number)
    try:
        process.communicate(timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return [f"did not end within {_END_S} s"]
    found = [] if process.returncode in (0, -number) else [f"status {process.returncode}"]
    if number != signal.SIGKILL:
        found += _left(place, memory)
    found += _half(place)
    return [*found, *_again(place, victim, memory)]


def _wait_for_handlers(process: subprocess.Popen[bytes]) -> None:
    """Until a command handles signals: what Python does with them while it starts is not tracemap's."""
    caught = 1 << (signal.SIGTERM - 1)
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            return
        if int(status.partition("SigCgt:")[2].split()[0], 16) & caught:
            return
        time.sleep(0.005)


def _left(place: Place, memory: set[str]) -> Iterator[str]:
    """What should be gone: programs, temporary things, shared memory, and names with a dot beside targets."""
    yield from (f"still runs: {program}" for program in place.programs())
    yield from (f"left in the temporary folder: {path.name}" for path in place.temporary.iterdir())
    yield from (f"left in memory: {name}" for name in sorted(place.stays_in_memory(memory)))
    yield from (f"left beside the target: {path.name}" for path in place.work.glob(".*"))


def _half(place: Place) -> Iterator[str]:
    """Targets that are there and cannot be read."""
    for path in place.work.iterdir():
        try:
            if path.suffix == ".tracemap":
                load(path)
            elif path.suffix == ".csv":
                events(path)
                if not read_run(path).has_header:
                    yield f"half written: {path.name} has no header"
            elif path.suffix == ".html" and not path.read_text(encoding="utf-8").endswith("</html>\n"):
                yield f"half written: {path.name}"
        except (TracemapError, OSError) as error:
            yield f"half written: {path.name}: {error}"


def _again(place: Place, victim: Victim, memory: set[str]) -> Iterator[str]:
    """Run the command again; where its target is there, whole, it is moved aside, as a user would."""
    for path in (place.work / victim.target, place.work / f"{victim.target}.json", place.work / "page.html"):
        if path.exists() and not path.name.startswith("."):
            shutil.rmtree(path) if is_bundle(path) else path.unlink()
    done = subprocess.run(
        place.command(victim), cwd=place.work, env=place.surroundings, capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"does not work again: status {done.returncode}: {done.stderr.strip()[-300:]}"
    yield from (f"after the next start: {what}" for what in _left(place, memory))
    yield from (f"after the next start: {path.name}" for path in place.work.glob("*.ireeprof"))


@click.command()
@click.option("--count", default=20, show_default=True, help="How often each command is killed by each signal.")
@click.option("--seed", default=1, show_default=True, help="Other seeds kill at other moments.")
@click.option("--only", "names", multiple=True, type=click.Choice([victim.name for victim in VICTIMS]))
@click.option("--signal", "signals", multiple=True, type=click.Choice(list(SIGNALS)), help="Only this one; repeatable.")
def command(count: int, seed: int, names: tuple[str, ...], signals: tuple[str, ...]) -> None:
    """Kill each command at random moments by each signal; status 1 where anything is left that should not be."""
    failed = False
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        place = prepared(Path(name))
        for victim in (victim for victim in VICTIMS if not names or victim.name in names):
            if "--cache-sim" in victim.words and shutil.which("valgrind") is None:
                click.echo(f"{victim.name}: not tried; valgrind is not installed")
                continue
            takes_s = duration_s(place, victim)
            for word in signals or SIGNALS:
                dice = random.Random(f"{seed}/{victim.name}/{word}")
                good = 0
                for _ in range(count):
                    after_s = dice.uniform(0, takes_s)
                    found = findings_of_kill(place, victim, SIGNALS[word], after_s)
                    good += not found
                    for finding in found:
                        click.echo(f"{victim.name}, SIG{word} after {after_s:.2f} s: {finding}")
                click.echo(f"{victim.name}, SIG{word}: {good} of {count} kills end well")
                failed = failed or good != count
    sys.exit(failed)


def prepared(folder: Path) -> Place:
    """A place with a bundle and a run."""
    bundle, run = folder / "mlp.tracemap", folder / "recorded.csv"
    check_cli("build", MODEL, "-o", bundle)
    check_cli("record", bundle, "--iterations", "300", "-o", run)
    return Place(folder, bundle, run)


if __name__ == "__main__":
    command()
