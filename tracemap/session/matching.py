"""Which op of one bundle's model is which of another's; by another processor, where there is something else to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tracemap.codec import Record, decode, encode
from tracemap.comparison.model import Match
from tracemap.errors import ToolMissing, UsageInvalid
from tracemap.forked import elsewhere
from tracemap.session.damage import damage_named

if TYPE_CHECKING:
    from tracemap.graph.bundle import Bundle

_WORTH_A_PROCESS: Final = 5_000
"""Ops of both models: of fewer they are matched in less time than another process begins in."""


class _Matched(Record, frozen=True):
    """What the other process tells."""

    same_model: bool
    matches: tuple[Match, ...]


def matched_models(one: Bundle, two: Bundle) -> Sequence[Match] | None:
    """Which op of one bundle's model is which of another's; None: it is the same model.

    Raises:
        UsageInvalid: a bundle does not keep its model.
        ToolMissing: models differ, and the compiler, which parses them, is not installed.
    """
    from tracemap.comparison.matching import match_flows

    models = [bundle.model() for bundle in (one, two)]
    if one.map_sha256 == two.map_sha256 or (models[0] and models[0] == models[1]):
        return None
    for bundle, model in zip((one, two), models, strict=True):
        if not model:
            raise UsageInvalid(f"{bundle.path}: does not keep its model, by which ops are matched; build it with it")
    try:
        from tracemap.mapping.model.flow import Flows
    except ImportError as error:
        raise ToolMissing(
            "models that differ are parsed by IREE's compiler, which is not installed: pip install iree-base-compiler"
        ) from error
    flows = Flows()
    with damage_named(one, two):
        files = one.graph.sources[0].name, two.graph.sources[0].name
        matches = match_flows(flows.of(models[0]), flows.of(models[1]), files)
    known = one.graph.op_by_id, two.graph.op_by_id
    return [match for match in matches if match.before in known[0] and match.after in known[1]]


@contextmanager
def matching(one: Bundle, two: Bundle) -> Iterator[Callable[[], Sequence[Match] | None]]:
    """Begin `matched_models`; what is yielded waits for it, and raises what it raises."""

    def work() -> bytes:
        matches = matched_models(one, two)
        return encode(_Matched(matches is None, tuple(matches or ())))

    ops = len(one.graph.ops) + len(two.graph.ops)
    with elsewhere(work, worth_it=ops >= _WORTH_A_PROCESS and one.map_sha256 != two.map_sha256) as told:

        def wait() -> Sequence[Match] | None:
            found = decode(told(), _Matched)
            return None if found.same_model else found.matches

        yield wait
