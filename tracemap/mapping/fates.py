"""What became of each op, and why.

Decided here: `dispatched` and `load_time` (from memberships), `constant`, `structural`. All else is not yet classified:
`unknown`, counted, never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.graph.model import Fate, Reason, Site
from tracemap.ir.source import FUNCTIONS, SourceOperation
from tracemap.units import plural

_STRUCTURAL = FUNCTIONS | {
    "builtin.module",
    "ml_program.global",
    "torch.global_slot",
    "util.global",
    "util.initializer",
    "util.initializer.return",
}
_STRUCTURAL_ENDINGS = (".return", ".yield", ".condition", ".terminator")

_CONSTANTS = {
    "arith.constant",
    "chlo.constant",
    "complex.constant",
    "onnx.Constant",
    "stablehlo.constant",
    "torch.tensor.literal",
    "torch.vtensor.literal",
    "tosa.const",
    "tosa.const_shape",
}
_CONSTANT_PREFIXES = ("torch.constant.",)

REASONS: Mapping[str, str] = {
    "in-sites": "does work in {sites}",
    "at-load": "runs once, when the module is loaded, in {sites}",
    "is-constant": "is a constant",
    "is-structure": "gives the program its structure; nothing of it runs",
    "not-yet-classified": "not yet classified: no evidence of it was found in any dispatch",
}
"""The sentence of every reason, by slug."""


def can_be_member(operation: SourceOperation) -> bool:
    """Whether an op can do work in a dispatch: neither a constant nor structure."""
    return not is_constant(operation) and not is_structural(operation)


def is_constant(operation: SourceOperation) -> bool:
    """Whether an op is a constant by its kind."""
    return operation.name in _CONSTANTS or operation.name.startswith(_CONSTANT_PREFIXES)


def is_structural(operation: SourceOperation) -> bool:
    """Whether an op only gives structure: functions, returns, globals."""
    return operation.name in _STRUCTURAL or operation.name.endswith(_STRUCTURAL_ENDINGS)


def decide(operation: SourceOperation, sites: Sequence[Site]) -> tuple[Fate, Reason]:
    """The fate of an op that is a member of the given sites."""
    running = [site for site in sites if not site.initializer]
    if running:
        return Fate.DISPATCHED, _reason("in-sites", plural(len(running), "site"))
    if sites:
        return Fate.LOAD_TIME, _reason("at-load", plural(len(sites), "site"))
    if is_constant(operation):
        return Fate.CONSTANT, _reason("is-constant")
    if is_structural(operation):
        return Fate.STRUCTURAL, _reason("is-structure")
    return Fate.UNKNOWN, _reason("not-yet-classified")


def _reason(slug: str, sites: str = "") -> Reason:
    return Reason(slug, REASONS[slug].format(sites=sites))
