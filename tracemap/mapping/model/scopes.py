"""Scopes of ops, from their name paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set

from tracemap.ir.source import SourceModel, SourceOperation
from tracemap.locations import Location, name_path, scope, split_path
from tracemap.mapping.model.kinds import loads_global
from tracemap.units import Text

# ---- jax names
#
# JAX's transformations in scopes, named as the user writes them: `scan`, `remat`, `vmap`.
#
# JAX uses names of its implementation: the loop of a `scan` is `while/body/closed_call`. Names of derivatives stay:
# `jvp(loss)` is the forward pass, `transpose(jvp(loss))` the backward one, and reports add both to `loss`.


Scans = Set[tuple[Text, tuple[str, ...]]]
"""Functions with the scopes that contain a `scan`."""

_BACKWARD = re.compile(r"transpose\((jvp\(.*\))\)", re.DOTALL)


class JaxNames:
    """The transformations in a model, and scopes with their user-facing names."""

    def __init__(self, operations: Iterable[SourceOperation]) -> None:
        scans = set()
        for operation in operations:
            components = split_path(name_path(operation.location))
            if components[-1:] == ("scan",):  # a scan has an op of its own name next to its loop
                scans.add((operation.function, scope(operation.location)))
        self._scans: Scans = scans
        self._cache: dict[tuple[tuple[str, ...], Text], tuple[str, ...]] = {}

    def scope(self, location: Location, function: Text) -> tuple[str, ...]:
        """The scope of an op of a function, in names that the user knows."""
        jax_scope = scope(location)
        cached = self._cache.get((jax_scope, function))
        if cached is None:
            cached = self._cache[jax_scope, function] = self._user_names(jax_scope, function)
        return cached

    def _user_names(self, jax_scope: tuple[str, ...], function: Text) -> tuple[str, ...]:
        scope_names: list[str] = []
        position = 0
        while position < len(jax_scope):
            names, steps = self._next(jax_scope, position, function)
            scope_names += names
            position += steps
        return tuple(scope_names)

    def _next(self, jax_scope: tuple[str, ...], position: int, function: Text) -> tuple[list[str], int]:
        """The user's name for the next components, and how many components it covers."""
        before, name, following = jax_scope[:position], jax_scope[position], jax_scope[position + 1 : position + 2]
        if backward := _BACKWARD.fullmatch(name):
            # The path of the forward pass may be repeated after it.
            forward = (*before, backward[1])
            repeated = jax_scope[position + 1 : position + 1 + len(forward)] == forward
            return [name], 1 + (len(forward) if repeated else 0)
        if name == "while" and following in {("body",), ("cond",)} and (function, before) in self._scans:
            called = jax_scope[position + 2 : position + 3] == ("closed_call",)
            return ["scan", *(following if following == ("cond",) else ())], 3 if called else 2
        if (name, following) == ("checkpoint", ("rematted_computation",)):
            return ["remat"], 2
        return ["vmap" if name == "vmap()" else name], 1


# ---- scopes
#
# The scope of each op: from its name path, in the user's names, else from the names of its parameters.
#
# Importers of torch and ONNX programs drop the module path, but name the parameters after it: an op that multiplies by
# `encoder.layer.0.attention.query.weight` gets the scope `encoder/layer/0/attention/query`.


_PREFIXES = ("__auto.", "_params.")
_PASS_THROUGH = frozenset(
    """
    torch.aten.permute torch.aten.t torch.aten.transpose.int torch.prims.convert_element_type
    torch_c.from_builtin_tensor util.global.load
    """.split()
)
"""Ops that may come between a parameter and its user."""

_MAX_STEPS = 6


def scopes_of(model: SourceModel) -> Mapping[int, tuple[str, ...]]:
    """The scope of every op, by index; empty if unknown."""
    names = JaxNames(model.operations)
    return {
        operation.index: names.scope(operation.location, operation.function)
        or _parameter_scope(model.operations, operation)
        for operation in model.operations
        if operation.is_op
    }


def _parameter_scope(operations: Sequence[SourceOperation], operation: SourceOperation) -> tuple[str, ...]:
    """The common prefix of the module paths of an op's parameters."""
    if operation.name in _PASS_THROUGH:
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
    """The module path in the name of the parameter that an op passes on; empty if it passes on none."""
    for _ in range(_MAX_STEPS):
        if loads_global(maker):
            return _components(maker.symbol)
        if maker.name not in _PASS_THROUGH or not maker.operands or maker.operands[0].argument:
            return ()
        maker = operations[maker.operands[0].maker]
    return ()


def _components(name: str) -> tuple[str, ...]:
    """`__auto.m.layer.0.weight` gives `("m", "layer", "0")`: without prefix and the parameter's own name."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return tuple(component for component in name.split(".")[:-1] if component)
