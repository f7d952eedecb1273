"""Result of a comparison: matched ops, and changes of cost that add up.

The constructor of `Comparison` raises if the changes of ops and unattributed costs do not add up to the total change.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from tracemap.core.codec import Count, Document, Positive, Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, Text
from tracemap.map.build_cost import BuildCostChanges
from tracemap.map.model import OpId

COMPARISON_VERSION: Final = 6
"""Version of the JSON. 2 added the name before, and approximate matches between dialects. 3 added `ratio`, the ratio of
medians. 5 corrects times for the machine's speed (`basis`), lists differing settings, and has lines of three kinds.
6 added `memory` and `building`."""
BASIS: Final = 1000
"""Amounts are per 1000 invocations, in integers. Per invocation, small costs would round to 0."""


class MatchKind(enum.StrEnum):
    """Evidence for a match of two ops, strongest first."""

    IDENTITY = "identity"
    """Both maps are of the same model."""
    STRUCTURE = "structure"
    """Exactly one op in each model has this structure above, below or around it."""
    NEIGHBOURS = "neighbours"
    """Its operands and its users are matched."""
    ORDER = "order"
    """It stands between the same ops, in the same order, and no neighbour contradicts."""
    APPROXIMATE = "approximate"
    """The programs have different dialects: its location comes from the other op, or it has the same kind, shape, scope
    and order."""


class Match(Record, frozen=True):
    """An op before and after; `edited`: its attributes, types or parts differ."""

    before: OpId
    after: OpId
    how: MatchKind
    edited: bool


def match_counts(ops: Iterable[OpDifference]) -> Iterator[tuple[str, int]]:
    """Kinds of match, such as `by structure`, with their numbers of ops, strongest first."""
    counts = Counter(op.how for op in ops)
    for how in MatchKind:
        if counts[how.value]:
            yield "approximately" if how is MatchKind.APPROXIMATE else f"by {how.value}", counts[how.value]


RUNS_MISSING: Final = "runs-missing"
"""Only one side has runs, which are not used."""
MODELS_DIFFER: Final = "models-differ"
"""Few ops match, as for two models that have nothing to do with each other."""


class ComparedSide(Record, frozen=True):
    """One side of a comparison: a bundle, with or without runs."""

    bundle: str
    map_sha256: str
    module_sha256: str
    run: Annotated[Text, Meta(description="The run's name; of several runs, the first; null: no run.")]
    iterations: Integer
    invocation_ns: Annotated[Integer, Meta(description="Median time of an invocation, as recorded.")]
    ops: Count
    compile_ns: Annotated[Integer, Meta(description="Wall time of iree-compile.")] = UNKNOWN
    compile_cpu_ns: Annotated[Integer, Meta(description="CPU time of iree-compile.")] = UNKNOWN
    runs: Annotated[tuple[str, ...], Meta(description="Names of all runs.")] = ()


class Amount(Record, frozen=True):
    """A cost before and after, over equally many invocations; `change` is after minus before."""

    before: int
    after: int
    change: int


class OpRatio(Record, frozen=True):
    """An op's cost per invocation after over that before, with its interval, on the comparison's basis."""

    ratio: float
    ratio_low: float
    ratio_high: float


class OpDifference(Record, frozen=True):
    """An op before, after, or both. Its lines and outcomes are unknown on a side where it does not exist.

    `name`: its name after; for a gone op, before. `code`: whether its kernels have the same instructions before and
    after; unknown if it has no kernels, or they cannot be read. `amounts`: by metric; empty if it has no cost.
    """

    before: Text
    after: Text
    how: Text
    edited: bool
    name_before: Text
    name: str
    line_before: Integer
    line_after: Integer
    scope: tuple[str, ...]
    outcome_before: Text
    outcome_after: Text
    code: Annotated[Text, Meta(description="`same` or `changed`.")]
    amounts: Mapping[str, Amount]
    ratio: Annotated[
        OpRatio | None, Meta(description="Ratio of the medians of its time; null if a side has no medians.")
    ] = None

    @property
    def called(self) -> str:
        """Its name, with the name before if that differs."""
        return self.name if self.name_before in (self.name, UNKNOWN) else f"{self.name_before} → {self.name}"


class GroupedCost(Record, frozen=True):
    """Cost of all ops of a scope or line, with its name after, or before if it is gone."""

    name: str
    ops: Count
    amounts: Mapping[str, Amount]


class UnattributedDifference(Record, frozen=True):
    """Unattributed cost of a reason, by metric."""

    reason: str
    amounts: Mapping[str, Amount]


class MetricDifference(Record, frozen=True):
    """A metric of both sides. The changes of all ops and of unattributed cost add up to the total change.

    `matched`: cost of ops on both sides; `gone`: cost of ops only before; `new`: cost of ops only after.
    """

    name: str
    unit: str
    whole: Amount
    matched: Amount
    gone: Amount
    new: Amount
    unattributed: Amount


FindingKind = Literal["slower", "faster", "new", "gone"]
"""Kind of a finding."""


class Finding(Record, frozen=True):
    """An op whose cost changed significantly.

    Medians are per invocation. Medians and ratio have the comparison's basis. Ops that are `new` or `gone` have no
    ratio: they exist in one model only, or cost nothing in the other side's runs, such as in a branch not taken.
    """

    kind: FindingKind
    before: Text
    after: Text
    name: str
    line: Integer
    metric: str
    median_before: Integer
    median_after: Integer
    ratio: float
    ratio_low: float
    ratio_high: float


class Drift(Record, frozen=True):
    """Slowdown of the machine from the first side to the second, estimated from ops with unchanged code; 1 if too few.

    `spread`: factor, up or down, within which 90 % of the cost of these ops lies around `ratio`.
    """

    ratio: float
    spread: float
    ops: Count


class FusionChange(Record, frozen=True):
    """A fusion change: an op that shares its kernels with other ops than before. Gone ops have their ids before."""

    before: OpId
    after: OpId
    name: str
    joined: Annotated[tuple[OpId, ...], Meta(description="Ops that share its kernels now; ids after.")]
    left: Annotated[tuple[OpId, ...], Meta(description="Ops that no longer share its kernels; ids before.")]
    kernels_before: tuple[str, ...]
    kernels_after: tuple[str, ...]


class KernelCode(Record, frozen=True):
    """Figures of a kernel's machine code. All are unknown if there is no such kernel, or it cannot be read.

    `loops`: natural loops, including nested ones. `vector_bits`: width of the widest registers used for vector
    arithmetic, 0 if there is none; unknown if the processor decides it. `spills`: instructions that save a register on
    the stack to free it.
    """

    instructions: Integer = UNKNOWN
    loops: Integer = UNKNOWN
    vector_bits: Integer = UNKNOWN
    spills: Integer = UNKNOWN


class KernelDifference(Record, frozen=True):
    """A kernel whose code changed, or that exists on one side only. Values of a missing side are unknown."""

    before: Text
    after: Text
    code_before: KernelCode
    code_after: KernelCode


class OpMemory(Record, frozen=True):
    """Bytes of an op's results in memory at the peak, before and after; its id is unknown on a side that lacks it."""

    before: Text
    after: Text
    name: str
    held: Annotated[Amount, Meta(description="Bytes.")]


class MemoryDifference(Record, frozen=True):
    """The planned memory peak of a function before and after, in bytes.

    `ops`: the ops whose bytes at the peak changed, the largest change first; `others`: all other ops, and memory of no
    op. The changes of ops and others add up to that of the peak.
    """

    function: str
    peak: Annotated[Amount, Meta(description="Bytes.")]
    ops: tuple[OpMemory, ...]
    others: Annotated[Amount, Meta(description="Bytes.")]


class RemarkDifference(Record, frozen=True):
    """A remark of the compiler only after (`new`), only before (`gone`), or `count` times more often on that side.

    `kernel` and `line` are those of its side. `ops`: the ops with the difference.
    """

    kind: Literal["new", "gone"]
    kernel: Text
    line: Integer
    ops: tuple[OpId, ...]
    pass_name: Text = field(name="pass")
    text: str
    count: Positive


class SettingDifference(Record, frozen=True):
    """A setting that differs: of the build, of the runs, or of a kernel's lowering configuration."""

    kernel: Annotated[Text, Meta(description="The kernel, by its name after; null: the whole build or run.")]
    name: Annotated[str, Meta(description="`compiler`, a flag, `device`, `pipeline`, a tiling level such as `vector`.")]
    before: Annotated[Text, Meta(description="Null: the side does not have it.")]
    after: Annotated[Text, Meta(description="Null: the side does not have it.")]


class Unbalanced(AssertionError):
    """The changes do not add up. This is a defect of tracemap, not of its input."""


class Comparison(Document, frozen=True, kw_only=True):
    """A comparison of two bundles, with or without the costs of their runs.

    Raises:
        Unbalanced: the changes of ops and unattributed costs do not add up to the total change of a metric.
    """

    schema_version: Literal[6] = COMPARISON_VERSION
    kind: Literal["diff"] = "diff"
    before: ComparedSide
    after: ComparedSide
    settings: Annotated[
        tuple[SettingDifference, ...], Meta(description="What differs in versions, flags, runs and configurations.")
    ]
    same_model: bool
    matched_percent: Annotated[float, Meta(description="Matched ops in percent of all ops of both models.")]
    invocations: Annotated[Integer, Meta(description="Number of invocations of the amounts; null: sums of whole runs.")]
    threshold_percent: float
    drift: Drift
    basis: Annotated[
        Literal["corrected", "raw"],
        Meta(description="Of all times: corrected (after divided by `drift.ratio`), or raw, as recorded."),
    ]
    findings: tuple[Finding, ...]
    metrics: tuple[MetricDifference, ...]
    ops: tuple[OpDifference, ...]
    scopes: tuple[GroupedCost, ...]
    lines: Annotated[tuple[GroupedCost, ...], Meta(description="By line of the model.")]
    sources: Annotated[
        tuple[GroupedCost, ...], Meta(description="By own line of Python, else ONNX node, else line of the model.")
    ]
    python: Annotated[tuple[GroupedCost, ...], Meta(description="By own line of Python.")]
    unattributed: tuple[UnattributedDifference, ...]
    regrouped: tuple[FusionChange, ...]
    kernels: tuple[KernelDifference, ...]
    remarks: Annotated[
        tuple[RemarkDifference, ...] | None, Meta(description="Null unless both bundles were built with remarks.")
    ] = None
    memory: Annotated[
        tuple[MemoryDifference, ...], Meta(description="Memory of the functions of both sides; empty if unknown.")
    ] = ()
    building: Annotated[
        BuildCostChanges | None, Meta(description="Null unless both bundles were built with `--timing`.")
    ] = None
    diagnostics: tuple[Diagnostic, ...]

    def __post_init__(self) -> None:
        costed: list[OpDifference | UnattributedDifference] = [*self.ops, *self.unattributed]
        for metric in self.metrics:
            name, whole = metric.name, metric.whole
            parts = [part.amounts[name] for part in costed if name in part.amounts]
            kinds = (metric.matched, metric.gone, metric.new, metric.unattributed)
            for part_sum in (total(parts), total(kinds)):
                if part_sum != whole or whole.after - whole.before != whole.change:
                    raise Unbalanced(f"{name}: the total is {whole}, but its parts sum to {part_sum}")


class Comparisons(Document, frozen=True, kw_only=True):
    """Several bundles, compared with the same baseline."""

    schema_version: Literal[6] = COMPARISON_VERSION
    kind: Literal["diffs"] = "diffs"
    comparisons: tuple[Comparison, ...]


def total(amounts: Sequence[Amount]) -> Amount:
    """The sum of amounts."""
    before, after = sum([item.before for item in amounts]), sum([item.after for item in amounts])
    return Amount(before, after, sum([item.change for item in amounts]))
