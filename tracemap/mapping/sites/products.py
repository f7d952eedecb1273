"""Multiplications of products that carry the location of an operand, as the compiler's lowering gives it to them.

A `stablehlo.dot_general` of a row with a matrix for each of a batch, as one step of decoding has it, becomes an
operation that multiplies and adds up in its region. There the addition is located at the product, and the
multiplication at whatever makes the first operand, which has a kernel of its own. What a product adds up it multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec import structs

from tracemap.graph.ops import OpId, in_order
from tracemap.graph.program import Step
from tracemap.ir.bodies import BodyOp
from tracemap.ir.flow import DispatchRegion
from tracemap.ir.scalars import is_conversion
from tracemap.mapping.model.facts import ModelFacts
from tracemap.mapping.model.words import word_of
from tracemap.mapping.sites.owners import Owners
from tracemap.units import UNKNOWN

_ADDS = frozenset({"arith.addf", "arith.addi"})
MULTIPLIES = frozenset({"arith.mulf", "arith.muli"})
_SUMS_OF_PRODUCTS = frozenset({"product", "convolve"})

Misplaced = Mapping[OpId, OpId]
"""Ops at which multiplications of a site are located, and the products that they belong to."""


def with_own_products(region: DispatchRegion, owners: Owners, facts: ModelFacts) -> tuple[DispatchRegion, Misplaced]:
    """A site's body in which each multiplication of a product has the product's location, and where they had been."""
    pairs = list(_misplaced(region.body, owners, facts))
    if not pairs:
        return region, {}
    places = {multiply.index: add.location for multiply, add in pairs}
    body = (replace(op, location=places.get(op.index, op.location)) for op in region.body)
    found = {op: owners.of(add.location)[0] for multiply, add in pairs for op in owners.of(multiply.location)}
    return replace(region, body=tuple(body)), found


def with_products(steps: Sequence[Step], misplaced: Sequence[Misplaced]) -> tuple[Step, ...]:
    """The steps of a kernel, of which multiplications inside of products are of these. `misplaced`: at its sites."""
    others = {op for at_site in misplaced for op in at_site}
    products = {op for at_site in misplaced for op in at_site.values()}
    around = {step.line: products & {*step.ops} for step in steps}

    def placed(step: Step) -> Step:
        inside = set() if step.parent is UNKNOWN else around.get(step.parent, set())
        if step.op_name not in MULTIPLIES or not inside or not others & {*step.ops}:
            return step
        return structs.replace(step, ops=in_order(({*step.ops} - others) | inside))

    return tuple(map(placed, steps))


def _misplaced(body: Sequence[BodyOp], owners: Owners, facts: ModelFacts) -> Iterator[tuple[BodyOp, BodyOp]]:
    """The multiplications that are located elsewhere, each with the addition of the product that it is for."""
    for op in body:
        if op.name not in _ADDS or op.parent < 0 or not _adds_up(op, body[op.parent]):
            continue
        own = owners.of(op.location)
        if len(own) != 1 or not _is_product(own[0], facts):
            continue
        for operand in op.operands:
            multiply = _behind_conversions(operand.producer, body)
            if multiply is not None and multiply.name in MULTIPLIES and owners.of(multiply.location) not in ((), own):
                yield multiply, op


def _adds_up(op: BodyOp, around: BodyOp) -> bool:
    """Whether an addition adds to what its region hands from one turn to the next: arguments behind all inputs."""
    first = len(around.operands) - len(around.results)
    return any(operand.argument >= first for operand in op.operands)


def _is_product(op: OpId, facts: ModelFacts) -> bool:
    word = word_of(facts.operations[op.number], facts.parts_of.get(op.number, ()))
    return word in _SUMS_OF_PRODUCTS


def _behind_conversions(producer: int, body: Sequence[BodyOp]) -> BodyOp | None:
    while producer >= 0 and is_conversion(body[producer].name):
        producer = body[producer].operands[0].producer
    return body[producer] if producer >= 0 else None
