"""Calls that are fused into one kernel cost what the inlined ops cost."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import check_cli
from tests.tables import printed_table
from tracemap.map.bundle import load
from tracemap.map.query import scope_of

TYPE = "tensor<96x160xf32>"
ONE = ["tanh", "exponential", "negate", "abs"]
TWO = ["add", "multiply", "subtract"]


@dataclass
class Program:
    """A random program of functions that call each other, and the same with all calls replaced by what they call.

    Each call and op has a scope of its own where it is written, so that the scope of an op in its place is that of the
    calls that led there, and its own.
    """

    dice: random.Random
    bodies: list[list[tuple[str, list[int], str]]] = field(default_factory=list)
    """Of each function what is done in turn: an op or `call N`, the places of its operands, and its scope."""

    def __post_init__(self) -> None:
        for function in range(self.dice.randint(2, 4)):
            body: list[tuple[str, list[int], str]] = []
            for place in range(self.dice.randint(1, 3)):
                body.append(self._step(function, place))
            self.bodies.append(body)

    def _step(self, function: int, place: int) -> tuple[str, list[int], str]:
        scope = f"f{function}s{place}"
        last = place + 1  # the arguments are values 0 and 1
        if function and self.dice.random() < 0.7:
            return f"call {self.dice.randrange(function)}", [last, self.dice.randrange(last + 1)], scope
        if self.dice.random() < 0.5:
            return self.dice.choice(ONE), [last], scope
        return self.dice.choice(TWO), [last, self.dice.randrange(last + 1)], scope

    def called(self) -> str:
        """The program with its functions; the last one is public."""
        functions = []
        for number, body in enumerate(self.bodies):
            values, lines = ["%x", "%y"], []
            for place, (name, operands, scope) in enumerate(body):
                taken = [values[operand] for operand in operands]
                lines.append(_line(f"%{place}", name, taken, f"{scope}/it"))
                values.append(f"%{place}")
            kind = "private @f" if number + 1 < len(self.bodies) else "@f"
            functions.append(_function(f"{kind}{number}", lines, values[-1]))
        return "\n".join(functions)

    def inlined(self) -> str:
        """The program without calls."""
        lines: list[str] = []
        last = self._inline(len(self.bodies) - 1, ["%x", "%y"], "", lines)
        return _function(f"@f{len(self.bodies) - 1}", lines, last)

    def _inline(self, function: int, arguments: list[str], around: str, lines: list[str]) -> str:
        values = [*arguments]
        for name, operands, scope in self.bodies[function]:
            taken = [values[operand] for operand in operands]
            if name.startswith("call"):
                values.append(self._inline(int(name[5:]), taken, f"{around}{scope}/", lines))
            else:
                values.append(f"%{len(lines)}")
                lines.append(_line(values[-1], name, taken, f"{around}{scope}/it"))
        return values[-1]


def _line(value: str, name: str, operands: list[str], location: str) -> str:
    types = ", ".join([TYPE] * len(operands))
    what = f"func.call @f{name[5:]}" if name.startswith("call") else f'"stablehlo.{name}"'
    return f'  {value} = {what}({", ".join(operands)}) : ({types}) -> {TYPE} loc("{location}")'


def _function(name: str, lines: list[str], result: str) -> str:
    body = "\n".join(lines)
    return f"func.func {name}(%x: {TYPE}, %y: {TYPE}) -> {TYPE} {{\n{body}\n  return {result} : {TYPE}\n}}"


def works_of_scopes(model: str, folder: Path) -> Mapping[str, int]:
    """How many scalar operations each scope has in all kernels: each of several calls has as many as the others."""
    folder.mkdir()
    (folder / "model.mlir").write_text(model, encoding="utf-8")
    check_cli("build", "model.mlir", "-o", "model.tracemap", cwd=folder)
    graph = load(folder / "model.tracemap").graph
    works: dict[str, int] = defaultdict(int)
    for site in graph.sites:
        for member in site.members:
            assert isinstance(member.operations, int)
            for path in member.paths:
                part, rest = divmod(member.operations, len(member.paths))
                works["/".join(scope_of(graph, graph.op_by_id[member.op], path))] += part
                assert not rest
    return works


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 9, 10, 11, 17])
def test_calls_do_what_their_ops_do_in_their_place(seed: int, tmp_path: Path) -> None:
    program = Program(random.Random(seed))
    called = works_of_scopes(program.called(), tmp_path / "called")
    assert called == works_of_scopes(program.inlined(), tmp_path / "inlined")


SHARED = """
func.func private @act(%x: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %t = stablehlo.tanh %x : tensor<512x512xf32> loc("tanh"("net.py":3:9))
  return %t : tensor<512x512xf32>
}
func.func @main(%x: tensor<512x512xf32>, %w: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %a = call @act(%x) : (tensor<512x512xf32>) -> tensor<512x512xf32> loc("jit(f)/h0/act"("net.py":10:5))
  %m = stablehlo.multiply %a, %w : tensor<512x512xf32> loc("jit(f)/mid/mul"("net.py":11:5))
  %b = call @act(%m) : (tensor<512x512xf32>) -> tensor<512x512xf32> loc("jit(f)/h1/act"("net.py":12:5))
  return %b : tensor<512x512xf32>
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A call of a kernel in which an op works that two calls lead to; an odd number, which has no halves."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "model.mlir").write_text(SHARED, encoding="utf-8")
    check_cli("build", "model.mlir", "-o", "model.tracemap", cwd=folder)
    (kernel,) = load(folder / "model.tracemap").graph.kernels
    (folder / "run.csv").write_text(f"kernel,cpu_ns\n{kernel.name},3000001\n", encoding="utf-8")
    return folder / "run.csv"


def attributed(run: Path, *more: str | Path) -> list[str]:
    return [str(each) for each in ("attribute", run, "--map", run.parent / "model.tracemap", *more)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("by", "names"), [("scope", ("h0", "h1")), ("caller", ("net.py:10", "net.py:12"))])
def test_both_calls_have_their_half(by: str, names: tuple[str, str], run: Path) -> None:
    table = printed_table(check_cli(*attributed(run, "--by", by)), f"{by.title()}s by cpu_ns")
    costs = {row[by]: _cpu(row) for row in table}
    (tanh,) = [
        _cpu(row)
        for row in printed_table(check_cli(*attributed(run, "--by", "op")), "Ops by cpu_ns")
        if row["scope"] != "mid"
    ]
    assert costs[names[0]] == costs[names[1]]
    assert 2 * costs[names[0]] == pytest.approx(tanh, rel=1e-2)


def _cpu(row: Mapping[str, str]) -> float:
    return float(next(cell for head, cell in row.items() if head.startswith("cpu ")).split()[0].replace(",", ""))


def test_exports_have_both_calls_to_the_unit(run: Path, tmp_path: Path) -> None:
    given = (run, "--map", run.parent / "model.tracemap", "-o", tmp_path / "run.json")
    check_cli("export", "--to", "speedscope", *given)
    drawn = json.loads((tmp_path / "run.json").read_bytes())
    frames = [frame["name"] for frame in drawn["shared"]["frames"]]
    (profile,) = drawn["profiles"]
    costs: dict[str, int] = defaultdict(int)
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        costs[next((frames[each] for each in stack if frames[each].startswith(("h", "mid"))), "")] += weight
    assert sum(costs.values()) == 3_000_001
    assert abs(costs["h0"] - costs["h1"]) <= 1


def test_the_scope_of_such_an_op_names_one_call_and_how_many_more_there_are(run: Path) -> None:
    (row,) = [
        row for row in printed_table(check_cli(*attributed(run, "--by", "op")), "Ops by") if row["name"] == "tanh"
    ]
    assert row["scope"] in {"h0 +1", "h1 +1"}
