"""Ranges of true shares: what parts of a kernel cost, by kernels that lack or repeat them.

Three estimates per part, each independent of the code that is judged:

- without: the kernel's time less the time of the kernel without the part;
- alone: the time of the kernel with this part alone, less the time of the kernel without any part;
- repeated: what the kernel takes longer when the part is written three times, halved.

Parts overlap, or get into each other's way, so the estimates of all parts add up to more or less than the kernel
takes. Shares add up to the whole; so each estimate is divided by the sum of all parts and of the kernel without any.
The least and the largest of the three bound the truth. What the kernel without any part takes is loading and storing:
a quarter to three quarters of it may count for the part that loads, and for the part that stores.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.oracle.drawn import Asked, Case
from tests.oracle.sketch import Model, Sketch
from tests.oracle.timing import best_times

MOST_WIDTH: Final = 0.20
"""Wider ranges are no truth."""
_NOISE: Final = 0.01
_REPEATED: Final = 3
_FORMAT: Final = 1
_ONE_OF_BOTH: Final = (0.25, 0.75)
"""How much of loading and storing is either of the two, at least and at most."""


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest share that is right."""

    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the range is narrow enough to judge by."""
        return self.high - self.low <= MOST_WIDTH

    def error(self, share: float) -> float:
        """The distance of a share from the range; 0 inside of it."""
        return max(0.0, self.low - share, share - self.high)

    def __str__(self) -> str:
        return f"{100 * self.low:.0f} to {100 * self.high:.0f}"


@dataclass(frozen=True, slots=True)
class Truth:
    """The time of a case's kernel in ns, and the range of each share that is asked about."""

    kernel_ns: float
    ranges: dict[str, Range]


class Truths:
    """Measured times by model, kept in a file; they hold for one processor."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._processor = processor()
        self._known: dict[str, dict[str, float]] = {}
        if file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            if kept["format"] == _FORMAT and kept["processor"] == self._processor:
                self._known = kept["times"]

    def of(self, case: Case) -> Truth:
        """The truth about a case, measured where it is not known.

        Raises:
            Unfused: one of its models is not one kernel.
        """
        models = _variants(case)
        hashes = {name: text_hash(model) for name, model in models.items()}
        key = hashes["all"]
        known = self._known.get(key, {})
        if not known.keys() >= set(hashes.values()):
            distinct = {hashes[name]: model for name, model in models.items()}
            with tempfile.TemporaryDirectory(prefix="tracemap-truth-") as folder:
                self._known[key] = known = best_times(distinct, Path(folder))
            self._keep()
        times = {name: known[each] for name, each in hashes.items()}
        return Truth(times["all"], ranges(case.asked, times))

    def _keep(self) -> None:
        kept = {"format": _FORMAT, "processor": self._processor, "times": self._known}
        beside = self._file.with_name(self._file.name + ".new")
        beside.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        beside.replace(self._file)


def processor() -> str:
    """The name and the features of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    wanted = "vendor_id", "cpu family", "model", "model name", "stepping", "cache size"
    return ", ".join(facts.get(each, "").strip() for each in wanted)


def text_hash(model: Model) -> str:
    """What identifies a model and its arguments."""
    return hashlib.sha256(f"{model.text}{model.arguments}".encode()).hexdigest()[:20]


def _variants(case: Case) -> dict[str, Model]:
    """The models whose times tell the truth, by name."""
    every = dict.fromkeys((part for asked in case.asked for part in asked.parts), 0)
    found = {"all": case.model(), "none": case.model(every)}
    if any(asked.mixed for asked in case.asked):
        found["copy"] = _copy(found["all"])
    for asked in case.asked:
        own = dict.fromkeys(asked.parts, 0)
        found[f"without {asked.name}"] = case.model(own)
        found[f"alone {asked.name}"] = case.model({part: 1 if part in own else 0 for part in every})
        if asked.copies:
            found[f"repeated {asked.name}"] = case.model(dict.fromkeys(asked.parts, _REPEATED))
    return found


def _copy(model: Model) -> Model:
    """A kernel that only loads the first argument of a model and stores as much."""
    sketch = Sketch("stablehlo")
    return sketch.model(sketch.argument(model.arguments[0].shape, model.arguments[0].dtype))


def ranges(asked: tuple[Asked, ...], times: dict[str, float]) -> dict[str, Range]:
    """The range of each share, by the times of the models."""
    base = max(0.0, times["none"])
    found: dict[str, list[float]] = {each.name: [] for each in asked}
    for estimate in ("without", "alone", "repeated"):
        costs = {each.name: _cost(each, estimate, times) for each in asked}
        total = base + sum(costs.values())
        for each in asked:
            moved = min(base, times.get("copy", base)) if each.mixed else base
            found[each.name] += [(costs[each.name] + part * moved) / total for part in _parts_of_base(each)]
    return {
        name: Range(max(0.0, min(shares) - _NOISE), min(1.0, max(shares) + _NOISE)) for name, shares in found.items()
    }


def _parts_of_base(asked: Asked) -> tuple[float, ...]:
    """The least and the largest part of loading and storing that may count for a part."""
    if asked.reads and asked.stores:
        return (1.0,)
    if asked.mixed:
        return 0.0, _ONE_OF_BOTH[1]
    return _ONE_OF_BOTH if asked.reads or asked.stores else (0.0,)


def _cost(asked: Asked, estimate: str, times: dict[str, float]) -> float:
    if estimate == "alone":
        return max(0.0, times[f"alone {asked.name}"] - times["none"])
    if estimate == "repeated" and asked.copies:
        return max(0.0, times[f"repeated {asked.name}"] - times["all"]) / (_REPEATED - 1)
    return max(0.0, times["all"] - times[f"without {asked.name}"])
