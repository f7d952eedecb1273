"""Problems of a new build, in the formats of continuous integration: annotations, Markdown, SARIF and JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Literal
from xml.etree import ElementTree

from tracemap._version import __version__
from tracemap.compare.findings import regressions
from tracemap.compare.model import Comparison, FindingKind
from tracemap.core.sanitize import without_controls
from tracemap.core.units import UNKNOWN, Text, format_bytes, format_ns, format_share, plural
from tracemap.kernels.model import Culprit
from tracemap.map.model import Outcome, TraceGraph
from tracemap.map.query import python_frame
from tracemap.reports.escaping import for_markdown, for_xml
from tracemap.reports.terminal.diff import finding_text

# ---- problems

Level = Literal["error", "warning", "note"]
"""The levels of SARIF and of annotations (there: `notice`); only errors fail the check."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of problem: its slug, a short title, and what to do."""

    slug: str
    title: str
    remedy: str


RULES: Final = (
    Rule("op-slower", "An op costs more", "`tracemap diff BASELINE NEW` shows what else changed in its kernels"),
    Rule("memory-peak", "The peak of memory grew", "`tracemap memory NEW` lists what is held at the peak"),
    Rule("op-lost", "An op cannot be followed any more", "`tracemap audit NEW` names the phase that lost it"),
    Rule(
        "wrong-numbers", "A result is wrong, NaN or infinite", "`tracemap numerics NEW` shows the first wrong dispatch"
    ),
    Rule("new-remark", "The compiler optimises less", "`tracemap remarks NEW` shows all remarks by cost"),
)
_RULE_OF: Final = {rule.slug: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the new build, at a line of the model or of the program that made it; line 0: unknown."""

    rule: str
    level: Level
    message: str
    file: str = ""
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Finds the places of ops: the user's own line of Python, else the model's line."""

    graph: TraceGraph

    def of(self, op: Text) -> tuple[str, int, int]:
        """File, line and column of an op; "" and 0 where unknown."""
        known = self.graph.op_by_id.get(str(op))
        if known is None:
            return "", 0, 0
        frame = python_frame(self.graph, known)
        if frame is not None:
            return frame.file, frame.line, frame.column if isinstance(frame.column, int) else 0
        line = known.line if isinstance(known.line, int) else 0
        return str(known.file) if line else "", line, known.column if isinstance(known.column, int) else 0


def problems_of(
    comparison: Comparison, graph: TraceGraph, culprit: Culprit | None, fail_over: float
) -> tuple[Problem, ...]:
    """The problems of the new side, errors first.

    Args:
        comparison: the comparison with the baseline.
        graph: the map of the new side.
        culprit: the first wrong dispatch site that `tracemap numerics` stored for it.
        fail_over: growth in percent from which on a cost is an error.
    """
    places = Places(graph)
    found = [
        *_slower(comparison, places, fail_over),
        *_memory(comparison, places, fail_over),
        *_lost(comparison, places),
        *_wrong(places, culprit),
        *_remarks(comparison, places),
    ]
    levels = ("error", "warning", "note")
    return tuple(sorted(found, key=lambda problem: levels.index(problem.level)))


_GROWING: Final[tuple[FindingKind, ...]] = ("slower", "new")


def _slower(comparison: Comparison, places: Places, fail_over: float) -> Iterator[Problem]:
    over = regressions(comparison.findings, fail_over)
    for finding in comparison.findings:
        if finding.kind in _GROWING:
            level: Level = "error" if finding in over else "warning"
            yield Problem("op-slower", level, finding_text(finding), *places.of(finding.after))


def _memory(comparison: Comparison, places: Places, fail_over: float) -> Iterator[Problem]:
    for function in comparison.memory:
        peak = function.peak
        if peak.change > peak.before * fail_over / 100:
            grown = max(function.ops, key=lambda op: op.held.change, default=None)
            cause = f"; the most is from {grown.after} {grown.name}" if grown and grown.held.change > 0 else ""
            text = (
                f"{function.function} allocates {format_bytes(peak.after)} at its peak, "
                f"{format_share(peak.change, peak.before)} more than {format_bytes(peak.before)}{cause}"
            )
            yield Problem("memory-peak", "error", text, *places.of(grown.after if grown else UNKNOWN))


def _lost(comparison: Comparison, places: Places) -> Iterator[Problem]:
    for op in comparison.ops:
        if op.outcome_after == Outcome.UNKNOWN.value and op.outcome_before not in (UNKNOWN, Outcome.UNKNOWN.value):
            text = f"{op.after} {op.name}: was {op.outcome_before}, and now nobody knows where it went"
            yield Problem("op-lost", "error", text, *places.of(op.after))


def _wrong(places: Places, culprit: Culprit | None) -> Iterator[Problem]:
    if culprit is not None:
        op = culprit.ops[0] if culprit.ops else UNKNOWN
        text = f"{culprit.kernel}: {culprit.reason}"
        yield Problem("wrong-numbers", "error", text, *places.of(op))


def _remarks(comparison: Comparison, places: Places) -> Iterator[Problem]:
    for remark in comparison.remarks or ():
        if remark.kind == "new":
            text = f"{remark.kernel}: {remark.pass_name}: {remark.text}"
            yield Problem("new-remark", "note", text, *places.of(remark.ops[0] if remark.ops else UNKNOWN))


# ---- compilers' form


def compiler_lines(problems: Sequence[Problem]) -> str:
    """Lines as compilers print them: `FILE:LINE:COLUMN: error: text [rule]`."""
    return "".join(
        ": ".join(filter(None, (_place_with_column(problem), problem.level, without_controls(problem.message))))
        + f" [{problem.rule}]\n"
        for problem in problems
    )


def _place_with_column(problem: Problem) -> str:
    place = without_controls(_place(problem))
    return f"{place}:{problem.column}" if problem.column else place


# ---- GitHub
#
# https://docs.github.com/actions/reference/workflow-commands-for-github-actions

_COMMANDS: Final = {"error": "error", "warning": "warning", "note": "notice"}


def github_annotations(problems: Sequence[Problem]) -> str:
    """Workflow commands that put problems at the lines of a pull request, one per line."""
    return "".join(f"{_annotation(problem)}\n" for problem in problems)


def _annotation(problem: Problem) -> str:
    title = _RULE_OF[problem.rule].title
    properties = {"file": problem.file, "line": problem.line, "col": problem.column, "title": f"tracemap: {title}"}
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items() if value)
    return f"::{_COMMANDS[problem.level]} {listed}::{_data(problem.message)}"


def _data(text: str) -> str:
    lines = map(without_controls, text.replace("%", "%25").split("\n"))
    return "%0A".join(lines)


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(comparison: Comparison, problems: Sequence[Problem]) -> str:
    """A summary: the verdict, the time of an invocation, and a table of problems."""
    errors = sum(problem.level == "error" for problem in problems)
    verdict = f"{plural(errors, 'problem')} in this check" if errors else "no problem in this check"
    lines = [f"### tracemap: {verdict}", "", *(f"- {line}" for line in _times(comparison)), ""]
    if problems:
        lines += ["| | where | what |", "|---|---|---|"]
        lines += [
            f"| {problem.level} | {_code(_place(problem))} | {for_markdown(problem.message)} |" for problem in problems
        ]
        lines.append("")
    lines += [f"- {_RULE_OF[slug].title}: {_RULE_OF[slug].remedy}" for slug in dict.fromkeys(p.rule for p in problems)]
    return "\n".join(lines).rstrip() + "\n"


def _times(comparison: Comparison) -> Iterator[str]:
    before, after = comparison.before, comparison.after
    yield f"{for_markdown(before.bundle)} → {for_markdown(after.bundle)}"
    if isinstance(before.invocation_ns, int) and isinstance(after.invocation_ns, int):
        yield f"An invocation: {format_ns(before.invocation_ns)} → {format_ns(after.invocation_ns)}, as recorded"


def _place(problem: Problem) -> str:
    return f"{problem.file}:{problem.line}" if problem.line else ""


def _code(text: str) -> str:
    inside = without_controls(text).replace("`", "'").replace("|", "\\|")
    return f"`{inside}`" if inside else ""


# ---- SARIF 2.1.0

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_PAGE: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/"


def sarif(problems: Sequence[Problem]) -> str:
    """A log with one run; the rules of all problems are listed, whether they occur or not."""
    numbers = {rule.slug: number for number, rule in enumerate(RULES)}
    rules = [
        {"id": rule.slug, "shortDescription": {"text": rule.title}, "help": {"text": rule.remedy}} for rule in RULES
    ]
    driver = {"name": "tracemap", "version": __version__, "rules": rules}
    results = [
        {
            "ruleId": problem.rule,
            "ruleIndex": numbers[problem.rule],
            "level": problem.level,
            "message": {"text": without_controls(problem.message)},
            **_sarif_place(problem),
        }
        for problem in problems
    ]
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=2) + "\n"


def _sarif_place(problem: Problem) -> dict[str, Any]:
    if not problem.line:
        return {}
    region = {"startLine": problem.line, **({"startColumn": problem.column} if problem.column else {})}
    # An absolute path becomes a URI; others are below the root of the repository.
    path = PurePosixPath(problem.file)
    uri = path.as_uri() if path.is_absolute() else _relative_uri(path)
    return {"locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}]}


def _relative_uri(path: PurePosixPath) -> str:
    root = PurePosixPath("/")
    return (root / path).as_uri().removeprefix(root.as_uri())


# ---- JUnit


def junit(comparison: Comparison, problems: Sequence[Problem]) -> str:
    """A test suite with a case for each rule, which fails if a problem is an error."""
    suite = ElementTree.Element("testsuite", name="tracemap", tests=str(len(RULES)))
    failed = 0
    for rule in RULES:
        case = ElementTree.SubElement(suite, "testcase", classname=f"tracemap.{rule.slug}", name=rule.title)
        own = [problem for problem in problems if problem.rule == rule.slug]
        errors = [problem for problem in own if problem.level == "error"]
        if errors:
            failed += 1
            failure = ElementTree.SubElement(case, "failure", message=for_xml(errors[0].message), type=rule.slug)
            failure.text = for_xml("\n".join(filter(None, map(_junit_line, errors))) + f"\n{rule.remedy}")
        if others := [problem for problem in own if problem.level != "error"]:
            ElementTree.SubElement(case, "system-out").text = for_xml("\n".join(map(_junit_line, others)))
    suite.set("failures", str(failed))
    properties = ElementTree.Element("properties")
    for name, side in (("baseline", comparison.before), ("new", comparison.after)):
        ElementTree.SubElement(properties, "property", name=name, value=for_xml(side.bundle))
    suite.insert(0, properties)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _junit_line(problem: Problem) -> str:
    place = _place(problem)
    return f"{place}: {problem.message}" if place else problem.message
