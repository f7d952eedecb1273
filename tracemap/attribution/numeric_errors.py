"""Errors of ops next to their costs: those of the dispatches that an op is in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec import structs

from tracemap.attribution.model import UNKNOWN_ERRORS, Attribution, Errors
from tracemap.core.units import UNKNOWN, Integer
from tracemap.map.model import OpId


def with_errors(attribution: Attribution, errors_by_site: Mapping[str, Errors]) -> Attribution:
    """The attribution with the errors of its dispatch sites, and of the ops in them."""
    by_op: dict[OpId, list[Errors]] = defaultdict(list)
    for site in attribution.sites:
        for share in site.shares:
            by_op[share.op].append(errors_by_site.get(site.site, UNKNOWN_ERRORS))
    return replace(
        attribution,
        ops=tuple(structs.replace(op, errors=largest_errors(by_op[op.op])) for op in attribution.ops),
        sites=tuple(
            structs.replace(site, errors=errors_by_site.get(site.site, UNKNOWN_ERRORS)) for site in attribution.sites
        ),
    )


def largest_errors(errors: Iterable[Errors]) -> Errors:
    """The largest of several; unknown if all are unknown."""
    every = list(errors)
    return Errors(_largest(error.isolated_ulps for error in every), _largest(error.accumulated_ulps for error in every))


def _largest(values: Iterable[Integer]) -> Integer:
    return max((value for value in values if isinstance(value, int)), default=UNKNOWN)
