"""Tuning specs: what tells a plain `iree-compile` to configure an operation as was found to be best.

A spec is a library in the transform dialect. It matches an operation with the very types of its operands, and sets its
configuration before the compiler chooses one (`--iree-codegen-tuning-spec-path`; IREE: docs, reference, tuning).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracemap.ir.parsing import Operation, walk


@dataclass(frozen=True, slots=True)
class Tuned:
    """A configured operation of a kernel, and the configuration that it is to have, as MLIR prints it."""

    operation: Operation
    lowering_config: str
    translation_info: str


def root_of(function: Operation) -> Operation | None:
    """The operation of a configured kernel that decides how the others are tiled; None where none does."""
    found = [each for each in walk(function) if "distribution" in str(each.attributes.get("lowering_config", ""))]
    return found[-1] if found else None


def spec_text(tuned: Sequence[Tuned]) -> str:
    """The text of a spec that configures these operations, wherever they stand."""
    matchers = [_matcher(number, each) for number, each in enumerate(tuned)]
    pairs = ", ".join(f"@match_{number} -> @apply" for number in range(len(tuned)))
    return "\n".join(
        [
            "module attributes {transform.with_named_sequence, iree_codegen.tuning_spec_with_default_entrypoint} {",
            "  transform.named_sequence @apply(%op: !transform.any_op {transform.readonly}, "
            "%config: !transform.any_param {transform.readonly}) {",
            '    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param',
            "    transform.yield",
            "  }",
            *matchers,
            "  transform.named_sequence @__kernel_config(%variant: !transform.any_op {transform.consumed}) "
            "-> !transform.any_op attributes {iree_codegen.tuning_spec_entrypoint} {",
            f"    %result = transform.foreach_match in %variant {pairs} : (!transform.any_op) -> !transform.any_op",
            "    transform.yield %result : !transform.any_op",
            "  }",
            "}",
            "",
        ]
    )


def _matcher(number: int, tuned: Tuned) -> str:
    operation = tuned.operation
    operands = [f"%a{at}" for at in range(len(operation.operands))]
    arguments = ", ".join(f"{name}: {value.type}" for name, value in zip(operands, operation.operands, strict=True))
    return "\n".join(
        [
            f"  transform.named_sequence @match_{number}(%op: !transform.any_op {{transform.readonly}}) "
            "-> (!transform.any_op, !transform.any_param) {",
            "    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %op {",
            f"    ^bb0({arguments}):",
            _body(operation, operands),
            "    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)",
            "    %config = transform.param.constant #iree_codegen.compilation_info<"
            f"lowering_config = {tuned.lowering_config}, "
            f"translation_info = {tuned.translation_info}> -> !transform.any_param",
            "    transform.yield %op, %config : !transform.any_op, !transform.any_param",
            "  }",
        ]
    )


_OPERANDS = re.compile(r'("[\w.]+")\(([^)]*)\)')


def _body(operation: Operation, operands: Sequence[str]) -> str:
    """The operation as it stands before it is configured, in generic form, with other names for its operands."""
    configuration = operation.attributes["lowering_config"]
    del operation.attributes["lowering_config"]
    text: str = operation.get_asm(print_generic_op_form=True, use_local_scope=True)
    operation.attributes["lowering_config"] = configuration
    return _OPERANDS.sub(lambda found: f"{found[1]}({', '.join(operands)})", text, count=1)


def stands_alone(operation: Operation) -> bool:
    """Whether the body of an operation takes nothing from outside but its operands: only then a spec can match it."""
    inside = set(walk(operation))
    taken = [value for inner in inside if inner != operation.operation for value in inner.operands]
    owners = [getattr(value.owner, "operation", value.owner) for value in taken]
    return all(not hasattr(owner, "name") or owner in inside for owner in owners)
