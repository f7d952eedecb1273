"""What an op does, in one word that is the same in all dialects: `linalg.matmul` and `stablehlo.dot_general` multiply.

The words serve to lay programs of different dialects beside each other; nothing else is concluded from them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tracemap.ir.source import SourceOperation
from tracemap.mapping.model.kinds import computes, is_constant, makes_host_values, only_renames

_WORDS: Final = """
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
_LINES: Final = [line.partition(": ") for line in _WORDS.strip().splitlines()]
_WORD_OF: Final = {name: word for word, _, names in _LINES for name in names.split()}
_BEGINNINGS: Final = {
    "conv": "convolve",
    "depthwise_conv": "convolve",
    "matmul": "product",
    "batch_matmul": "product",
    "pooling": "pool",
    "reduce_window": "pool",
}
_SPACES: Final = re.compile(r"(?:torch\.aten|torch\.prims|[\w$]+)\.(\w+)")
"""What stands in front of the name that says something; behind it may stand which overload it is."""
_BY_PARTS: Final = ("linalg.generic", "linalg.reduce", "linalg.map", "stablehlo.reduce", "stablehlo.map")
"""They do what the operations in their regions do."""
_SUM_OF_PRODUCTS: Final = {"add", "multiply"}


def word_of(operation: SourceOperation, parts: Sequence[SourceOperation]) -> str:
    """What an op does; "" of what only gives structure, or makes what others write into."""
    if only_renames(operation) or not computes(operation):
        return "constant" if is_constant(operation) and not makes_host_values(operation) else ""
    if operation.name in _BY_PARTS and (parts or operation.name == "linalg.generic"):
        words = {word_of_name(part.name) for part in parts if not part.name.endswith((".yield", ".return"))}
        if words == _SUM_OF_PRODUCTS:
            return "product"
        return " ".join(sorted(words)) or "broadcast"  # what only hands on is that mostly
    return word_of_name(operation.name)


def word_of_name(name: str) -> str:
    """What an operation of any dialect does, by its name alone."""
    found = _SPACES.match(name)
    stem = (found[1] if found else name).lower()
    beginning = next((word for begins, word in _BEGINNINGS.items() if stem.startswith(begins)), "")
    return _WORD_OF.get(stem) or beginning or stem
