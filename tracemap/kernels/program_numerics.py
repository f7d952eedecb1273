"""The numerics of a whole program: checked dispatches merged by site, and compared with those of another bundle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import structs

from tracemap.core.codec import encode
from tracemap.core.diagnostics import Diagnostic
from tracemap.core.errors import TracemapError
from tracemap.core.files import atomic_file
from tracemap.core.units import MAX_INTEGER, UNKNOWN, Integer, Text, join_names
from tracemap.kernels.model import (
    BadNumber,
    Culprit,
    NumericError,
    Numerics,
    OutputDeparture,
    OutputStatistics,
    SiteNumerics,
    Verdict,
)
from tracemap.map.bundle import NUMERICS_NAME, Bundle, path_in_bundle, read_document
from tracemap.map.model import Outcome, Site, TraceGraph

if TYPE_CHECKING:
    from tracemap.kernels.numerics import CheckedDispatch, Samples

_LEAST_DEPARTURE: Final = 2.0**-15
"""Relative difference of two single-precision programs that no rounding of deep models explains."""


@dataclass(frozen=True)
class Pairing:
    """The ops of another bundle's model and of ours, by each other, and those of ours that were changed or added."""

    other: TraceGraph | None
    own_op: Mapping[str, str]
    other_op: Mapping[str, str]
    changed: frozenset[str]


NO_PAIRING: Final = Pairing(None, {}, {}, frozenset())


@dataclass(frozen=True)
class ObservedRun:
    """A run of a bundle: its dispatches, and the sites that each may belong to."""

    bundle: Bundle
    function: str
    checked: Sequence[CheckedDispatch]
    sites: Sequence[tuple[str, ...]]
    diagnostics: tuple[Diagnostic, ...]
    results: Sequence[Samples] = ()
    """Samples of the function's results, to compare with another bundle's; empty for types without a file format."""

    @property
    def graph(self) -> TraceGraph:
        """The map of the bundle."""
        return self.bundle.graph


# ---- the whole program


def assess(
    observed: ObservedRun, against: str, other: ObservedRun | None = None, pairing: Pairing = NO_PAIRING
) -> Numerics:
    """The numerics of a run.

    Args:
        observed: the run.
        against: what its results are compared with, for people.
        other: a run of another bundle to compare with.
        pairing: the ops of both.
    """
    sites = tuple(numerics_of_sites(observed, pairing))
    first_bad = tuple(first_bad_numbers(observed))
    nans = [bad for bad in first_bad if bad.number.kind == "nan"]
    suspects = [_wrong_site(site) for site in sites if site.verdict is Verdict.WRONG]
    departures: Sequence[OutputDeparture] = ()
    if other is not None:
        compared = ComparedRuns(observed, other, pairing)
        in_both = {(bad.kernel, bad.number.lines) for bad in first_bad_numbers(other)}
        nans = [bad for bad in nans if (bad.kernel, bad.number.lines) not in in_both]
        departures = compared.departures
        suspects += compared.suspects
    suspects += map(culprit_of_number, nans)
    order = {(site.site, site.kernel): number for number, site in enumerate(sites)}
    return Numerics(
        module_sha256=observed.graph.module.sha256,
        function=observed.function,
        against=against,
        culprit=min(suspects, key=lambda culprit: order[culprit.site, culprit.kernel], default=None),
        sites=sites,
        first_bad=first_bad,
        departures=tuple(departures),
        diagnostics=observed.diagnostics,
    )


def _wrong_site(site: SiteNumerics) -> Culprit:
    return Culprit(site.site, site.kernel, site.ops, site.explanation or site.reason)


def culprit_of_number(bad: BadNumber) -> Culprit:
    """The ops that make a NaN or an infinity, and how."""
    place = ", ".join(map(str, bad.number.index))
    of = f" of {join_names(list(bad.number.operands))}" if bad.number.operands else ""
    kind = "a NaN" if bad.number.kind == "nan" else "an infinity"
    return Culprit(bad.site, bad.kernel, bad.ops, f"{bad.number.operation} makes {kind} at [{place}]{of}")


# ---- the bundle's file


def keep_numerics(bundle: Bundle, found: Numerics) -> Numerics:
    """Store the numerics in the bundle; a diagnostic says why, if that fails. Results of an earlier run give way."""
    try:
        with atomic_file(path_in_bundle(bundle.path, NUMERICS_NAME)) as temporary:
            temporary.write_bytes(encode(found))
    except (OSError, TracemapError) as error:
        text = f"the result is not in {bundle.path.name}, so that other commands do not show it next to costs: {error}"
        return structs.replace(found, diagnostics=(*found.diagnostics, Diagnostic("numerics-not-stored", text)))
    return found


def kept_numerics(bundle: Bundle) -> Numerics | None:
    """The stored numerics; None if there are none of this module.

    Raises:
        BundleInvalid: the file is damaged.
        BundleVersion: it has another format version.
    """
    file = path_in_bundle(bundle.path, NUMERICS_NAME)
    found = read_document(file, Numerics, remedy="run `tracemap numerics` again") if file.exists() else None
    return found if found is not None and found.module_sha256 == bundle.graph.module.sha256 else None


def largest_ulps(error: NumericError | None) -> Integer:
    """The largest error in units of the last place, rounded up; unknown without one, or if it cannot be expressed."""
    if error is None or error.max_ulps is None:
        return UNKNOWN
    return min(math.ceil(error.max_ulps), MAX_INTEGER)


# ---- sites


def numerics_of_sites(observed: ObservedRun, pairing: Pairing) -> Iterable[SiteNumerics]:
    """The numerics of each dispatch site, or of each kernel if its sites cannot be distinguished."""
    groups: dict[tuple[Text, str], list[CheckedDispatch]] = {}
    for dispatch, sites in zip(observed.checked, observed.sites, strict=True):
        groups.setdefault((sites[0] if len(sites) == 1 else UNKNOWN, dispatch.kernel), []).append(dispatch)
    for (site, kernel), dispatches in groups.items():
        yield _site(observed.graph, pairing, site, kernel, dispatches)


def _site(
    graph: TraceGraph, pairing: Pairing, site: Text, kernel: str, dispatches: Sequence[CheckedDispatch]
) -> SiteNumerics:
    compared = [dispatch for dispatch in dispatches if dispatch.verdict is not Verdict.NOT_VERIFIED]
    wrong = [dispatch for dispatch in compared if dispatch.verdict is Verdict.WRONG]
    shown = (wrong or compared or dispatches)[0]
    members = _members(graph, site, kernel)
    suspects = [op for op in _ops_of_lines(graph, kernel, shown.suspects) if op in members]
    if pairing.other is not None:
        # A fault may have made these superfluous, so that they run in no dispatch now.
        theirs = {member.op for own in _sites_of(pairing.other, kernel) for member in own.members}
        others = [op for op in _ops_of_lines(pairing.other, kernel, shown.other_suspects) if op in theirs]
        suspects += [pairing.own_op[op] for op in others if op in pairing.own_op]
    return SiteNumerics(
        site=site,
        kernel=kernel,
        calls=len(dispatches),
        checked=len(compared),
        verdict=shown.verdict,
        reason=shown.reason,
        isolated=_largest([dispatch.isolated for dispatch in dispatches]),
        accumulated=_largest([dispatch.accumulated for dispatch in dispatches]),
        wrong=shown.wrong,
        ops=tuple(dict.fromkeys([*suspects, *members])),
        explanation=shown.explanation,
        outputs=_merged([dispatch.outputs for dispatch in dispatches]),
    )


def _members(graph: TraceGraph, site: Text, kernel: str) -> list[str]:
    """The ops in a dispatch site, the root first; those of all sites of a kernel if the site is unknown."""
    known = [graph.site_by_id[str(site)]] if site in graph.site_by_id else _sites_of(graph, kernel)
    members = [member for own in known for member in sorted(own.members, key=lambda member: not member.root)]
    return list(dict.fromkeys(member.op for member in members))


def _sites_of(graph: TraceGraph, kernel: str) -> list[Site]:
    known = graph.kernel_by_name.get(kernel)
    return [] if known is None else [graph.site_by_id[site] for site in known.sites]


def _ops_of_lines(graph: TraceGraph, kernel: str, lines: Sequence[int]) -> list[str]:
    known = graph.kernel_by_name.get(kernel)
    steps = {} if known is None else {step.line: step.ops for step in known.steps}
    return [op for line in lines for op in steps.get(line, ())]


def _largest(errors: Iterable[NumericError | None]) -> NumericError | None:
    known = [error for error in errors if error is not None]
    if not known:
        return None
    return NumericError(
        max_ulps=_most(error.max_ulps for error in known),
        max_abs=max(error.max_abs for error in known),
        max_rel=_most(error.max_rel for error in known),
        rms_rel=_most(error.rms_rel for error in known),
        tolerance=max(error.tolerance for error in known),
    )


def _most(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else max(value for value in known if value is not None)


def _merged(calls: Sequence[tuple[OutputStatistics, ...]]) -> tuple[OutputStatistics, ...]:
    """Statistics of each output over all calls; of the first call if the outputs differ."""
    if any([output.type for output in call] != [output.type for output in calls[0]] for call in calls):
        return calls[0]
    return tuple(map(_merge, zip(*calls, strict=True)))


def _merge(outputs: Sequence[OutputStatistics]) -> OutputStatistics:
    def over(choose: Callable[[list[float]], float], name: str) -> float | None:
        values = [value for output in outputs if (value := getattr(output, name)) is not None]
        return choose(values) if values else None

    first = outputs[0]
    return OutputStatistics(
        binding=first.binding,
        type=first.type,
        elements=sum(output.elements for output in outputs),
        least=over(min, "least"),
        largest=over(max, "largest"),
        mean=over(lambda values: math.fsum(values) / len(values), "mean"),
        zeros=sum(output.zeros for output in outputs),
        subnormals=sum(output.subnormals for output in outputs),
        nans=sum(output.nans for output in outputs),
        infinities=sum(output.infinities for output in outputs),
    )


def first_bad_numbers(observed: ObservedRun) -> Iterable[BadNumber]:
    """The first NaN and the first infinity of a run."""
    seen: set[str] = set()
    for dispatch, sites in zip(observed.checked, observed.sites, strict=True):
        for number in dispatch.bad:
            if number.kind in seen:
                continue
            seen.add(number.kind)
            site = sites[0] if len(sites) == 1 else UNKNOWN
            members = _members(observed.graph, site, dispatch.kernel)
            ops = [op for op in _ops_of_lines(observed.graph, dispatch.kernel, number.lines) if op in members]
            yield BadNumber(site, dispatch.kernel, tuple(dict.fromkeys([*ops, *members])), number)


# ---- another bundle


_Outputs = Mapping[tuple[str, int, int], "tuple[str, Samples, int]"]
"""Samples of an output with its site and number of elements, by root op, call of the op, and output."""


class ComparedRuns:
    """A run next to that of another bundle: outputs of sites whose root ops match.

    Attributes:
        departures: the compared outputs, in the order of execution.
        suspects: the first site that departs, or one before it that was changed and could not be compared.
    """

    def __init__(self, observed: ObservedRun, other: ObservedRun, pairing: Pairing) -> None:
        self._graph, self._changed = observed.graph, pairing.changed
        self._order = list(dict.fromkeys(sites[0] for sites in observed.sites if len(sites) == 1))
        of_other = _outputs_by_op(other)
        self.departures: list[OutputDeparture] = []
        for (op, call, output), (site, samples, elements) in _outputs_by_op(observed).items():
            pair = of_other.get((pairing.other_op.get(op, ""), call, output))
            if pair is not None and pair[2] == elements and samples.size:
                found = _departure(site, self._ops(site), pair[0], elements, samples, pair[1])
                self.departures.append(found)
        self.suspects = list(self._suspects()) or list(self._unmatched(observed, other))

    def _ops(self, site: str) -> tuple[str, ...]:
        members = _members(self._graph, site, "")
        return tuple(sorted(members, key=lambda op: op not in self._changed))

    def _suspects(self) -> Iterable[Culprit]:
        by_site = {departure.site: departure for departure in reversed(self.departures)}
        order = self._order
        first = next((number for number, site in enumerate(order) if site in by_site and by_site[site].departs), None)
        if first is None:
            return
        departing = by_site[order[first]]
        changed = [site for site in order[:first] if site not in by_site and set(self._ops(site)) & self._changed]
        is_local = set(departing.ops) & self._changed
        site = departing.site if is_local or not changed else changed[0]
        reason = f"its output differs by {departing.rms_rel:.1e} of its size from the other bundle's"
        if site != departing.site:
            reason = (
                f"it was changed, and the output of {departing.site}, which follows, differs from the other bundle's"
            )
        yield self._culprit(site, reason)

    def _unmatched(self, observed: ObservedRun, other: ObservedRun) -> Iterable[Culprit]:
        """The first changed site that could not be compared, if a result of the function departs."""
        if not any(starmap(_departs, zip(observed.results, other.results, strict=False))):
            return
        compared = {departure.site for departure in self.departures}
        left = [site for site in self._order if site not in compared] or self._order[-1:]
        reason = "the function's result differs from the other bundle's, which has no such dispatch to compare"
        for site in sorted(left, key=lambda site: not set(self._ops(site)) & self._changed)[:1]:
            yield self._culprit(site, reason)

    def _culprit(self, site: str, reason: str) -> Culprit:
        ops = self._ops(site)
        if not set(ops) & self._changed:
            ops = (*self._without_site(), *ops)
        return Culprit(site, self._graph.site_by_id[site].kernel, ops, reason)

    def _without_site(self) -> tuple[str, ...]:
        """Changed ops that run in no dispatch: constants, and what the compiler folded or removed."""
        return tuple(
            op.id
            for op in self._graph.ops
            if op.id in self._changed
            and op.outcome is not Outcome.STRUCTURAL
            and not self._graph.sites_of_op.get(op.id)
        )


def _outputs_by_op(observed: ObservedRun) -> _Outputs:
    calls: dict[str, int] = {}
    found: dict[tuple[str, int, int], tuple[str, Samples, int]] = {}
    for dispatch, sites in zip(observed.checked, observed.sites, strict=True):
        if len(sites) != 1 or (root := observed.graph.site_by_id[sites[0]].root) is None:
            continue
        call = calls[root.op] = calls.get(root.op, -1) + 1
        if len(dispatch.outputs) == len(dispatch.samples):
            for number, (output, samples) in enumerate(zip(dispatch.outputs, dispatch.samples, strict=True)):
                found[root.op, call, number] = (sites[0], samples, output.elements)
    return found


def _departs(values: Samples, right: Samples) -> bool:
    return values.size == right.size and _departure("", (), "", values.size, values, right).departs


def _departure(
    site: str, ops: tuple[str, ...], other_site: str, elements: int, values: Samples, right: Samples
) -> OutputDeparture:
    both = np.isfinite(values) & np.isfinite(right)
    signal = float(np.mean(np.square(right[both]))) if both.any() else 0.0
    noise = float(np.mean(np.square(values[both] - right[both]))) if both.any() else 0.0
    same_specials = np.array_equal(values[~both], right[~both], equal_nan=True)
    relative = math.sqrt(noise / signal) if signal else 0.0 if not noise else 1.0
    return OutputDeparture(
        site=site,
        ops=ops,
        other_site=other_site,
        elements=elements,
        snr_db=10 * math.log10(signal / noise) if signal and noise else None,
        rms_rel=relative,
        departs=relative > _LEAST_DEPARTURE or not same_specials,
    )
