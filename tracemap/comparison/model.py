"""What a comparison finds out: which ops are which, and what each costs more or less than before; it balances.

The constructor of `Comparison` raises when the changes of ops and residuals are not the change of the whole.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, field

from tracemap.codec import Count, Document, Positive, Record
from tracemap.diagnostics import Diagnostic
from tracemap.graph.model import OpId
from tracemap.units import UNKNOWN, Integer, Text

COMPARISON_VERSION: Final = 3
"""Version of the JSON. 1: first. 2: ops have the name before; ops of other dialects are matched, as `approximate`.

3: ops have the `ratio` of their medians."""
BASIS: Final = 1000
"""Amounts are of so many invocations, as whole numbers: small costs of single ones would all be 0."""


class How(enum.StrEnum):
    """How an op of one model is known to be an op of the other, surest first."""

    IDENTITY = "identity"
    """It is the same model."""
    STRUCTURE = "structure"
    """In both models one op alone has this in front of it, or behind it, or around it."""
    NEIGHBOURS = "neighbours"
    """What it reads, and what reads it, is matched."""
    ORDER = "order"
    """It stands between the same ops, in the same order, and nothing says otherwise."""
    APPROXIMATE = "approximate"
    """Of a program of another dialect: it says that it comes from there, or does the like, of the same shape, in the
    same scope and order."""


class Match(Record, frozen=True):
    """An op before and after; `edited`: its attributes, types or parts are others."""

    before: OpId
    after: OpId
    how: How
    edited: bool


def ways_of(ops: Iterable[OpDifference]) -> Iterator[tuple[str, int]]:
    """How ops are matched, in words such as `by structure`, and how many of them are, surest first."""
    counts = Counter(op.how for op in ops)
    for how in How:
        if counts[how.value]:
            yield "approximately" if how is How.APPROXIMATE else f"by {how.value}", counts[how.value]


class ComparedSide(Record, frozen=True):
    """One of the two that are compared: a bundle and, maybe, runs of it."""

    bundle: str
    map_sha256: str
    module_sha256: str
    run: Annotated[Text, Meta(description="Its name, of several the first; null: the map alone.")]
    iterations: Integer
    invocation_ns: Annotated[Integer, Meta(description="How long a call took as a whole: the median.")]
    ops: Count
    compile_ns: Annotated[Integer, Meta(description="How long iree-compile took, on the wall.")] = UNKNOWN
    compile_cpu_ns: Annotated[Integer, Meta(description="The time of processors that iree-compile took.")] = UNKNOWN
    runs: Annotated[tuple[str, ...], Meta(description="The names of all of them.")] = ()


class Amount(Record, frozen=True):
    """What something costs before and after, of as many invocations; `change` is after less before."""

    before: int
    after: int
    change: int


class OpRatio(Record, frozen=True):
    """How many times as much an op costs in an invocation, with its bounds, without what the machine was slower."""

    ratio: float
    ratio_low: float
    ratio_high: float


class OpDifference(Record, frozen=True):
    """An op before, after, or both; where it stands and what became of it, each unknown where it is not there.

    `name` is that after, of gone ops that before. `code`: whether the kernels that it works in have the same
    instructions before and after; unknown where it works in none, or they cannot be read. `amounts`: by metric; none of
    ops without a cost.
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
    fate_before: Text
    fate_after: Text
    code: Annotated[Text, Meta(description="`same` or `changed`.")]
    amounts: Mapping[str, Amount]
    ratio: Annotated[
        OpRatio | None, Meta(description="Of the medians of its time; null where not both sides tell these.")
    ] = None

    @property
    def called(self) -> str:
        """Its name, with the one before where that is another."""
        return self.name if self.name_before in (self.name, UNKNOWN) else f"{self.name_before} → {self.name}"


class Group(Record, frozen=True):
    """What the ops of a scope, or of a line of the source, cost together; names are those after, else before."""

    name: str
    ops: Count
    amounts: Mapping[str, Amount]


class ResidualDifference(Record, frozen=True):
    """A cost without an op: why, and how much by metric."""

    reason: str
    amounts: Mapping[str, Amount]


class MetricDifference(Record, frozen=True):
    """A metric that both have. The changes of all ops and of the residual add up to the change of the whole.

    `matched`: of ops that are there before and after; `gone`, `new`: of the others.
    """

    name: str
    unit: str
    whole: Amount
    matched: Amount
    gone: Amount
    new: Amount
    residual: Amount


Kind = Literal["slower", "faster", "new", "gone"]
"""What a finding says of an op."""


class Finding(Record, frozen=True):
    """An op whose cost has changed beyond what chance explains.

    Medians of what it costs in an invocation, and their ratio with its bounds, after what the machine itself was faster
    or slower is taken away. Of ops that are `new` or `gone` there is no ratio: they are in one of the models only, or
    do nothing in the other side's runs, as behind a branch that is not taken.
    """

    kind: Kind
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
    """How many times as slow the machine was for the second run, by ops that run the same code as often; 1 of too few.

    `spread`: by what factor, up or down, nine tenths of their cost differ from that at most.
    """

    ratio: float
    spread: float
    ops: Count


class Regrouped(Record, frozen=True):
    """An op that shares its kernels with others than before; those by their ids after, of gone ones before."""

    before: OpId
    after: OpId
    name: str
    joined: Annotated[tuple[OpId, ...], Meta(description="Ids after.")]
    left: Annotated[tuple[OpId, ...], Meta(description="Ids before.")]
    kernels_before: tuple[str, ...]
    kernels_after: tuple[str, ...]


class KernelCode(Record, frozen=True):
    """What a kernel's machine code amounts to; all unknown where there is no such kernel, or it cannot be read.

    `loops`: natural ones, nested ones too. `vector_bits`: of the widest registers whose elements are computed with
    together, 0 where there are none; unknown where the processor decides. `spills`: instructions that put a register's
    value on the stack to free the register.
    """

    instructions: Integer = UNKNOWN
    loops: Integer = UNKNOWN
    vector_bits: Integer = UNKNOWN
    spills: Integer = UNKNOWN


class KernelDifference(Record, frozen=True):
    """A kernel that is other code than before, or has no counterpart; unknown is what is not there."""

    before: Text
    after: Text
    code_before: KernelCode
    code_after: KernelCode


class RemarkDifference(Record, frozen=True):
    """A remark of the compiler that is there only after, `new`, or only before, `gone`, or so many times more often.

    `kernel`, `line` and `ops` are those of its side; `ops` only those of which it is new or gone.
    """

    kind: Literal["new", "gone"]
    kernel: Text
    line: Integer
    ops: tuple[OpId, ...]
    pass_name: Text = field(name="pass")
    text: str
    count: Positive


class Unbalanced(AssertionError):
    """The changes do not add up: a defect of tracemap, never of its input."""


class Comparison(Document, frozen=True, kw_only=True):
    """Two bundles compared, with the costs of a run of each or without.

    Raises:
        Unbalanced: the changes of ops and residuals are not that of the whole, for any metric.
    """

    schema_version: Literal[3] = COMPARISON_VERSION
    kind: Literal["diff"] = "diff"
    before: ComparedSide
    after: ComparedSide
    same_model: bool
    matched_percent: Annotated[float, Meta(description="Of all ops of both models, those that are matched.")]
    invocations: Annotated[Integer, Meta(description="Of how many invocations amounts are; null: of the whole runs.")]
    threshold_percent: float
    drift: Drift
    findings: tuple[Finding, ...]
    metrics: tuple[MetricDifference, ...]
    ops: tuple[OpDifference, ...]
    scopes: tuple[Group, ...]
    lines: tuple[Group, ...]
    residual: tuple[ResidualDifference, ...]
    regrouped: tuple[Regrouped, ...]
    kernels: tuple[KernelDifference, ...]
    remarks: Annotated[
        tuple[RemarkDifference, ...] | None, Meta(description="Null where not both bundles were built with remarks.")
    ] = None
    diagnostics: tuple[Diagnostic, ...]

    def __post_init__(self) -> None:
        for metric in self.metrics:
            name, whole = metric.name, metric.whole
            parts = [part.amounts[name] for part in self._parts() if name in part.amounts]
            kinds = (metric.matched, metric.gone, metric.new, metric.residual)
            for each in (total(parts), total(kinds)):
                if each != whole or whole.after - whole.before != whole.change:
                    raise Unbalanced(f"{name}: the whole is {whole}, its parts are {each}")

    def _parts(self) -> Iterator[OpDifference | ResidualDifference]:
        yield from self.ops
        yield from self.residual


class Comparisons(Document, frozen=True, kw_only=True):
    """Several bundles, each compared with the same one."""

    schema_version: Literal[3] = COMPARISON_VERSION
    kind: Literal["diffs"] = "diffs"
    comparisons: tuple[Comparison, ...]


def total(amounts: list[Amount] | tuple[Amount, ...]) -> Amount:
    """The sum of amounts."""
    before, after = sum([each.before for each in amounts]), sum([each.after for each in amounts])
    return Amount(before, after, sum([each.change for each in amounts]))
