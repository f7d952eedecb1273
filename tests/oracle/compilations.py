"""Whether compilations of a model compare as they should: `python -m tests.oracle.compilations --models hand_mlp`.

Each model is built as it is, at O0, at O3, with and without data tiling, with aggressive fusion, and maybe by another
release of IREE (`--other PYTHON`: an interpreter that has it, such as those of `make compat`), and recorded. All ops
must be matched by identity; for every metric, what each op and each reason costs more or less must add up to what the
whole does, to the unit, as the JSON has it, and the whole must be what the rows of the run add up to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from tests.checks import measured_of_run
from tests.support import ROOT, SAMPLES, Corpus, Json, check_cli, json_cli

WAYS: Final = {
    "O0": ("--iree-opt-level=O0",),
    "O3": ("--iree-opt-level=O3",),
    "no data tiling": ("--iree-opt-data-tiling=false",),
    "data tiling": ("--iree-opt-data-tiling=true",),
    "aggressive fusion": ("--iree-dispatch-creation-enable-aggressive-fusion=true",),
}
PAIRS: Final = (("O0", "O3"), ("no data tiling", "data tiling"), ("as it is", "aggressive fusion"))
ITERATIONS: Final = "3"


def tried(corpus: Corpus, flags: str, other: Path | None, folder: Path) -> Iterator[str]:
    """Build and record a model in all ways, and compare them pair by pair; a line for each pair.

    Raises:
        AssertionError: an op is not matched by identity, or a sum is not what it should be.
    """
    runs = {way: _recorded(corpus, flags, way, folder) for way in ("as it is", *WAYS)}
    pairs = list(PAIRS)
    if other is not None:
        runs["other release"] = _recorded(corpus, flags, "other release", folder, str(other))
        pairs.append(("other release", "as it is"))
    for before, after in pairs:
        shown = json_cli("diff", runs[before], runs[after])
        _check(shown, runs[before], runs[after])
        metrics = len(shown["metrics"])
        yield f"{flags}: {before} against {after}: {len(shown['ops'])} ops, {metrics} metrics, balanced"


def _recorded(corpus: Corpus, flags: str, way: str, folder: Path, python: str = sys.executable) -> Path:
    """The run of a model that is built in a way, in its bundle."""
    bundle = folder / f"{flags}-{way.replace(' ', '-')}.tracemap"
    model = corpus.models()[corpus.model_of(flags)]
    built = [python, "-m", "tracemap", "build", model, "-o", bundle, *(["--", *WAYS[way]] if way in WAYS else [])]
    recorded = [python, "-m", "tracemap", "record", bundle, "--flagfile", corpus.flag_files()[flags]]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    for words in (built, [*recorded, "--iterations", ITERATIONS]):
        done = subprocess.run(
            list(map(str, words)), cwd=corpus.folder, env=surroundings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stderr}"
    return bundle / "runs" / "run-001.parquet"


def _check(shown: Json, before: Path, after: Path) -> None:
    assert shown["same_model"]
    assert shown["matched_percent"] == 100
    assert {op["how"] for op in shown["ops"]} == {"identity"}
    assert shown["metrics"]
    wholes = [_wholes(run) for run in (before, after)]
    for metric in shown["metrics"]:
        parts = [each["amounts"][metric["name"]] for each in shown["ops"] if metric["name"] in each["amounts"]]
        parts += [each["amounts"][metric["name"]] for each in shown["unattributed"]]
        for key in ("before", "after", "change"):
            assert sum(part[key] for part in parts) == metric["whole"][key], metric["name"]
        for key, of_run in zip(("before", "after"), wholes, strict=True):
            total, invocations = of_run[metric["name"]]
            # Of 1,000 invocations, to the nearest whole number.
            assert abs(metric["whole"][key] * invocations - total * shown["invocations"]) * 2 <= invocations


def _wholes(run: Path) -> dict[str, tuple[int, int]]:
    """What a run cost by metric, and in how many invocations: the sums of its own rows, as SQL adds them up."""
    made = json.loads(check_cli("attribute", run, "--format", "json"))
    for metric in made["metrics"]:
        assert metric["measured"] == measured_of_run(run, metric["name"]), metric["name"]
    return {metric["name"]: (metric["measured"], metric["invocations"]) for metric in made["metrics"]}


@click.command()
@click.option("--corpus", "folder", type=click.Path(path_type=Path), default=SAMPLES, help="Models and flag files.")
@click.option("--models", default="", help="Only these flag files, parted by commas.")
@click.option("--other", type=click.Path(path_type=Path), help="An interpreter that has another release of IREE.")
def main(folder: Path, models: str, other: Path | None) -> None:
    """Print a line for each pair; status 1 where one is wrong."""
    corpus, wrong = Corpus(folder.resolve()), 0
    for flags in models.split(",") if models else corpus.flag_files():
        with tempfile.TemporaryDirectory(prefix="tracemap-compilations-") as work:
            try:
                for line in tried(corpus, flags, other and other.absolute(), Path(work)):
                    print(line, flush=True)
            except AssertionError as error:
                wrong += 1
                print(f"{flags}: WRONG: {error}", flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
