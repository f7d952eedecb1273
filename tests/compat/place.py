"""Where capabilities are tried: samples that the release's compiler takes, their bundles, commands that may refuse."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tests.support import Corpus, Flow, flow_of_plain_compile, run_cli

MAY_LACK = frozenset({"tool-too-old", "event-unavailable"})
"""The slugs by which a capability may be refused: the release lacks it, or the machine does."""
_REFUSAL = re.compile(r"tracemap: error: (?P<sentence>[^\n]+) \[(?P<slug>[a-z-]+)\]\n")


class Refused(Exception):
    """A command refused what it was asked for, in one sentence with its slug."""

    def __init__(self, slug: str, sentence: str) -> None:
        super().__init__(f"{sentence} [{slug}]")
        self.slug, self.sentence = slug, sentence


def refusal_of(done: subprocess.CompletedProcess[str]) -> Refused:
    """The refusal of a command that failed.

    Raises:
        AssertionError: it failed in another way.
    """
    found = _REFUSAL.fullmatch(done.stderr)
    assert done.returncode == 2, f"{done.args}: status {done.returncode}\n{done.stderr}"
    assert found, f"{done.args}: not refused in one sentence\n{done.stderr}"
    return Refused(found["slug"], found["sentence"])


def cli(*arguments: str | Path) -> str:
    """Run the real command line; returns its standard output.

    Raises:
        Refused: by a slug that stands for something that is lacking.
        AssertionError: it failed in any other way.
    """
    done = run_cli(*arguments)
    if done.returncode == 0:
        return done.stdout
    refusal = refusal_of(done)
    assert refusal.slug in MAY_LACK, f"{done.args}: {refusal}"
    raise refusal


@dataclass(frozen=True)
class Place:
    """A folder to work in, the samples, and the names of those to build."""

    folder: Path
    corpus: Corpus
    chosen: tuple[str, ...]
    _built: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def flows(self) -> dict[str, Flow]:
        """What the flow phase of a plain compile says, of the samples that the compiler takes by itself."""
        found = {}
        for name in self.chosen:
            try:
                found[name] = flow_of_plain_compile(self.corpus.models()[name])
            except subprocess.CalledProcessError:
                continue
        return found

    def bundle(self, model: str) -> Path:
        """The sample's bundle, built once."""
        if model not in self._built:
            self._built[model] = self.folder / f"{model}.tracemap"
            self.corpus.build(model, self._built[model])
        return self._built[model]

    def new(self, name: str) -> Path:
        """A folder that is not there yet, made."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path
