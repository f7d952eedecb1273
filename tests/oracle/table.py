"""The accuracy table, in Markdown, with the targets beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from tests.oracle.compare import Result, Score


@dataclass(frozen=True, slots=True)
class Target:
    """What is promised: a key of a result's scores, which of the two numbers, and its least value."""

    where: str
    key: str
    number: str
    least: float

    def value(self, result: Result) -> float:
        """What was measured."""
        scores = result.outcomes if self.where == "outcomes" else result.members
        return float(getattr(scores.get(self.key, Score()), self.number))


_PRECISION, _RECALL = 0.995, 0.99
TARGETS = (
    *(
        Target("members", key, number, least)
        for key in ("all", "evidence located", "evidence fused", "evidence absorbed")
        for number, least in (("precision", _PRECISION), ("recall", _RECALL))
    ),
    Target("members", "beyond locations", "recall", _RECALL),
    Target("outcomes", "all", "precision", 0.99),
)
_ROWS = {
    "all": "**all pairs**",
    "hard": "of hard ops: idioms, shared, in functions, equal layers",
    "easy": "of the other ops",
    "evidence located": "by evidence: located",
    "evidence fused": "by evidence: fused",
    "evidence absorbed": "by evidence: absorbed",
    "beyond locations": "without a location in the body",
}


def contradicted(result: Result) -> int:
    """Memberships that a location tells and the truth denies."""
    keys = ("evidence located", "evidence fused")
    return sum(result.members[key].wrong for key in keys if key in result.members)


def misses(result: Result) -> list[str]:
    """The targets that are not met."""
    found = [
        f"{target.number} of {target.where} ({target.key}): {target.value(result):.4f} < {target.least}"
        for target in TARGETS
        if target.value(result) < target.least
    ]
    denied, nobodys = contradicted(result), result.counts["without owner"]
    if denied:
        found.append(f"{denied} memberships by location contradict the truth")
    if nobodys:
        found.append(f"{nobodys} dispatches or ops without an owner or a outcome")
    if by_shape := result.counts["by shape"]:
        found.append(f"{by_shape} memberships of what went into another op are told by no phase, only by the model")
    return found


def table(result: Result, seeds: str) -> str:
    """All that was measured."""
    kinds = sorted(key for key in result.members if key.startswith("kind "))
    rows = [(_ROWS[key], key) for key in _ROWS if key in result.members]
    rows += [(key.replace("family ", "in "), key) for key in sorted(result.members) if key.startswith("family ")]
    rows += [(f"kind: {key.removeprefix('kind ')}", key) for key in kinds]
    members = [_member_row(name, key, result.members[key]) for name, key in rows]
    outcomes = [
        _outcome_row(name, score) for name, score in sorted(result.outcomes.items()) if not name.startswith("class ")
    ]
    head = ["| pairs (op, dispatch) | right | wrong | missing | precision | recall |", "|---|--:|--:|--:|--:|--:|"]
    outcome_head = ["| outcomes | right | wrong | precision |", "|---|--:|--:|--:|"]
    classes = [_class_row(key, result) for key in sorted(result.counts) if key.startswith("class ")]
    class_head = [
        "| class of marked ops | ops | right | wrong | missing | outcomes right | wrong |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    shown = [_about(result, seeds), "", *head, *members, "", *outcome_head, *outcomes]
    return "\n".join([*shown, "", *class_head, *classes] if classes else shown)


def _about(result: Result, seeds: str) -> str:
    counts = result.counts
    return (
        f"{counts['programs']} programs ({seeds}), {counts['sites']:,} dispatches; {counts['ops']:,} ops that compute, "
        f"of them {counts['hard ops']:,} hard ({counts['hard ops'] / max(1, counts['ops']):.0%}).\n"
        f"{contradicted(result)} pairs found by location are wrong; "
        f"{counts['without owner']} dispatches have no op; "
        f"{counts['undecided']:,} pairs of the map could not be decided and are left out."
    )


def _member_row(name: str, key: str, score: Score) -> str:
    precision = _with_target(score.precision, _target("members", key, "precision"))
    recall = _with_target(score.recall, _target("members", key, "recall"))
    if key == "beyond locations":
        precision = ""
    return f"| {name} | {score.right:,} | {score.wrong:,} | {score.missing:,} | {precision} | {recall} |"


def _class_row(key: str, result: Result) -> str:
    members, outcomes = result.members.get(key, Score()), result.outcomes.get(key, Score())
    counts = (result.counts[key], members.right, members.wrong, members.missing, outcomes.right, outcomes.wrong)
    return f"| {key.removeprefix('class ')} | {' | '.join(f'{count:,}' for count in counts)} |"


def _outcome_row(name: str, score: Score) -> str:
    shown = "**all outcomes**" if name == "all" else f"`{name}`"
    precision = _with_target(score.precision, _target("outcomes", name, "precision"))
    return f"| {shown} | {score.right:,} | {score.wrong:,} | {precision} |"


def _target(where: str, key: str, number: str) -> float | None:
    fitting = [each.least for each in TARGETS if (each.where, each.key, each.number) == (where, key, number)]
    return fitting[0] if fitting else None


def _with_target(value: float, target: float | None) -> str:
    """Cut, not rounded: 1.0000 means that nothing is wrong."""
    shown = f"{int(value * 10_000) / 10_000:.4f}"
    return shown if target is None else f"{shown} (≥ {target})"
