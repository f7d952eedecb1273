"""A rule of advice: the most expensive dispatch may run faster with a larger batch."""

from __future__ import annotations

from collections.abc import Iterator

from tracemap.attribution.advice.program import Program
from tracemap.attribution.model import Advice


def wide_batch(program: Program, /) -> Iterator[Advice]:
    """Advice on the most expensive dispatch of a program, if it is most of the time."""
    for dispatch in program.dispatches[:1]:
        if dispatch.ops and dispatch.wall_ns > program.elapsed_ns / 100:
            text = (
                f"{program.share(dispatch.wall_ns)} of the time is in {program.place(dispatch.ops[0])}. Widen the batch"
            )
            gain_ns = round(dispatch.wall_ns)
            command = program.command("show", program.bundle, dispatch.site.id)
            yield Advice("", text, command, dispatch.ops, gain_ns, gain_ns, gain_ns)
