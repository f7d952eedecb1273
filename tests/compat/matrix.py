"""Tries every capability with the release of IREE that this interpreter has; prints a line of JSON for each.

Started by `python -m tests.compat` in each environment: `python -m tests.compat.matrix MODELS ONLY`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.compat.place import Place, Refused
from tests.support import SAMPLES, Corpus


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a capability: `yes`, the slug that it was refused by, or `WRONG`; and what is to be said of it."""

    capability: str
    cell: str
    note: str = ""


def main(models: str, only: str) -> None:
    """Try the capabilities that have `only` in their name, one after the other."""
    from tests.compat.capabilities import CAPABILITIES

    with tempfile.TemporaryDirectory(prefix="tracemap-compat-") as folder:
        corpus = Corpus(SAMPLES)
        place = Place(Path(folder), corpus, tuple(models.split(",")) if models else tuple(corpus.models()))
        for capability, tryout in CAPABILITIES.items():
            if only not in capability:
                continue
            try:
                outcome = Outcome(capability, "yes", tryout(place))
            except Refused as refusal:
                outcome = Outcome(capability, refusal.slug, refusal.sentence)
            except Exception as error:
                traceback.print_exc()
                outcome = Outcome(capability, "WRONG", f"{type(error).__name__}: {error}")
            print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
