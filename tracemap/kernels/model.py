"""Records of experiments on kernels: verification, benchmarks, replacement and tuning."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal

from tracemap.core.codec import Count, Document, Record
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.units import UNKNOWN, Integer, Text


class Status(StrEnum):
    """Whether a kernel agrees with its reference."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    NOT_VERIFIED = "NOT_VERIFIED"


class Verification(Record, frozen=True):
    """Comparison of a kernel with its reference.

    `reference`: name of the reference, `UNKNOWN` if there is none; `tolerance`: relative to the reference, 0 if results
    must be equal. `reason`: why it failed or was not verified, "" for success.
    """

    status: Status
    reference: Text
    tolerance: float
    reason: str


class Spread(Record, frozen=True):
    """Time of a call in nanoseconds: median and quartiles over all repetitions of a batch, in all processes.

    `batch`: calls per batch; `repetitions`: number of batches; `buffers`: sets of data that the calls cycle through.
    """

    median: float
    q1: float
    q3: float
    repetitions: Count
    batch: Count
    buffers: Count


class ApplicationComparison(Record, frozen=True):
    """A dispatch site in a run: the median CPU time of its calls, compared with the kernel alone.

    `ratio`: median over the time alone. `again_ns`: median in a recording on one worker, made right after the kernels;
    unknown if there is none. `points_to`: likely cause of the difference, "" if the times agree.
    """

    site: str
    calls: Count
    median_ns: Integer
    ratio: float
    again_ns: Integer
    points_to: str


class KernelBench(Record, frozen=True):
    """A kernel alone, with the work of one or more of its dispatch sites.

    `operations` and `bytes` are of one call, by the map. `time_ns`: with warm caches; `cold_ns`: with cold caches; None
    if not measured. `roofline_share`: the roofline time over the measured time. `same_code`: whether the kernel alone
    has the machine code of the bundle's module, None if there is none to compare. `stood_in`: number of push constants
    that are unknown without a run, and replaced by assumed values. `not_measured`: why it was not measured, or "".
    """

    kernel: str
    sites: tuple[str, ...]
    arguments: str
    operation_kind: str
    operation: str
    configuration: str
    verification: Verification
    time_ns: Spread | None
    cold_ns: Spread | None
    operations: Integer
    bytes: Integer
    operations_per_s: float | None
    bytes_per_s: float | None
    roofline_share: float | None
    same_code: bool | None
    stood_in: Count
    in_application: tuple[ApplicationComparison, ...]
    not_measured: str


class Bench(Document, frozen=True, kw_only=True):
    """The requested kernels, most expensive first if there is a run, otherwise in program order.

    `processes`: number of processes that shared the repetitions. Versions: 1: first. 2: `processes`.
    """

    schema_version: Literal[3] = 3
    kind: Literal["bench"] = "bench"
    module_sha256: str
    run: Text = UNKNOWN
    device: str
    processes: Count
    kernels: tuple[KernelBench, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


class Replacement(Record, frozen=True):
    """A replaced executable: its kernels, the replacing file, and the compiler stage of that file."""

    executable: str
    kernels: tuple[str, ...]
    file: str
    stage: str


class KernelChange(Record, frozen=True):
    """A replaced kernel compared with the original: verification, and the time of a call alone.

    `steps`: number of operations in its text that are traced to an op, 0 for an object file.
    """

    kernel: str
    verification: Verification
    before_ns: Spread | None
    after_ns: Spread | None
    steps: Count


class Ratio(Record, frozen=True):
    """After over before: median, smallest and largest ratio over pairs of recordings."""

    median: float
    low: float
    high: float


class OpChange(Record, frozen=True):
    """An op in the application: its cost per invocation before and after, medians over recordings.

    `after_ns` and `ratio` are corrected for the drift of the machine within a pair, as seen on untouched ops. `named`:
    a significant change of an op whose code changed: all pairs differ by more than the threshold in the same direction,
    and the change is at least 1 % of the longer invocation. `unchanged_code`: a significant change of an op whose code
    is the same: the preceding ops left caches or clock in another state. `replaced`: whether one of its kernels was
    replaced.
    """

    op: str
    name: str
    line: Integer
    before_ns: float
    after_ns: float
    ratio: Ratio
    named: bool
    unchanged_code: bool
    replaced: bool


class ComparedOutput(Record, frozen=True):
    """Comparison of an output of the new bundle with the original's: its description, and whether they agree."""

    place: Count
    type: str
    said: str
    matches: bool


class ComparedFunction(Record, frozen=True):
    """A function that was called in both bundles with the same inputs.

    `failure`: how the new program failed, "" if it completed. There are no outputs after a failure.
    """

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[ComparedOutput, ...]
    failure: str

    @property
    def matches(self) -> bool:
        """Whether the new program computes the same outputs as the original."""
        return not self.failure and all(output.matches for output in self.outputs)


class Swapped(Document, frozen=True, kw_only=True):
    """Replacement of kernels in a bundle: changes per kernel, and changes per op if both bundles were recorded.

    `ops`: largest change of an invocation first. `whole`: change of an invocation's work, None without recordings.
    `functions`: functions whose outputs were compared.
    """

    schema_version: Literal[3] = 3
    kind: Literal["swap"] = "swap"
    original: str
    bundle: str
    replaced: tuple[Replacement, ...]
    kernels: tuple[KernelChange, ...]
    functions: tuple[ComparedFunction, ...] = ()
    pairs: Count
    whole: Ratio | None
    ops: tuple[OpChange, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


class BestConfiguration(Record, frozen=True):
    """A configuration that is faster than the compiler's own: its text, and the kernel's time alone over the default's.

    `pipeline`: its code generation pipeline, "" if it is the compiler's own choice.
    """

    configuration: str
    pipeline: str
    ratio: Ratio


class KernelTuning(Record, frozen=True):
    """A tuned kernel: numbers of tried and failed candidates, and the best one if it is faster than the default.

    `obstacle`: why the kernel cannot be tuned, or why its best configuration cannot be written as a spec; otherwise "".
    """

    kernel: str
    tried: Count
    failed: Count
    best: BestConfiguration | None
    obstacle: str


class RankedKernel(Record, frozen=True):
    """A kernel for another tuner: its folder, and its cost in the run.

    `obstacle`: why it has no folder, or "".
    """

    kernel: str
    folder: str
    cost_ns: Integer
    obstacle: str


class Ranking(Record, frozen=True):
    """Kernels for another tuner, most expensive first if there is a run, otherwise in program order."""

    run: Text
    kernels: tuple[RankedKernel, ...]


class Tune(Document, frozen=True, kw_only=True):
    """Tuned kernels: results alone, and changes in the application.

    `spec`: tuning spec for a plain `iree-compile`, "" if none was written. `application`: change of an invocation, None
    without recordings. `handed_on`: kernels written for another tuner instead, to the folder `spec`.
    """

    schema_version: Literal[3] = 3
    kind: Literal["tune"] = "tune"
    bundle: str
    kernels: tuple[KernelTuning, ...]
    spec: str
    pairs: Count
    application: Ratio | None
    ops: tuple[OpChange, ...]
    handed_on: Ranking | None = None
    diagnostics: tuple[Diagnostic, ...] = ()


# ---- numerics

KERNELS: Final = "kernels"
"""Results are compared with each kernel's own reference."""
DOUBLE: Final = "f64"
"""Results are also compared with a double-precision run of the program."""


class Verdict(StrEnum):
    """Whether a dispatch site computes what its kernel says."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_VERIFIED = "not-verified"


class OutputStatistics(Record, frozen=True):
    """The elements of an output, over all calls.

    `binding`: the index of the kernel's binding; `least`, `largest` and `mean`: of the finite elements, None if there
    are none; `elements`: the number of elements; `zeros`, `subnormals`, `nans` and `infinities`: how many of them are
    this.
    """

    binding: Count
    type: str
    elements: Count
    least: float | None
    largest: float | None
    mean: float | None
    zeros: Count
    subnormals: Count
    nans: Count
    infinities: Count


class NumericError(Record, frozen=True):
    """The largest errors of the floats that a dispatch writes, against a double-precision result.

    `max_ulps`: in units of the last place of the exact value, or of the root mean square of its tensor if that is
    larger; `max_abs`: the largest difference; `max_rel`: relative to the exact value plus this root mean square;
    `rms_rel`: the root mean square of these. All three are None if the exact values of a tensor cancel to 0.
    `tolerance`: what rounding usually explains of `max_rel`.
    """

    max_ulps: float | None
    max_abs: float
    max_rel: float | None
    rms_rel: float | None
    tolerance: float


class WrongElement(Record, frozen=True):
    """The element of an output with the largest error, and its numbers as text.

    `binding`: the index of the kernel's binding; `index`: of the element in the output; `value`: the program's number;
    `expected`: the reference's.
    """

    binding: Count
    index: tuple[Count, ...]
    value: str
    expected: str


class FirstBadNumber(Record, frozen=True):
    """The first operation of a kernel that makes a NaN or an infinity out of numbers without one.

    `kind`: nan or infinity; `operation`: its name in MLIR. `index`: of the element in its result; `operands`: the
    numbers it was made of; `lines`: of the kernel's text.
    """

    kind: str
    operation: str
    index: tuple[Count, ...]
    operands: tuple[str, ...]
    lines: tuple[Count, ...]


class SiteNumerics(Record, frozen=True):
    """The calls of a dispatch site, or of a kernel if its sites cannot be distinguished.

    `site`: the id of the dispatch site, `UNKNOWN` for a kernel. `calls`: the number of its calls; `checked`: the number
    of calls that were compared with the reference. `reason`: why results are wrong or not verified, or "".
    `isolated`: error of the site alone, on the inputs that it had. `accumulated`: error against a double-precision run
    of the program up to it, None without `--against f64`. `ops`: those that are likely to be wrong, likeliest first; of
    a correct site its fused ops, the root first. `explanation`: the change of an op that would have the wrong result,
    or "".
    """

    site: Text
    kernel: str
    calls: Count
    checked: Count
    verdict: Verdict
    reason: str
    isolated: NumericError | None
    accumulated: NumericError | None
    wrong: WrongElement | None
    ops: tuple[str, ...]
    explanation: str
    outputs: tuple[OutputStatistics, ...]


class BadNumber(Record, frozen=True):
    """The first NaN or infinity that the program makes, and the ops that make it."""

    site: Text
    kernel: str
    ops: tuple[str, ...]
    number: FirstBadNumber


class OutputDeparture(Record, frozen=True):
    """An output of a site next to that of another program, whose root op is the same.

    `other_site`: the other program's dispatch site; `elements`: the number of compared elements.
    `ops`: fused ops of the site, those that were changed first, then the root.
    `snr_db`: signal-to-noise ratio in decibels, None if they are equal. `rms_rel`: root mean square of the differences
    over that of the other program's output. `departs`: whether this is more than rounding explains.
    """

    site: str
    ops: tuple[str, ...]
    other_site: str
    elements: Count
    snr_db: float | None
    rms_rel: float
    departs: bool


class Culprit(Record, frozen=True):
    """The first site in the order of execution that is wrong.

    `ops`: its fused ops, the likeliest first; `reason`: why it is wrong.
    """

    site: Text
    kernel: str
    ops: tuple[str, ...]
    reason: str


class Numerics(Document, frozen=True, kw_only=True):
    """The numerics of a function: sites in the order of execution.

    `against`: what the results are compared with: `kernels` (each kernel's own reference), `f64`, or another bundle.
    """

    schema_version: Literal[1] = 1
    kind: Literal["numerics"] = "numerics"
    module_sha256: str
    function: str
    against: str
    culprit: Culprit | None
    sites: tuple[SiteNumerics, ...]
    first_bad: tuple[BadNumber, ...]
    departures: tuple[OutputDeparture, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
