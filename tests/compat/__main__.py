"""Every release of IREE in an environment of its own, and what of tracemap works there: `python -m tests.compat`.

Prints a table of capabilities by release. A cell says `yes`, the slug by which tracemap refuses what the release lacks,
or `WRONG`; notes name what is missing. Ends with status 1 where anything is neither right nor refused by name.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
import venv
from collections import defaultdict
from pathlib import Path

from tests.compat.matrix import Outcome
from tests.support import ROOT

RELEASES = ("3.11.0", "3.12.0", "3.13.0")


def main() -> int:
    """Read the command line, try all releases, print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", default=",".join(RELEASES), help="of IREE, parted by commas")
    parser.add_argument("--folder", type=Path, default=ROOT / ".compat", help="where the environments are, and stay")
    parser.add_argument("--models", default="", help="samples to build, parted by commas; all by default")
    parser.add_argument("--only", default="", help="capabilities that have this in their name")
    chosen = parser.parse_args()
    releases = chosen.releases.split(",")
    found = {release: tried(environment(release, chosen.folder), chosen.models, chosen.only) for release in releases}
    print(table(found))
    for release, outcomes in found.items():
        if said := notes(outcomes):
            print("\n".join(["", release, *said]))
    wrong = any(outcome.cell == "WRONG" for outcomes in found.values() for outcome in outcomes)
    # What the newest release lacks would be missing everywhere.
    lacking = any(outcome.cell == "tool-too-old" for outcome in found[releases[-1]])
    return 1 if wrong or lacking else 0


def environment(release: str, folder: Path) -> Path:
    """The interpreter of an environment with this release and all else that tracemap and its tests need; made once."""
    place, stamp = folder / f"v{release}", folder / f"v{release}.ready"
    python, wanted = place / "bin" / "python", needed(release)
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == "\n".join(wanted):
        return python
    print(f"making the environment with IREE {release}", file=sys.stderr)
    if not python.exists():
        venv.create(place, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    stamp.write_text("\n".join(wanted), encoding="utf-8")
    return python


def needed(release: str) -> list[str]:
    """What is installed: the release itself, and the dependencies that the package declares beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    others = [each for each in declared if not each.startswith("iree-")]
    return [f"iree-base-compiler=={release}", f"iree-base-runtime=={release}", *others]


def tried(python: Path, models: str, only: str) -> list[Outcome]:
    """Try every capability with the interpreter's release.

    Raises:
        CalledProcessError: the trying itself ended badly; what it said was shown.
    """
    surroundings = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{python.parent.absolute()}{os.pathsep}{os.environ.get('PATH', '')}",
    }
    command = [str(python.absolute()), "-m", "tests.compat.matrix", models, only]
    done = subprocess.run(command, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, text=True, check=True)
    return [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]


def notes(outcomes: list[Outcome]) -> list[str]:
    """What is to be said beside the table; what is said of several capabilities once."""
    of: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        of[outcome.note].append(outcome.capability)
    return [f"- {', '.join(capabilities)}: {note}" for note, capabilities in of.items() if note]


def table(found: dict[str, list[Outcome]]) -> str:
    """Capabilities by release."""
    rows = [["capability", *found]]
    for outcomes in zip(*found.values(), strict=True):
        rows.append([outcomes[0].capability, *(outcome.cell for outcome in outcomes)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in cells)


if __name__ == "__main__":
    sys.exit(main())
