"""Marked programs in StableHLO: what is removed, merged, added or moved, between ops with numbers of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.oracle.marked import DEAD, WORKS, MarkedProgram, Writer, number_sign
from tracemap.map.model import Outcome

TILED = ("--iree-opt-level=O3", "--iree-opt-data-tiling")
_HOST = frozenset({Outcome.HOST, Outcome.FOLDED, Outcome.REMOVED})


@dataclass
class Wide(Writer):
    """Blocks that take a value from a pool and put another back, behind an op with a number of its own."""

    arguments: list[tuple[str, str]] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)
    tiled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rows, self.columns = self.random.sample(range(5, 60), 2)
        self.type = f"tensor<{self.rows}x{self.columns}xf32>"
        self.whole = self.type.replace("f32", "i32")
        self.bits = self.type.replace("f32", "i1")
        self.pool: list[str] = []
        self.open_dims = [0, 1]

    def write(self) -> MarkedProgram:
        """A program of random blocks."""
        blocks = self.blocks()
        for _ in range(self.random.randint(5, 12)):
            self.random.choice(blocks)()
        self.results += [(value, self.type) for value in self.pool]
        flags = TILED if self.tiled else ()
        return self.program("stablehlo tiled" if self.tiled else "stablehlo", [self._head()], [self._end(), "}"], flags)

    def blocks(self) -> list[Callable[[], None]]:
        """What may be in a program."""
        if self.tiled:
            return [self.product, self.product, self.work, self.reshaped, self.neutral, self.wide_fill]
        found = [self.neutral, self.neutral, self.neutral_whole, self.merged, self.merged, self.dead, self.never_chosen]
        found += [self.iota_alone, self.iota_fused, self.gather, self.scatter, self.joined, self.padded]
        return [*found, self.wide_fill, self.reshaped, self.reshaped, self.product, self.work, self.maximum_twice]

    def _head(self) -> str:
        declared = ", ".join(f"{name}: {kind}" for name, kind in self.arguments)
        return f"func.func @main({declared}) -> ({', '.join(kind for _, kind in self.results)}) {{"

    def _end(self) -> str:
        names = ", ".join(name for name, _ in self.results)
        return f"  return {names} : {', '.join(kind for _, kind in self.results)}"

    # Values.

    def argument(self, kind: str) -> str:
        """A new argument."""
        self.arguments.append((f"%a{len(self.arguments)}", kind))
        return self.arguments[-1][0]

    def take(self) -> str:
        """A value of the pool; it stays there half of the time, so that it has other uses."""
        if not self.pool or self.random.random() < 0.3:
            return self.argument(self.type)
        place = self.random.randrange(len(self.pool))
        return self.pool[place] if self.random.random() < 0.5 else self.pool.pop(place)

    def constant(self, value: str, kind: str) -> str:
        """A constant of one number."""
        return self.op(f"stablehlo.constant dense<{value}> : {kind}")

    def marked(self, value: str, kind: str, group: str, word: str = "") -> str:
        """An op with a number of its own."""
        number = self.number()
        shown = f"{number}.0" if "f32" in kind else str(number)
        other = self.constant(shown, kind)
        word = word or self.random.choice(("add", "multiply", "subtract"))
        result = self.op(f"stablehlo.{word} {value}, {other} : {kind}")
        self.mark(group, number_sign(number))
        return result

    def put(self, value: str, group: str = "others") -> None:
        """Back into the pool, behind an op with a number of its own."""
        self.pool.append(self.marked(value, self.type, group))

    # Blocks.

    def work(self) -> None:
        """An op, and one without a number behind it."""
        self.put(self.op(f"stablehlo.tanh {self.marked(self.take(), self.type, 'others')} : {self.type}"))

    def neutral(self) -> None:
        """What leaves each element as it is."""
        value, kind = self.take(), self.type
        how = self.random.choice(("mul", "div", "add", "sub", "neg", "select", "convert", "max"))
        if how in {"mul", "div"}:
            one = self.constant("1.0", kind)
            value = self.op(f"stablehlo.{'multiply' if how == 'mul' else 'divide'} {value}, {one} : {kind}")
        elif how in {"add", "sub"}:
            zero = self.constant("-0.0" if how == "add" else "0.0", kind)
            value = self.op(f"stablehlo.{'add' if how == 'add' else 'subtract'} {value}, {zero} : {kind}")
        elif how == "neg":
            once = self.op(f"stablehlo.negate {value} : {kind}")
            self.gone("neutral")
            value = self.op(f"stablehlo.negate {once} : {kind}")
        elif how == "select":
            yes, other = self.constant("true", self.bits), self.constant("2.0", kind)
            value = self.op(f"stablehlo.select {yes}, {value}, {other} : {self.bits}, {kind}")
        elif how == "convert":
            value = self.op(f"stablehlo.convert {value} : {kind}")
        else:
            value = self.op(f"stablehlo.maximum {value}, {value} : {kind}")
        self.gone("neutral")
        self.put(value, "after neutral op")

    def neutral_whole(self) -> None:
        """The same for whole numbers."""
        kind, value = self.whole, self.argument(self.whole)
        words = {"and": "-1", "or": "0", "xor": "0", "shift_left": "0", "add": "0", "multiply": "1", "subtract": "0"}
        word = self.random.choice((*words, "self"))
        if word == "self":
            value = self.op(f"stablehlo.{self.random.choice(('or', 'and', 'maximum'))} {value}, {value} : {kind}")
        else:
            value = self.op(f"stablehlo.{word} {value}, {self.constant(words[word], kind)} : {kind}")
        self.gone("neutral")
        self.results.append((self.marked(value, kind, "after neutral op"), kind))

    def maximum_twice(self) -> None:
        """A reduction over a single element, and a maximum with minus infinity of another."""
        lowest = self.constant("0xFF800000", "tensor<f32>")
        vector = f"tensor<{self.rows}xf32>"
        types = f"({self.type}, tensor<f32>) -> {vector}"
        how = f"applies stablehlo.maximum across dimensions = [1] : {types}"
        highest = self.op(f"stablehlo.reduce({self.take()} init: {lowest}) {how}")
        wide = self.op(f"stablehlo.broadcast_in_dim {lowest}, dims = [] : (tensor<f32>) -> {vector}")
        same = self.op(f"stablehlo.maximum {wide}, {highest} : {vector}")
        self.gone("neutral")
        self.results.append((self.marked(same, vector, "after neutral op"), vector))

    def merged(self) -> None:
        """Two ops that the compiler makes one of, which has both of their places."""
        kind, value = self.whole, self.argument(self.whole)
        how = self.random.choice(("sum", "inverted", "negated"))
        if how == "sum":
            one, two = self.number(), self.number()
            value = self.op(f"stablehlo.add {value}, {self.constant(str(one), kind)} : {kind}")
            self.mark("merged", number_sign(one + two))
            value = self.op(f"stablehlo.add {value}, {self.constant(str(two), kind)} : {kind}")
            # The constant stands on the line between.
            self.mark("merged", number_sign(one + two))
            self.results.append((value, kind))
        elif how == "inverted":
            number, types = self.number(), f"({kind}, {kind}) -> {self.bits}"
            other = self.constant(str(number), kind)
            less = self.op(f"stablehlo.compare LT, {value}, {other} : {types}")
            self.mark("merged", number_sign(number))
            self.results.append((self.op(f"stablehlo.not {less} : {self.bits}"), self.bits))
            self.mark("merged", number_sign(number))
        else:
            number = self.number()
            other = self.constant(f"{number}.0", self.type)
            less = self.op(f"stablehlo.negate {self.argument(self.type)} : {self.type}")
            self.mark("merged", number_sign(number))
            self.results.append((self.op(f"stablehlo.add {less}, {other} : {self.type}"), self.type))
            self.mark("merged", number_sign(number))

    def dead(self) -> None:
        """An arm, or a loop, that can never run."""
        value, kind = self.take(), self.type
        if self.random.random() < 0.5:
            no = self.constant("false", "tensor<i1>")
            result = self.op(f'"stablehlo.if"({no}) ({{')
            self._dead_op(value, "stablehlo.sine")
            self.line("  }, {")
            alive = self.marked(value, kind, "others")
            self.line(f"  stablehlo.return {alive} : {kind}")
            self.line(f"  }}) : (tensor<i1>) -> {kind}")
        else:
            zero, one = self.constant("0", "tensor<i32>"), self.constant("1", "tensor<i32>")
            name = f"%w{len(self.lines)}"
            self.line(f"  {name}:2 = stablehlo.while(%i = {zero}, %p = {value}) : tensor<i32>, {kind} cond {{")
            less = self.op(f"stablehlo.compare LT, %i, {zero} : (tensor<i32>, tensor<i32>) -> tensor<i1>")
            self.line(f"  stablehlo.return {less} : tensor<i1>\n  }} do {{".split("\n")[0])
            self.line("  } do {")
            following = self.op(f"stablehlo.add %i, {one} : tensor<i32>")
            step = self.op(f"stablehlo.cosine %p : {kind}")
            self.mark("dead", outcomes=DEAD)
            self.line(f"  stablehlo.return {following}, {step} : tensor<i32>, {kind}")
            self.line("  }")
            result = f"{name}#1"
        self.put(result)

    def _dead_op(self, value: str, word: str) -> None:
        result = self.op(f"{word} {value} : {self.type}")
        self.mark("dead", outcomes=DEAD)
        self.line(f"  stablehlo.return {result} : {self.type}")

    def never_chosen(self) -> None:
        """What a select never chooses."""
        value, kind = self.take(), self.type
        bit = self.random.choice(("true", "false"))
        unused = self.op(f"stablehlo.log_plus_one {value} : {kind}")
        self.mark("dead", outcomes=DEAD)
        used = self.marked(value, kind, "others")
        operands = (used, unused) if bit == "true" else (unused, used)
        condition = self.constant(bit, self.bits)
        result = self.op(f"stablehlo.select {condition}, {operands[0]}, {operands[1]} : {self.bits}, {kind}")
        self.gone("neutral")
        self.put(result)

    def iota_alone(self) -> None:
        """Positions that are sorted along: their kernel makes nothing else."""
        length = self.extent()
        keys, places = f"tensor<{length}xf32>", f"tensor<{length}xi32>"
        position = self.op(f"stablehlo.iota dim = 0 : {places}")
        self.mark("iota", r"linalg\.index", rf"(?<!\d){length}xi32")
        given = self.argument(keys)
        name = f"%s{length}"
        self.line(f'  {name}:2 = "stablehlo.sort"({given}, {position}) ({{')
        self.mark("sort", r"iree_linalg_ext\.sort", rf"(?<!\d){length}xf32")
        self.line("  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %p: tensor<i32>, %q: tensor<i32>):")
        less = self.op("stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>")
        self.line(f"  stablehlo.return {less} : tensor<i1>")
        types = f"({keys}, {places}) -> ({keys}, {places})"
        self.line(f"  }}) {{dimension = 0 : i64, is_stable = true}} : {types}")
        self.results += [(f"{name}#0", keys), (f"{name}#1", places)]

    def iota_fused(self) -> None:
        """Positions that are counted where they are used."""
        if not self.open_dims:
            return  # another would be the same as one before
        number = self.number()
        position = self.op(f"stablehlo.iota dim = {self.open_dims.pop()} : {self.whole}")
        self.mark("iota", r"linalg\.index", number_sign(number))
        mixed = self.op(f"stablehlo.xor {position}, {self.argument(self.whole)} : {self.whole}")
        self.mark("others", "arith.xori", number_sign(number))
        other = self.constant(str(number), self.whole)
        result = self.op(f"stablehlo.multiply {mixed}, {other} : {self.whole}")
        self.mark("others", number_sign(number))
        self.results.append((result, self.whole))

    def gather(self) -> None:
        """Rows by their numbers."""
        count = self.extent()
        rows = f"tensor<{count}x{self.columns}xf32>"
        numbers = self.argument(f"tensor<{count}x1xi32>")
        how = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
        slices = f"slice_sizes = array<i64: 1, {self.columns}>, indices_are_sorted = false"
        found = self.op(
            f'"stablehlo.gather"({self.take()}, {numbers}) {{dimension_numbers = #stablehlo.gather<{how}>, {slices}}}'
            f" : ({self.type}, tensor<{count}x1xi32>) -> {rows}"
        )
        self.mark("gather", r"tensor\.extract |iree_linalg_ext\.gather", rf"(?<!\d){count}x{self.columns}xf32")
        self.results.append((self.marked(found, rows, "others"), rows))

    def scatter(self) -> None:
        """Rows added at their numbers."""
        count = self.extent()
        kind = f"tensor<{self.extent()}x{self.columns}xf32>"
        indices, rows = f"tensor<{count}x1xi32>", f"tensor<{count}x{self.columns}xf32>"
        operands = f"{self.argument(kind)}, {self.argument(indices)}, {self.argument(rows)}"
        name = f"%s{count}"
        self.line(f'  {name} = "stablehlo.scatter"({operands}) ({{')
        self.mark("scatter", r"iree_linalg_ext\.scatter", rf"(?<!\d){count}x{self.columns}xf32")
        self.line("  ^bb0(%a: tensor<f32>, %b: tensor<f32>):")
        total = self.op("stablehlo.add %a, %b : tensor<f32>")
        self.line(f"  stablehlo.return {total} : tensor<f32>")
        dims = "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]"
        how = f"scatter_dimension_numbers = #stablehlo.scatter<{dims}, index_vector_dim = 1>"
        flags = "indices_are_sorted = false, unique_indices = false"
        self.line(f"  }}) {{{how}, {flags}}} : ({kind}, {indices}, {rows}) -> {kind}")
        self.results.append((self.marked(name, kind, "others"), kind))

    def joined(self) -> None:
        """Two values behind one another."""
        rows = self.rows * 2
        kind = f"tensor<{rows}x{self.columns}xf32>"
        one, two = self.marked(self.take(), self.type, "concat"), self.marked(self.take(), self.type, "concat")
        both = self.op(f"stablehlo.concatenate {one}, {two}, dim = 0 : ({self.type}, {self.type}) -> {kind}")
        self.results.append((self.marked(both, kind, "concat"), kind))

    def padded(self) -> None:
        """A value with something around it."""
        kind = f"tensor<{self.rows + 7}x{self.columns}xf32>"
        around = self.constant("7.0", "tensor<f32>")
        how = f"low = [3, 0], high = [4, 0], interior = [0, 0] : ({self.type}, tensor<f32>) -> {kind}"
        padded = self.op(f"stablehlo.pad {self.marked(self.take(), self.type, 'others')}, {around}, {how}")
        self.results.append((self.marked(padded, kind, "others"), kind))

    def wide_fill(self) -> None:
        """What the device cannot fill by itself: it is filled by a kernel that the compiler adds."""
        length, number = self.extent(), 4294967296 + self.number()
        element = self.random.choice(("i64", "f64"))
        kind = f"tensor<{length}x{element}>" if element == "i64" else f"tensor<{length}xi64>"
        small = f"tensor<{length - 9}xi64>"
        value = self.constant(str(number), "tensor<i64>")
        how = f"low = [4], high = [5], interior = [0] : ({small}, tensor<i64>) -> {kind}"
        padded = self.op(f"stablehlo.pad {self.argument(small)}, {value}, {how}")
        self.mark("added kernels", number_sign(number), outcomes=WORKS | {Outcome.TRANSFER})
        self.results.append((padded, kind))

    def reshaped(self) -> None:
        """A reshape between two ops, of which the first has other uses."""
        flat = f"tensor<{self.rows * self.columns}xf32>"
        first = self.marked(self.take(), self.type, "reshaped")
        merged = self.op(f"stablehlo.reshape {first} : ({self.type}) -> {flat}")
        second = self.marked(merged, flat, "reshaped")
        if self.random.random() < 0.5:
            self.results.append((first, self.type))
        back = self.op(f"stablehlo.reshape {second} : ({flat}) -> {self.type}")
        self.put(back, "reshaped")
        self.results.append((second, flat))

    def product(self) -> None:
        """A product, with ops on both sides, and its operands in another layout where data is tiled."""
        inner = self.extent()
        weights, kind = f"tensor<{self.columns}x{inner}xf32>", f"tensor<{self.rows}x{inner}xf32>"
        left = self.marked(self.take(), self.type, "product")
        types = f"({self.type}, {weights}) -> {kind}"
        given = self.argument(weights)
        result = self.op(f"stablehlo.dot_general {left}, {given}, contracting_dims = [1] x [0] : {types}")
        sign = rf"(?<!\d)(?:{inner}x{self.columns}|{self.columns}x{inner})x"
        self.mark("product", sign, at_least=self.tiled)
        self.results.append((self.marked(result, kind, "product"), kind))


@dataclass
class Dynamic(Wide):
    """Values of which the first extent is not known, several entry points, and globals between them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.type = f"tensor<?x{self.columns}xf32>"

    def write(self) -> MarkedProgram:
        """Some entry points, each of random blocks."""
        written: list[str] = []
        functions = self.random.randint(1, 3)
        for number in range(functions):
            self._function(number)
        kept = f"tensor<{self.columns}xf32>"
        head = [f"util.global private mutable @state = dense<0.0> : {kept}"]
        return self.program("dynamic, entries, globals", [*head, *written], [], ())

    def _function(self, number: int) -> None:
        place = len(self.lines)
        self.arguments, self.results, self.pool = [], [], []
        self.line("")
        for _ in range(self.random.randint(2, 5)):
            self.random.choice([self.sized, self.sized, self.reduced, self.kept, self.work_on])()
        self.results += [(value, self.type) for value in self.pool]
        self.line(self._end())
        self.line("}")
        self.lines[place] = self._head().replace("@main", f"@entry{number}")

    def _scaled(self, value: str) -> str:
        """An op with a number of its own, brought to the shape of a value whose shape is asked for."""
        number = self.number()
        size = self.op(f"stablehlo.get_dimension_size {value}, dim = 0 : ({self.type}) -> tensor<i32>")
        self.mark("shape queries", outcomes=_HOST)
        one = self.op(f"stablehlo.reshape {size} : (tensor<i32>) -> tensor<1xi32>")
        columns = self.constant(str(self.columns), "tensor<1xi32>")
        types = "(tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>"
        shape = self.op(f"stablehlo.concatenate {one}, {columns}, dim = 0 : {types}")
        scalar = self.constant(f"{number}.0", "tensor<f32>")
        how = f"dims = [] : (tensor<f32>, tensor<2xi32>) -> {self.type}"
        wide = self.op(f"stablehlo.dynamic_broadcast_in_dim {scalar}, {shape}, {how}")
        result = self.op(f"stablehlo.{self.random.choice(('add', 'multiply'))} {value}, {wide} : {self.type}")
        self.mark("dynamic", number_sign(number))
        return result

    def sized(self) -> None:
        self.pool.append(self._scaled(self.take()))

    def work_on(self) -> None:
        self.pool.append(self._scaled(self.op(f"stablehlo.tanh {self.take()} : {self.type}")))

    def reduced(self) -> None:
        zero, vector = self.constant("0.0", "tensor<f32>"), f"tensor<{self.columns}xf32>"
        types = f"({self.type}, tensor<f32>) -> {vector}"
        value = self._scaled(self.take())
        total = self.op(
            f"stablehlo.reduce({value} init: {zero}) applies stablehlo.add across dimensions = [0] : {types}"
        )
        self.results.append((self.marked(total, vector, "dynamic"), vector))

    def kept(self) -> None:
        """A global that one entry point leaves for others."""
        kind = f"tensor<{self.columns}xf32>"
        old = self.op(f"util.global.load @state : {kind}")
        new = self.marked(self.op(f"stablehlo.add {old}, {self.argument(kind)} : {kind}"), kind, "globals")
        self.line(f"  util.global.store {new}, @state : {kind}")
        self.results.append((new, kind))
