"""Functions of JAX: `jax.jit(f)` with its arguments, what is traced or lowered of it, and exported ones.

The model is StableHLO with JAX's locations (Python frames, name scopes). Its arguments are the leaves of the function's
arguments in JAX's order, without static ones and those that JAX drops as unused; their values are kept, those of
donated ones too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tracemap.errors import InputInvalid, ModelInvalid
from tracemap.frontends.imported import Imported, as_identifier
from tracemap.frontends.python_texts import OWN_FOLDER, loaded_text
from tracemap.graph.documents import Keeping
from tracemap.ir.executables import own_bytecode

if TYPE_CHECKING:
    import numpy as np

Inputs = tuple[tuple[str, "np.ndarray[Any, Any]"], ...]
"""The name and the value of each."""

_PLATFORM: Final = "cpu"
"""What JAX lowers for: operations of all devices, rather than calls of one vendor's library."""
_MAIN: Final = "main"
_FUNCTION: Final = "func.func"
_SHARDINGS: Final = "sdy."
"""How names of operations and attributes begin that say on which device what lies."""
_CONSTRAINT: Final = "sdy.sharding_constraint"
_MESH: Final = "sdy.mesh"


def import_program(program: Any, arguments: Sequence[object], keywords: Mapping[str, object]) -> Imported:  # noqa: ANN401 - one of several classes of JAX
    """The model of a function of JAX.

    Args:
        program: `jax.jit(f)`; what its `trace` or `lower` returned; or a `jax.export.Exported`.
        arguments: what it is called with, static arguments included; of one that is lowered already they may be left
            out, and then no inputs are kept.
        keywords: the same, by name.

    Raises:
        InputInvalid: arguments are missing or of another structure, or an array was given away to an earlier call.
        ModelInvalid: the module has inputs that are no arguments, is written for several devices, or IREE does not
            parse it.
        Exception: whatever JAX or the function itself raises while it is traced.
    """
    _hide_own_frames()
    if hasattr(program, "mlir_module"):
        return _exported(program, arguments, keywords)
    about = _About(program)
    lowered = _lowered(program, arguments, keywords)
    module = _Module(lowered.compiler_ir("stablehlo"))
    infos = lowered.args_info
    inputs = _inputs(about, lowered.in_tree, infos, arguments, keywords)
    lowering = lowered._lowering
    used = _used(inputs, lowering.compile_args.get("kept_var_idx"), lowering.const_args)
    return module.imported(used)


def _exported(exported: Any, arguments: Sequence[object], keywords: Mapping[str, object]) -> Imported:  # noqa: ANN401 - JAX's
    import jax
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib.mlir.dialects import stablehlo

    infos = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    inputs = _inputs(_About(None), exported.in_tree, infos, arguments, keywords)
    used = _used(inputs, exported.module_kept_var_idx, ())
    if used and len(exported.platforms) > 1:
        used = (("platform index", _platform_index(exported.platforms)), *used)
    with make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, exported.mlir_module_serialized)
    return _Module(module).imported(used)


def _platform_index(platforms: Sequence[str]) -> np.ndarray[Any, Any]:
    """What a function exported for several platforms takes first: the index of the one that it runs on."""
    import numpy as np

    return np.asarray(platforms.index(_PLATFORM) if _PLATFORM in platforms else 0, dtype=np.int32)


def _hide_own_frames() -> None:
    """Have JAX leave tracemap's own functions out of the frames, of which it keeps a few only."""
    from jax._src import source_info_util

    source_info_util.register_exclusion(str(OWN_FOLDER))


def _lowered(program: Any, arguments: Sequence[object], keywords: Mapping[str, object]) -> Any:  # noqa: ANN401 - JAX's
    traced = program.trace(*arguments, **keywords) if hasattr(program, "trace") else program
    return traced.lower(lowering_platforms=(_PLATFORM,)) if hasattr(traced, "lower") else traced


class _Module:
    """A copy of the module that JAX made, which goes on belonging to it, without what IREE does not know."""

    def __init__(self, original: Any) -> None:  # noqa: ANN401 - JAX's
        from jax.interpreters import mlir as _  # noqa: F401 - JAX registers its dialects
        from jaxlib.mlir import ir

        self._ir = ir
        self._module = original.operation.clone()
        self._leave_out_shardings()
        self._functions = [op for op in self._module.regions[0].blocks[0].operations if "sym_name" in op.attributes]
        self._main = next(op for op in self._functions if op.attributes["sym_name"].value == _MAIN)
        self.name = as_identifier(str(self._module.attributes["sym_name"].value).removeprefix("jit_"))
        self.function = self._named()
        self._make_others_private()

    def _named(self) -> str:
        """Call the function as the user does, where nothing else in the module is called so."""
        if self.name in {op.attributes["sym_name"].value for op in self._functions}:
            return _MAIN
        with self._module.context:
            self._main.attributes["sym_name"] = self._ir.StringAttr.get(self.name)
        return self.name

    def _make_others_private(self) -> None:
        """Leave one entry point: JAX has public functions that only its own operations use, as comparators."""
        with self._module.context:
            for op in self._functions:
                if op.operation.name == _FUNCTION and op != self._main:
                    op.attributes["sym_visibility"] = self._ir.StringAttr.get("private")

    def _leave_out_shardings(self) -> None:
        """Remove the layout over devices, as there is one device: IREE does not know the dialect."""
        for op in _walk(self._module):
            if op.name == _CONSTRAINT:
                op.results[0].replace_all_uses_with(op.operands[0])
            if op.name in {_CONSTRAINT, _MESH}:
                op.erase()
            elif op.name.startswith(_SHARDINGS):
                raise ModelInvalid(
                    "the program is written for several devices (as by jax.shard_map), and IREE compiles it for one: "
                    "give it a mesh of one device"
                )
            else:
                self._leave_out_attributes(op)

    def _leave_out_attributes(self, op: Any) -> None:  # noqa: ANN401 - MLIR's
        """Remove attributes of the dialect from an operation, and from a function's arguments and results."""
        for name in [each for each in op.attributes if each.startswith(_SHARDINGS)]:
            del op.attributes[name]
        for name in _OF_VALUES:
            if name in op.attributes and _SHARDINGS in str(op.attributes[name]):
                with self._module.context:
                    op.attributes[name] = self._ir.ArrayAttr.get([self._kept(each) for each in op.attributes[name]])

    def _kept(self, attributes: Any) -> Any:  # noqa: ANN401 - MLIR's
        names = (attributes[place].name for place in range(len(attributes)))
        return self._ir.DictAttr.get({name: attributes[name] for name in names if not name.startswith(_SHARDINGS)})

    def imported(self, inputs: Inputs) -> Imported:
        """The model with its inputs.

        Raises:
            ModelInvalid: IREE does not parse the module, or the inputs are not those that it takes.
        """
        self._check_number(inputs)
        text = self._module.get_asm(print_generic_op_form=True, enable_debug_info=True)
        return Imported(self.name, own_bytecode(text), Keeping(self.function, inputs), loaded_text)

    def _check_number(self, inputs: Inputs) -> None:
        """Refuse inputs of which there is not one for each argument of the module; none at all may be left out."""
        takes = len(self._main.regions[0].blocks[0].arguments)
        if inputs and len(inputs) != takes:
            raise ModelInvalid(
                f"{self.name}: its module takes {takes} inputs, and {len(inputs)} leaves of its arguments are used; "
                "effects and sizes that are not known have inputs of their own, which cannot be handed in"
            )


_OF_VALUES: Final = ("arg_attrs", "res_attrs")
"""Attributes of a function that hold those of its arguments and results."""


def _walk(op: Any) -> Iterator[Any]:  # noqa: ANN401 - MLIR's
    """The operations inside of one; each may be erased when it comes."""
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield from _walk(inner.operation)
                yield inner.operation


class _About:
    """What a jitted function says of its parameters; of what is lowered already nothing is known."""

    def __init__(self, program: Any) -> None:  # noqa: ANN401 - JAX's
        self._jitted = program if hasattr(program, "_jit_info") else None
        about = getattr(program, "_jit_info", None)
        self._numbers: tuple[int, ...] = getattr(about, "static_argnums", ())
        self._names: tuple[str, ...] = getattr(about, "static_argnames", ())

    def dynamic(self, arguments: Sequence[object], keywords: Mapping[str, object]) -> tuple[Any, Any]:
        """The arguments without static ones."""
        static = _places(self._numbers, len(arguments))
        positional = tuple(value for number, value in enumerate(arguments) if number not in static)
        return positional, {name: value for name, value in keywords.items() if name not in self._names}

    @cached_property
    def parameters(self) -> Sequence[str]:
        """The names of the positional parameters that are not static."""
        if self._jitted is None:
            return []
        every = inspect.signature(self._jitted).parameters.values()
        static = _places(self._numbers, len(every))
        plain = [each.name for each in every if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
        return [name for number, name in enumerate(plain) if number not in static]


def _places(numbers: Sequence[int], count: int) -> set[int]:
    """Places among so many, of which negative ones count from the end."""
    return {number % count for number in numbers if -count <= number < count}


def _inputs(
    about: _About,
    tree: Any,  # noqa: ANN401 - JAX's
    infos: Any,  # noqa: ANN401 - JAX's
    arguments: Sequence[object],
    keywords: Mapping[str, object],
) -> Inputs:
    """Name and value of each leaf of the arguments; none where not all values are known."""
    import jax

    if not arguments and not keywords:
        return ()
    found, own_tree = jax.tree_util.tree_flatten_with_path(about.dynamic(arguments, keywords))
    if own_tree != tree:
        raise InputInvalid(f"the arguments have the structure {own_tree}; the function was lowered for {tree}")
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for _, leaf in found):
        return ()
    names = [_name(about.parameters, path) for path, _ in found]
    leaves = zip(names, (leaf for _, leaf in found), jax.tree.leaves(infos), strict=True)
    return tuple((name, _value(name, leaf, info)) for name, leaf, info in leaves)


def _used(inputs: Inputs, kept: Iterable[int] | None, constants: Sequence[Any]) -> Inputs:
    """The inputs that the module takes: those that it uses, and before them constants that JAX makes arguments of."""
    if not inputs:
        return ()
    places = range(len(inputs)) if kept is None else sorted(kept)
    before = tuple((f"constant {number}", _array(value)) for number, value in enumerate(constants))
    return (*before, *(inputs[place] for place in places))


def _name(parameters: Sequence[str], path: Any) -> str:  # noqa: ANN401 - JAX's
    """What the program calls a leaf of its arguments: `params['w']`."""
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
        raise InputInvalid(
            f"{name}: its array was given away (donated) to an earlier call; build before that call, or with a copy"
        )
    return _array(leaf)


def _array(value: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - JAX's
    """An array as numpy has it; of keys of random numbers their data."""
    import jax
    import numpy as np

    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)
