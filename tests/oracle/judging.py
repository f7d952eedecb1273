"""Judges the shares that tracemap tells of drawn kernels, rule by rule, against their truths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tests.oracle.drawn import Asked, Case
from tests.oracle.sketch import Argument, Model
from tests.oracle.timing import Unfused, elements
from tests.oracle.truths import Truth, Truths, text_hash
from tests.support import Json, check_cli, json_cli

EQUAL_ERROR: Final = 0.05
_SAMPLED_NS: Final = 6e8
"""Time in the kernel for about a thousand samples."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How a rule is asked for, and how far off it may be.

    `error`: in 95 % of claims. `worst`: never, unless the reported interval holds the truth; 1.0: nothing is promised.
    """

    recording: str
    flags: tuple[str, ...]
    error: float
    worst: float = 1.0


_FIXED: Final = {
    "plain": ("--iterations", "30", "--warmup", "5"),
    "sim": ("--cache-sim", "--iterations", "3", "--warmup", "1"),
    "reads": ("--cache-sim", "--iterations", "1", "--warmup", "0"),
}
"""Runs whose length does not depend on the kernel; reads are counted with caches that hold no array."""
LEAST_WITHIN: Final = 0.95
RULES: Final = {
    "default": Rule("plain", (), 0.15, 0.30),
    "model": Rule("plain", ("--rule", "model"), 0.15),
    "sample": Rule("sample", ("--rule", "measured"), 0.10),
    "sim": Rule("sim", ("--rule", "measured"), 0.10),
}


@dataclass(frozen=True, slots=True)
class Told:
    """The share of an op or of several, and the interval that tracemap reports for it."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim judged under a rule.

    `used`: the rule that the result names. `holds`: the reported interval holds the truth.
    """

    kind: str
    kernel: str
    program: str
    asked: str
    rule: str
    used: str
    told: str
    truth: str
    error: float
    within: bool
    holds: bool


class Recorder:
    """Bundles and runs of models in a folder, each made once."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def attributed(self, model: Model, rule: Rule) -> Json:
        """The attribution of a model's run by a rule."""
        bundle = self.bundle(model)
        return json_cli("attribute", self._run(bundle, model, rule.recording), "--map", bundle, *rule.flags)

    def bundle(self, model: Model) -> Path:
        """The bundle of a model."""
        bundle = self.place(model, ".tracemap")
        if not bundle.exists():
            source = bundle.with_suffix(".mlir")
            source.write_text(model.text, encoding="utf-8")
            check_cli("build", source, "-o", bundle, "--force")
        return bundle

    def place(self, model: Model, suffix: str) -> Path:
        """A name for a file of a model."""
        return self._folder / f"{text_hash(model)}{suffix}"

    def _run(self, bundle: Path, model: Model, recording: str) -> Path:
        run = bundle.with_suffix(f".{recording}.parquet")
        if not run.exists():
            flags = [f"--input={self._input(each)}" for each in model.arguments]
            check_cli("record", bundle, "-o", run, "--force", "--serial", *self._how(bundle, model, recording), *flags)
        return run

    def _how(self, bundle: Path, model: Model, recording: str) -> tuple[str, ...]:
        if recording in _FIXED:
            return _FIXED[recording]
        once = json_cli("attribute", self._run(bundle, model, "plain"), "--map", bundle, "--rule", "model")
        call_ns = max(1.0, once["sites"][0]["metrics"]["cpu_ns"]["per_call"]["p10"])
        return (
            "--sample",
            "1999",
            "--iterations",
            str(int(min(60_000, max(150, _SAMPLED_NS / call_ns)))),
            "--warmup",
            "10",
        )

    def _input(self, argument: Argument) -> str:
        if not argument.below:
            return f"{argument.text}={argument.fill}"
        name = f"{argument.text}-{argument.below}-{'any' if argument.shuffled else 'in'}-order.npy"
        file = self._folder / name
        if not file.exists():
            np.save(file, elements(argument))
        return f"@{file}"


def _told(result: Json, lines: Sequence[int]) -> Told:
    (site,) = result["sites"]
    total = site["metrics"]["cpu_ns"]["total"] or 1
    ops = [op["metrics"]["cpu_ns"] for op in result["ops"] if op["line"] in lines]
    # Between what bounds it says that the share lies; of what is told for sure nothing but the share itself.
    bounds = [
        (op["attributed"],) * 2 if op["likely_low"] is None else (op["likely_low"], op["likely_high"]) for op in ops
    ]
    low, high = (sum(each) / total for each in zip(*bounds, strict=True)) if bounds else (0.0, 0.0)
    return Told(sum(op["attributed"] for op in ops) / total, low, min(1.0, high))


def judged(case: Case, truth: Truth, rule: str, recorder: Recorder) -> Iterator[Judged]:
    """The claims about a case under a rule; shares without a sure truth are left out."""
    model = case.model()
    result = recorder.attributed(model, RULES[rule])
    about = case.kind, case.name, text_hash(model)
    for asked in case.asked:
        right = truth.ranges[asked.name]
        if asked.judged and right.sure:
            told = _told(result, _lines(model, asked))
            error = right.error(told.share)
            holds = told.low <= right.high and right.low <= told.high
            within = error <= RULES[rule].error
            shown = f"{100 * told.share:.0f} ({100 * told.low:.0f} to {100 * told.high:.0f})"
            yield Judged(*about, asked.name, rule, result["rule"], shown, str(right), error, within, holds)
    if case.equal:
        shares = [_told(result, model.lines[part]).share for part in case.equal]
        even, total = 1 / len(shares), sum(shares) or 1
        error = max(abs(share / total - even) for share in shares)
        shown = " ".join(f"{100 * share:.0f}" for share in shares)
        equal = "=".join(case.equal)
        yield Judged(*about, equal, rule, result["rule"], shown, "equal", error, error <= EQUAL_ERROR, holds=False)


def _lines(model: Model, asked: Asked) -> list[int]:
    return [line for part in asked.parts for line in model.lines[part]]


# ---- all cases


@dataclass
class Outcome:
    """All claims that were judged, and what was left out."""

    judged: list[Judged]
    unfused: list[str]
    unsure: list[str]
    kernels: int = 0


def known_truths(
    cases: Sequence[Case], truths: Truths, outcome: Outcome, say: Callable[[str], None]
) -> list[tuple[Case, Truth]]:
    """The cases that become one kernel, with their truths; measured one after the other."""
    found = []
    for number, case in enumerate(cases):
        try:
            truth = truths.of(case)
        except Unfused as error:
            outcome.unfused.append(f"{case.kind}: {case.name} ({case.dialect}): {error}")
            continue
        for asked in case.asked:
            if asked.judged and not truth.ranges[asked.name].sure:
                outcome.unsure.append(
                    f"{case.kind}: {case.name} ({case.dialect}): {asked.name} {truth.ranges[asked.name]}"
                )
        shown = ", ".join(f"{name} {each}" for name, each in truth.ranges.items())
        say(f"{number + 1} of {len(cases)} {case.kind}: {case.name}: {truth.kernel_ns / 1000:.1f} µs, {shown}")
        found.append((case, truth))
    return found


def judge(
    known: Sequence[tuple[Case, Truth]], rules: Sequence[str], recorder: Recorder, outcome: Outcome, jobs: int
) -> None:
    """Judge all cases by all rules."""

    def one(entry: tuple[Case, Truth]) -> list[Judged]:
        return [found for rule in rules for found in judged(*entry, rule, recorder)]

    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(one, known):
            outcome.judged += found
            outcome.kernels += bool(found)


def table(outcome: Outcome, rules: Sequence[str]) -> str:
    """Claims, those within the limit, and the worst error, by class and rule."""
    kinds = list(dict.fromkeys(each.kind for each in outcome.judged))
    head = ["| class | claims | " + " | ".join(f"{rule}: within | worst" for rule in rules) + " |"]
    head.append("|---|--:|" + "--:|--:|" * len(rules))
    rows = [_row(kind, [each for each in outcome.judged if each.kind == kind], rules) for kind in kinds]
    return "\n".join([*head, *rows, _row("**all**", outcome.judged, rules)])


def _row(name: str, found: Sequence[Judged], rules: Sequence[str]) -> str:
    by_rule = {rule: [each for each in found if each.rule == rule] for rule in rules}
    cells = [f"{sum(each.within for each in own)} | {_worst(own)}" for own in by_rule.values()]
    return f"| {name} | {len(next(iter(by_rule.values())))} | {' | '.join(cells)} |"


def _worst(found: Sequence[Judged]) -> str:
    return f"{100 * max((each.error for each in found), default=0):.0f}"


def misses(outcome: Outcome) -> list[str]:
    """A line for each claim that is not within the limit."""
    return [
        f"{each.rule} ({each.used}) {each.kind}: {each.kernel}: {each.asked}: told {each.told}, truth {each.truth}, "
        f"off by {100 * each.error:.0f} [{each.program}]"
        for each in sorted(outcome.judged, key=lambda found: (found.rule, -found.error))
        if not each.within
    ]


def failures(outcome: Outcome, rules: Sequence[str]) -> list[str]:
    """The promises that are not kept."""
    found = []
    for rule in rules:
        own = [each for each in outcome.judged if each.rule == rule]
        within = sum(each.within for each in own) / max(1, len(own))
        if within < LEAST_WITHIN:
            found.append(f"{rule}: {within:.1%} within the limit, of {LEAST_WITHIN:.0%} promised")
        far = [each for each in own if each.truth != "equal" and each.error > RULES[rule].worst and not each.holds]
        found += [f"{rule}: {each.kernel}: {each.asked} is off by {100 * each.error:.0f} points" for each in far]
    return found


def document(outcome: Outcome) -> Json:
    """Everything as JSON."""
    return {
        "kernels": outcome.kernels,
        "claims": [asdict(each) for each in outcome.judged],
        "unfused": outcome.unfused,
        "unsure": outcome.unsure,
    }
