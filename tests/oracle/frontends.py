"""Marked programs as torch and ONNX write them: ops on tensors of three dimensions, with numbers of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.oracle.marked import MarkedProgram, Writer, number_sign


@dataclass
class Frontend(Writer):
    """Blocks over a pool of values of one shape; how an op reads is the dialect's business."""

    arguments: list[tuple[str, str]] = field(default_factory=list)
    results: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batch, self.rows, self.columns = self.random.sample(range(3, 40), 3)
        self.shape = (self.batch, self.rows, self.columns)
        self.pool: list[str] = []
        self.given: dict[tuple[str, str], str] = {}
        self.first: list[str] = []

    def write(self) -> MarkedProgram:
        """A program of random blocks."""
        for _ in range(self.random.randint(4, 9)):
            self.random.choice(self.blocks())()
        self.results += [(value, vector(self.shape)) for value in self.pool]
        names, kinds = zip(*self.results, strict=True)
        declared = ", ".join(f"{name}: {kind}" for name, kind in self.arguments)
        head = f"func.func @main({declared}) -> ({', '.join(kinds)}){self.attributes} {{"
        end = [f"  return {', '.join(names)} : {', '.join(kinds)}", "}"]
        return self.program(self.family, [head, *self.first], end, ())

    family = ""
    attributes = ""

    def blocks(self) -> list[Callable[[], None]]:
        """What may be in a program."""
        found = [self.work, self.neutral, self.masked, self.summed_up, self.chosen, self.reduced, self.reshaped]
        return [*found, self.masked, self.reshaped, self.normalised, self.attention, self.joined]

    def argument(self, kind: str) -> str:
        """A new argument."""
        self.arguments.append((f"%a{len(self.arguments)}", kind))
        return self.arguments[-1][0]

    def take(self) -> str:
        """A value of the pool; it stays there half of the time."""
        if not self.pool or self.random.random() < 0.3:
            return self.argument(vector(self.shape))
        place = self.random.randrange(len(self.pool))
        return self.pool[place] if self.random.random() < 0.5 else self.pool.pop(place)

    def marked(self, value: str, shape: tuple[int, ...], group: str) -> str:
        """An op with a number of its own."""
        number = self.number()
        result = self.scaled(value, shape, float(number))
        self.mark(group, number_sign(number))
        return result

    def put(self, value: str, group: str = "others") -> None:
        """Back into the pool, behind an op with a number of its own."""
        self.pool.append(self.marked(value, self.shape, group))

    # How ops read.

    @abstractmethod
    def scaled(self, value: str, shape: tuple[int, ...], number: float) -> str:
        """A product with a number, on the line that is then the last."""

    @abstractmethod
    def named(self, op: str, operands: list[tuple[str, tuple[int, ...]]], shape: tuple[int, ...]) -> str:
        """An op that has tensors only: matmul, tanh."""

    @abstractmethod
    def where(self, mask: str, value: str, shape: tuple[int, ...], number: float) -> str:
        """A value where the mask of its last two dimensions is set, else a number."""

    @abstractmethod
    def softmax(self, value: str, shape: tuple[int, ...]) -> str:
        """Along the last dimension."""

    @abstractmethod
    def cumulated(self, value: str, axis: int) -> str:
        """Sums of all up to each."""

    @abstractmethod
    def picked(self, value: str, places: str, count: int) -> str:
        """Rows of the second dimension."""

    @abstractmethod
    def reduce(self, value: str) -> str:
        """The sum over the last dimension."""

    @abstractmethod
    def view(self, value: str, before: tuple[int, ...], shape: tuple[int, ...]) -> str:
        """The same elements in another shape."""

    @abstractmethod
    def concatenated(self, values: list[str]) -> str:
        """Values behind one another, along the second dimension."""

    # Blocks.

    def work(self) -> None:
        """An op without a number."""
        self.put(self.named("tanh", [(self.marked(self.take(), self.shape, "others"), self.shape)], self.shape))

    def neutral(self) -> None:
        """Times one."""
        same = self.scaled(self.take(), self.shape, 1.0)
        self.gone("neutral")
        self.put(same, "after neutral op")

    def masked(self) -> None:
        """A product, a mask on it, a softmax; and the product itself once more."""
        inner = self.extent()
        shape = (self.batch, self.rows, inner)
        weights = self.argument(vector((self.columns, inner)))
        product = self.named("matmul", [(self.take(), self.shape), (weights, (self.columns, inner))], shape)
        self.mark("product", rf"(?:ins|readonly).*tensor<{self.columns}x{inner}xf32>")
        mask, number = self.argument(vector((self.rows, inner), "i1")), self.number()
        chosen = self.where(mask, product, shape, float(number))
        self.mark("masks", r"arith\.select", number_sign(number))
        self.results.append((self.softmax(chosen, shape), vector(shape)))
        self.mark("softmax", r"linalg\.softmax", rf"(?<!\d){self.rows}x{inner}xf32")
        if self.random.random() < 0.7:
            self.results.append((self.marked(product, shape, "reshaped"), vector(shape)))

    def summed_up(self) -> None:
        """A running sum between reshapes."""
        axis = self.random.choice((1, 2))
        total = self.cumulated(self.take(), axis)
        self.mark("running sums", r"iree_linalg_ext\.scan", rf"dimension\({axis}\)", at_least=True)
        self.put(total, "reshaped")

    def chosen(self) -> None:
        """Rows by their numbers."""
        count = self.extent()
        shape = (self.batch, count, self.columns)
        rows = self.picked(self.take(), self.argument(vector((count,), "si64")), count)
        self.mark("gather", r"tensor\.extract |iree_linalg_ext\.gather", rf"(?<!\d){count}x{self.columns}xf32")
        self.results.append((self.marked(rows, shape, "others"), vector(shape)))

    def reduced(self) -> None:
        """A sum over the last dimension."""
        shape = (self.batch, self.rows)
        total = self.reduce(self.marked(self.take(), self.shape, "others"))
        self.results.append((self.marked(total, shape, "others"), vector(shape)))

    def reshaped(self) -> None:
        """Reshapes between ops, of which the first has other uses."""
        flat = (self.batch * self.rows, self.columns)
        first = self.marked(self.take(), self.shape, "reshaped")
        if self.random.random() < 0.5:
            self.results.append((first, vector(self.shape)))
        second = self.marked(self.view(first, self.shape, flat), flat, "reshaped")
        self.results.append((second, vector(flat)))
        self.put(self.view(second, flat, self.shape), "reshaped")

    def normalised(self) -> None:
        """A softmax between ops."""
        value = self.softmax(self.marked(self.take(), self.shape, "others"), self.shape)
        self.put(value)

    def attention(self) -> None:
        """Scores of rows against rows, a softmax, and the product with the rows."""
        inner = self.extent()
        turned, shape = (self.batch, self.columns, inner), (self.batch, self.rows, inner)
        keys = self.argument(vector(turned))
        scores = self.named("matmul", [(self.take(), self.shape), (keys, turned)], shape)
        self.mark("product", rf"(?:ins|readonly).*tensor<{self.batch}x{self.columns}x{inner}xf32>")
        weights = self.softmax(self.marked(scores, shape, "product"), shape)
        back = (self.batch, inner, self.columns)
        self.put(self.named("matmul", [(weights, shape), (self.argument(vector(back)), back)], self.shape), "product")

    def joined(self) -> None:
        """Two values behind one another."""
        shape = (self.batch, 2 * self.rows, self.columns)
        values = [self.marked(self.take(), self.shape, "concat") for _ in range(2)]
        self.results.append((self.marked(self.concatenated(values), shape, "concat"), vector(shape)))


def vector(shape: tuple[int, ...], element: str = "f32") -> str:
    """`!torch.vtensor<[2,3],f32>`."""
    return f"!torch.vtensor<[{','.join(map(str, shape))}],{element}>"


class Torch(Frontend):
    """As a torch exporter writes."""

    family = "torch"

    def scalar(self, kind: str, value: object = "") -> str:
        """The name of a constant; it stands above all else."""
        key = (kind, str(value))
        if key not in self.given:
            self.given[key] = f"%k{len(self.given)}"
            self.first.append(f"  {self.given[key]} = torch.constant.{kind} {value}".rstrip())
        return self.given[key]

    def sizes(self, shape: tuple[int, ...]) -> str:
        """A list of whole numbers."""
        names = [self.scalar("int", extent) for extent in shape]
        kinds = ", ".join("!torch.int" for _ in shape)
        return self.op(f"torch.prim.ListConstruct {', '.join(names)} : ({kinds}) -> !torch.list<int>")

    def scaled(self, value: str, shape: tuple[int, ...], number: float) -> str:
        kind, factor = vector(shape), self.scalar("float", f"{number:e}")
        return self.op(f"torch.aten.mul.Scalar {value}, {factor} : {kind}, !torch.float -> {kind}")

    def named(self, op: str, operands: list[tuple[str, tuple[int, ...]]], shape: tuple[int, ...]) -> str:
        names = ", ".join(name for name, _ in operands)
        kinds = ", ".join(vector(each) for _, each in operands)
        return self.op(f"torch.aten.{op} {names} : {kinds} -> {vector(shape)}")

    def where(self, mask: str, value: str, shape: tuple[int, ...], number: float) -> str:
        other = self.scalar("float", f"{number:e}")
        kinds = f"{vector(shape[1:], 'i1')}, {vector(shape)}, !torch.float -> {vector(shape)}"
        return self.op(f"torch.aten.where.ScalarOther {mask}, {value}, {other} : {kinds}")

    def softmax(self, value: str, shape: tuple[int, ...]) -> str:
        last, none = self.scalar("int", -1), self.scalar("none")
        kinds = f"{vector(shape)}, !torch.int, !torch.none -> {vector(shape)}"
        return self.op(f"torch.aten.softmax.int {value}, {last}, {none} : {kinds}")

    def cumulated(self, value: str, axis: int) -> str:
        kinds = f"{vector(self.shape)}, !torch.int, !torch.none -> {vector(self.shape)}"
        return self.op(f"torch.aten.cumsum {value}, {self.scalar('int', axis)}, {self.scalar('none')} : {kinds}")

    def picked(self, value: str, places: str, count: int) -> str:
        kinds = f"{vector(self.shape)}, !torch.int, {vector((count,), 'si64')}"
        result = vector((self.batch, count, self.columns))
        return self.op(f"torch.aten.index_select {value}, {self.scalar('int', 1)}, {places} : {kinds} -> {result}")

    def reduce(self, value: str) -> str:
        over, no, none = self.sizes((2,)), self.scalar("bool", "false"), self.scalar("none")
        kinds = f"{vector(self.shape)}, !torch.list<int>, !torch.bool, !torch.none -> {vector(self.shape[:2])}"
        return self.op(f"torch.aten.sum.dim_IntList {value}, {over}, {no}, {none} : {kinds}")

    def view(self, value: str, before: tuple[int, ...], shape: tuple[int, ...]) -> str:
        sizes = self.sizes(shape)
        return self.op(f"torch.aten.view {value}, {sizes} : {vector(before)}, !torch.list<int> -> {vector(shape)}")

    def concatenated(self, values: list[str]) -> str:
        kinds = ", ".join(vector(self.shape) for _ in values)
        listed = self.op(f"torch.prim.ListConstruct {', '.join(values)} : ({kinds}) -> !torch.list<vtensor>")
        result = vector((self.batch, len(values) * self.rows, self.columns))
        return self.op(
            f"torch.aten.cat {listed}, {self.scalar('int', 1)} : !torch.list<vtensor>, !torch.int -> {result}"
        )


_ONNX_NAMES = {"matmul": "MatMul", "tanh": "Tanh"}


class Onnx(Frontend):
    """As the importer of ONNX writes."""

    family = "onnx"
    attributes = (
        " attributes {torch.onnx_meta.ir_version = 8 : si64, torch.onnx_meta.opset_version = 17 : si64,"
        ' torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""}'
    )

    def operator(self, name: str, operands: list[tuple[str, str]], result: str, attributes: str = "") -> str:
        """An op by its name."""
        names = ", ".join(operand for operand, _ in operands)
        kinds = ", ".join(kind for _, kind in operands)
        shown = f" {{{attributes}}}" if attributes else ""
        return self.op(f'torch.operator "onnx.{name}"({names}){shown} : ({kinds}) -> {result}')

    def constant(self, dense: str, shape: tuple[int, ...], element: str) -> tuple[str, str]:
        """A constant and its type."""
        plain = "".join(f"{extent}x" for extent in shape)
        value = f"torch.onnx.value = dense<{dense}> : tensor<{plain}{element}>"
        kind = vector(shape, element)
        return self.operator("Constant", [], kind, value), kind

    def scaled(self, value: str, shape: tuple[int, ...], number: float) -> str:
        factor = self.constant(f"{number:e}", (), "f32")
        return self.operator("Mul", [(value, vector(shape)), factor], vector(shape))

    def named(self, op: str, operands: list[tuple[str, tuple[int, ...]]], shape: tuple[int, ...]) -> str:
        return self.operator(_ONNX_NAMES[op], [(name, vector(each)) for name, each in operands], vector(shape))

    def where(self, mask: str, value: str, shape: tuple[int, ...], number: float) -> str:
        other = self.constant(f"{number:e}", (), "f32")
        return self.operator("Where", [(mask, vector(shape[1:], "i1")), (value, vector(shape)), other], vector(shape))

    def softmax(self, value: str, shape: tuple[int, ...]) -> str:
        return self.operator("Softmax", [(value, vector(shape))], vector(shape), "torch.onnx.axis = -1 : si64")

    def cumulated(self, value: str, axis: int) -> str:
        place = self.constant(str(axis), (), "si64")
        return self.operator("CumSum", [(value, vector(self.shape)), place], vector(self.shape))

    def picked(self, value: str, places: str, count: int) -> str:
        operands = [(value, vector(self.shape)), (places, vector((count,), "si64"))]
        result = vector((self.batch, count, self.columns))
        return self.operator("Gather", operands, result, "torch.onnx.axis = 1 : si64")

    def reduce(self, value: str) -> str:
        axes = self.constant("[2]", (1,), "si64")
        how = "torch.onnx.keepdims = 0 : si64"
        return self.operator("ReduceSum", [(value, vector(self.shape)), axes], vector(self.shape[:2]), how)

    def view(self, value: str, before: tuple[int, ...], shape: tuple[int, ...]) -> str:
        sizes = self.constant(str(list(shape)), (len(shape),), "si64")
        how = "torch.onnx.allowzero = 0 : si64"
        return self.operator("Reshape", [(value, vector(before)), sizes], vector(shape), how)

    def concatenated(self, values: list[str]) -> str:
        result = vector((self.batch, len(values) * self.rows, self.columns))
        operands = [(value, vector(self.shape)) for value in values]
        return self.operator("Concat", operands, result, "torch.onnx.axis = 1 : si64")
