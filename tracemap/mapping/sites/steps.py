"""Which ops the steps of kernels came from, at each of their sites.

The compiler makes one kernel of equal ones, and keeps the locations of one site only. Before that, in the
dispatch-creation phase, every site has a body of its own; equal kernels have equal bodies, so what stands in the same
place of two bodies is the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from tracemap.graph.model import Kernel, OpId, Site, Step, in_order
from tracemap.ir.attributes import is_conversion
from tracemap.ir.bodies import BodyOp
from tracemap.ir.executables import KernelText, LocatedStep
from tracemap.ir.flow import DispatchRegion
from tracemap.mapping.model.idioms import Rotation
from tracemap.mapping.model.kinds import work_of
from tracemap.mapping.sites.cost import Misplaced, with_products
from tracemap.mapping.sites.horizontal_fusion import Group, with_beside
from tracemap.mapping.sites.members import with_rotations
from tracemap.mapping.sites.owners import Owners
from tracemap.mapping.sites.raised import Works
from tracemap.mapping.sites.relabelled import StandIns, without_stand_ins
from tracemap.units import UNKNOWN

_NO_EVIDENCE = frozenset(
    """
    arith.constant func.func func.return
    hal.interface.binding.subspan hal.interface.constant.load hal.interface.workgroup.count hal.interface.workgroup.id
    tensor.dim tensor.empty
    """.split()
)
"""Steps whose locations say nothing: constants that sites share, bindings, shapes, and the kernel itself."""

Translation = Mapping[OpId, tuple[OpId, ...]]
"""What ops of the site whose locations a kernel kept are at another site of it."""


@dataclass(frozen=True, slots=True)
class UntoldSteps:
    """What no location tells of the sites of a module, for each of these, in order.

    `raised`: which op does which work of what was raised; `rotations`: the rotation by halves, if there is one;
    `beside`: the ops that are computed side by side; `stand_ins`: those whose locations stand in for others;
    `misplaced`: multiplications that are located elsewhere than their products. `conversions`: the model's own ops that
    only change the type of elements, of all sites.
    """

    raised: Sequence[Works]
    rotations: Sequence[Rotation | None]
    beside: Sequence[Group]
    stand_ins: Sequence[StandIns]
    misplaced: Sequence[Misplaced]
    conversions: frozenset[OpId]


def add_steps(
    kernels: Sequence[Kernel],
    texts: Sequence[KernelText],
    sites: Sequence[Site],
    bodies: Sequence[DispatchRegion | None],
    untold: UntoldSteps,
    owners: Owners,
) -> tuple[Kernel, ...]:
    """The kernels with their steps, as far as they have texts.

    Args:
        kernels: all of a module.
        texts: of its kernels, with the locations that operations had.
        sites: all of the module, in order.
        bodies: the body of each site in the dispatch-creation phase; None where it is not known.
        untold: of the sites.
        owners: of what stands in kernels and bodies.
    """
    text_of = {text.kernel: text for text in texts}
    # A site's body is None only where pairing failed; its steps then are those that the kernel itself names.
    body_of = {site.id: body.body for site, body in zip(sites, bodies, strict=True) if body is not None}
    site_by_id = {site.id: site for site in sites}
    ordinals = {site.id: ordinal for ordinal, site in enumerate(sites)}

    def with_steps(kernel: Kernel) -> Kernel:
        text = text_of.get(kernel.name)
        if text is None:
            return kernel
        called = [site_by_id[site] for site in kernel.sites]
        steps = _steps(text, called, body_of, owners)
        stand_ins = [untold.stand_ins[ordinals[site.id]] for site in called]
        if any(stand_ins):
            steps = without_stand_ins(steps, stand_ins, {member.op for site in called for member in site.members})
        steps = _with_untold(steps, untold, [ordinals[site] for site in kernel.sites])
        steps = with_storage(steps, untold.conversions)
        return structs.replace(kernel, steps=steps, text=text.file)

    return tuple(with_steps(kernel) for kernel in kernels)


def _steps(
    text: KernelText, sites: Sequence[Site], body_of: Mapping[str, Sequence[BodyOp]], owners: Owners
) -> tuple[Step, ...]:
    own_ops = [_ops_of(step, owners) for step in text.steps]
    shown = _shown_site({op for ops in own_ops for op in ops}, sites, body_of, owners)
    translations = [_translation(body_of.get(shown, ()), body_of.get(site.id, ()), owners) for site in sites]
    return tuple(
        Step(step.line, step.op_name, _everywhere(ops, translations), step.parent, step.takes)
        for step, ops in zip(text.steps, own_ops, strict=True)
    )


def with_storage(steps: Sequence[Step], conversions: frozenset[OpId]) -> tuple[Step, ...]:
    """Steps in which a conversion between how elements are stored and how they are computed with is of who needs it.

    The compiler stores i1 as bytes, say, and converts in the kernel, at the location of the kernel's root. What comes
    from an argument is of the ops that take it, what is only stored of those that made it.

    Args:
        steps: of a kernel, by line.
        conversions: the ops of the model that convert, whose steps stay theirs.
    """
    step_at = {step.line: step for step in steps}
    takers: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        for line in step.takes:
            takers[line].append(step.line)
    added = [step for step in steps if is_conversion(step.op_name) and conversions.isdisjoint(step.ops)]
    for step in reversed(added):
        users = [line for line in takers[step.line] if step_at[line].op_name != "linalg.yield"]
        if users and not step.takes:
            step_at[step.line] = structs.replace(step, ops=_ops_at(step_at, users))
    for step in added:
        if all(step_at[line].op_name == "linalg.yield" for line in takers[step.line]) and step.takes:
            step_at[step.line] = structs.replace(step, ops=_ops_at(step_at, step.takes))
    return tuple(step_at[step.line] for step in steps)


def _ops_at(step_at: Mapping[int, Step], lines: Iterable[int]) -> tuple[OpId, ...]:
    return in_order({op for line in lines if line in step_at for op in step_at[line].ops})


def _with_untold(steps: tuple[Step, ...], untold: UntoldSteps, sites: Sequence[int]) -> tuple[Step, ...]:
    """The steps of a kernel of these sites, also of what no location tells."""
    works = [untold.raised[site] for site in sites]
    if any(works):
        steps = _lowered_again(steps, works)
    turned = [found for site in sites if (found := untold.rotations[site]) is not None]
    if turned:
        steps = with_rotations(steps, turned)
    misplaced = [untold.misplaced[site] for site in sites]
    if any(misplaced):
        steps = with_products(steps, misplaced)
    groups = [group for site in sites if (group := untold.beside[site])]
    return with_beside(steps, groups) if groups else steps


def _lowered_again(steps: Sequence[Step], works: Sequence[Works]) -> tuple[Step, ...]:
    """The steps of a kernel that has a raised op, which is lowered to all the work that it was raised from.

    All of it is located at the last op of the idiom: a step is of the op that does its work in the model, and one with
    a region of those that do what stands in it.
    """
    lasts = {last for at_site in works for last in at_site}
    found = {step.line: _working(step, works) for step in steps}
    inside: dict[int, dict[OpId, None]] = {}
    for step in steps:
        if step.parent is not UNKNOWN and work_of(step.op_name):
            inside.setdefault(step.parent, {}).update(dict.fromkeys(found[step.line]))
    return tuple(
        structs.replace(
            step, ops=in_order(inside.get(step.line, found[step.line])) if lasts & {*step.ops} else step.ops
        )
        for step in steps
    )


def _working(step: Step, works: Sequence[Works]) -> list[OpId]:
    """The ops of a step; in place of the last op of an idiom stands that which does the step's work."""
    work = work_of(step.op_name)
    found: list[OpId] = []
    for op in step.ops:
        found += [at_site[op].get(work, op) for at_site in works if op in at_site] or [op]
    return found


def _ops_of(step: LocatedStep, owners: Owners) -> tuple[OpId, ...]:
    """What a step came from at the site whose locations the kernel kept."""
    if step.op_name in _NO_EVIDENCE:
        return ()
    return tuple(dict.fromkeys(op for location in step.locations for op in owners.of(location)))


def _shown_site(ops: set[OpId], sites: Sequence[Site], body_of: Mapping[str, Sequence[BodyOp]], owners: Owners) -> str:
    """The site whose locations the kernel kept: the first with the most of its ops; "" where there is none."""

    def found(site: Site) -> int:
        return len(ops & {op for each in body_of.get(site.id, ()) for op in owners.of(each.location)})

    return max(sites, key=found).id if sites else ""


def _translation(shown: Sequence[BodyOp], other: Sequence[BodyOp], owners: Owners) -> Translation:
    """What ops of one body are in another; none where the two are not alike."""
    if [op.name for op in shown] != [op.name for op in other]:
        return {}
    found: dict[OpId, dict[OpId, None]] = {}
    for one, two in zip(shown, other, strict=True):
        ours, theirs = owners.of(one.location), owners.of(two.location)
        for number, op in enumerate(ours):
            # As many here as there: they were merged in the same order. Else any may be any.
            same = theirs[number : number + 1] if len(ours) == len(theirs) else theirs
            found.setdefault(op, {}).update(dict.fromkeys(same))
    return {op: tuple(others) for op, others in found.items()}


def _everywhere(ops: Sequence[OpId], translations: Sequence[Translation]) -> tuple[OpId, ...]:
    """The ops themselves and what they are at the kernel's sites, each once, in the order of the model."""
    return in_order([*ops, *(other for translation in translations for op in ops for other in translation.get(op, ()))])


def sites_without_steps(kernels: Sequence[Kernel], sites: Sequence[Site]) -> int:
    """How many sites have several members, but none of them in any step of their kernel; a sole one has all of it."""
    of_kernel = {
        kernel.name: {op for step in kernel.steps for op in step.ops}
        for kernel in kernels
        if kernel.text is not UNKNOWN
    }
    shared = (site for site in sites if len(site.members) > 1 and site.kernel in of_kernel)
    return sum(1 for site in shared if not of_kernel[site.kernel] & {member.op for member in site.members})
