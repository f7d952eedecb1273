"""Import of JAX functions: `jax.jit(f)` with its arguments, its traced or lowered forms, and exported functions.

The model is StableHLO with JAX's locations (Python frames, name scopes). Its inputs are the leaves of the function's
arguments in JAX's order, without static arguments and those that JAX drops as unused. Their values are kept, including
donated ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tracemap.core.errors import InputInvalid, ModelInvalid
from tracemap.frontends.imported import OWN_FOLDER, ImportedModel, as_identifier, loaded_text
from tracemap.ir.executables import rewrite_as_own_bytecode
from tracemap.map.bundle_documents import CallToKeep

if TYPE_CHECKING:
    import numpy as np

Inputs = tuple[tuple[str, "np.ndarray[Any, Any]"], ...]
"""Names and values of the inputs."""

_PLATFORM: Final = "cpu"
"""JAX's target platform. For others, JAX may emit calls of vendor libraries."""
_MAIN: Final = "main"
_FUNCTION: Final = "func.func"
_SHARDINGS: Final = "sdy."
"""Prefix of operations and attributes that distribute data over devices."""
_CONSTRAINT: Final = "sdy.sharding_constraint"
_MESH: Final = "sdy.mesh"


def import_program(program: Any, arguments: Sequence[object], keywords: Mapping[str, object]) -> ImportedModel:  # noqa: ANN401 - one of several classes of JAX
    """Import a JAX function.

    Args:
        program: `jax.jit(f)`, the result of its `trace` or `lower`, or a `jax.export.Exported`.
        arguments: positional arguments, including static ones. For a lowered function they may be omitted, and then no
            inputs are kept.
        keywords: keyword arguments.

    Raises:
        InputInvalid: arguments are missing or have another structure, or an array was donated to an earlier call.
        ModelInvalid: the module has inputs other than the arguments, is written for several devices, or IREE cannot
            parse it.
        Exception: any error of JAX or of the function itself during tracing.
    """
    from jax._src import source_info_util

    # Without tracemap's own functions in JAX's stack frames, whose number is limited.
    source_info_util.register_exclusion(str(OWN_FOLDER))
    if hasattr(program, "mlir_module"):
        return _exported(program, arguments, keywords)
    signature = _Signature(program)
    traced = program.trace(*arguments, **keywords) if hasattr(program, "trace") else program
    lowered = traced.lower(lowering_platforms=(_PLATFORM,)) if hasattr(traced, "lower") else traced
    module = _Module(lowered.compiler_ir("stablehlo"))
    infos = lowered.args_info
    inputs = _inputs(signature, lowered.in_tree, infos, arguments, keywords)
    lowering = lowered._lowering
    used = _used_inputs(inputs, lowering.compile_args.get("kept_var_idx"), lowering.const_args)
    return module.imported(used)


def _exported(exported: Any, arguments: Sequence[object], keywords: Mapping[str, object]) -> ImportedModel:  # noqa: ANN401 - JAX's
    import jax
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir.dialects import stablehlo

    infos = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    inputs = _inputs(_Signature(None), exported.in_tree, infos, arguments, keywords)
    used = _used_inputs(inputs, exported.module_kept_var_idx, ())
    if used and len(exported.platforms) > 1:
        used = (("platform index", _platform_index(exported.platforms)), *used)
    with make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
    return _Module(module).imported(used)


def _platform_index(platforms: Sequence[str]) -> np.ndarray[Any, Any]:
    """First input of a function exported for several platforms: the index of the platform it runs on."""
    import numpy as np

    return np.asarray(platforms.index(_PLATFORM) if _PLATFORM in platforms else 0, dtype=np.int32)


class _Module:
    """A copy of JAX's module, without the parts that IREE does not support."""

    def __init__(self, original: Any) -> None:  # noqa: ANN401 - JAX's
        from jax.interpreters import mlir as _  # noqa: F401 - JAX registers its dialects
        from jaxlib.mlir import ir

        self._ir = ir
        self._module = original.operation.clone()
        self._remove_shardings()
        self._functions = [op for op in self._module.regions[0].blocks[0].operations if "sym_name" in op.attributes]
        self._main = next(op for op in self._functions if op.attributes["sym_name"].value == _MAIN)
        self.name = as_identifier(str(self._module.attributes["sym_name"].value).removeprefix("jit_"))
        self.function = self._rename_main()
        self._make_others_private()

    def _rename_main(self) -> str:
        """Give the function its name in the user's program, unless that is taken in the module; returns the name."""
        if self.name in {op.attributes["sym_name"].value for op in self._functions}:
            return _MAIN
        with self._module.context:
            self._main.attributes["sym_name"] = self._ir.StringAttr.get(self.name)
        return self.name

    def _make_others_private(self) -> None:
        """Leave a single entry point; JAX also marks internal functions, such as comparators, as public."""
        with self._module.context:
            for op in self._functions:
                if op.operation.name == _FUNCTION and op != self._main:
                    op.attributes["sym_visibility"] = self._ir.StringAttr.get("private")

    def _remove_shardings(self) -> None:
        """Remove the distribution over devices, which IREE does not support; there is only one device.

        Raises:
            ModelInvalid: the program is written for several devices.
        """
        for op in _walk(self._module):
            if op.name == _CONSTRAINT:
                op.results[0].replace_all_uses_with(op.operands[0])
            if op.name in {_CONSTRAINT, _MESH}:
                op.erase()
            elif op.name.startswith(_SHARDINGS):
                raise ModelInvalid(
                    "the program is written for several devices (as by jax.shard_map), but IREE compiles for one; "
                    "use a mesh of one device"
                )
            else:
                self._remove_attributes(op)

    def _remove_attributes(self, op: Any) -> None:  # noqa: ANN401 - MLIR's
        """Remove attributes of the dialect from an operation, and from a function's arguments and results."""
        for name in [name for name in op.attributes if name.startswith(_SHARDINGS)]:
            del op.attributes[name]
        for name in _VALUE_ATTRIBUTES:
            if name in op.attributes and _SHARDINGS in str(op.attributes[name]):
                with self._module.context:
                    filtered = [self._without_shardings(dictionary) for dictionary in op.attributes[name]]
                    op.attributes[name] = self._ir.ArrayAttr.get(filtered)

    def _without_shardings(self, attributes: Any) -> Any:  # noqa: ANN401 - MLIR's
        names = (attributes[index].name for index in range(len(attributes)))
        return self._ir.DictAttr.get({name: attributes[name] for name in names if not name.startswith(_SHARDINGS)})

    def imported(self, inputs: Inputs) -> ImportedModel:
        """The model with its inputs.

        Raises:
            ModelInvalid: IREE cannot parse the module, or the inputs do not match its arguments.
        """
        count = len(self._main.regions[0].blocks[0].arguments)
        if inputs and len(inputs) != count:
            raise ModelInvalid(
                f"{self.name}: its module has {count} inputs, but its arguments provide {len(inputs)}; effects and "
                "dynamic sizes add inputs that tracemap cannot provide"
            )
        text = self._module.get_asm(print_generic_op_form=True, enable_debug_info=True)
        return ImportedModel(self.name, rewrite_as_own_bytecode(text), CallToKeep(self.function, inputs), loaded_text)


_VALUE_ATTRIBUTES: Final = ("arg_attrs", "res_attrs")
"""Attributes of a function with the attributes of its arguments and results."""


def _walk(op: Any) -> Iterator[Any]:  # noqa: ANN401 - MLIR's
    """The operations nested in an operation, innermost first; the caller may erase the current one."""
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield from _walk(inner.operation)
                yield inner.operation


class _Signature:
    """The parameters of a jitted function; unknown for a function that is lowered already."""

    def __init__(self, program: Any) -> None:  # noqa: ANN401 - JAX's
        self._jitted = program if hasattr(program, "_jit_info") else None
        info = getattr(program, "_jit_info", None)
        self._numbers: tuple[int, ...] = getattr(info, "static_argnums", ())
        self._names: tuple[str, ...] = getattr(info, "static_argnames", ())

    def dynamic(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> tuple[Any, Any]:
        """The arguments without static ones."""
        static = _non_negative(self._numbers, len(arguments))
        positional = tuple(value for number, value in enumerate(arguments) if number not in static)
        return positional, {name: value for name, value in keywords.items() if name not in self._names}

    @cached_property
    def parameters(self) -> Sequence[str]:
        """The names of the positional parameters that are not static."""
        if self._jitted is None:
            return []
        parameters = inspect.signature(self._jitted).parameters.values()
        static = _non_negative(self._numbers, len(parameters))
        positional = [
            parameter.name
            for parameter in parameters
            if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        ]
        return [name for number, name in enumerate(positional) if number not in static]


def _non_negative(indices: Sequence[int], count: int) -> set[int]:
    """Resolve indices into a sequence of this length; negative ones count from the end, invalid ones are dropped."""
    return {index % count for index in indices if -count <= index < count}


def _inputs(
    signature: _Signature,
    tree: Any,  # noqa: ANN401 - JAX's
    infos: Any,  # noqa: ANN401 - JAX's
    arguments: Sequence[object],
    keywords: Mapping[str, object],
) -> Inputs:
    """Names and values of the leaves of the arguments; empty if a value is unknown."""
    import jax

    if not arguments and not keywords:
        return ()
    paths_and_leaves, own_tree = jax.tree_util.tree_flatten_with_path(signature.dynamic(arguments, keywords))
    if own_tree != tree:
        raise InputInvalid(f"the arguments have the structure {own_tree}; the function was lowered for {tree}")
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for _, leaf in paths_and_leaves):
        return ()
    names = [_name(signature.parameters, path) for path, _ in paths_and_leaves]
    leaves = zip(names, (leaf for _, leaf in paths_and_leaves), jax.tree.leaves(infos), strict=True)
    return tuple((name, _value(name, leaf, info)) for name, leaf, info in leaves)


def _used_inputs(inputs: Inputs, used_indices: Iterable[int] | None, constants: Sequence[Any]) -> Inputs:
    """The module's inputs: constants that JAX turned into arguments, then the arguments that the module uses."""
    if not inputs:
        return ()
    indices = range(len(inputs)) if used_indices is None else sorted(used_indices)
    constant_inputs = tuple((f"constant {number}", _array(value)) for number, value in enumerate(constants))
    return (*constant_inputs, *(inputs[index] for index in indices))


def _name(parameters: Sequence[str], path: Any) -> str:  # noqa: ANN401 - JAX's
    """The name of a leaf of the arguments in the program: `params['w']`."""
    import jax

    key, inside = path[1], jax.tree_util.keystr(path[2:])
    if hasattr(key, "key"):
        return f"{key.key}{inside}"
    return f"{parameters[key.idx] if key.idx < len(parameters) else f'argument {key.idx}'}{inside}"


def _value(name: str, leaf: Any, info: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - JAX's
    import jax
    import numpy as np

    if not isinstance(leaf, jax.Array):
        return np.asarray(leaf, dtype=info.dtype)
    if leaf.is_deleted():
        raise InputInvalid(f"{name}: its array was donated to an earlier call; build before that call, or pass a copy")
    return _array(leaf)


def _array(value: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - JAX's
    """Convert to a numpy array; a random key is converted to its data."""
    import jax
    import numpy as np

    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
