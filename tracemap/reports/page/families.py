"""Families of ops by their names, for the colours of pictures: what kind of work an op is.

Nothing is computed by it: the names of the dialects that we know are told apart by their words, and of what has none of
them nothing is said. The family of a `linalg.generic` is that of the kernel that it gave its name.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from tracemap.graph.model import TraceGraph
from tracemap.graph.ops import Op, OpId


class Family(enum.StrEnum):
    """A kind of work."""

    CONTRACTION = "contraction"
    """Matrix products and convolutions."""
    REDUCTION = "reduction"
    """Sums, pooling, norms, softmax, sorting."""
    MOVEMENT = "movement"
    """What moves elements: transposes, gathers, pads, copies."""
    ELEMENTWISE = "elementwise"
    OTHER = "other"


_WORDS: Final = {
    Family.CONTRACTION: """
        dot dotgeneral matmul bmm mm addmm baddbmm mv matvec vecmat linear conv conv1d conv2d conv3d convolution
        depthwise gemm einsum contract mmt4d attention fullyconnected tensordot
    """,
    Family.REDUCTION: """
        reduce reduction reducewindow sum mean var std prod pool pooling avgpool maxpool averagepool globalaveragepool
        softmax logsoftmax argmax argmin amax amin norm layernorm groupnorm batchnorm layernormalization
        batchnormalization instancenormalization sort topk cumsum scan logsumexp winograd fft
    """,
    Family.MOVEMENT: """
        transpose permute reshape view slice gather scatter concat concatenate cat pad broadcast broadcastin
        broadcastindim tile expand collapse squeeze unsqueeze flatten reverse copy embedding index select split stack
        pack unpack insert extract dynamicslice dynamicupdateslice constantpad roll iota
    """,
    Family.ELEMENTWISE: """
        add subtract sub multiply mul divide div maximum minimum max min exp exponential log tanh sqrt rsqrt erf gelu
        relu silu sigmoid logistic negate neg abs power pow sine sin cosine cos floor ceil round sign compare where
        clamp clip convert cast xor and or not elementwise map fill square reciprocal eq ne lt le gt ge rem remainder
        shift shiftleft shiftright bitcast hardswish leakyrelu rescale
    """,
}
_FAMILY_OF: Final[Mapping[str, Family]] = {
    word.replace("_", ""): family for family, words in _WORDS.items() for word in words.split()
}
_SAME_AS_ROOT: Final = ("linalg.generic",)


def family_of_name(name: str) -> Family:
    """The family of an op by its name alone.

    >>> [family_of_name(name).value for name in ("stablehlo.dot_general", "torch.aten.max_pool2d", "onnx.Conv")]
    ['contraction', 'reduction', 'contraction']
    """
    return _family(name)


@lru_cache(maxsize=4096)  # a large model has few names
def _family(name: str) -> Family:
    # torch writes an overload behind the name: `torch.aten.add.Tensor`.
    parts = name.split(".")[1:] or [name]
    if parts[0] in ("aten", "prims", "prim", "operator"):
        parts = parts[1:2]
    words = [word for word in re.split(r"[_\d]+|(?<=[a-z])(?=[A-Z])", parts[0]) if word]
    lower = [word.lower() for word in words]
    # The longest run of words that is known: `reduce_window` before `reduce`; earlier ones first.
    for length in range(len(lower), 0, -1):
        for begin in range(len(lower) - length + 1):
            if family := _FAMILY_OF.get("".join(lower[begin : begin + length])):
                return family
    return Family.OTHER


def families_of(graph: TraceGraph) -> Mapping[OpId, Family]:
    """The families of ops: by their names; of those whose name says nothing, by that of a kernel that they gave it."""
    by_kernel = {site.root.op: site.kernel for site in graph.sites if site.root}
    return {op.id: _of_op(op, by_kernel.get(op.id, "")) for op in graph.ops}


def _of_op(op: Op, kernel: str) -> Family:
    if op.name not in _SAME_AS_ROOT:
        return _family(op.name)
    # `main$async_dispatch_3_matmul_like_128x64x32_f32`: what stands behind the number.
    _, _, described = kernel.partition("_dispatch_")
    return _family("." + described.partition("_")[2]) if described else Family.OTHER
