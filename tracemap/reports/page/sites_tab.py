"""The table of sites: a row for every dispatch of the program, with its members and what each got of the cost."""

from __future__ import annotations

from collections.abc import Mapping

from tracemap.attribution.model import SiteResult
from tracemap.graph.ops import OpId
from tracemap.graph.program import Membership, Site
from tracemap.reports.costed import CostedMap, remarks
from tracemap.reports.labels import or_dash
from tracemap.reports.page.amounts import amount, amounts, spread
from tracemap.reports.page.model import Amount, MemberRow, SiteCostRow, SiteRow
from tracemap.units import UNKNOWN, format_bytes, format_count


def site_rows(costed: CostedMap) -> tuple[SiteRow, ...]:
    """A row for every site of the program, in their order."""
    return tuple(_site_row(costed, site, costed.site_results.get(site.id)) for site in costed.graph.sites)


def _site_row(costed: CostedMap, site: Site, result: SiteResult | None) -> SiteRow:
    shares = {share.op: amounts(share.attributed, costed.metrics) for share in result.shares} if result else {}
    return SiteRow(
        id=site.id,
        kernel=site.kernel,
        function=or_dash(site.function),
        path=site.path,
        command=f"{or_dash(site.command_buffer)}:{or_dash(site.command_index)}",
        load_time=site.initializer,
        members=tuple(_member_row(member, shares) for member in site.members),
        remarks=tuple(remarks(site, result)),
        calls=result.calls if result else UNKNOWN,
        costs=_site_costs(costed, result) if result else {},
    )


def _member_row(member: Membership, shares: Mapping[OpId, Mapping[str, Amount]]) -> MemberRow:
    return MemberRow(
        op=member.op,
        evidence=member.evidence.value,
        root=member.root,
        operations=format_count(member.operations),
        bytes=format_bytes(member.bytes),
        attributed=shares.get(member.op, {}),
    )


def _site_costs(costed: CostedMap, result: SiteResult) -> dict[str, SiteCostRow]:
    rows = {}
    for metric in costed.metrics:
        cost = result.metrics[metric.name]
        rows[metric.name] = SiteCostRow(amount(cost.total, metric), spread(cost.per_call, metric))
    return rows
