"""Programs by seed: what a model may be made of, in random order, each op with a fingerprint where it can have one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from tests.oracle.builder import Builder, Numbers
from tests.oracle.dialects import Dialect, Linalg, StableHlo, Tensor
from tests.oracle.program import Extents, Idiom, Kind, Loops, Op, Pattern, Program, Purpose

_BINARY = ("mul", "add", "sub", "div", "max", "min")
_UNARY = ("exp", "tanh", "sin", "cos", "log1p", "expm1", "rsqrt", "sqrt", "floor", "log")
_JOINS = ("mul", "add", "sub", "max", "min")


def generate(seed: int, *, equal: bool = True) -> Program:
    """The program of a seed; with `equal` false its twin, of the same structure, in which no layer repeats another."""
    random = Random(seed)
    dialect: Dialect = random.choice((StableHlo, Linalg))()
    numbers = Numbers(Random(seed + 1), equal=equal)
    return _Generator(Builder(dialect, random, numbers), random, seed).program()


class _Generator:
    """Puts blocks one behind the other; each takes values from the pool and puts its results there."""

    def __init__(self, builder: Builder, random: Random, seed: int) -> None:
        self._b = builder
        self._random = random
        self._seed = seed
        self._pool: list[Tensor] = []
        self._used: set[int] = set()
        self._dynamic = builder.dialect.needs_destination and random.random() < 0.2

    def program(self) -> Program:
        if self._dynamic:
            self._b.features.add("dynamic")
        self._new()
        wanted = self._random.randint(10, 70)  # with constants and destinations 20 to 200 ops
        blocks = self._blocks()
        while len(self._b.ops) < 130 and self._computing() < wanted:
            block = self._random.choice(blocks)
            self._b.features.add(block.__name__.strip("_"))
            block()
        return self._b.finish(self._results())

    def _computing(self) -> int:
        return sum(op.pattern is not None or op.kind is Kind.MOVE for op in self._b.ops)

    def _blocks(self) -> list[Callable[[], None]]:
        easy = [self._chain, self._chain, self._join, self._reduction, self._normalised, self._matmul, self._move]
        easy += [self._branching, self._shared, self._twins, self._dead, self._neutral]
        easy += [self._chosen, self._turned_weights]
        hard = [self._softmax, self._softmax, self._layer_norm, self._shared, self._calls]
        if self._dynamic:
            return [*easy, *hard, self._loop]
        hard += [self._loop, self._converted, self._compile_time, self._equal_layers, self._attention]
        hard += [self._softmax_again, self._leaky_softmax, self._converted_weights]
        hard += [self._transformer, self._narrowed, self._nested_calls]
        return [*easy, *hard, self._convolution, self._batched, self._merged, self._cut]

    def _results(self) -> list[Tensor]:
        """Everything that nothing uses, and one more."""
        unused = [value for value in self._pool if value.number not in self._used]
        extra = self._random.choice(self._pool)
        return unused if extra in unused else [*unused, extra]

    # The pool.

    def _new(self) -> Tensor:
        """A fresh argument of one to three dimensions, worked on at once so that it is no mere argument."""
        rank = self._random.choice((1, 2, 2, 2, 3))
        extents: Extents = tuple(self._b.numbers.extent() for _ in range(rank))
        if self._dynamic:
            extents = (None, *extents[1:])
        return self._put(self._b.scaled("mul", self._b.argument(extents)))

    def _take(self, ranks: tuple[int, ...] = (1, 2, 3)) -> Tensor:
        """A value of the pool, mostly a late one."""
        fitting = [value for value in self._pool if len(value.extents) in ranks]
        if not fitting or (len(self._pool) < 4 and self._random.random() < 0.3):
            return self._take_new(ranks)
        value = self._random.choice(fitting[-4:])
        self._used.add(value.number)
        return value

    def _take_new(self, ranks: tuple[int, ...]) -> Tensor:
        value = self._new()
        while len(value.extents) not in ranks:
            value = self._new()
        self._used.add(value.number)
        return value

    def _put(self, value: Tensor) -> Tensor:
        self._pool.append(value)
        return value

    # Blocks.

    def _steps(self, value: Tensor, random: Random, length: int) -> Tensor:
        """A chain: ops with constants, now and then one without between two of them."""
        for _ in range(length):
            value = self._b.scaled(random.choice(_BINARY), value)
            if random.random() < 0.4:
                value = self._b.elementwise(random.choice(_UNARY), value)
        return self._b.scaled("add", value)

    def _chain(self) -> None:
        self._put(self._steps(self._take(), self._random, self._random.randint(1, 4)))

    def _join(self) -> None:
        """Two branches from one value that meet again."""
        value = self._take()
        left = self._b.scaled(self._random.choice(_BINARY), value)
        right = self._b.scaled(self._random.choice(_BINARY), value)
        self._put(self._b.elementwise(self._random.choice(_JOINS), left, right))

    def _reduction(self) -> None:
        value = self._take((2, 3))
        over = self._random.choice(((len(value.extents) - 1,), (1,)))
        reduced = self._b.reduce(self._random.choice(("add", "max", "min")), value, over)
        self._put(self._b.scaled("mul", reduced))

    def _normalised(self) -> None:
        """A reduction that its operand is then divided by, as in a norm."""
        value = self._b.scaled("add", self._take((2, 3)))
        last = len(value.extents) - 1
        total = self._b.scaled("add", self._b.reduce("add", value, (last,)))
        back = self._b.broadcast(total, range(last), value.extents, value)
        self._put(self._b.scaled("mul", self._b.elementwise("div", value, back)))

    def _matmul(self) -> None:
        left = self._take((2,))
        right = self._b.argument((left.extents[1], self._b.numbers.extent()))
        product = self._b.matmul(left, right)
        self._put(self._steps(product, self._random, 1) if self._random.random() < 0.7 else product)

    def _batched(self) -> None:
        left = self._take((3,))
        right = self._b.argument((left.extents[0], left.extents[2], self._b.numbers.extent()))
        self._put(self._b.scaled("max", self._b.matmul(left, right)))

    def _convolution(self) -> None:
        numbers = self._b.numbers
        image = self._b.argument((1, numbers.extent() + 3, numbers.extent() + 3, numbers.extent()))
        kernel = self._b.argument((self._random.choice((1, 3)), 2, image.extents[3], numbers.extent()))
        put = self._steps(self._b.convolution(self._b.scaled("sub", image), kernel), self._random, 1)
        self._put(self._b.merge(put))

    def _move(self) -> None:
        value = self._take((2,))
        self._put(self._b.scaled("mul", self._b.transpose(value, (1, 0))))

    def _merged(self) -> None:
        self._put(self._b.scaled("sub", self._b.merge(self._take((2, 3)))))

    def _softmax(self) -> None:
        self._put(self._b.scaled("mul", self._softmax_of(self._b.scaled("mul", self._take((2, 3))))))

    def _softmax_of(self, value: Tensor) -> Tensor:
        """As JAX and torch write it: five ops that compute, and two broadcasts."""
        number = len(self._b.idioms)
        last = len(value.extents) - 1
        first_op = len(self._b.ops)
        with self._b.marked(kind=Kind.SOFTMAX, idiom=number):
            highest = self._b.reduce("max", value, (last,))
            if not self._b.dialect.scalars_in_line and value.number % 3 == 0:  # as JAX does
                with self._b.marked(purpose=Purpose.NEUTRAL):
                    highest = self._b.with_number("max", highest, -inf, own=False)
            less = self._b.elementwise("sub", value, self._b.broadcast(highest, range(last), value.extents, value))
            powers = self._b.elementwise("exp", less)
            total = self._b.reduce("add", powers, (last,))
            result = self._b.elementwise("div", powers, self._b.broadcast(total, range(last), value.extents, value))
        ops = [op for op in self._b.ops[first_op:] if op.idiom == number and op.purpose is Purpose.WORK]
        if not ops:  # of a copy; the idiom is that of the first
            return result
        self._b.idioms.append(
            Idiom(number, value.number, ops[-1].number, tuple(op.number for op in ops), _known(ops[-1]))
        )
        return result

    def _softmax_again(self) -> None:
        """The same softmax twice, written out twice, and used in different ways.

        Its kernel holds nothing else, so it needs a shape that no other softmax has.
        """
        numbers = self._b.numbers
        value = self._b.scaled("mul", self._b.argument((numbers.extent(), numbers.extent())))
        before = len(self._b.ops)
        first = self._softmax_of(value)
        with self._b.marked(hard=True, repeated=len(self._b.ops) - before):
            again = self._softmax_of(value)
        self._put(self._b.scaled("mul", first))
        self._put(self._b.scaled("add", again))

    def _leaky_softmax(self) -> None:
        """A softmax of which a part is used beside it."""
        value = self._b.scaled("mul", self._take((2,)))
        before = len(self._b.ops)
        self._put(self._b.scaled("mul", self._softmax_of(value)))
        inside = [op for op in self._b.ops[before:] if op.pattern in (Pattern("math.exp"), Pattern("arith.subf"))]
        chosen = self._random.choice(inside)
        self._put(self._b.scaled("add", Tensor(chosen.result, f"%v{chosen.result}", value.extents)))

    def _attention(self) -> None:
        """Scores of two products, a softmax, and the product of the weights with the values."""
        numbers = self._b.numbers
        rows, width = numbers.extent(), numbers.extent()
        query = self._b.scaled("mul", self._b.argument((rows, width)))
        scores = self._b.matmul(query, self._b.argument((width, numbers.extent())))
        weights = self._softmax_of(self._b.scaled("mul", scores))
        self._put(self._b.matmul(weights, self._b.argument((weights.extents[1], numbers.extent()))))

    def _layer_norm(self) -> None:
        self._put(self._layer_norm_of(self._take((2, 3))))

    def _layer_norm_of(self, value: Tensor) -> Tensor:
        """Mean, variance, and the normalised value with a gain and an offset."""
        b = self._b
        last = len(value.extents) - 1

        def spread(each: Tensor) -> Tensor:
            return b.broadcast(each, range(last), value.extents, value)

        with b.marked(kind=Kind.LAYER_NORM):
            mean = b.scaled("mul", b.reduce("add", value, (last,)))
            centred = b.elementwise("sub", value, spread(mean))
            variance = b.scaled("mul", b.reduce("add", b.elementwise("mul", centred, centred), (last,)))
            scale = b.elementwise("rsqrt", b.scaled("add", variance))
            normal = b.elementwise("mul", centred, spread(scale))
            return b.scaled("add", b.scaled("mul", normal))

    def _chosen(self) -> None:
        """A comparison, and a choice by it."""
        value = self._b.scaled("mul", self._take())
        other = self._b.scaled("mul", value)
        bits = self._b.scaled("gt", value)
        self._put(self._b.scaled("sub", self._b.elementwise("select", bits, value, other)))

    def _turned_weights(self) -> None:
        """A product with weights that stand the other way."""
        left = self._take((2,))
        weights = self._b.argument((self._b.numbers.extent(), left.extents[1]))
        self._put(self._b.scaled("add", self._b.matmul(left, self._b.transpose(weights, (1, 0)))))

    def _cut(self) -> None:
        """The first half of something."""
        value = self._take((2, 3))
        assert value.extents[-1] is not None
        self._put(self._b.scaled("mul", self._b.cut(value, value.extents[-1] // 2 + 1)))

    def _narrowed(self) -> None:
        """Operands made narrow for a product that adds up in f32."""
        left = self._b.scaled("mul", self._take((2,)))
        with self._b.marked(kind=Kind.CONVERT, hard=True):
            narrow = self._b.elementwise("truncf", left)
        right = self._b.argument((left.extents[1], self._b.numbers.extent()), "f16")
        self._put(self._b.scaled("mul", self._b.matmul(narrow, right)))

    def _transformer(self) -> None:
        """Equal layers of norm, attention and feed-forward, with what is added around them."""
        value = self._take((2,))
        group = f"transformer{len(self._b.ops)}"
        self._b.features.add("equal_layers")
        for _ in range(2):
            with self._b.numbers.layer(group), self._b.marked(hard=True):
                value = self._transformer_layer(value)
        self._put(value)

    def _transformer_layer(self, value: Tensor) -> Tensor:
        b, (_, width) = self._b, value.extents
        normal = self._layer_norm_of(value)
        inner = b.numbers.extent()
        query = b.scaled("add", b.matmul(normal, b.argument((width, inner))))
        keys = b.scaled("add", b.matmul(normal, b.argument((width, inner))))
        scores = b.scaled("mul", b.matmul(query, b.transpose(keys, (1, 0))))
        weights = b.scaled("mul", self._softmax_of(scores))  # tells the layers' softmaxes apart, which are of one shape
        mixed = b.matmul(weights, b.matmul(normal, b.argument((width, b.numbers.extent()))))
        added = b.elementwise("add", value, b.matmul(mixed, b.argument((mixed.extents[1], width))))
        hidden = b.scaled(
            "mul", b.elementwise("tanh", b.scaled("mul", b.matmul(added, b.argument((width, inner + 64)))))
        )
        return b.elementwise("add", added, b.scaled("mul", b.matmul(hidden, b.argument((inner + 64, width)))))

    def _nested_calls(self) -> None:
        """A function that calls another one, each called twice."""
        b = self._b
        value = self._take((2,))
        outer, inner = b.value(value.extents), b.value(value.extents)
        with b.marked(hard=True):
            with b.function([inner], value.extents) as low:
                low_end = self._layer_norm_of(b.scaled("mul", inner))
                b.give_back([low_end])
            with b.function([outer], value.extents) as high:
                once = self._call(low, inner, low_end, b.scaled("add", outer))
                twice = self._call(low, inner, low_end, b.scaled("mul", b.elementwise("sin", once)))
                b.give_back([twice])
        for _ in range(2):
            value = b.scaled("max", self._call(high, outer, twice, value))
        self._put(value)

    def _call(self, name: str, argument: Tensor, returned: Tensor, value: Tensor) -> Tensor:
        """A call of a function that has this argument and returns this."""
        b = self._b
        result = b.alias(b.value(value.extents), returned)
        b.alias(argument, value)
        types = f"({value.type}) -> {result.type}"
        b.line(f"{result.name} = func.call @{name}({value.name}) : {types}", "func.call", Kind.HOST)
        return result

    def _shared(self) -> None:
        """One cheap producer of several unlike consumers: may be computed again in each of them."""
        value = self._take((2,))
        with self._b.marked(hard=True):
            shared = self._b.scaled(self._random.choice(_BINARY), value)
            shared = self._b.scaled("mul", self._b.elementwise("tanh", shared))
        reduced = self._b.reduce("add", shared, (1,))
        self._put(self._b.scaled("mul", reduced))
        if self._random.random() < 0.5:
            weights = self._b.argument((shared.extents[1], self._b.numbers.extent()))
            self._put(self._b.matmul(shared, weights))
        self._put(self._b.scaled("sub", shared))

    def _converted(self) -> None:
        """A narrow tensor made wide for several consumers, which compilers do again in each."""
        left = self._take((2,))
        narrow = self._b.argument((left.extents[1], self._b.numbers.extent()), "f16")
        with self._b.marked(kind=Kind.CONVERT, hard=True):
            wide = self._b.elementwise("extf", narrow)
        self._put(self._b.scaled("mul", self._b.matmul(left, wide)))
        if self._random.random() < 0.7:
            self._put(self._b.scaled("add", wide))

    def _converted_weights(self) -> None:
        """Narrow weights made wide and turned around before each of two products; one in a function."""
        b = self._b
        left = self._take((2,))
        width = left.extents[1]
        with b.marked(kind=Kind.CONVERT, hard=True):
            wide = b.elementwise("extf", b.argument((width, width), "f16"))
        turned = b.transpose(wide, (1, 0)) if self._random.random() < 0.5 else wide
        argument, weights = b.value(left.extents), b.value(wide.extents)
        with b.function([argument, weights], left.extents) as name, b.marked(hard=True):
            end = b.scaled("mul", b.matmul(argument, weights))
            b.give_back([end])
        result = b.alias(b.value(left.extents), end)
        b.alias(argument, left)
        b.alias(weights, turned)
        types = f"({left.type}, {turned.type}) -> {result.type}"
        b.line(f"{result.name} = func.call @{name}({left.name}, {turned.name}) : {types}", "func.call", Kind.HOST)
        self._put(b.scaled("add", b.matmul(result, turned)))

    def _twins(self) -> None:
        """The same op written twice on the same operand, with users of each."""
        value = self._take()
        constant = self._b.numbers.constant()
        one = self._b.with_number("mul", value, constant)
        if self._random.random() < 0.5:
            unary = self._b.elementwise("tanh", one)
            first = self._b.ops[-1].number
            again = self._b.elementwise("tanh", one, twin=first)
            self._put(self._b.scaled("sub", unary))
        else:
            join = self._b.elementwise("mul", one, value)
            first = self._b.ops[-1].number
            again = self._b.elementwise("mul", one, value, twin=first)
            self._put(self._b.scaled("sub", join))
        self._put(self._b.scaled("add", again))

    def _dead(self) -> None:
        with self._b.marked(purpose=Purpose.DEAD):
            self._steps(self._take_alive(), self._random, 1)

    def _take_alive(self) -> Tensor:
        return self._random.choice(self._pool)

    def _neutral(self) -> None:
        """Times one."""
        value = self._take()
        with self._b.marked(purpose=Purpose.NEUTRAL):
            same = self._b.with_number("mul", value, 1.0, own=False)
        self._put(self._b.scaled("add", same))

    def _compile_time(self) -> None:
        """A small table that the compiler can work out itself."""
        value = self._take((1, 2))
        numbers = self._b.numbers
        extents = value.extents[-1:]
        assert extents[0] is not None
        table = self._b.constant(extents, [numbers.constant() for _ in range(extents[0])])
        with self._b.marked(purpose=Purpose.COMPILE_TIME):
            table = self._b.elementwise("sin", self._b.scaled("mul", table))
            if len(value.extents) == 2:
                table = self._b.broadcast(table, (1,), value.extents, value)
        self._put(self._b.scaled("sub", self._b.elementwise("add", value, table)))

    def _equal_layers(self) -> None:
        """Layers of the same shapes and constants: their kernels are merged."""
        value = self._take((2,))
        group = f"layers{len(self._b.ops)}"
        for _ in range(self._random.randint(2, 3)):
            structure = Random(f"{self._seed} {group}")
            with self._b.numbers.layer(group), self._b.marked(hard=True):
                value = self._layer(value, structure)
        self._put(value)

    def _layer(self, value: Tensor, structure: Random) -> Tensor:
        inner = self._b.numbers.extent()
        up = self._b.matmul(value, self._b.argument((value.extents[1], inner)))
        active = self._steps(up, structure, structure.randint(1, 2))
        if structure.random() < 0.4:
            active = self._softmax_of(active)
        down = self._b.matmul(active, self._b.argument((inner, value.extents[1])))
        return self._b.elementwise("add", self._b.scaled("mul", down), value)

    def _calls(self) -> None:
        """A function called two or three times."""
        b = self._b
        value = self._take((2,))
        argument = b.value(value.extents)
        with b.function([argument], value.extents) as name, b.marked(hard=True):
            inside = self._steps(argument, self._random, 2)
            if self._random.random() < 0.5:
                inside = b.scaled("add", self._softmax_of(inside))
            b.give_back([inside])
        for _ in range(self._random.randint(2, 3)):
            value = b.scaled("mul", self._call(name, argument, inside, value))
        self._put(value)

    def _loop(self) -> None:
        """A counted loop over a chain."""
        b = self._b
        start = self._take()
        inside = b.value(start.extents)
        result = b.value(start.extents)
        end = self._scf_for(start, inside, result) if b.dialect.scalars_in_line else self._while(start, inside, result)
        b.alias(inside, start, end)
        b.alias(result, end)
        self._put(b.scaled("sub", result))

    def _scf_for(self, start: Tensor, inside: Tensor, result: Tensor) -> Tensor:
        b = self._b
        bounds = []
        for value in (0, self._random.randint(2, 9), 1):
            bounds.append(b.fresh("i"))
            b.line(f"{bounds[-1]} = arith.constant {value} : index", "arith.constant", Kind.CONSTANT)
        low, high, step = bounds
        head = f"scf.for {b.fresh('i')} = {low} to {high} step {step} iter_args({inside.name} = {start.name})"
        b.line(f"{result.name} = {head} -> ({start.type}) {{", "scf.for", Kind.HOST)
        end = self._body(inside)
        b.line(f"scf.yield {end.name} : {end.type}", "scf.yield")
        b.line("}")
        return end

    def _while(self, start: Tensor, inside: Tensor, result: Tensor) -> Tensor:
        b = self._b
        zero, counter, limit, ahead, one, following = (b.fresh("i") for _ in range(6))
        b.line(f"{zero} = stablehlo.constant dense<0> : tensor<i32>", "stablehlo.constant", Kind.CONSTANT)
        head = f"stablehlo.while({counter} = {zero}, {inside.name} = {start.name}) : tensor<i32>, {start.type}"
        b.line(f"{b.fresh('w')}, {result.name} = {head}", "stablehlo.while", Kind.HOST)
        b.line("cond {")
        high = self._random.randint(2, 9)
        b.line(f"{limit} = stablehlo.constant dense<{high}> : tensor<i32>", "stablehlo.constant", Kind.CONSTANT)
        types = "(tensor<i32>, tensor<i32>) -> tensor<i1>"
        b.line(f"{ahead} = stablehlo.compare LT, {counter}, {limit} : {types}", "stablehlo.compare", Kind.HOST)
        b.line(f"stablehlo.return {ahead} : tensor<i1>", "stablehlo.return")
        b.line("} do {")
        end = self._body(inside)
        b.line(f"{one} = stablehlo.constant dense<1> : tensor<i32>", "stablehlo.constant", Kind.CONSTANT)
        b.line(f"{following} = stablehlo.add {counter}, {one} : tensor<i32>", "stablehlo.add", Kind.HOST)
        b.line(f"stablehlo.return {following}, {end.name} : tensor<i32>, {end.type}", "stablehlo.return")
        b.line("}")
        return end

    def _body(self, value: Tensor) -> Tensor:
        """What a loop or branch does."""
        value = self._steps(value, self._random, 2)
        kind = self._random.random() if len(value.extents) == 2 else 0.0
        if kind > 0.8:
            return self._b.scaled("add", self._softmax_of(value))
        if kind > 0.6:
            return self._layer_norm_of(value)
        if kind > 0.4:
            weights = self._b.argument((value.extents[1], value.extents[1]))
            return self._b.elementwise("tanh", self._b.matmul(value, weights))
        return value

    def _branching(self) -> None:
        """One of two chains, by an argument."""
        b = self._b
        value = self._take()
        result = b.value(value.extents)
        if b.dialect.scalars_in_line:
            chosen = b.argument((), "i1")
            bit = b.fresh("i")
            b.line(f"{bit} = tensor.extract {chosen.name}[] : tensor<i1>", "tensor.extract", Kind.HOST)
            b.line(f"{result.name} = scf.if {bit} -> ({value.type}) {{", "scf.if", Kind.HOST)
            ends = [self._branch(value, "scf.yield")]
            b.line("} else {")
            ends.append(self._branch(value, "scf.yield"))
            b.line("}")
        else:
            b.line(f'{result.name} = "stablehlo.if"({b.argument((), "i1").name}) ({{', "stablehlo.if", Kind.HOST)
            ends = [self._branch(value, "stablehlo.return")]
            b.line("}, {")
            ends.append(self._branch(value, "stablehlo.return"))
            b.line(f"}}) : (tensor<i1>) -> {value.type}")
        b.alias(result, *ends)
        self._put(b.scaled("mul", result))

    def _branch(self, value: Tensor, terminator: str) -> Tensor:
        end = self._body(value)
        self._b.line(f"{terminator} {end.name} : {end.type}", terminator)
        return end


def _known(op: Op) -> Loops:
    assert op.loops is not None
    return op.loops
