"""The ops of each line of kernel IR, at each of the kernel's dispatch sites.

The compiler merges equal kernels into one and keeps the locations of only one site. Earlier, in the dispatch-creation
phase, every site has a body of its own. Equal kernels have equal bodies, so operations at the same position in two
bodies are the same line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tracemap.core.units import UNKNOWN, Integer
from tracemap.ir.attributes import is_conversion
from tracemap.ir.dispatch_bodies import BodyOp
from tracemap.ir.executables import KernelText, LocatedStep
from tracemap.ir.flow import DispatchRegion
from tracemap.map.build.model.idioms import Rotation
from tracemap.map.build.model.kinds import arithmetic_kind
from tracemap.map.build.sites.cost import Misplaced, assign_product_steps
from tracemap.map.build.sites.members import SHARED_OPS, assign_rotation_steps
from tracemap.map.build.sites.owners import Owners
from tracemap.map.build.sites.raised_idioms import Works
from tracemap.map.build.sites.relabelled_ops import (
    HorizontalGroup,
    Relabelling,
    assign_horizontal_steps,
    restore_relabelled_steps,
)
from tracemap.map.model import Kernel, KernelLine, OpId, Site, sort_ops

_NO_EVIDENCE = frozenset(
    """
    arith.constant func.func func.return
    hal.interface.binding.subspan hal.interface.constant.load hal.interface.workgroup.count hal.interface.workgroup.id
    tensor.dim tensor.empty
    """.split()
)
"""Operations whose locations are no evidence: constants that sites share, bindings, shapes, and the kernel itself."""

_NO_OWN_WORK = _NO_EVIDENCE | SHARED_OPS

Translation = Mapping[OpId, tuple[OpId, ...]]
"""Ops of the site whose locations the kernel kept -> the corresponding ops at another site."""


@dataclass(frozen=True, slots=True)
class UnlocatedSteps:
    """Assignments of steps that locations do not give, for each site of a module, in order.

    `raised`: the op for each kind of work in a raised op; `rotations`: the rotation by halves, if there is one;
    `horizontal_groups`: the ops that are computed side by side; `stand_ins`: ops whose locations stand in for others;
    `misplaced`: multiplications with the location of another op than their product. `conversions`: the model's ops that
    only change the element type, for all sites.
    """

    raised: Sequence[Works]
    rotations: Sequence[Rotation | None]
    horizontal_groups: Sequence[HorizontalGroup]
    stand_ins: Sequence[Relabelling]
    misplaced: Sequence[Misplaced]
    conversions: frozenset[OpId]


def add_steps(
    kernels: Sequence[Kernel],
    texts: Sequence[KernelText],
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    unlocated: UnlocatedSteps,
    owners: Owners,
) -> tuple[Kernel, ...]:
    """The kernels with their steps, if they have texts.

    `bodies`: the body of each site in the dispatch-creation phase; None if unknown.
    """
    text_of = {text.kernel: text for text in texts}
    # A site's body is None only if pairing failed; its steps are then those that the kernel itself names.
    body_of = {site.id: body.body for site, body in zip(sites, bodies, strict=True) if body is not None}
    site_by_id = {site.id: site for site in sites}
    ordinals = {site.id: ordinal for ordinal, site in enumerate(sites)}

    def with_steps(kernel: Kernel) -> Kernel:
        text = text_of.get(kernel.name)
        if text is None:
            return kernel
        kernel_sites = [site_by_id[site] for site in kernel.sites]
        steps = _steps(text, kernel_sites, body_of, owners)
        stand_ins = [unlocated.stand_ins[ordinals[site.id]] for site in kernel_sites]
        if any(stand_ins):
            steps = restore_relabelled_steps(
                steps, stand_ins, {member.op for site in kernel_sites for member in site.members}
            )
        steps = _assign_unlocated(steps, unlocated, [ordinals[site] for site in kernel.sites])
        steps = assign_storage_conversions(_assign_to_enclosing(steps), unlocated.conversions)
        return structs.replace(kernel, steps=steps, text=text.file)

    return tuple(with_steps(kernel) for kernel in kernels)


def _steps(
    text: KernelText, sites: Sequence[Site], body_of: Mapping[str, Sequence[BodyOp]], owners: Owners
) -> tuple[KernelLine, ...]:
    located_ops = [_ops_of(step, owners) for step in text.steps]
    located_site = _located_site({op for ops in located_ops for op in ops}, sites, body_of, owners)
    translations = [_translation(body_of.get(located_site, ()), body_of.get(site.id, ()), owners) for site in sites]
    return tuple(
        KernelLine(step.line, step.op_name, _at_all_sites(ops, translations), step.parent, step.takes)
        for step, ops in zip(text.steps, located_ops, strict=True)
    )


def _assign_to_enclosing(steps: Sequence[KernelLine]) -> tuple[KernelLine, ...]:
    """Assign the remaining steps in a region to the op of the step around it, if that is a single one.

    Importers drop locations in the bodies of reductions: torch-mlir that of the sum in a pooling.
    """
    ops_at: dict[Integer, tuple[OpId, ...]] = {step.line: step.ops for step in steps}
    return tuple(
        structs.replace(step, ops=ops_at.get(step.parent, ()))
        if not step.ops and step.op_name not in _NO_OWN_WORK and len(ops_at.get(step.parent, ())) == 1
        else step
        for step in steps
    )


def assign_storage_conversions(steps: Sequence[KernelLine], conversions: frozenset[OpId]) -> tuple[KernelLine, ...]:
    """Assign conversions between the stored and the computed form of elements to the ops that need them.

    For example, the compiler stores i1 as bytes and converts in the kernel, with the location of the kernel's root. A
    conversion of an argument belongs to its users, a conversion that is only stored to the op that made the value.

    Args:
        steps: the lines of kernel IR, in order.
        conversions: the model's own converting ops, which keep their lines.
    """
    step_at = {step.line: step for step in steps}
    users_of: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        for line in step.takes:
            users_of[line].append(step.line)
    storage_conversions = [step for step in steps if is_conversion(step.op_name) and conversions.isdisjoint(step.ops)]
    for step in reversed(storage_conversions):
        user_lines = [line for line in users_of[step.line] if step_at[line].op_name != "linalg.yield"]
        if user_lines and not step.takes:
            step_at[step.line] = structs.replace(step, ops=_ops_at(step_at, user_lines))
    for step in storage_conversions:
        if all(step_at[line].op_name == "linalg.yield" for line in users_of[step.line]) and step.takes:
            step_at[step.line] = structs.replace(step, ops=_ops_at(step_at, step.takes))
    return tuple(step_at[step.line] for step in steps)


def _ops_at(step_at: Mapping[int, KernelLine], lines: Iterable[int]) -> tuple[OpId, ...]:
    return sort_ops({op for line in lines if line in step_at for op in step_at[line].ops})


def _assign_unlocated(
    steps: tuple[KernelLine, ...], unlocated: UnlocatedSteps, sites: Sequence[int]
) -> tuple[KernelLine, ...]:
    """Assign the lines of kernel IR that locations do not assign, from the kernel's sites."""
    works = [unlocated.raised[site] for site in sites]
    if any(works):
        steps = _assign_raised(steps, works)
    rotations = [rotation for site in sites if (rotation := unlocated.rotations[site]) is not None]
    if rotations:
        steps = assign_rotation_steps(steps, rotations)
    misplaced = [unlocated.misplaced[site] for site in sites]
    if any(misplaced):
        steps = assign_product_steps(steps, misplaced)
    groups = [group for site in sites if (group := unlocated.horizontal_groups[site])]
    return assign_horizontal_steps(steps, groups) if groups else steps


def _assign_raised(steps: Sequence[KernelLine], works: Sequence[Works]) -> tuple[KernelLine, ...]:
    """Assign the steps of a raised op, which the compiler lowered to all the work that it was raised from.

    All of them have the location of the idiom's last op. A step belongs to the model's op that does the same work, and
    a step with a region to the ops inside.
    """
    last_ops = {last for works_at_site in works for last in works_at_site}
    ops_of_line = {step.line: _working_ops(step, works) for step in steps}
    ops_in_region: dict[int, dict[OpId, None]] = {}
    for step in steps:
        if step.parent is not UNKNOWN and arithmetic_kind(step.op_name):
            ops_in_region.setdefault(step.parent, {}).update(dict.fromkeys(ops_of_line[step.line]))
    return tuple(
        structs.replace(
            step,
            ops=sort_ops(ops_in_region.get(step.line, ops_of_line[step.line])) if last_ops & {*step.ops} else step.ops,
        )
        for step in steps
    )


def _working_ops(step: KernelLine, works: Sequence[Works]) -> list[OpId]:
    """The ops of a step; the last op of an idiom is replaced by the op that does the step's work."""
    work = arithmetic_kind(step.op_name)
    ops: list[OpId] = []
    for op in step.ops:
        ops += [works_at_site[op].get(work, op) for works_at_site in works if op in works_at_site] or [op]
    return ops


def _ops_of(step: LocatedStep, owners: Owners) -> tuple[OpId, ...]:
    """The ops of a step at the site whose locations the kernel kept."""
    if step.op_name in _NO_EVIDENCE:
        return ()
    return tuple(dict.fromkeys(op for location in step.locations for op in owners.of(location)))


def _located_site(
    ops: set[OpId], sites: Sequence[Site], body_of: Mapping[str, Sequence[BodyOp]], owners: Owners
) -> str:
    """The site whose locations the kernel kept: the first with the most of its ops; "" if there is none."""

    def shared_ops(site: Site) -> int:
        return len(ops & {op for body_op in body_of.get(site.id, ()) for op in owners.of(body_op.location)})

    return max(sites, key=shared_ops).id if sites else ""


def _translation(located: Sequence[BodyOp], other: Sequence[BodyOp], owners: Owners) -> Translation:
    """The ops of one body -> those at the same position in another; empty if the bodies differ."""
    if [op.name for op in located] != [op.name for op in other]:
        return {}
    translation: dict[OpId, dict[OpId, None]] = {}
    for located_op, other_op in zip(located, other, strict=True):
        located_ops, other_ops = owners.of(located_op.location), owners.of(other_op.location)
        for index, op in enumerate(located_ops):
            # If both have as many, they were merged in the same order; otherwise each may be any of them.
            matches = other_ops[index : index + 1] if len(located_ops) == len(other_ops) else other_ops
            translation.setdefault(op, {}).update(dict.fromkeys(matches))
    return {op: tuple(matches) for op, matches in translation.items()}


def _at_all_sites(ops: Sequence[OpId], translations: Sequence[Translation]) -> tuple[OpId, ...]:
    """The ops and the corresponding ops at all sites of the kernel, in model order."""
    return sort_ops([*ops, *(other for translation in translations for op in ops for other in translation.get(op, ()))])


def sites_without_steps(kernels: Sequence[Kernel], sites: Sequence[Site]) -> int:
    """The number of sites with several ops, none of them in any step (a single op has all steps of its site)."""
    of_kernel = {
        kernel.name: {op for step in kernel.steps for op in step.ops}
        for kernel in kernels
        if kernel.text is not UNKNOWN
    }
    shared = (site for site in sites if len(site.members) > 1 and site.kernel in of_kernel)
    return sum(1 for site in shared if not of_kernel[site.kernel] & {member.op for member in site.members})
