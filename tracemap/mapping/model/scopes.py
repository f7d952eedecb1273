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
# Names of JAX's transformations in scopes, as the user writes them: `scan`, `remat`, `vmap`.
#
# JAX names what it made of a transformation: the loop of a `scan` is `while/body/closed_call`. Names of derivatives
# stay: `jvp(loss)` is the forward pass, `transpose(jvp(loss))` the backward one, and reports add both up in `loss`.


Scans = Set[tuple[Text, tuple[str, ...]]]
"""Functions with the scopes in which a `scan` stands."""

_BACKWARD = re.compile(r"transpose\((jvp\(.*\))\)", re.DOTALL)


class JaxNames:
    """What a model says of its transformations, and scopes by it."""

    def __init__(self, operations: Iterable[SourceOperation]) -> None:
        scans = set()
        for operation in operations:
            components = split_path(name_path(operation.location))
            if components[-1:] == ("scan",):  # beside its loop stands an op of its own name
                scans.add((operation.function, scope(operation.location)))
        self._scans: Scans = scans
        self._written: dict[tuple[tuple[str, ...], Text], tuple[str, ...]] = {}

    def scope(self, location: Location, function: Text) -> tuple[str, ...]:
        """The scope of an op of a function, with the names that the user knows."""
        given = scope(location)
        known = self._written.get((given, function))
        if known is None:
            known = self._written[given, function] = self._as_written(given, function)
        return known

    def _as_written(self, given: tuple[str, ...], function: Text) -> tuple[str, ...]:
        written: list[str] = []
        place = 0
        while place < len(given):
            names, steps = self._next(given, place, function)
            written += names
            place += steps
        return tuple(written)

    def _next(self, given: tuple[str, ...], place: int, function: Text) -> tuple[list[str], int]:
        """What the next components are called, and how many they are."""
        before, name, following = given[:place], given[place], given[place + 1 : place + 2]
        if backward := _BACKWARD.fullmatch(name):
            # The way to the forward pass may be repeated behind it.
            forward = (*before, backward[1])
            repeated = given[place + 1 : place + 1 + len(forward)] == forward
            return [name], 1 + (len(forward) if repeated else 0)
        if name == "while" and following in {("body",), ("cond",)} and (function, before) in self._scans:
            called = given[place + 2 : place + 3] == ("closed_call",)
            return ["scan", *(following if following == ("cond",) else ())], 3 if called else 2
        if (name, following) == ("checkpoint", ("rematted_computation",)):
            return ["remat"], 2
        return ["vmap" if name == "vmap()" else name], 1


# ---- scopes
#
# The scope of each op: from its name path, in the user's words, else from the names of the parameters that it uses.
#
# Importers of torch and ONNX programs drop the module path, but name the parameters after it: an op that multiplies
# with `encoder.layer.0.attention.query.weight` stands in `encoder/layer/0/attention/query`.


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
