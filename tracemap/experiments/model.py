"""What is found out about kernels alone: whether they are right, how long a call takes, and the application's."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from tracemap.codec import Count, Document, Record
from tracemap.diagnostics import Diagnostic
from tracemap.units import UNKNOWN, Integer, Text


class Status(StrEnum):
    """Whether a kernel computes what its reference says."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    NOT_VERIFIED = "NOT_VERIFIED"


class Verification(Record, frozen=True):
    """How a kernel was compared, and with what.

    `reference`: what it was compared with, `UNKNOWN` for nothing; `tolerance`: in parts of the reference, 0 where
    nothing but equality will do. `reason`: why it failed or was not verified, "" for success.
    """

    status: Status
    reference: Text
    tolerance: float
    reason: str


class Spread(Record, frozen=True):
    """Times of a call over repetitions of a batch, in all processes, in nanoseconds: the median and the quartiles.

    `batch` is how many calls were timed at once, `repetitions` how often, `buffers` on how many sets of data in turn.
    """

    median: float
    q1: float
    q3: float
    repetitions: Count
    batch: Count
    buffers: Count


class InApplication(Record, frozen=True):
    """A site in a run: the median of its calls' CPU time, and how many times the kernel alone takes that.

    `again_ns`: the median in a recording on one worker that was made behind the kernels; unknown where there is none.
    `points_to`: what a difference comes from, as far as it was seen; "" where there is none to speak of.
    """

    site: str
    calls: Count
    median_ns: Integer
    ratio: float
    again_ns: Integer
    points_to: str


class KernelBench(Record, frozen=True):
    """A kernel alone, with the work that some of its sites give it.

    `operations` and `bytes` are of one call, by the map. `time_ns` is with warm caches, `cold_ns` with cold ones; None
    where it was not measured. `attainable_share` is the time that the machine's peaks allow over the measured one.
    `same_code`: its machine code alone is that of the bundle's module; None where there is none to look at.
    `stood_in`: how many of the numbers that the program hands it only a run tells; others stand in for them here.
    `not_measured`: why it was not, "" where it was.
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
    attainable_share: float | None
    same_code: bool | None
    stood_in: Count
    in_application: tuple[InApplication, ...]
    not_measured: str


class Bench(Document, frozen=True, kw_only=True):
    """All kernels that were asked for, the dearest first where a run tells, else in the order of the program.

    `processes`: so many shared the repetitions of each kernel. Versions: 1: first. 2: `processes`.
    """

    schema_version: Literal[2] = 2
    kind: Literal["bench"] = "bench"
    module_sha256: str
    run: Text = UNKNOWN
    device: str
    processes: Count
    kernels: tuple[KernelBench, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


class Replacement(Record, frozen=True):
    """An executable that was replaced: its kernels, by which file, at which stage."""

    executable: str
    kernels: tuple[str, ...]
    file: str
    stage: str


class KernelChange(Record, frozen=True):
    """A replaced kernel beside the original: whether it computes the same, and what a call takes alone.

    `steps` are how many operations of its text are known to be of which op; an object has none.
    """

    kernel: str
    verification: Verification
    before_ns: Spread | None
    after_ns: Spread | None
    steps: Count


class Ratio(Record, frozen=True):
    """After over before: the median over pairs of recordings, and the smallest and largest of them."""

    median: float
    low: float
    high: float


class OpChange(Record, frozen=True):
    """An op in the application: its cost per invocation before and after, medians over recordings.

    `after_ns` and `ratio` are without the drift of the machine between the recordings of a pair, which ops show that
    nothing was done to. `named`: all pairs differ by more than the threshold, in the same direction, the change is a
    hundredth of the longer invocation or more, and the op's code is not the same. `beside`: the same of an op all of
    whose code is the same: what ran before it left the caches or the clock in another state. `replaced`: a kernel of
    its was.
    """

    op: str
    name: str
    line: Integer
    before_ns: float
    after_ns: float
    ratio: Ratio
    named: bool
    beside: bool
    replaced: bool


class ComparedOutput(Record, frozen=True):
    """An output of a function of the new bundle beside the original's: what is to be said, and whether they agree."""

    place: Count
    type: str
    said: str
    matches: bool


class ComparedFunction(Record, frozen=True):
    """A function that was called in both bundles with the same inputs.

    `failure`: how the new program ended, "" where it came to its end; then there are no outputs.
    """

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[ComparedOutput, ...]
    failure: str

    @property
    def matches(self) -> bool:
        """Whether the new program computes what the original does."""
        return not self.failure and all(output.matches for output in self.outputs)


class Swapped(Document, frozen=True, kw_only=True):
    """Kernels of a bundle replaced: the two bundles, kernel by kernel, and op by op where both were recorded.

    `ops`: those that changed the most first, by what that is of an invocation. `whole` is the change of an invocation's
    work; None without recordings. `functions`: those whose outputs were compared.
    """

    schema_version: Literal[2] = 2
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
    """A configuration that is faster than the compiler's own: its text, and its time over the default's, alone.

    `pipeline`: the one that it is compiled by, "" where that is the compiler's own.
    """

    configuration: str
    pipeline: str
    ratio: Ratio


class KernelTuning(Record, frozen=True):
    """A kernel that was tuned: how many candidates were tried, how many of them failed, the best if one is better.

    `obstacle`: why the kernel cannot be tuned, or its best configuration not be written as a spec; "" otherwise.
    """

    kernel: str
    tried: Count
    failed: Count
    best: BestConfiguration | None
    obstacle: str


class RankedKernel(Record, frozen=True):
    """A kernel for another tuner: the folder that was written for it, and what it costs in the run.

    `obstacle`: why there is no folder for it, "" where there is one.
    """

    kernel: str
    folder: str
    cost_ns: Integer
    obstacle: str


class Ranking(Record, frozen=True):
    """Kernels for another tuner, the dearest first by a run, in the order of the program where there is none."""

    run: Text
    kernels: tuple[RankedKernel, ...]


class Tune(Document, frozen=True, kw_only=True):
    """Kernels tuned: what was found alone, and what it changes in the application; None where that was not recorded.

    `spec`: the file that a plain `iree-compile` takes, "" where there is nothing to write. `handed_on`: what was
    written for another tuner instead, in the folder `spec`.
    """

    schema_version: Literal[2] = 2
    kind: Literal["tune"] = "tune"
    bundle: str
    kernels: tuple[KernelTuning, ...]
    spec: str
    pairs: Count
    application: Ratio | None
    ops: tuple[OpChange, ...]
    handed_on: Ranking | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
