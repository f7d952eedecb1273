"""Write docs/evaluation.md: every figure of tracemap, measured in one run. `make evaluation` calls it.

Each section calls measuring functions of the benchmarks and oracles, with the sizes of `FULL` or `SMALL`. A section
that cannot be measured is written with the reason, and the others follow.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import io
import math
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Final

import click
from jinja2 import Environment, StrictUndefined

from benchmarks.measure import Figure, prepare, quartiles
from tests.documents import DOCS
from tests.support import ROOT, SAMPLES, Corpus

TEMPLATE: Final = Path(__file__).with_name("evaluation.md.jinja")
PACKAGES: Final = ("iree-base-compiler", "iree-base-runtime")


# ---- sizes


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sample sizes of a run.

    `seeds`: generated programs, the first of seed `seed_base`. `kernels`: those whose shares are judged. `flag_files`:
    the most samples to cover. `rounds`: of the hook. `pairs`: of samples and no samples. `recordings`,
    `recorded_models`: recordings with the default options. `build_pairs`,
    `build_layers`: pairs and decoders for the cost of `build`. `programs`: those with a slow kernel. `growth_layers`,
    `growth_calls`: depths and numbers of calls. `alterations`: changed programs. `models`, `faults`: models with
    planted faults, and the faults in each of two places.
    """

    seeds: int
    seed_base: int
    kernels: int
    flag_files: int
    rounds: int
    pairs: int
    recordings: int
    recorded_models: tuple[str, ...]
    build_pairs: int
    build_layers: tuple[int, ...]
    programs: int
    growth_layers: tuple[int, ...]
    growth_calls: tuple[int, ...]
    alterations: int
    models: tuple[str, ...]
    faults: int

    def filled(self, text: str) -> str:
        """A command with these sizes in the place of their names in braces."""
        return text.format(**{field.name: getattr(self, field.name) for field in fields(self)})


FULL: Final = Sizes(
    seeds=40,
    seed_base=0,
    kernels=10,
    flag_files=1000,
    rounds=11,
    pairs=9,
    recordings=3,
    recorded_models=("hand_mlp", "torch_resnet18_small", "jax_gpt2_4l"),
    build_pairs=3,
    build_layers=(64,),
    programs=3,
    growth_layers=(24, 48, 96),
    growth_calls=(20, 500),
    alterations=8,
    models=("jax_mlp", "jax_cnn", "jax_gpt2_4l", "hand_attention"),
    faults=3,
)
SMALL: Final = Sizes(
    seeds=4,
    seed_base=0,
    kernels=2,
    flag_files=3,
    rounds=3,
    pairs=3,
    recordings=1,
    recorded_models=("jax_gpt2_4l",),
    build_pairs=1,
    build_layers=(8,),
    programs=1,
    growth_layers=(4, 8, 16),
    growth_calls=(20, 50),
    alterations=2,
    models=("jax_mlp",),
    faults=1,
)
"""A trial of the mechanics, in a few minutes. Its figures prove nothing."""


# ---- rows and sections


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of the page: the median of `values` in `unit`, over `count` things, and its bound, e.g. `≤ 1.1`."""

    name: str
    values: tuple[float, ...]
    unit: str
    count: int
    bound: str = ""

    @classmethod
    def of(cls, figure: Figure) -> Row:
        """A figure of a benchmark, which should not exceed its target."""
        values = figure.values or (figure.value,)
        unit = "×" if figure.unit == "x" else figure.unit
        return cls(figure.name, values, unit, len(values), f"≤ {figure.target:g}")

    @classmethod
    def share(cls, name: str, right: float, count: float, least: float | None = None) -> Row:
        """A share in percent, cut and not rounded: 100 means that all are right."""
        bound = "" if least is None else f"≥ {100 * least:g}"
        return cls(name, (math.floor(10_000 * right / count) / 100 if count else 0.0,), "%", int(count), bound)

    @property
    def median(self) -> float:
        """The median of the values."""
        return quartiles(self.values)[1]

    @property
    def is_met(self) -> bool:
        """True if the median is within the bound, or there is none."""
        if not self.bound:
            return True
        sign, _, limit = self.bound.partition(" ")
        return self.median <= float(limit) if sign == "≤" else self.median >= float(limit)

    def cells(self) -> tuple[str, ...]:
        """The cells of its table row."""
        low, median, high = map(_number, quartiles(self.values))
        spread = f"{low} to {high}" if len(self.values) > 1 else "–"
        bound = f"{self.bound}, {'met' if self.is_met else 'missed'}" if self.bound else "–"
        return self.name.replace("|", "\\|"), f"{median} {self.unit}".strip(), spread, f"{self.count:,}", bound


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class NotHere(Exception):
    """This machine lacks what a section needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page.

    `commands`: those that repeat its figures. `is_optional`: whether a run without it counts as complete.
    `shows_output`: whether the page has the tables that the benchmarks print.
    """

    name: str
    commands: tuple[str, ...]
    measure: Callable[[Sizes, Path], list[Row]]
    is_optional: bool = False
    shows_output: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """A section's result; `reason` says why it was not measured, and is empty if it was."""

    section: Section
    commands: tuple[str, ...]
    rows: tuple[Row, ...]
    seconds: float
    reason: str = ""
    output: str = ""

    @property
    def is_failed(self) -> bool:
        """True if figures are missing that any machine should have."""
        return bool(self.reason) and not self.section.is_optional


@contextlib.contextmanager
def resized(benchmark: ModuleType, **constants: object) -> Iterator[None]:
    """Run a benchmark with other sizes than its own.

    Raises:
        AttributeError: it has no such size.
    """
    before = {name: getattr(benchmark, name) for name in constants}
    try:
        for name, value in constants.items():
            setattr(benchmark, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(benchmark, name, value)


# ---- what each section measures


def _accuracy(sizes: Sizes, _folder: Path) -> list[Row]:
    from tests.oracle.__main__ import measure_many
    from tests.oracle.compare import Score
    from tests.oracle.table import TARGETS

    result, _ = measure_many(sizes.seed_base, sizes.seeds, jobs=2)
    scores = {"members": result.members, "outcomes": result.outcomes}
    rows = []
    for target in TARGETS:
        score = scores[target.where].get(target.key, Score())
        count = score.right + (score.wrong if target.number == "precision" else score.missing)
        if count:
            what = "pairs of op and dispatch" if target.where == "members" else "outcomes of ops"
            kind = "" if target.key == "all" else f", {target.key}"
            rows.append(Row.share(f"{what}{kind}: {target.number}", score.right, count, target.least))
    return rows


def _shares(sizes: Sizes, folder: Path) -> list[Row]:
    from tests.oracle import judging
    from tests.oracle.drawn import CLASSES, draw
    from tests.oracle.truths import Truths

    outcome, rule = judging.Outcome([], [], []), "default"
    cases = [draw(kind, 11, 0) for kind in CLASSES][: sizes.kernels]
    known = judging.known_truths(cases, Truths(folder / "truths.json"), outcome, _say)
    judging.judge(known, [rule], judging.Recorder(folder / "bundles"), outcome, 1)
    claims = outcome.judged
    if not claims:
        raise NotHere("no share has a sure truth; the machine is too busy")
    limit = 100 * judging.RULES[rule].error
    return [
        Row.share(
            f"shares at most {limit:g} points off", sum(c.within for c in claims), len(claims), judging.LEAST_WITHIN
        ),
        Row("distance of a share from the truth", tuple(100 * c.error for c in claims), "points", len(claims)),
    ]


def _coverage(sizes: Sizes, folder: Path) -> list[Row]:
    from tests.run_corpus import covered

    corpus = Corpus(SAMPLES)
    runs = [covered(corpus, flags, folder) for flags in islice(corpus.flag_files(), sizes.flag_files)]
    models = {corpus.model_of(run.flags): run for run in runs}.values()
    ops, sites = sum(run.ops for run in models), sum(run.sites for run in models)
    measured_ns = sum(run.measured_ns for run in runs)
    return [
        Row.share("ops that have an outcome", sum(run.known_ops for run in models), ops, 1.0),
        Row.share("dispatches whose ops are known", sum(run.owned_sites for run in models), sites, 1.0),
        replace(
            Row.share("CPU time of kernels attributed to ops", sum(run.attributed_ns for run in runs), measured_ns),
            count=len(runs),
        ),
    ]


def _overhead(sizes: Sizes, folder: Path) -> list[Row]:
    from benchmarks import hook, record, sampling

    beside = folder / "beside"
    beside.mkdir()
    figures = record.measure(folder)
    with resized(record, PAIRS=sizes.recordings, MODELS=sizes.recorded_models):
        figures += record.measure_time(beside)
    with resized(hook, ROUNDS=sizes.rounds), resized(sampling, PAIRS=sizes.pairs):
        figures += [*hook.measure(folder), *sampling.measure(folder)]
    return list(map(Row.of, figures))


def _build(sizes: Sizes, folder: Path) -> list[Row]:
    from benchmarks import build
    from tests.oracle import build_cost

    pairs = {"PAIRS": sizes.build_pairs, "PAIRS_WITHOUT_TARGET": sizes.build_pairs}
    with resized(build, LAYERS=sizes.build_layers, **pairs):
        rows = list(map(Row.of, build.measure(folder)))
    judged = [build_cost.judge(build_cost.program(seed), folder) for seed in range(1, sizes.programs + 1)]
    first = sum(own.rank == 1 for own in judged)
    return [*rows, Row.share("kernel that is slow to compile is named first", first, len(judged), 1.0)]


def _start(_sizes: Sizes, folder: Path) -> list[Row]:
    from benchmarks import start

    return list(map(Row.of, start.measure(folder)))


def _growth(sizes: Sizes, folder: Path) -> list[Row]:
    from benchmarks import growth

    memoized = {"once": growth.MEMOIZED["once"]}
    with resized(growth, LAYERS=sizes.growth_layers, ITERATIONS=sizes.growth_calls, MEMOIZED=memoized):
        return list(map(Row.of, growth.measure(folder)))


def _what_if(sizes: Sizes, folder: Path) -> list[Row]:
    from tests.oracle import what_if
    from tests.oracle.altered import alterations

    # Removed ops first: they are the question that most people ask.
    chosen = sorted(alterations(), key=lambda alteration: not alteration.removed)[: sizes.alterations]
    pairs = [what_if.pair(alteration, "1 worker", folder) for alteration in chosen]
    sure = [pair for pair in pairs if pair.is_sure]
    if not sure:
        raise NotHere(f"none of {len(pairs)} true changes is known well enough; the machine is too busy")
    summary = what_if.summary(pairs)
    errors = tuple(pair.error for pair in sure)
    correlation = Row(
        "rank correlation of predicted and true changes",
        (summary.correlation,),
        "",
        len(sure),
        f"≥ {what_if.LEAST_CORRELATION}",
    )
    return [
        Row("error, in percent of the program's time", errors, "points", len(sure), f"≤ {what_if.MOST_MEDIAN_ERROR}"),
        Row.share("interval holds the truth", sum(pair.holds for pair in sure), len(sure), what_if.LEAST_HOLDING),
        *([correlation] if len(sure) > 2 else []),
        Row.share("pairs with a sure truth", len(sure), len(pairs)),
    ]


def _numerics(sizes: Sizes, folder: Path) -> list[Row]:
    from tests.oracle import numerics

    corpus = Corpus(SAMPLES)
    clean = [numerics.alarms(corpus, name, folder) for name in sizes.models if name in corpus.flag_files()]
    results = []
    for model in sizes.models:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            results += list(numerics.judged(model, Path(place), sizes.faults))
    count = len(results)
    return [
        Row.share(
            "planted faults whose dispatch is found", sum(r.site_right for r in results), count, numerics.LEAST_SITES
        ),
        Row.share("planted faults whose op is named", sum(r.op_right for r in results), count, numerics.LEAST_OPS),
        Row("false alarms on correct programs", (float(sum(c[0] for c in clean)),), "", len(clean), "≤ 0"),
        Row.share("dispatches of these that are checked", sum(c[1] for c in clean), sum(c[2] for c in clean)),
    ]


def _replay(_sizes: Sizes, _folder: Path) -> list[Row]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", last)}
    if not counts:
        raise NotHere(last)
    return [Row.share("tests that pass with stand-ins of CUDA", counts.get("passed", 0), sum(counts.values()), 1.0)]


def _gpu(_sizes: Sizes, folder: Path) -> list[Row]:
    if not shutil.which("nvidia-smi"):
        raise NotHere("this machine has no NVIDIA GPU")
    command = [sys.executable, "-m", "tests.gpu.check", "-o", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    if done.returncode:
        raise NotHere(f"the check failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else ''}")
    return []


SECTIONS: Final = (
    Section("accuracy", ("python -m tests.oracle --seeds {seeds} --seed-base {seed_base}",), _accuracy),
    Section(
        "shares",
        ("python -m tests.oracle.inside --no-handwritten --each 1 --limit {kernels} --rules default",),
        _shares,
    ),
    Section("coverage", ("make corpus",), _coverage),
    Section(
        "overhead",
        ("python -m benchmarks record record_time", "python -m benchmarks hook", "python -m benchmarks sampling"),
        _overhead,
        shows_output=True,
    ),
    Section("build", ("python -m benchmarks build", "python -m tests.oracle.build_cost"), _build, shows_output=True),
    Section("start", ("python -m benchmarks start",), _start, shows_output=True),
    Section("growth", ("python -m benchmarks growth",), _growth, shows_output=True),
    Section("what_if", ("python -m tests.oracle.what_if",), _what_if),
    Section("numerics", ("python -m tests.oracle.numerics",), _numerics),
    Section("replay", ("python -m pytest tests/gpu",), _replay),
    Section("gpu", ("python -m tests.gpu.check",), _gpu, is_optional=True, shows_output=True),
)


# ---- the run and the page


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measured(section: Section, sizes: Sizes) -> Measured:
    """Measure a section; whatever stops it becomes its reason."""
    commands = tuple(map(sizes.filled, section.commands))
    began, printed = time.perf_counter(), io.StringIO()
    rows: tuple[Row, ...] = ()
    reason = ""
    with tempfile.TemporaryDirectory(prefix=f"tracemap-evaluation-{section.name}-") as folder:
        try:
            with contextlib.redirect_stdout(printed):
                rows = tuple(section.measure(sizes, Path(folder)))
        except (Exception, SystemExit) as error:  # benchmarks end the program if a command fails
            lines = str(error).strip().splitlines() or [""]
            reason = lines[0] if isinstance(error, NotHere) else f"{type(error).__name__}: {lines[0]}"
    seconds = time.perf_counter() - began
    _say(f"{section.name}: {seconds:.0f} s{f', not measured: {reason}' if reason else ''}")
    for row in rows:
        _say("  " + "  ".join(row.cells()))
    output = printed.getvalue().strip("\n") if section.shows_output and not reason else ""
    return Measured(section, commands, rows, seconds, _without_paths(reason), output)


def _without_paths(text: str) -> str:
    """A reason without folders of this machine, in one cell of a table."""
    return re.sub(r"(?<!\w)/[\w./+-]*/", "", text).replace("|", "\\|")[:300]


def machine() -> dict[str, str]:
    """The machine, the date, and what ran."""
    from tracemap._version import __version__
    from tracemap.capture.machine import cpu_model

    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{cpu_model(Path('/proc/cpuinfo'))}, {os.cpu_count()} CPUs, {memory_gib:.0f} GiB of memory",
        "system": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "tracemap": f"{__version__}, commit {_commit()}",
        "python": platform.python_version(),
        **{name.replace("-", "_"): importlib.metadata.version(name) for name in PACKAGES},
    }


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return f"{commit}{' with local changes' if git('status', '--porcelain') else ''}" if commit else "unknown"
    except OSError:
        return "unknown"


def page(results: Sequence[Measured], sizes: Sizes, about: dict[str, str], *, small: bool) -> str:
    """The page of a run."""
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    minutes = sum(result.seconds for result in results) / 60
    by_name = {result.section.name: result for result in results}
    return template.render(results=by_name, sizes=sizes, machine=about, small=small, minutes=minutes)


@click.command()
@click.option("--seeds", type=click.IntRange(1), help="Generated programs for the accuracy of the map.  [default: 40]")
@click.option("--seed-base", type=int, help="The first seed; drawn fresh if not given.")
@click.option("--small", is_flag=True, help="A trial with few repetitions, whose figures prove nothing.")
@click.option("--only", multiple=True, help="Measure only this section, print it, and write no page.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=DOCS / "evaluation.md", help="The page.")
def main(seeds: int | None, seed_base: int | None, small: bool, only: tuple[str, ...], output: Path) -> None:
    """Measure and write the page; status 1 if a section that needs no GPU could not be measured."""
    prepare()
    if unknown := set(only) - {section.name for section in SECTIONS}:
        raise click.UsageError(f"no such section: {', '.join(sorted(unknown))}")
    sizes = SMALL if small else FULL
    base = secrets.randbelow(1_000_000_000) if seed_base is None else seed_base
    sizes = replace(sizes, seed_base=base, seeds=seeds or sizes.seeds)
    about = machine()  # before the run, which loads the machine itself
    results = [measured(section, sizes) for section in SECTIONS if not only or section.name in only]
    if only:
        print("\n".join(result.output for result in results))
    else:
        output.write_text(page(results, sizes, about, small=small), encoding="utf-8")
    missed = [f"{result.section.name}: {row.name}" for result in results for row in result.rows if not row.is_met]
    if missed:
        _say("\n".join(["targets missed:", *missed]))
    sys.exit(any(result.is_failed for result in results))


if __name__ == "__main__":
    main()
