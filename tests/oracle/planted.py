"""Programs with one planted cause of lost time each, their remedies, and clean programs without a cause.

Causes are what people meet in practice: loops of tiny kernels, barriers of rematerialization, transposes around
convolutions, flags of a build for another processor, tiles that were set by hand. Each cause has three variants in
shape, dialect or place. The remedy is the same program written without the cause, or other flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.oracle.looped import scan
from tests.oracle.stock import DEVICES, Program
from tests.support import ROOT


@dataclass(frozen=True, slots=True)
class Planted:
    """A program with a cause, by the rule that names it; `others`: rules that name the same cause as rightly."""

    rule: str
    name: str
    program: Program
    remedy: Program
    others: tuple[str, ...] = ()


SYNC: Final = DEVICES["local-sync"]
_REMAT: Final = ROOT / "tests" / "programs" / "remat"
"""Gradients as JAX 0.10 writes them, with and without `jax.checkpoint`."""


def planted() -> Iterator[Planted]:
    """All programs with a cause."""
    yield from _overhead_bound()
    yield from _missed_fusion()
    yield from _layout_copy()
    yield from _strided_reads()
    yield from _below_roofline()
    yield from _not_vectorized()
    yield from _spilling()
    yield from _imbalance()
    yield from _tiny_dispatches()
    yield from _repeated_work()
    yield from _recomputed()


def clean() -> Iterator[Program]:
    """All programs without a cause."""
    yield from _clean()


def _program(name: str, arguments: str, results: str, body: str, inputs: Sequence[str], *, before: str = "") -> Program:
    lines = [line.strip() for line in body.strip().splitlines()]
    text = "\n".join([*filter(None, [before.strip()]), f"func.func @main({arguments}) -> ({results}) {{"])
    return Program(name, text + "\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n", tuple(inputs))


def _square(size: int) -> str:
    return f"tensor<{size}x{size}xf32>"


# ---- time between kernels


def _overhead_bound() -> Iterator[Planted]:
    small = _program(
        "overhead_mlp",
        "%x: tensor<1x64xf32>, %a: tensor<64x128xf32>, %b: tensor<128x64xf32>, %c: tensor<64x10xf32>",
        "tensor<1x10xf32>",
        """
        %0 = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0]
          : (tensor<1x64xf32>, tensor<64x128xf32>) -> tensor<1x128xf32>
        %1 = stablehlo.tanh %0 : tensor<1x128xf32>
        %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [0]
          : (tensor<1x128xf32>, tensor<128x64xf32>) -> tensor<1x64xf32>
        %3 = stablehlo.tanh %2 : tensor<1x64xf32>
        %4 = stablehlo.dot_general %3, %c, contracting_dims = [1] x [0]
          : (tensor<1x64xf32>, tensor<64x10xf32>) -> tensor<1x10xf32>
        return %4 : tensor<1x10xf32>
        """,
        ("1x64xf32=0.1", "64x128xf32=0.1", "128x64xf32=0.1", "64x10xf32=0.1"),
    )
    recurrent = replace(scan(24).rolled, name="overhead_scan")
    counted = _program(
        "overhead_for",
        "%x: tensor<48x48xf32>, %w: tensor<48x48xf32>, %n: index",
        "tensor<48x48xf32>",
        """
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %zero = arith.constant 0.0 : f32
        %e = tensor.empty() : tensor<48x48xf32>
        %r = scf.for %i = %c0 to %n step %c1 iter_args(%h = %x) -> (tensor<48x48xf32>) {
          %f = linalg.fill ins(%zero : f32) outs(%e : tensor<48x48xf32>) -> tensor<48x48xf32>
          %m = linalg.matmul ins(%h, %w : tensor<48x48xf32>, tensor<48x48xf32>)
            outs(%f : tensor<48x48xf32>) -> tensor<48x48xf32>
          scf.yield %m : tensor<48x48xf32>
        }
        return %r : tensor<48x48xf32>
        """,
        ("48x48xf32=0.01", "48x48xf32=0.01", "16"),
    )
    for name, program in (("MLP of one row", small), ("scan of 24 trips", recurrent), ("scf.for of 16", counted)):
        yield Planted("overhead-bound", name, program, replace(program, name=program.name + "_sync", run_flags=SYNC))


# ---- memory


def _missed_fusion() -> Iterator[Planted]:
    size = "tensor<1024x2048xf32>"
    inputs = ("1024x2048xf32=0.5", "1024x2048xf32=0.25")

    def elementwise(name: str, barriers: bool) -> Program:
        cut = [f"%b{n} = stablehlo.optimization_barrier %{n} : {size}" if barriers else "" for n in range(3)]
        use = [f"%b{n}" if barriers else f"%{n}" for n in range(3)]
        return _program(
            name,
            f"%x: {size}, %y: {size}",
            size,
            f"""
            %0 = stablehlo.multiply %x, %y : {size}
            {cut[0]}
            %1 = stablehlo.add {use[0]}, %x : {size}
            {cut[1]}
            %2 = stablehlo.subtract {use[1]}, %y : {size}
            {cut[2]}
            %3 = stablehlo.abs {use[2]} : {size}
            return %3 : {size}
            """,
            inputs,
        )

    yield Planted(
        "missed-fusion",
        "barriers between elementwise ops",
        elementwise("fusion_barriers", barriers=True),
        elementwise("fusion_whole", barriers=False),
    )

    row, kind = "tensor<768xf32>", "tensor<512x768xf32>"

    def epilogue(name: str, barrier: bool) -> Program:
        cut = f"%p = stablehlo.optimization_barrier %m : {kind}" if barrier else ""
        return _program(
            name,
            f"%x: tensor<512x64xf32>, %w: tensor<64x768xf32>, %b: {row}",
            kind,
            f"""
            %m = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
              : (tensor<512x64xf32>, tensor<64x768xf32>) -> {kind}
            {cut}
            %c = stablehlo.broadcast_in_dim %b, dims = [1] : ({row}) -> {kind}
            %s = stablehlo.add {"%p" if barrier else "%m"}, %c : {kind}
            %z = stablehlo.constant dense<0.0> : {kind}
            %r = stablehlo.maximum %s, %z : {kind}
            return %r : {kind}
            """,
            ("512x64xf32=0.1", "64x768xf32=0.1", "768xf32=0.5"),
        )

    yield Planted(
        "missed-fusion",
        "a barrier before bias and activation",
        epilogue("fusion_epilogue_cut", barrier=True),
        epilogue("fusion_epilogue", barrier=False),
    )

    flat = "tensor<2097152xf32>"
    generic = '{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}'

    def chain(name: str, barrier: bool) -> Program:
        lines, value = [f"%e = tensor.empty() : {flat}"], "%x"
        for number, scalar in enumerate(
            ("arith.addf %v, %v", "arith.mulf %v, %v", "arith.subf %v, %v", "arith.maximumf %v, %v")
        ):
            lines += [
                f"%{number} = linalg.generic {generic} ins({value} : {flat}) outs(%e : {flat}) {{",
                f"^bb0(%v: f32, %o: f32): %s = {scalar} : f32 linalg.yield %s : f32",
                f"}} -> {flat}",
            ]
            value = f"%{number}"
            if barrier:
                lines.append(f"%b{number} = util.optimization_barrier %{number} : {flat}")
                value = f"%b{number}"
        return _program(
            name, f"%x: {flat}", flat, "\n".join([*lines, f"return {value} : {flat}"]), ("2097152xf32=0.5",)
        )

    yield Planted(
        "missed-fusion",
        "barriers between generics (linalg)",
        chain("fusion_generics_cut", barrier=True),
        chain("fusion_generics", barrier=False),
    )


def _layout_copy() -> Iterator[Planted]:
    how = "window = {stride = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
    natural = f"dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], {how}"
    first, second, last = "1x128x128x8xf32", "1x128x128x32xf32", "1x128x128x16xf32"
    weights = "%w: tensor<1x1x8x32xf32>, %v: tensor<1x1x32x16xf32>"
    inputs = ("1x128x128x8xf32=0.1", "1x1x8x32xf32=0.1", "1x1x32x16xf32=0.1")
    # A layer takes and returns channels first, and works with channels last.
    turned = _program(
        "layout_conv_turned",
        f"%x: tensor<1x128x128x8xf32>, {weights}",
        f"tensor<{last}>",
        f"""
        %a = stablehlo.convolution(%x, %w) {natural} : (tensor<{first}>, tensor<1x1x8x32xf32>) -> tensor<{second}>
        %t = stablehlo.transpose %a, dims = [0, 3, 1, 2] : (tensor<{second}>) -> tensor<1x32x128x128xf32>
        %k = stablehlo.optimization_barrier %t : tensor<1x32x128x128xf32>
        %u = stablehlo.transpose %k, dims = [0, 2, 3, 1] : (tensor<1x32x128x128xf32>) -> tensor<{second}>
        %q = stablehlo.optimization_barrier %u : tensor<{second}>
        %b = stablehlo.convolution(%q, %v) {natural} : (tensor<{second}>, tensor<1x1x32x16xf32>) -> tensor<{last}>
        return %b : tensor<{last}>
        """,
        inputs,
    )
    straight = _program(
        "layout_conv_straight",
        f"%x: tensor<1x128x128x8xf32>, {weights}",
        f"tensor<{last}>",
        f"""
        %a = stablehlo.convolution(%x, %w) {natural} : (tensor<{first}>, tensor<1x1x8x32xf32>) -> tensor<{second}>
        %b = stablehlo.convolution(%a, %v) {natural} : (tensor<{second}>, tensor<1x1x32x16xf32>) -> tensor<{last}>
        return %b : tensor<{last}>
        """,
        inputs,
    )
    yield Planted("layout-copy", "channels first and last", turned, straight)

    kind, other = "tensor<1024x1536xf32>", "tensor<1536x1024xf32>"

    def transposed(name: str, copy: bool) -> Program:
        source, given = ("%t", other) if copy else ("%x", other)
        line = f"%t = stablehlo.transpose %x, dims = [1, 0] : ({kind}) -> {other}" if copy else ""
        return _program(
            name,
            f"%x: {kind if copy else other}, %w: tensor<1024x16xf32>, %y: tensor<1536x16xf32>",
            f"tensor<1536x16xf32>, {other}",
            f"""
            {line}
            %m = stablehlo.dot_general {source}, %w, contracting_dims = [1] x [0]
              : ({given}, tensor<1024x16xf32>) -> tensor<1536x16xf32>
            %s = stablehlo.add %m, %y : tensor<1536x16xf32>
            %n = stablehlo.negate {source} : {given}
            return %s, %n : tensor<1536x16xf32>, {given}
            """,
            (("1024x1536xf32=0.1" if copy else "1536x1024xf32=0.1"), "1024x16xf32=0.1", "1536x16xf32=0.1"),
        )

    yield Planted(
        "layout-copy",
        "a transposed matrix for a product",
        transposed("layout_matrix_copied", copy=True),
        transposed("layout_matrix", copy=False),
        others=("strided-reads",),
    )

    tokens, heads = "tensor<4x512x8x64xf32>", "tensor<4x8x512x64xf32>"

    def head_order(name: str, copy: bool) -> Program:
        """A part of a model that wants heads first, in TOSA; barriers keep its boundaries."""
        turn = '"tosa.transpose"(%{0}) {{perms = array<i32: 0, 2, 1, 3>}} : ({1}) -> {2}'
        kind = heads if copy else tokens
        lines = [
            "%t = " + turn.format("x", tokens, heads) if copy else "",
            f"%k = util.optimization_barrier {'%t' if copy else '%x'} : {kind}",
            f"%h = tosa.tanh %k : ({kind}) -> {kind}",
            f"%l = util.optimization_barrier %h : {kind}",
            "%u = " + turn.format("l", heads, tokens) if copy else "",
            f"%q = util.optimization_barrier {'%u' if copy else '%l'} : {tokens}",
            f"%r = tosa.exp %q : ({tokens}) -> {tokens}",
            f"return %r : {tokens}",
        ]
        return _program(name, f"%x: {tokens}", tokens, "\n".join(lines), ("4x512x8x64xf32=0.1",))

    yield Planted(
        "layout-copy",
        "heads first between tokens first (TOSA)",
        head_order("layout_heads_turned", copy=True),
        head_order("layout_heads", copy=False),
    )


def _strided_reads() -> Iterator[Planted]:
    size = _square(2048)

    def added(name: str, strided: bool) -> Program:
        line = f"%t = stablehlo.transpose %x, dims = [1, 0] : ({size}) -> {size}" if strided else ""
        return _program(
            name,
            f"%x: {size}, %y: {size}",
            size,
            f"{line}\n%s = stablehlo.add {'%t' if strided else '%x'}, %y : {size}\nreturn %s : {size}",
            ("2048x2048xf32=0.5", "2048x2048xf32=0.25"),
        )

    yield Planted(
        "strided-reads",
        "a sum with a transposed matrix",
        added("strided_added", strided=True),
        added("strided_added_not", strided=False),
        others=("layout-copy",),
    )

    def sliced(name: str, strided: bool) -> Program:
        given = "tensor<65536x16x4xf32>" if strided else "tensor<16x65536x4xf32>"
        limits = "[0:65536, 3:4, 0:4]" if strided else "[3:4, 0:65536, 0:4]"
        one = "tensor<65536x1x4xf32>" if strided else "tensor<1x65536x4xf32>"
        return _program(
            name,
            f"%x: {given}, %y: tensor<65536x4xf32>",
            "tensor<65536x4xf32>",
            f"""
            %a = stablehlo.slice %x {limits} : ({given}) -> {one}
            %b = stablehlo.reshape %a : ({one}) -> tensor<65536x4xf32>
            %c = stablehlo.multiply %b, %y : tensor<65536x4xf32>
            return %c : tensor<65536x4xf32>
            """,
            ("65536x16x4xf32=0.5" if strided else "16x65536x4xf32=0.5", "65536x4xf32=0.5"),
        )

    yield Planted(
        "strided-reads",
        "one of 16 interleaved parts",
        sliced("strided_sliced", strided=True),
        sliced("strided_sliced_not", strided=False),
    )

    maps = "affine_map<(d0, d1) -> (d1, d0)>", "affine_map<(d0, d1) -> (d0, d1)>"

    def scaled(name: str, strided: bool) -> Program:
        return _program(
            name,
            f"%x: {size}",
            size,
            f"""
            %e = tensor.empty() : {size}
            %r = linalg.generic {{indexing_maps = [{maps[0 if strided else 1]}, {maps[1]}],
              iterator_types = ["parallel", "parallel"]}} ins(%x : {size})
              outs(%e : {size}) {{
            ^bb0(%v: f32, %o: f32): %c = arith.constant 3.0 : f32 %s = arith.mulf %v, %c : f32 linalg.yield %s : f32
            }} -> {size}
            return %r : {size}
            """,
            ("2048x2048xf32=0.5",),
        )

    yield Planted(
        "strided-reads",
        "a generic that reads by columns (linalg)",
        scaled("strided_scaled", strided=True),
        scaled("strided_scaled_not", strided=False),
        others=("layout-copy",),
    )


# ---- kernels


def _product(name: str, size: tuple[int, int, int], kind: str = "f32", result: str = "") -> Program:
    rows, depth, columns = size
    result = result or kind
    left, right, out = (
        f"tensor<{rows}x{depth}x{kind}>",
        f"tensor<{depth}x{columns}x{kind}>",
        f"tensor<{rows}x{columns}x{result}>",
    )
    value = "1" if kind.startswith("i") else "0.1"
    return _program(
        name,
        f"%x: {left}, %w: {right}",
        out,
        "%m = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]"
        f" : ({left}, {right}) -> {out}\nreturn %m : {out}",
        (f"{rows}x{depth}x{kind}={value}", f"{depth}x{columns}x{kind}={value}"),
    )


def _matmul(name: str, size: tuple[int, int, int], config: str = "") -> Program:
    """A product in linalg, with tiles that were set by hand."""
    rows, depth, columns = size
    left, right, out = f"tensor<{rows}x{depth}xf32>", f"tensor<{depth}x{columns}xf32>", f"tensor<{rows}x{columns}xf32>"
    return _program(
        name,
        f"%x: {left}, %w: {right}",
        out,
        f"""
        %z = arith.constant 0.0 : f32
        %e = tensor.empty() : {out}
        %f = linalg.fill ins(%z : f32) outs(%e : {out}) -> {out}
        %m = linalg.matmul {config} ins(%x, %w : {left}, {right}) outs(%f : {out}) -> {out}
        return %m : {out}
        """,
        (f"{rows}x{depth}xf32=0.1", f"{depth}x{columns}xf32=0.1"),
    )


def _tiles(distribution: str, parallel: str, reduction: str) -> str:
    levels = f"distribution = [{distribution}], vector_common_parallel = [{parallel}], vector_reduction = [{reduction}]"
    return (
        "{compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<"
        + levels
        + ">, translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>}"
    )


def _below_roofline() -> Iterator[Planted]:
    generic = ("--iree-llvmcpu-target-cpu=generic",)
    for name, program in (
        ("a product built for any x86-64", _product("roofline_generic", (384, 384, 384))),
        ("a product of bytes built for any x86-64", _product("roofline_bytes", (256, 512, 512), "i8", "i32")),
    ):
        yield Planted(
            "below-roofline",
            name,
            replace(program, compile_flags=generic),
            replace(program, name=program.name + "_host"),
        )
    size = (384, 256, 512)
    yield Planted(
        "below-roofline",
        "a product with narrow tiles set by hand (linalg)",
        _matmul("roofline_tiles", size, _tiles("64, 64, 0", "1, 16, 0", "0, 0, 1")),
        _matmul("roofline_tiles_not", size),
    )


def _not_vectorized() -> Iterator[Planted]:
    kind = "tensor<262144xf32>"
    inputs = ("262144xf32=7.5", "262144xf32=2.0")

    def elementwise(name: str, body: str) -> Program:
        return _program(name, f"%x: {kind}, %y: {kind}", kind, body, inputs)

    yield Planted(
        "not-vectorized",
        "a remainder of floats",
        elementwise("scalar_remainder", f"%r = stablehlo.remainder %x, %y : {kind}\nreturn %r : {kind}"),
        elementwise(
            "scalar_remainder_not",
            f"""
            %q = stablehlo.divide %x, %y : {kind}
            %f = stablehlo.floor %q : {kind}
            %p = stablehlo.multiply %f, %y : {kind}
            %r = stablehlo.subtract %x, %p : {kind}
            return %r : {kind}
            """,
        ),
    )
    codes = "tensor<262144xi8>"

    def table(name: str, looked_up: bool) -> Program:
        values = ", ".join(str(max(-128, min(127, -code))) for code in range(-128, 128))
        lines = (
            f"""
            %t = "tosa.const"() {{values = dense<[{values}]> : tensor<256xi8>}} : () -> tensor<256xi8>
            %r = tosa.table %x, %t : ({codes}, tensor<256xi8>) -> {codes}
            """
            if looked_up
            else f"%r = tosa.bitwise_not %x : ({codes}) -> {codes}"
        )
        return _program(name, f"%x: {codes}", codes, f"{lines}\nreturn %r : {codes}", ("262144xi8=5",))

    yield Planted(
        "not-vectorized",
        "a table for a negation (TOSA)",
        table("scalar_table", looked_up=True),
        table("scalar_table_not", looked_up=False),
    )
    flat = "tensor<524288xf32>"

    def gathered(name: str, indexed: bool) -> Program:
        lines = (
            f"""
            %i = stablehlo.iota dim = 0 : tensor<524288xi32>
            %o = stablehlo.constant dense<524287> : tensor<524288xi32>
            %s = stablehlo.subtract %o, %i : tensor<524288xi32>
            %j = stablehlo.reshape %s : (tensor<524288xi32>) -> tensor<524288x1xi32>
            %g = "stablehlo.gather"(%x, %j) {{
              dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0],
              index_vector_dim = 1>, slice_sizes = array<i64: 1>}}
              : ({flat}, tensor<524288x1xi32>) -> {flat}
            """
            if indexed
            else f"%g = stablehlo.reverse %x, dims = [0] : {flat}"
        )
        body = f"{lines}\n%r = stablehlo.add %g, %y : {flat}\nreturn %r : {flat}"
        return _program(name, f"%x: {flat}, %y: {flat}", flat, body, ("524288xf32=0.5", "524288xf32=0.5"))

    yield Planted(
        "not-vectorized",
        "indices for a reversal",
        gathered("scalar_gather", indexed=True),
        gathered("scalar_gather_not", indexed=False),
    )


def _spilling() -> Iterator[Planted]:
    for number, (size, tiles) in enumerate(
        (
            ((256, 256, 256), ("64, 64, 0", "32, 32, 0", "0, 0, 2")),
            ((512, 128, 512), ("64, 128, 0", "16, 64, 0", "0, 0, 4")),
            ((256, 512, 128), ("32, 128, 0", "8, 128, 0", "0, 0, 2")),
        )
    ):
        yield Planted(
            "spilling",
            f"large tiles set by hand ({'×'.join(tiles[1].split(', ')[:2])}, linalg)",
            _matmul(f"spilling{number}", size, _tiles(*tiles)),
            _matmul(f"spilling{number}_not", size),
            others=("below-roofline",),
        )


def _imbalance() -> Iterator[Planted]:
    row = "tensor<1x1048576xf32>"

    def total(name: str, split: bool) -> Program:
        lines = (
            f"""
            %v = stablehlo.reshape %x : ({row}) -> tensor<64x16384xf32>
            %p = stablehlo.reduce(%v init: %z) applies stablehlo.maximum across dimensions = [1]
              : (tensor<64x16384xf32>, tensor<f32>) -> tensor<64xf32>
            %s = stablehlo.reduce(%p init: %z) applies stablehlo.maximum across dimensions = [0]
              : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
            %r = stablehlo.reshape %s : (tensor<f32>) -> tensor<1xf32>
            """
            if split
            else "%r = stablehlo.reduce(%x init: %z) applies stablehlo.maximum across dimensions = [1]"
            f" : ({row}, tensor<f32>) -> tensor<1xf32>"
        )
        body = f"%z = stablehlo.constant dense<0.0> : tensor<f32>\n{lines}\nreturn %r : tensor<1xf32>"
        return _program(name, f"%x: {row}", "tensor<1xf32>", body, ("1x1048576xf32=0.5",))

    yield Planted(
        "imbalance",
        "the maximum of one row",
        total("imbalance_row", split=False),
        total("imbalance_row_split", split=True),
    )

    def deep(name: str, split: bool) -> Program:
        out = "tensor<8x8xf32>"
        shapes = ("16x8x8192xf32", "16x8192x8xf32") if split else ("8x131072xf32", "131072x8xf32")
        left, right = (f"tensor<{shape}>" for shape in shapes)
        lines = (
            f"""
            %p = stablehlo.dot_general %x, %w, batching_dims = [0] x [0], contracting_dims = [2] x [1]
              : ({left}, {right}) -> tensor<16x8x8xf32>
            %z = stablehlo.constant dense<0.0> : tensor<f32>
            %m = stablehlo.reduce(%p init: %z) applies stablehlo.add across dimensions = [0]
              : (tensor<16x8x8xf32>, tensor<f32>) -> {out}
            """
            if split
            else f"%m = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({left}, {right}) -> {out}"
        )
        inputs = [f"{shape}=0.1" for shape in shapes]
        return _program(name, f"%x: {left}, %w: {right}", out, f"{lines}\nreturn %m : {out}", inputs)

    yield Planted(
        "imbalance",
        "a product of one tile",
        deep("imbalance_deep", split=False),
        deep("imbalance_deep_split", split=True),
    )
    size = (192, 1024, 1024)
    yield Planted(
        "imbalance",
        "three workgroups on two workers (linalg)",
        _matmul("imbalance_thirds", size, _tiles("64, 1024, 0", "8, 16, 0", "0, 0, 16")),
        _matmul("imbalance_thirds_not", size, _tiles("96, 1024, 0", "8, 16, 0", "0, 0, 16")),
    )


def _tiny_dispatches() -> Iterator[Planted]:
    rows, first, second = 48, "tensor<32x32xf32>", "tensor<32x16xf32>"

    def rowwise(name: str, together: bool) -> Program:
        """An MLP that is applied to each row of a batch in a Python loop."""
        dot = "stablehlo.dot_general {}, {}, contracting_dims = [1] x [0] : ({}, {}) -> {}"
        lines, batch, result = [], f"tensor<{rows}x32xf32>", f"tensor<{rows}x16xf32>"
        for row in range(1 if together else rows):
            count = rows if together else 1
            given, out = f"tensor<{count}x32xf32>", f"tensor<{count}x16xf32>"
            lines += [
                f"%x{row} = stablehlo.slice %x [{row}:{row + count}, 0:32] : ({batch}) -> {given}",
                f"%a{row} = " + dot.format(f"%x{row}", "%w", given, first, given),
                f"%t{row} = stablehlo.tanh %a{row} : {given}",
                f"%y{row} = " + dot.format(f"%t{row}", "%v", given, second, out),
            ]
        if not together:
            parts, kinds = ", ".join(f"%y{row}" for row in range(rows)), ", ".join(["tensor<1x16xf32>"] * rows)
            lines.append(f"%y = stablehlo.concatenate {parts}, dim = 0 : ({kinds}) -> {result}")
        lines.append(f"return {'%y0' if together else '%y'} : {result}")
        inputs = (f"{rows}x32xf32=0.1", "32x32xf32=0.1", "32x16xf32=0.1")
        return _program(name, f"%x: {batch}, %w: {first}, %v: {second}", result, "\n".join(lines), inputs)

    yield Planted(
        "tiny-dispatches",
        "an MLP row by row",
        rowwise("tiny_rows", together=False),
        rowwise("tiny_rows_together", together=True),
        others=("overhead-bound",),
    )
    count, length = 32, 512

    def update(name: str, together: bool) -> Program:
        sizes = [count * length] if together else [length + 16 * number for number in range(count)]
        arguments, lines, inputs, results = [], [], [], []
        for number, size in enumerate(sizes):
            kind = f"tensor<{size}xf32>"
            arguments += [f"%p{number}: {kind}", f"%g{number}: {kind}"]
            inputs += [f"{size}xf32=0.5", f"{size}xf32=0.1"]
            lines += [
                f"%c{number} = stablehlo.constant dense<0.01> : {kind}",
                f"%s{number} = stablehlo.multiply %g{number}, %c{number} : {kind}",
                f"%n{number} = stablehlo.subtract %p{number}, %s{number} : {kind}",
            ]
            results.append(kind)
        names = ", ".join(f"%n{number}" for number in range(len(sizes)))
        kinds = ", ".join(results)
        return _program(name, ", ".join(arguments), kinds, "\n".join([*lines, f"return {names} : {kinds}"]), inputs)

    yield Planted(
        "tiny-dispatches",
        "an update of 32 small weights",
        update("tiny_update", together=False),
        update("tiny_update_one", together=True),
        others=("overhead-bound",),
    )

    def layers(name: str, together: bool) -> Program:
        kind, weight = "tensor<4x32xf32>", "tensor<32x32xf32>"
        if together:
            big = ("tensor<20x4x32xf32>", "tensor<20x32x32xf32>")
            body = f"""
            %z = arith.constant 0.0 : f32
            %e = tensor.empty() : {big[0]}
            %f = linalg.fill ins(%z : f32) outs(%e : {big[0]}) -> {big[0]}
            %m = linalg.batch_matmul ins(%x, %w : {big[0]}, {big[1]}) outs(%f : {big[0]}) -> {big[0]}
            return %m : {big[0]}
            """
            return _program(name, f"%x: {big[0]}, %w: {big[1]}", big[0], body, ("20x4x32xf32=0.1", "20x32x32xf32=0.1"))
        arguments, lines, results = [], ["%z = arith.constant 0.0 : f32", f"%e = tensor.empty() : {kind}"], []
        for number in range(20):
            arguments += [f"%x{number}: {kind}", f"%w{number}: {weight}"]
            lines += [
                f"%f{number} = linalg.fill ins(%z : f32) outs(%e : {kind}) -> {kind}",
                f"%m{number} = linalg.matmul ins(%x{number}, %w{number} : {kind}, {weight})"
                f" outs(%f{number} : {kind}) -> {kind}",
            ]
            results.append(f"%m{number}")
        kinds = ", ".join([kind] * 20)
        lines.append(f"return {', '.join(results)} : {kinds}")
        return _program(name, ", ".join(arguments), kinds, "\n".join(lines), ("4x32xf32=0.1", "32x32xf32=0.1") * 20)

    yield Planted(
        "tiny-dispatches",
        "twenty experts one by one (linalg)",
        layers("tiny_experts", together=False),
        layers("tiny_experts_batched", together=True),
        others=("overhead-bound",),
    )


def _repeated_work() -> Iterator[Planted]:
    kind = _square(320)
    dot = f"stablehlo.dot_general {{}}, {{}}, contracting_dims = [1] x [0] : ({kind}, {kind}) -> {kind}"

    def twice(name: str, again: bool) -> Program:
        # A copy of the input that a barrier hides from the compiler, as libraries write to pin memory.
        lines = [f"%0 = {dot.format('%x', '%w')}", f"%1 = stablehlo.tanh %0 : {kind}"]
        if again:
            lines += [
                f"%k = stablehlo.optimization_barrier %x : {kind}",
                f"%2 = {dot.format('%k', '%w')}",
            ]
        lines += [f"%3 = stablehlo.negate {'%2' if again else '%0'} : {kind}", f"return %1, %3 : {kind}, {kind}"]
        return _program(name, f"%x: {kind}, %w: {kind}", f"{kind}, {kind}", "\n".join(lines), ("320x320xf32=0.1",) * 2)

    yield Planted(
        "repeated-work",
        "a product behind a barrier",
        twice("repeated_barrier", again=True),
        twice("repeated_barrier_not", again=False),
        others=("recomputed",),
    )

    def commuted(name: str, again: bool) -> Program:
        lines = [f"%a = stablehlo.add %x, %y : {kind}", f"%0 = {dot.format('%a', '%w')}"]
        if again:
            lines += [f"%b = stablehlo.add %y, %x : {kind}", f"%1 = {dot.format('%b', '%w')}"]
        lines += [
            f"%2 = stablehlo.tanh %0 : {kind}",
            f"%3 = stablehlo.logistic {'%1' if again else '%0'} : {kind}",
            f"return %2, %3 : {kind}, {kind}",
        ]
        return _program(
            name, f"%x: {kind}, %y: {kind}, %w: {kind}", f"{kind}, {kind}", "\n".join(lines), ("320x320xf32=0.1",) * 3
        )

    yield Planted(
        "repeated-work",
        "a product of x + y and of y + x",
        commuted("repeated_commuted", again=True),
        commuted("repeated_commuted_not", again=False),
    )

    size, rows = _square(256), "tensor<256x256xf32>"

    def invariant(name: str, inside: bool) -> Program:
        product = f"""
            %f = linalg.fill ins(%zero : f32) outs(%e : {size}) -> {size}
            %m = linalg.matmul ins(%a, %w : {size}, {size}) outs(%f : {size}) -> {size}"""
        return _program(
            name,
            f"%x: {rows}, %a: {size}, %w: {size}, %n: index",
            rows,
            f"""
            %c0 = arith.constant 0 : index
            %c1 = arith.constant 1 : index
            %zero = arith.constant 0.0 : f32
            %e = tensor.empty() : {size}
            {"" if inside else product}
            %r = scf.for %i = %c0 to %n step %c1 iter_args(%h = %x) -> ({rows}) {{
            {product if inside else ""}
              %s = linalg.elementwise <add> ins(%m, %h : {size}, {size}) outs(%e : {size}) -> {size}
              scf.yield %s : {size}
            }}
            return %r : {rows}
            """,
            ("256x256xf32=0.1", "256x256xf32=0.1", "256x256xf32=0.1", "8"),
        )

    yield Planted(
        "repeated-work",
        "a product in a loop that does not change it (linalg)",
        invariant("repeated_loop", inside=True),
        invariant("repeated_loop_not", inside=False),
    )


def _recomputed() -> Iterator[Planted]:
    for name, shown, inputs in (
        ("mlp", "an MLP with jax.checkpoint", ("256x256xf32=0.01",) * 4),
        ("attention", "attention with jax.checkpoint", ("2x4x128x64xf32=0.1",) * 3),
        ("layers", "four layers with jax.checkpoint", (*("192x192xf32=0.01",) * 4, "256x192xf32=0.1")),
    ):
        before, after = (
            Program(f"remat_{name}{end}", (_REMAT / f"remat_{name}{end}.mlir").read_text(encoding="utf-8"), inputs)
            for end in ("", "_saved")
        )
        yield Planted("recomputed", shown, before, after, others=("repeated-work",))


def _clean() -> Iterator[Program]:
    yield _product("clean_product", (512, 512, 512))
    yield _product("clean_wide_product", (256, 1024, 768))
    yield _matmul("clean_matmul", (768, 384, 512))
    yield _attention("clean_attention", 16, 256, 64)
    yield _normalized("clean_softmax", 2048, 1024)
    yield _convolution("clean_convolution", 1, 56, 64, 64)
    yield _convolution("clean_convolutions", 4, 28, 32, 128)
    yield _mlp("clean_mlp", 256, 512, 1024)
    size = "tensor<8388608xf32>"
    yield _program(
        "clean_elementwise",
        f"%x: {size}, %y: {size}",
        size,
        f"%a = stablehlo.multiply %x, %y : {size}\n%b = stablehlo.tanh %a : {size}\nreturn %b : {size}",
        ("8388608xf32=0.5", "8388608xf32=0.25"),
    )
    yield _program(
        "clean_reduction",
        "%x: tensor<2048x2048xf32>",
        "tensor<2048xf32>",
        """
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]
          : (tensor<2048x2048xf32>, tensor<f32>) -> tensor<2048xf32>
        return %s : tensor<2048xf32>
        """,
        ("2048x2048xf32=0.5",),
    )


def _attention(name: str, heads: int, length: int, depth: int) -> Program:
    kind, scores = f"tensor<{heads}x{length}x{depth}xf32>", f"tensor<{heads}x{length}x{length}xf32>"
    return _program(
        name,
        f"%q: {kind}, %k: {kind}, %v: {kind}",
        kind,
        f"""
        %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
          : ({kind}, {kind}) -> {scores}
        {_softmax("s", scores, f"tensor<{heads}x{length}xf32>", "[0, 1]", 2)}
        %o = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
          : ({scores}, {kind}) -> {kind}
        return %o : {kind}
        """,
        (f"{heads}x{length}x{depth}xf32=0.1",) * 3,
    )


def _softmax(value: str, kind: str, row: str, dims: str, last: int) -> str:
    return f"""
        %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %mx = stablehlo.reduce(%{value} init: %low) applies stablehlo.maximum across dimensions = [{last}]
          : ({kind}, tensor<f32>) -> {row}
        %mb = stablehlo.broadcast_in_dim %mx, dims = {dims} : ({row}) -> {kind}
        %sh = stablehlo.subtract %{value}, %mb : {kind}
        %ex = stablehlo.exponential %sh : {kind}
        %sm = stablehlo.reduce(%ex init: %zero) applies stablehlo.add across dimensions = [{last}]
          : ({kind}, tensor<f32>) -> {row}
        %sb = stablehlo.broadcast_in_dim %sm, dims = {dims} : ({row}) -> {kind}
        %p = stablehlo.divide %ex, %sb : {kind}"""


def _normalized(name: str, rows: int, columns: int) -> Program:
    kind = f"tensor<{rows}x{columns}xf32>"
    body = _softmax("x", kind, f"tensor<{rows}xf32>", "[0]", 1) + f"\nreturn %p : {kind}"
    return _program(name, f"%x: {kind}", kind, body, (f"{rows}x{columns}xf32=0.5",))


def _convolution(name: str, batch: int, size: int, channels: int, filters: int) -> Program:
    given, out = f"{batch}x{size + 2}x{size + 2}x{channels}xf32", f"{batch}x{size}x{size}x{filters}xf32"
    weights = f"3x3x{channels}x{filters}xf32"
    return _program(
        name,
        f"%x: tensor<{given}>, %w: tensor<{weights}>",
        f"tensor<{out}>",
        f"""
        %c = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
          window = {{stride = [1, 1]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
          : (tensor<{given}>, tensor<{weights}>) -> tensor<{out}>
        %z = stablehlo.constant dense<0.0> : tensor<{out}>
        %r = stablehlo.maximum %c, %z : tensor<{out}>
        return %r : tensor<{out}>
        """,
        (f"{given}=0.1", f"{weights}=0.1"),
    )


def _mlp(name: str, rows: int, width: int, hidden: int) -> Program:
    kind, middle = f"tensor<{rows}x{width}xf32>", f"tensor<{rows}x{hidden}xf32>"
    up, down = f"tensor<{width}x{hidden}xf32>", f"tensor<{hidden}x{width}xf32>"
    return _program(
        name,
        f"%x: {kind}, %a: {up}, %b: {down}",
        kind,
        f"""
        %0 = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0] : ({kind}, {up}) -> {middle}
        %1 = stablehlo.tanh %0 : {middle}
        %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [0] : ({middle}, {down}) -> {kind}
        return %2 : {kind}
        """,
        (f"{rows}x{width}xf32=0.1", f"{width}x{hidden}xf32=0.1", f"{hidden}x{width}xf32=0.1"),
    )
