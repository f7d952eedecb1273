"""Kernels run alone, to go on with: as a table and in notebooks."""

from __future__ import annotations

from msgspec import structs

from tracemap.experiments import model
from tracemap.results.pictures import heading, table
from tracemap.results.tables import AsTable, Columns, known
from tracemap.units import format_ns, plural

_TOP = 10


class Bench(model.Bench, AsTable, frozen=True):
    """What `tracemap.bench` returns.

    Example:
        >>> made = tracemap.bench("model.tracemap", kernel=["*_2_*"], repetitions=3, min_time=1, no_verify=True)
        >>> [(kernel.sites, kernel.time_ns.median > 0) for kernel in made.kernels]
        [(('site2', 'site3'), True)]
    """

    @classmethod
    def of(cls, made: model.Bench) -> Bench:
        """A bench with ways to show it."""
        return cls(**{name: getattr(made, name) for name in made.__struct_fields__ if name in _FIELDS})

    def _columns(self) -> Columns:
        """A row for each kernel and kind of work; times are medians of a call."""
        every = self.kernels
        times = [(each.time_ns, each.cold_ns) for each in every]
        return {
            "kernel": [each.kernel for each in every],
            "operation": [each.operation for each in every],
            "sites": [" ".join(each.sites) for each in every],
            "verified": [each.verification.status.value for each in every],
            "time_ns": [None if warm is None else warm.median for warm, _ in times],
            "cold_ns": [None if cold is None else cold.median for _, cold in times],
            "operations": [known(each.operations) for each in every],
            "bytes": [known(each.bytes) for each in every],
            "operations_per_s": [each.operations_per_s for each in every],
            "bytes_per_s": [each.bytes_per_s for each in every],
            "attainable_share": [each.attainable_share for each in every],
        }

    def _repr_html_(self) -> str:
        rows = [
            (
                each.kernel,
                each.operation,
                each.verification.status.value,
                "" if each.time_ns is None else format_ns(round(each.time_ns.median)),
                "" if each.attainable_share is None else f"{100 * each.attainable_share:.0f} %",
            )
            for each in self.kernels[:_TOP]
        ]
        return heading(f"{plural(len(self.kernels), 'kernel')} alone, device {self.device}") + table(
            ("kernel", "operation", "verified", "a call", "of attainable"), rows, 3
        )


_FIELDS = {each.name for each in structs.fields(model.Bench)}
