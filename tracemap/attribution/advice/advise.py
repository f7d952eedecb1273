"""Advice by rules: what to change next, with figures, a command that proves or does it, and the expected gain.

A rule needs evidence: the run's times, the IR and machine code of kernels, or the model's data flow. Names of ops are
no evidence. A rule applies only if its gain is above the run's noise, and the lower bound above 1 % of the time. Of
several rules that explain the same time, only the most specific one counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import structs

from tracemap.attribution.advice.kernel_facts import Evidence
from tracemap.attribution.advice.program import LEAST_SHARE, Finding, Program
from tracemap.attribution.advice.rules import BALANCED, COPIED, MOST_OF, SHRINKS, kernel_findings, overhead_findings
from tracemap.attribution.model import (
    Advice,
    AdviceRule,
)
from tracemap.attribution.what_if import REMOVED, Change
from tracemap.core.codec import decode, encode
from tracemap.core.diagnostics import PAUSED, Diagnostic, has_slug
from tracemap.core.errors import ExtensionBroken
from tracemap.core.extensions import ADVICE, Extension, extensions
from tracemap.core.units import format_bytes, plural

# ---- advice


def advise(evidence: Evidence) -> tuple[Advice, ...]:
    """The advice on a run, the largest gain first; none for a clean program."""
    return _advise(Program(evidence))


ExtensionRule = Callable[[Program], Iterable[Advice]]
"""A rule of another package (docs/extending.md). The name of its entry point replaces `Advice.rule`."""


def advise_with_extensions(evidence: Evidence) -> tuple[tuple[Advice, ...], tuple[Diagnostic, ...]]:
    """The advice on a run by all rules, also those of other packages, and remarks on rules that do not work."""
    program, problems = Program(evidence), []
    found = list(_advise(program))
    for extension in extensions(ADVICE) if _can_advise(program) else ():
        if extension.name in _ORDER:
            continue
        try:
            found += _worth(program, _extension_advice(extension, program))
        except ExtensionBroken as error:
            problems.append(Diagnostic("extension-broken", str(error)))
    return _ordered(found), tuple(problems)


def _extension_advice(extension: Extension, program: Program) -> Iterator[Advice]:
    rule: ExtensionRule = extension.load()
    for advice in extension.run(lambda: [_checked(item) for item in rule(program)]):
        if not set(advice.ops) <= program.graph.op_by_id.keys():
            raise extension.broken("its result is no Advice on ops of the map")
        yield structs.replace(advice, rule=extension.name)


def _checked(advice: object) -> Advice:
    """A piece of advice whose fields have their types.

    Raises:
        TypeError: it is none.
        ValueError: a field has another type.
    """
    if not isinstance(advice, Advice):
        raise TypeError("its result is no Advice on ops of the map")
    return decode(encode(advice), Advice)


def _can_advise(program: Program) -> bool:
    is_paused = has_slug(program.attribution.diagnostics, PAUSED)  # a pause looks like overhead
    return bool(program.elapsed_ns and program.iterations and not is_paused)


def _advise(program: Program) -> tuple[Advice, ...]:
    if not _can_advise(program):
        return ()
    found = [
        _advice(program, list(findings), *_TEXTS[rule](program, list(findings)))
        for rule, findings in _by_rule(program, kernel_findings(program)).items()
    ]
    found += [_advice(program, [finding], *words) for finding, *words in overhead_findings(program)]
    return _ordered(_worth(program, found))


def _worth(program: Program, found: Iterable[Advice]) -> Iterator[Advice]:
    """The advice whose gain is large enough."""
    least_ns = LEAST_SHARE * program.elapsed_ns
    return (advice for advice in found if advice.low_ns > least_ns and advice.gain_ns > program.noise_ns)


def _ordered(found: Iterable[Advice]) -> tuple[Advice, ...]:
    """The largest gain first, then in the order of rules; those of other packages come last."""
    return tuple(sorted(found, key=lambda one: (-one.gain_ns, _ORDER.get(one.rule, len(_ORDER)), one.rule)))


_ORDER: Final[Mapping[str, int]] = {rule: index for index, rule in enumerate(AdviceRule)}


def _by_rule(program: Program, findings: Iterator[Finding]) -> dict[AdviceRule, list[Finding]]:
    """Findings by rule, the largest first. A dispatch has one cause, and perhaps imbalance, whose gain is separate."""
    by_place: dict[tuple[str, bool], Finding] = {}
    for finding in findings:
        place = finding.dispatch.site.id if finding.dispatch else " ".join(finding.ops)
        key = place, finding.rule is AdviceRule.IMBALANCE
        other = by_place.get(key)
        if other is None or _ORDER[finding.rule] < _ORDER[other.rule]:
            by_place[key] = finding
    result: dict[AdviceRule, list[Finding]] = defaultdict(list)
    by_place = {place: finding for place, finding in by_place.items() if finding.gain_ns > 0}
    scaled = (_as_passed_on(program, finding) for finding in by_place.values())
    for finding in sorted(scaled, key=lambda finding: -finding.gain_ns):
        result[finding.rule].append(finding)
    return result


def _as_passed_on(program: Program, finding: Finding) -> Finding:
    """A finding with the part of its gain that the program has: other work may run at the same time."""
    dispatch = finding.dispatch
    if dispatch is None or program.attribution.timed is None:
        return finding
    parts = {dispatch.site.id: frozenset(member.op for member in dispatch.site.members)}
    saved_ns = program.model.gain(Change(parts, REMOVED)).saved_ns
    part = min(1.0, saved_ns / dispatch.wall_ns)
    gains = {name: part * getattr(finding, name) for name in ("gain_ns", "low_ns", "high_ns")}
    return structs.replace(finding, **gains)


def _advice(program: Program, findings: Sequence[Finding], text: str, command: str) -> Advice:
    ops = dict.fromkeys(op for finding in findings for op in finding.ops)
    gain_ns, low_ns, high_ns = (
        sum(getattr(finding, name) for finding in findings) for name in ("gain_ns", "low_ns", "high_ns")
    )
    # Time between kernels shrinks with them: it has the page faults of their data, and waiting for a CPU after them.
    parts_ns = [finding.gain_ns for finding in findings if finding.dispatch]
    if parts_ns and program.kernels_ns > MOST_OF * program.elapsed_ns:
        more = program.elapsed_ns / program.kernels_ns - 1
        high_ns, gain_ns = high_ns + more * sum(parts_ns) * SHRINKS, gain_ns + more * sum(parts_ns) / 2
    high_ns = min(high_ns, 0.998 * program.elapsed_ns)
    gain_ns = min(gain_ns, high_ns)
    low_ns = min(max(0.0, low_ns), gain_ns)
    rule = findings[0].rule
    return Advice(rule, text, command, tuple(ops), round(gain_ns), round(low_ns), round(high_ns))


def _more(findings: Sequence[Finding]) -> str:
    """The number of other dispatches with the same cause."""
    others = len(findings) - 1
    return f" (and {plural(others, 'other')})" if others else ""


_Words = tuple[str, str]
"""A sentence and a command."""


def _time(program: Program, findings: Sequence[Finding]) -> str:
    """The share of the dispatches of findings in the time."""
    return program.share(sum(finding.dispatch.wall_ns for finding in findings if finding.dispatch))


def _show(program: Program, finding: Finding, *options: str) -> str:
    """A command that shows the dispatch of a finding."""
    what = finding.dispatch.site.id if finding.dispatch else finding.ops[0]
    return program.command("show", program.bundle, what, *options)


def _kernel_command(program: Program, findings: Sequence[Finding], name: str, *options: str) -> str:
    kernels = dict.fromkeys(finding.dispatch.site.kernel for finding in findings[:3] if finding.dispatch)
    words = [word for kernel in kernels for word in ("--kernel", kernel)]
    return program.command(name, program.bundle, *words, *options)


def _repeated_words(program: Program, findings: Sequence[Finding]) -> _Words:
    first = findings[0]
    advice = "Compute it once"
    return f"{_time(program, findings)} of the time repeats work: {first.detail}{_more(findings)}. {advice}", _show(
        program, first
    )


def _recomputed_words(program: Program, findings: Sequence[Finding]) -> _Words:
    first = findings[0]
    text = f"{_time(program, findings)} of the time computes forward values again: {first.detail}{_more(findings)}"
    return f"{text}. Save them (jax.checkpoint with a policy), if memory allows", _show(program, first)


def _layout_words(program: Program, findings: Sequence[Finding]) -> _Words:
    first, moved = findings[0], round(sum(finding.bytes for finding in findings))
    times = [finding.dispatch.wall_ns if finding.dispatch else finding.gain_ns / COPIED for finding in findings]
    size = f" {format_bytes(moved)}" if moved else " data"
    text = f"{program.share(sum(times))} of the time copies{size}: {first.detail}{_more(findings)}"
    return f"{text}. Store the data in the layout that its users read", _show(program, first)


def _fusion_words(program: Program, findings: Sequence[Finding]) -> _Words:
    first, moved = findings[0], round(sum(finding.bytes for finding in findings))
    text = f"{format_bytes(moved)} are written and read again: {first.detail}{_more(findings)}"
    advice = "Remove what keeps them apart (a barrier, a second use, a flag), so that the compiler fuses them"
    return f"{text}, {_time(program, findings)} of the time. {advice}", _show(program, first)


def _weights_words(program: Program, findings: Sequence[Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time reads weights once: {findings[0].detail}{_more(findings)}"
    return f"{text}. Quantize them, or use a larger batch", _kernel_command(program, findings, "bench", "--cold")


def _spilling_words(program: Program, findings: Sequence[Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is in kernels that spill registers: {findings[0].detail}"
    return f"{text}{_more(findings)}. Use smaller vector tiles", _kernel_command(program, findings, "tune")


def _scalar_words(program: Program, findings: Sequence[Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is scalar code: {findings[0].detail}{_more(findings)}"
    kernel = findings[0].dispatch.kernel if findings[0].dispatch else None
    advice = "Write its body without control flow"
    if kernel and any(loop.calls for loop in kernel.loops):
        advice = "Replace the function by arithmetic, which has vector code"
    elif kernel and kernel.gathers:
        advice = "Replace computed indices by slices, or a table by arithmetic"
    return f"{text}. {advice}", _show(program, findings[0], "--assembly")


def _strided_words(program: Program, findings: Sequence[Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is in strided access: {findings[0].detail}{_more(findings)}"
    return f"{text}. Store the array so that the innermost loop reads neighbours", _kernel_command(
        program, findings, "bench"
    )


def _idle_words(program: Program, findings: Sequence[Finding]) -> _Words:
    idle = sum(finding.gain_ns / BALANCED for finding in findings)
    text = f"{program.share(idle)} of the time workers are idle: {findings[0].detail} for {program.workers} workers"
    return f"{text}{_more(findings)}. Split its work into more parallel parts", program.of_runs(
        "attribute", "--by", "site"
    )


def _roofline_words(program: Program, findings: Sequence[Finding]) -> _Words:
    text = f"{_time(program, findings)} of the time is in slow products: {findings[0].detail}{_more(findings)}"
    flags = program.graph.module.flags
    if program.is_for_any_cpu:
        text += ". They are compiled for any CPU: build with --iree-llvmcpu-target-cpu=host"
    else:
        tiled = any(flag.startswith("--iree-opt-data-tiling") for flag in flags)
        text += ". Tune its tiles" + ("" if tiled else ", or build with --iree-opt-data-tiling")
    return text, _kernel_command(program, findings, "tune")


_TEXTS: Final[Mapping[AdviceRule, Callable[[Program, Sequence[Finding]], _Words]]] = {
    AdviceRule.REPEATED_WORK: _repeated_words,
    AdviceRule.RECOMPUTED: _recomputed_words,
    AdviceRule.LAYOUT_COPY: _layout_words,
    AdviceRule.MISSED_FUSION: _fusion_words,
    AdviceRule.COLD_WEIGHTS: _weights_words,
    AdviceRule.SPILLING: _spilling_words,
    AdviceRule.NOT_VECTORIZED: _scalar_words,
    AdviceRule.STRIDED_READS: _strided_words,
    AdviceRule.IMBALANCE: _idle_words,
    AdviceRule.BELOW_ROOFLINE: _roofline_words,
}
