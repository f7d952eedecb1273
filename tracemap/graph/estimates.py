"""What kernels are estimated to cost from their machine code: what a bundle's `estimates.json` keeps, once it is made.

It lies beside the map, which is the same byte for byte whenever the same model is built.
"""

from __future__ import annotations

from typing import Literal

from tracemap.codec import Count, Document, Positive, Record


class KernelEstimate(Record, frozen=True):
    """What the lines of a kernel's text cost in a call of so many workgroups, estimated in hundredths of a cycle.

    `size` stands in for each size that the program computes, as far as there are any.

    `with_code`: the lines that have machine code. `factor`: by how much an op's cost may be off. Without lines its code
    cannot be estimated.
    """

    kernel: str
    workgroups: tuple[Positive, ...]
    size: Positive
    lines: tuple[tuple[Count, Count], ...] = ()
    with_code: tuple[Count, ...] = ()
    factor: float = 1.0


class KeptEstimates(Document, frozen=True, kw_only=True):
    """The estimates that were made so far of the module with this SHA-256, for a machine with such caches.

    `caches`: how many bytes each holds, and in how many hundredths of a cycle a line comes from behind it.
    """

    schema_version: Literal[1] = 1
    kind: Literal["estimates"] = "estimates"
    module_sha256: str = ""
    caches: tuple[tuple[Count, Count], ...] = ()
    kernels: tuple[KernelEstimate, ...] = ()
