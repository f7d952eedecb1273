"""What kernels are estimated to cost from their machine code: what a bundle's `estimates.json` keeps, once it is made.

It lies beside the map, which is the same byte for byte whenever the same model is built.
"""

from __future__ import annotations

from typing import Literal

from tracemap.codec import Count, Document, Positive, Record


class LineEstimate(Record, frozen=True):
    """What a line of a kernel's text costs in one call; line 0: code of no op.

    `hundredths`: of a cycle, estimated; `least` and `most`: what they may be, as how often code runs depends on data.
    """

    line: Count
    hundredths: Count
    least: Count
    most: Count


class CacheLatency(Record, frozen=True):
    """How fast a cache is.

    `bytes`: how many it holds; `line_hundredths`: how long a line from behind it takes, in hundredths of a cycle.
    """

    bytes: Positive
    line_hundredths: Positive


class KernelEstimate(Record, frozen=True):
    """What a kernel costs in a call with a number of workgroups in each dimension, by line of its text.

    `site` and `sizes`: of a kernel whose sizes the program computes, where it is called, and the sizes of the
    program's arguments that are not in their types, in order; of others empty. `lines`: what they cost; `with_code`:
    the lines that have machine code; `factor`: by how much an op's cost may be off. Without lines its code cannot be
    estimated.
    """

    kernel: str
    workgroups: tuple[Positive, ...]
    site: str = ""
    sizes: tuple[Count, ...] = ()
    lines: tuple[LineEstimate, ...] = ()
    with_code: tuple[Count, ...] = ()
    factor: float = 1.0


class KeptEstimates(Document, frozen=True, kw_only=True):
    """The estimates that were made so far of the module with this SHA-256, for a machine with these caches.

    `method`: the version of the way to estimate; what another one has made is not used.
    """

    schema_version: Literal[1] = 1
    kind: Literal["estimates"] = "estimates"
    method: Count = 0
    module_sha256: str = ""
    caches: tuple[CacheLatency, ...] = ()
    kernels: tuple[KernelEstimate, ...] = ()
