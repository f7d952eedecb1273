"""The scope of each op: from its name path, in the user's words, else from the names of the parameters that it uses.

Importers of torch and ONNX programs drop the module path, but name the parameters after it: an op that multiplies with
`encoder.layer.0.attention.query.weight` stands in `encoder/layer/0/attention/query`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.mapping.model.jax_names import JaxNames
from tracemap.mapping.model.kinds import loads_global

_PREFIXES = ("__auto.", "_params.")
_HANDS_ON = frozenset(
    """
    torch.aten.permute torch.aten.t torch.aten.transpose.int torch.prims.convert_element_type
    torch_c.from_builtin_tensor util.global.load
    """.split()
)
"""What may stand between a parameter and the op that uses it."""

_MAX_STEPS = 6


def scopes_of(model: SourceModel) -> Mapping[int, tuple[str, ...]]:
    """The scope of every op, by index; empty where nothing tells."""
    names = JaxNames(model.operations)
    return {
        operation.index: names.scope(operation.location, operation.function)
        or _parameter_scope(model.operations, operation)
        for operation in model.operations
        if operation.is_op
    }


def _parameter_scope(operations: Sequence[SourceOperation], operation: SourceOperation) -> tuple[str, ...]:
    """What the module paths of an op's parameters have in common."""
    if operation.name in _HANDS_ON:
        return ()
    paths = [
        path
        for operand in operation.operands
        if not operand.argument and (path := _module_path(operations, operations[operand.maker]))
    ]
    if not paths:
        return ()
    common = paths[0]
    for path in paths[1:]:
        length = next((i for i, (a, b) in enumerate(zip(common, path, strict=False)) if a != b), len(path))
        common = common[: min(length, len(common))]
    return common


def _module_path(operations: Sequence[SourceOperation], maker: SourceOperation) -> tuple[str, ...]:
    """The module path in the name of the parameter that an op hands on; empty if it hands on none."""
    for _ in range(_MAX_STEPS):
        if loads_global(maker):
            return _components(maker.symbol)
        if maker.name not in _HANDS_ON or not maker.operands or maker.operands[0].argument:
            return ()
        maker = operations[maker.operands[0].maker]
    return ()


def _components(name: str) -> tuple[str, ...]:
    """`__auto.m.layer.0.weight` is `("m", "layer", "0")`: without prefix and the parameter's own name."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return tuple(component for component in name.split(".")[:-1] if component)
