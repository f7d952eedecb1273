"""Tries guided by the code that they reach: processes of `guided`, one after the other, until there are enough."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_HOW = {"timeout": "hangs", "oom": "takes too much memory", "crash": "the process dies"}
_MOST_PROCESSES = 20
"""After so many that ended before their tries were made, no more are started."""


@dataclass(slots=True)
class Guided:
    """What became of tries: how many there were, how they ended, and each kind of finding with its first case."""

    tries: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)

    def add(self, report: Path) -> None:
        """What a process has written down."""
        known = json.loads(report.read_text(encoding="utf-8"))
        self.tries += known["tries"]
        self.endings.update(known["endings"])
        for ending, details in known["findings"].items():
            self.findings.setdefault(ending, details)

    def text(self, what: str) -> str:
        """A line of counts, and each finding with its file."""
        good = ", ".join(f"{count} {name}" for name, count in sorted(self.endings.items()) if name not in self.findings)
        head = f"{what}: {self.tries} guided tries: {good}; {len(self.findings)} findings"
        causes = (
            f"  {self.endings[ending]} x {ending}: {details.partition(chr(10))[0]}"
            for ending, details in self.findings.items()
        )
        return "\n".join((head, *causes))


def try_guided(name: str, number: int, inputs: Path, folder: Path, count: int, seed: int = 0) -> Guided:
    """Make so many tries of one target of a reader; cases that lead further, and findings, are kept below a folder.

    `seed`: of the first process; 0: others each time.
    """
    corpus, reports = folder / f"{name}-{number}", folder / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    reports.mkdir(exist_ok=True)
    report, found = reports / f"{name}-{number}.json", Guided()
    for _ in range(_MOST_PROCESSES):
        report.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="guided-") as scratch:
            words = (name, str(number), inputs, corpus, report, str(count - found.tries), seed, scratch)
            _run(words, reports, found)
        if not report.exists():
            raise RuntimeError(f"{name}: the undamaged files are not read: see {report.with_suffix('.log')}")
        found.add(report)
        if found.tries >= count:
            break
    return found


def _run(words: tuple[object, ...], reports: Path, found: Guided) -> None:
    """One process; what ends it early is a finding."""
    log = reports / f"{words[0]}-{words[1]}.log"
    before = set(reports.iterdir())
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.mutations.guided", *map(str, words)]
        subprocess.run(command, stdout=output, stderr=output, check=False)
    for artifact in sorted(set(reports.iterdir()) - before):
        kind = artifact.name.removeprefix(f"{words[0]}-{words[1]}-").partition("-")[0]
        if kind in _HOW:
            kept = shutil.copy(log, artifact.with_suffix(".log"))
            found.findings.setdefault(_HOW[kind], f"{artifact}\nsee {kept}")
            found.endings[_HOW[kind]] += 1
