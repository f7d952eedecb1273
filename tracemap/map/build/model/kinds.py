"""Kinds of ops, by name, operands and types, in every dialect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tracemap.ir.attributes import shape_of
from tracemap.ir.source_model import BRANCHES, CONTROL_FLOW, FUNCTIONS, SourceOperation

# ---- kinds
#
# Kinds of ops: predicates that need only an op's name, operands and types, for all supported dialects.
#
# All predicates about names of the model's ops are here; `facts` has those that need more than the op itself.

REGION_TERMINATORS = (".yield", ".condition", ".return", ".operator_terminator")
"""Suffixes of terminators that pass values out of their region."""

_STRUCTURAL = FUNCTIONS | frozenset(
    """
    builtin.module flow.dispatch.region flow.dispatch.workgroups flow.executable hal.executable hal.executable.source
    ml_program.global stream.executable torch.global_slot util.global util.initializer
    """.split()
)
_GLOBALS = ("ml_program.global", "torch.global_slot", "util.global")
_TERMINATORS = (*REGION_TERMINATORS, ".terminator")
_CHOICES = frozenset(
    "affine.if onnx.If scf.if scf.index_switch stablehlo.case stablehlo.if torch.prim.If tosa.cond_if".split()
)
_JOINS = frozenset("onnx.Concat stablehlo.concatenate tensor.concat torch.aten.cat tosa.concat".split())
_CALLS = frozenset({"func.call", "stablehlo.composite", "util.call"})
_CONSTANT_LIKE = (
    *("constant", "Constant", ".const", ".literal", ".iota", ".empty", ".const_shape", "unfoldable_constant"),
)
_COUNTING = (".iota",)
_GLOBAL_LOADS = (".global.load", ".global_load")
_GLOBAL_STORES = (".global.store", ".global_store")
_BARRIERS = ("unfoldable_constant", "optimization_barrier")
_UNREPEATABLE = (*_GLOBAL_LOADS, *_BARRIERS)
_DESTINATIONS = ("tensor.empty", "linalg.fill", "bufferization.alloc_tensor")

_SHAPE_QUERIES = frozenset(
    """
    tensor.dim tensor.rank shape.shape_of stablehlo.get_dimension_size
    torch.aten.size torch.aten.size.int torch.aten.dim torch.aten.numel
    tosa.shape_of onnx.Shape onnx.Size
    """.split()
)

_RENAMES = frozenset(
    """
    onnx.Identity stablehlo.optimization_barrier tensor.cast torch.aten.alias torch.aten.clone torch.aten.contiguous
    torch.aten.detach torch.aten.lift_fresh_copy torch_c.from_builtin_tensor torch_c.to_builtin_tensor
    util.optimization_barrier
    """.split()
)

_MOVES = _RENAMES | frozenset(
    """
    linalg.broadcast linalg.copy linalg.transpose
    tensor.bitcast tensor.collapse_shape tensor.concat tensor.expand_shape tensor.extract_slice tensor.insert_slice
    tensor.reshape
    stablehlo.bitcast_convert stablehlo.broadcast stablehlo.broadcast_in_dim stablehlo.concatenate
    stablehlo.dynamic_broadcast_in_dim stablehlo.dynamic_reshape stablehlo.dynamic_slice stablehlo.get_tuple_element
    stablehlo.reshape stablehlo.reverse stablehlo.slice stablehlo.transpose stablehlo.tuple
    torch.aten._reshape_alias torch.aten._unsafe_view torch.aten.broadcast_to torch.aten.cat torch.aten.expand
    torch.aten.flatten.using_ints torch.aten.movedim.int torch.aten.narrow torch.aten.numpy_T torch.aten.permute
    torch.aten.reshape torch.aten.select.int torch.aten.slice.Tensor torch.aten.split.Tensor torch.aten.squeeze
    torch.aten.squeeze.dim torch.aten.stack torch.aten.t torch.aten.transpose.int torch.aten.unflatten.int
    torch.aten.unsqueeze torch.aten.view torch.prims.broadcast_in_dim torch.prims.collapse torch.prims.squeeze
    onnx.Concat onnx.Expand onnx.Flatten onnx.Reshape onnx.Slice onnx.Split onnx.Squeeze onnx.Transpose onnx.Unsqueeze
    tosa.concat tosa.reshape tosa.reverse tosa.slice tosa.tile tosa.transpose
    """.split()
)


def is_call(operation: SourceOperation) -> bool:
    """Whether an op calls a function of the module, or has a function that the compiler calls for it."""
    return operation.name in _CALLS


def is_branch(operation: SourceOperation) -> bool:
    """Whether an op continues in another block of its function."""
    return operation.name in BRANCHES


def is_return(operation: SourceOperation) -> bool:
    """Whether an operation ends a function, or a region whose terminator has a name like it."""
    return operation.name.endswith(".return")


def is_structural(operation: SourceOperation) -> bool:
    """Whether an op is only structure: functions, returns, globals."""
    return operation.name in _STRUCTURAL or operation.name.endswith(_TERMINATORS)


def is_global(operation: SourceOperation) -> bool:
    """Whether an op is a global, whose initial value may be computed at load time."""
    return operation.name in _GLOBALS


def is_constant_like(operation: SourceOperation) -> bool:
    """Whether an op without operands makes the same value each time."""
    return operation.name.endswith(_CONSTANT_LIKE) or operation.name.startswith("torch.constant.")


def is_constant(operation: SourceOperation) -> bool:
    """Whether an op is a constant by its kind."""
    return not operation.operands and operation.name != "tensor.empty" and is_constant_like(operation)


def is_destination(operation: SourceOperation) -> bool:
    """Whether an op only makes a buffer that other ops write into."""
    return operation.name.endswith(_DESTINATIONS)


def loads_global(operation: SourceOperation) -> bool:
    """Whether an op reads a global, such as a parameter."""
    return operation.name.endswith(_GLOBAL_LOADS)


def accesses_global(operation: SourceOperation) -> bool:
    """Whether an op reads or writes a global."""
    return loads_global(operation) or operation.name.endswith(_GLOBAL_STORES)


def is_repeatable(operation: SourceOperation) -> bool:
    """Whether an op with the same operands computes the same each time, as far as its name tells."""
    return not operation.name.endswith(_UNREPEATABLE)


def is_barrier(operation: SourceOperation) -> bool:
    """Whether the compiler must not know the value of an op, even of a constant."""
    return operation.name.endswith(_BARRIERS)


def queries_shape(operation: SourceOperation) -> bool:
    """Whether an op reads the extents of its operand, but none of its elements."""
    return operation.name in _SHAPE_QUERIES


def only_renames(operation: SourceOperation) -> bool:
    """Whether an op leaves every element in place."""
    return operation.name in _RENAMES


def only_moves(operation: SourceOperation, parts: Sequence[SourceOperation]) -> bool:
    """Whether an op only moves or renames elements: by its kind, or as a generic op that yields its input.

    Such ops become indexing or layout, and are never absorbed.
    """
    if operation.name == "linalg.generic":
        return all(part.name == "linalg.yield" for part in parts)
    return operation.name in _MOVES


def concatenates(operation: SourceOperation) -> bool:
    """Whether an op concatenates tensors along a dimension."""
    return operation.name in _JOINS


def overwrites(operation: SourceOperation) -> bool:
    """Whether an op writes new contents into a buffer of the caller."""
    return operation.name == "torch.overwrite.tensor.contents"


def makes_list(operation: SourceOperation) -> bool:
    """Whether an op makes a list of its operands."""
    return operation.name == "torch.prim.ListConstruct"


def can_be_member(operation: SourceOperation) -> bool:
    """Whether an op can run in a dispatch: no constant, no structure, and no op whose regions hold the work.

    An iota depends on nothing, but is computed where it is needed, on every call. A branch whose arms need not wait for
    the condition becomes a select, which works on elements like other ops.
    """
    if is_structural(operation) or (operation.name in CONTROL_FLOW and not chooses(operation)):
        return False
    return operation.name.endswith(_COUNTING) or not is_constant(operation)


def chooses(operation: SourceOperation) -> bool:
    """Whether an op is a branch with results."""
    return operation.name in _CHOICES and bool(operation.results)


def accesses_dispatch_tensors(operation: SourceOperation) -> bool:
    """Whether an op loads tensors into a kernel or stores them from it."""
    return operation.name.startswith("iree_tensor_ext.dispatch.")


def computes(operation: SourceOperation) -> bool:
    """Whether an op computes or moves elements of tensors: no call, no control flow, no scalar."""
    if not can_be_member(operation) or is_call(operation) or operation.name in CONTROL_FLOW:
        return False
    if is_destination(operation) or accesses_global(operation) or not operation.results:
        return False
    return not makes_host_values(operation)


_ARITHMETIC = {"exp": "exp", "max": "max", "sub": "sub", "div": "div", "add": "add", "sum": "add"}


def arithmetic_kind(name: str) -> str:
    """The arithmetic in an operation's name, in any dialect, as far as raised idioms contain it; "" for others.

    >>> [arithmetic_kind(name) for name in ("math.exp", "stablehlo.maximum", "arith.maxnumf", "linalg.yield")]
    ['exp', 'max', 'max', '']
    """
    word = name.rsplit(".", 1)[-1].lower()
    return next((work for part, work in _ARITHMETIC.items() if part in word), "")


def makes_host_values(operation: SourceOperation) -> bool:
    """Whether all results of an op are on the host."""
    return all(map(_is_host_type, operation.results))


def makes_scalars(operation: SourceOperation) -> bool:
    """Whether an op has results, all of them one integer or truth value, as a scalar or a tensor of rank 0."""
    return bool(operation.results) and all(
        _is_host_type(result) or re.fullmatch(r"tensor<[su]?i\d+>", result) for result in operation.results
    )


def _is_host_type(type_text: str) -> bool:
    """Whether a value is on the host: numbers, shapes, lists; a tensor of rank 0 can be device work."""
    if "tensor" in type_text or "memref<" in type_text or "vector<" in type_text:  # including lists of tensors
        return False
    return shape_of(type_text).extents == ()


# ---- words
#
# Dialect-independent names of ops: `linalg.matmul` and `stablehlo.dot_general` are both a `product`.
#
# They only help to match programs of different dialects; nothing else depends on them.

_ALIASES: Final = """
add: add addf addi sum reducesum reduce_sum
subtract: subtract sub subf subi rsub
multiply: multiply mul mulf muli
divide: divide div divf divsi divui
maximum: maximum max maximumf maxnumf maxsi maxui amax reducemax reduce_max relu
minimum: minimum min minimumf minnumf minsi minui amin reducemin reduce_min
exponential: exponential exp
logarithm: log
power: power pow powf
negate: negate neg negf
absolute: abs absf absi
logistic: logistic sigmoid
compare: compare cmpf cmpi equal greater greaterorequal less lessorequal eq ne gt ge lt le
select: select where
and: and andi logical_and
or: or ori logical_or
product: matmul mm bmm dot dot_general batch_matmul gemm linear addmm baddbmm matvec vecmat dot_product contract
normalize: layer_norm native_layer_norm layernormalization
normalize batches: batch_norm native_batch_norm batchnormalization batch_norm_inference
softmax: softmax _softmax
gather: gather embedding index_select
transpose: transpose permute t numpy_t
reshape: reshape view _unsafe_view flatten unflatten collapse_shape expand_shape squeeze unsqueeze dynamic_reshape
slice: slice narrow extract_slice dynamic_slice
concatenate: concatenate cat concat
broadcast: broadcast broadcast_in_dim dynamic_broadcast_in_dim expand broadcast_to tile
pad: pad constant_pad_nd
convert: convert cast convert_element_type to extf truncf sitofp uitofp fptosi fptoui extsi extui trunci
index: index iota arange index_cast
attention: scaled_dot_product_attention attention
pool: max_pool2d maxpool avg_pool2d averagepool adaptive_avg_pool2d globalaveragepool avgpool2d
"""
_ALIAS_LINES: Final = [line.partition(": ") for line in _ALIASES.strip().splitlines()]
_ALIAS_OF: Final = {name: alias for alias, _, names in _ALIAS_LINES for name in names.split()}
_PREFIXES: Final = {
    "conv": "convolve",
    "depthwise_conv": "convolve",
    "matmul": "product",
    "batch_matmul": "product",
    "pooling": "pool",
    "reduce_window": "pool",
}
_NAMESPACE: Final = re.compile(r"(?:torch\.aten|torch\.prims|[\w$]+)\.(\w+)")
"""The namespace in front of the op's name; an overload's name may follow it."""
_REGION_OPS: Final = ("linalg.generic", "linalg.reduce", "linalg.map", "stablehlo.reduce", "stablehlo.map")
"""Ops that do what the operations in their regions do."""
_SUM_OF_PRODUCTS: Final = {"add", "multiply"}


def op_alias(operation: SourceOperation, parts: Sequence[SourceOperation]) -> str:
    """The dialect-independent name of an op; "" for structure, and for ops that only make a destination."""
    if only_renames(operation) or not computes(operation):
        return "constant" if is_constant(operation) and not makes_host_values(operation) else ""
    if operation.name in _REGION_OPS and (parts or operation.name == "linalg.generic"):
        aliases = {alias_of_name(part.name) for part in parts if not part.name.endswith((".yield", ".return"))}
        if aliases == _SUM_OF_PRODUCTS:
            return "product"
        return " ".join(sorted(aliases)) or "broadcast"  # a body that only passes its input on is mostly a broadcast
    return alias_of_name(operation.name)


def alias_of_name(name: str) -> str:
    """The dialect-independent name for an operation's name."""
    match = _NAMESPACE.match(name)
    stem = (match[1] if match else name).lower()
    alias = next((word for prefix, word in _PREFIXES.items() if stem.startswith(prefix)), "")
    return _ALIAS_OF.get(stem) or alias or stem
