"""The reasons that ops have for their fates: a slug, a sentence for people, and whether they are only inferred."""

from __future__ import annotations

from collections.abc import Mapping

from tracemap.graph.ops import Reason

REASONS: Mapping[str, str] = {
    "in-sites": "does work in {where}",
    "at-load": "runs once, when the module is loaded, in {where}",
    "is-command": "is a copy or fill command of its own",
    "control-flow": "decides on the host what runs; its ops stand for themselves",
    "decided": "decides nothing: it is known when the program is compiled which of its ops run",
    "call": "is a call; the ops of the function stand for themselves",
    "host-work": "is scalar or shape work on the host",
    "is-constant": "is a constant",
    "computed-at-compile-time": "computed at compile time: depends on constants only",
    "folded-indexing": "folded into the indexing or layout of the {where}",
    "folded-initial": "became the initial value or the destination of the {where}",
    "folded-renaming": "only hands its operand on, to the {where}",
    "passed-through": "only renames or moves elements; nothing is left to run",
    "in-kernel": "frames the work in the kernel of the {where}: a loop, an address, a read or a write",
    "in-place": "done in place: what makes its operands writes where its result lies, and nothing is copied",
    "simplified": "simplified away into the {where}",
    "simplified-away": "simplified away by the compiler; its uses were folded too",
    "global-access": "hands the buffer of a global on; nothing is computed",
    "check": "checks its operand at compile time or on the host",
    "call-left-out": "removed: the compiler left the call of its kernel out, as nothing needs its result",
    "dead": "removed: nothing uses its result",
    "dead-function": "removed: nothing calls its function",
    "never-runs": "removed: stands where nothing ever runs, whatever the inputs are",
    "used-by-removed": "removed: only ops that were removed themselves use its result",
    "twin": "removed: same as {where}",
    "is-structure": "gives the program its structure; nothing of it runs",
    "not-told": "may work in a dispatch whose ops their locations do not tell apart",
    "not-yet-classified": "not classified: neither evidence nor reasoning tells what became of it",
}
"""The sentence of every reason, by slug."""

INFERRED = frozenset(
    {
        "computed-at-compile-time",
        "decided",
        "folded-indexing",
        "folded-initial",
        "folded-renaming",
        "passed-through",
        "simplified",
        "simplified-away",
        "used-by-removed",
        "twin",
        "dead",
        "dead-function",
        "never-runs",
    }
)
"""Reasons that rest on reasoning over the model, not on what the compiler's output carries."""


def reason(slug: str, where: str = "") -> Reason:
    """The reason of a slug; `where`: what stands in for `{where}` in its sentence."""
    return Reason(slug, REASONS[slug].format(where=where), slug in INFERRED)
