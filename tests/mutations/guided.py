"""`python -m tests.mutations.guided READER`: tries that are guided by the code that they reach, by atheris.

Damage is made as ever (`changes`), and by libFuzzer's own changes; what reaches code that nothing reached before is
kept and damaged further. A process tries until it has enough or ends with a try that hangs, dies or takes too much
memory; `tests.mutations --guided` starts the next one then.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import atheris

_INSTRUMENTED = ["tracemap"]

with atheris.instrument_imports(include=_INSTRUMENTED):
    from tests.mutations.changes import Change, changed_bytes
    from tests.mutations.readers import READERS, Reader
    from tests.mutations.trying import Limits, ended

_EVERY = 200
"""Tries after which what is known so far is written down: the process may end at any one."""


@dataclass(slots=True)
class Fuzzer:
    """Tries of one target of a reader; libFuzzer calls `one` with the damaged file's content."""

    reader: Reader
    change: Change
    folder: Path
    path: Path
    temporary: Path
    report: Path
    count: int
    tries: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    findings: dict[str, str] = field(default_factory=dict)

    def one(self, data: bytes) -> None:
        """A try. What is found is noted and does not end the process."""
        whole = self.path.read_bytes()
        self.path.write_bytes(data)
        try:
            outcome = ended(self.tries, self.reader, self.folder, random.Random(zlib.crc32(data)))
        finally:
            self.path.write_bytes(whole)
        self.tries += 1
        self.endings[outcome.ending] += 1
        if outcome.finding and outcome.ending not in self.findings:
            kept = self.report.with_name(f"{self.reader.name}-{zlib.crc32(outcome.ending.encode()):08x}")
            kept.write_bytes(data)
            self.findings[outcome.ending] = f"{kept}\n{outcome.details}"
            self.write()
        if self.tries % _EVERY == 0 or self.tries >= self.count:  # libFuzzer ends the process at once
            self.write()
            for left in self.temporary.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def write(self) -> None:
        """Note what is known so far."""
        known = {"tries": self.tries, "endings": self.endings, "findings": self.findings}
        self.report.write_text(json.dumps(known), encoding="utf-8", errors="replace")

    def changed(self, data: bytes, max_size: int, seed: int) -> bytes:
        """What libFuzzer calls to change an input."""
        dice = random.Random(seed)
        if dice.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        try:
            return self.change(data, dice)[:max_size]
        except Exception:  # a change that knows the format, of what is none any more
            return changed_bytes(data, dice)[:max_size]


def main(name: str, number: str, inputs: str, corpus: str, report: str, *limits_and_scratch: str) -> None:
    """Try one target of a reader, by its number: so many times, with a seed, in a folder that goes away afterwards."""
    count, seed, scratch = limits_and_scratch
    reader = READERS[name]
    pattern, change = reader.targets[int(number)]
    limits = Limits()
    folder, temporary = Path(scratch) / "files", Path(scratch) / "temporary"
    shutil.copytree(inputs, folder)
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    paths = sorted(folder.glob(pattern))
    for place, path in enumerate(paths):
        shutil.copy(path, Path(corpus) / f"whole-{place}")
    fuzzer = Fuzzer(reader, change, folder, paths[0], temporary, Path(report), int(count))
    with atheris.instrument_imports(include=_INSTRUMENTED):  # what is imported by the first who needs it, too
        for place in range(-8, 0):
            reader.read(folder, random.Random(place))
    fuzzer.write()
    longest = max(4096, 2 * max(path.stat().st_size for path in paths))
    flags = [
        f"-runs={count}",
        f"-seed={seed}",
        f"-timeout={limits.time_s}",
        f"-rss_limit_mb={limits.memory_bytes >> 20}",
    ]
    where = [f"-max_len={longest}", f"-artifact_prefix={Path(report).with_suffix('')}-", "-verbosity=0", corpus]
    atheris.Setup([sys.argv[0], *flags, *where], fuzzer.one, custom_mutator=fuzzer.changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
