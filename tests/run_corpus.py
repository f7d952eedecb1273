"""Every model and flag file of a folder, through the real command line, with every check: `make corpus CORPUS=FOLDER`.

Prints a row for each flag file; ends with status 1 where anything failed, after all have been tried.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.checks import check_attribution, check_bounds, check_links, check_map, check_page, count_of_run
from tests.support import Corpus, Json, check_cli, flow_of_plain_compile, json_cli
from tracemap.core.units import format_ns, format_share, plural
from tracemap.map.model import Outcome

HEADINGS = ("flag file", "ops", "sites", "kernels", "events", "cpu time", "attributed", "build", "record", "attribute")


@dataclass(slots=True)
class Stopwatch:
    """Seconds since it was last asked."""

    last: float

    def lap(self) -> str:
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        return f"{seconds:.1f} s"


def main(folder: Path) -> int:
    """Try everything, print the table and what failed; returns the exit status."""
    corpus = Corpus(folder.resolve())
    flag_files = corpus.flag_files()
    if not flag_files:
        print(f"{folder}: no flag file (*.flags) here", file=sys.stderr)
        return 2
    print(_row(HEADINGS))
    failures = []
    with tempfile.TemporaryDirectory(prefix="tracemap-corpus-") as work:
        for flags in flag_files:
            try:
                print(_row(covered(corpus, flags, Path(work)).cells()), flush=True)
            except (AssertionError, KeyError) as error:
                failures.append(f"{flags}: {type(error).__name__}: {error}")
                print(_row((flags, "FAILED")), flush=True)
    without_flags = sorted(set(corpus.models()) - {corpus.model_of(flags) for flags in flag_files})
    failures += [f"{model}: no flag file" for model in without_flags]
    counts = [(len(corpus.models()), "model"), (len(flag_files), "flag file"), (len(failures), "failure")]
    print("\n" + ", ".join(plural(count, word) for count, word in counts))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


@dataclass(frozen=True, slots=True)
class Covered:
    """A flag file that passed every check: what its map and its run cover.

    `ops`, `sites`: all of them; `known_ops`: those with an outcome; `owned_sites`: dispatches with an op. `seconds`:
    times of build, record and attribute as text.
    """

    flags: str
    ops: int
    known_ops: int
    sites: int
    owned_sites: int
    kernels: int
    events: int
    measured_ns: int
    attributed_ns: int
    seconds: tuple[str, str, str]

    def cells(self) -> tuple[str, ...]:
        """The row of the table, in the order of `HEADINGS`."""
        counts = map(str, (self.ops, self.sites, self.kernels, self.events))
        share = format_share(self.attributed_ns, self.measured_ns)
        return (self.flags, *counts, format_ns(self.measured_ns), share, *self.seconds)


def covered(corpus: Corpus, flags: str, work: Path) -> Covered:
    """Build, record, attribute and report, with every check.

    Raises:
        AssertionError: a check or a command failed.
    """
    watch = Stopwatch(time.perf_counter())
    model = corpus.model_of(flags)
    bundle, run, page = work / f"{model}.tracemap", work / f"{flags}.parquet", work / f"{flags}.html"
    if not bundle.exists():
        corpus.build(model, bundle)
    build_time = watch.lap()
    shown = json_cli("show", bundle)
    check_map(shown, flow_of_plain_compile(corpus.models()[model]))
    check_links(shown)
    watch.lap()
    corpus.record(flags, bundle, run)
    record_time = watch.lap()
    attribution: Json = json.loads(check_cli("attribute", run, "--map", bundle, "--html", page, "--format", "json"))
    attribute_time = watch.lap()
    check_attribution(attribution, run)
    check_bounds(attribution)
    check_page(page, shown["module"]["name"])
    cpu = next(metric for metric in attribution["metrics"] if metric["name"] == "cpu_ns")
    return Covered(
        flags,
        len(shown["ops"]),
        sum(op["outcome"] != Outcome.UNKNOWN for op in shown["ops"]),
        len(shown["sites"]),
        sum(bool(site["members"]) for site in shown["sites"]),
        len(shown["kernels"]),
        count_of_run(run),
        cpu["measured"],
        cpu["attributed"],
        (build_time, record_time, attribute_time),
    )


def _row(cells: tuple[str, ...]) -> str:
    first, *others = cells
    return first.ljust(24) + "".join(cell.rjust(11) for cell in others)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "samples")))
