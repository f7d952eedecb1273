"""A rule of advice: a larger batch shares the time between kernels."""

from __future__ import annotations

from collections.abc import Iterator

from tracemap.attribution.advice.program import Program
from tracemap.attribution.model import Advice


def wide_batch(program: Program, /) -> Iterator[Advice]:
    """Advice on programs with much time between kernels: half of it goes if the batch is twice as large."""
    if program.dispatches and program.overhead_ns > program.elapsed_ns / 5:
        share, ops = program.share(program.overhead_ns), program.dispatches[0].ops
        text = f"{share} of the time is between kernels. Widen the batch"
        gain_ns = round(program.overhead_ns / 2)
        yield Advice("", text, program.recording(), ops, gain_ns, gain_ns // 2, gain_ns)
