"""Programs with loops and conditionals in StableHLO as JAX writes them, each with a twin without them.

`lax.scan`, `lax.while_loop` and `lax.cond` become `stablehlo.while` and `stablehlo.case`, and their bodies private
functions. The twin has the body once per trip, or the taken branch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.oracle.stock import Program

ROWS, WIDTH = 8, 64
_STATE: Final = f"tensor<{ROWS}x{WIDTH}xf32>"
_WEIGHT: Final = f"tensor<{WIDTH}x{WIDTH}xf32>"
_STATE_INPUT: Final = f"{ROWS}x{WIDTH}xf32=0.5"
_WEIGHT_INPUT: Final = f"{WIDTH}x{WIDTH}xf32=0.01"
_HEAD: Final = "module @jit_program {"


@dataclass(frozen=True, slots=True)
class Looped:
    """A program and its twin without loops; `lines`: where the loops or conditionals stand that the twin lacks."""

    name: str
    rolled: Program
    unrolled: Program
    lines: tuple[int, ...]
    kept: tuple[int, ...] = ()
    """Where loops stand in a twin that has fewer trips instead of none."""


def programs() -> list[Looped]:
    """All of them."""
    return [
        scan(10),
        scan(100),
        scan(1000, unroll=10),
        data_dependent(),
        nested("both loops", inner=False),
        nested("the inner loop", inner=True),
        conditionals(),
    ]


def scan(trips: int, unroll: int = 0) -> Looped:
    """A recurrent network: `lax.scan` over a sequence; the twin has no loop, or is `lax.scan(unroll=N)`."""
    sequence = f"tensor<{trips}x{ROWS}x{WIDTH}xf32>"
    head = [
        _HEAD,
        f"  func.func public @main(%w: {_WEIGHT}, %u: {_WEIGHT}, %xs: {sequence}) -> {_STATE} {{",
        f"    %h0 = stablehlo.constant dense<0.0> : {_STATE}",
    ]
    rolled = [*head, *_scanned(sequence, trips, 1), "  }", *_cell(), *_index(sequence), "}"]
    if unroll:
        unrolled = [*head, *_scanned(sequence, trips, unroll), "  }", *_cell(), *_index(sequence), "}"]
    else:
        steps = [line for trip in range(trips) for line in _sliced_step(sequence, trip)]
        unrolled = [*head, *steps, f"    return %h{trips} : {_STATE}", "  }", *_cell(), "}"]
    inputs = (_WEIGHT_INPUT, _WEIGHT_INPUT, f"{trips}x{ROWS}x{WIDTH}xf32=0.5")
    name = f"scan of {trips:,} trips" + (f", with unroll={unroll}" if unroll else "")
    return _looped(
        name,
        f"scan{trips}",
        rolled,
        unrolled,
        inputs,
        calls=2 * trips if unroll else 0,
    )


def _scanned(sequence: str, trips: int, unroll: int) -> Iterator[str]:
    """The loop, with several rows per trip."""
    body = []
    for number in range(unroll):
        index, state = (f"%j{number}" if number else "%iti"), (f"%h_{number}" if number else "%ith")
        after = "%newh" if number == unroll - 1 else f"%h_{number + 1}"
        if number:
            body += [
                f"%k{number} = stablehlo.constant dense<{number}> : tensor<i32>",
                f"{index} = stablehlo.add %iti, %k{number} : tensor<i32>",
            ]
        body += [
            f"%row{number} = func.call @dynamic_index_in_dim(%itxs, {index}) : ({sequence}, tensor<i32>) -> {_STATE}",
            f"{after} = func.call @closed_call(%itw, %itu, {state}, %row{number})"
            f" : ({_WEIGHT}, {_WEIGHT}, {_STATE}, {_STATE}) -> {_STATE}",
        ]
    yield "    %c0 = stablehlo.constant dense<0> : tensor<i32>"
    fixed = [("xs", "%xs", sequence), ("w", "%w", _WEIGHT), ("u", "%u", _WEIGHT)]
    yield from _while(fixed, [("h", "%h0", _STATE)], trips, body, "scan", step=unroll)
    yield f"    return %scan#4 : {_STATE}"


def _sliced_step(sequence: str, trip: int) -> Iterator[str]:
    row = f"tensor<1x{ROWS}x{WIDTH}xf32>"
    yield (f"    %s{trip} = stablehlo.slice %xs [{trip}:{trip + 1}, 0:{ROWS}, 0:{WIDTH}] : ({sequence}) -> {row}")
    yield f"    %x{trip} = stablehlo.reshape %s{trip} : ({row}) -> {_STATE}"
    yield (
        f"    %h{trip + 1} = func.call @closed_call(%w, %u, %h{trip}, %x{trip})"
        f" : ({_WEIGHT}, {_WEIGHT}, {_STATE}, {_STATE}) -> {_STATE}"
    )


_HALVINGS: Final = 24
_LIMIT: Final = 3.0e-8
"""Between 0.5 / 2**24 and 0.5 / 2**23: the loop has as many trips as the twin has bodies."""


def data_dependent() -> Looped:
    """`lax.while_loop` until a value is small: damped fixed-point iteration."""
    body = [f"%newh = func.call @body(%itw, %ith) : ({_WEIGHT}, {_STATE}) -> {_STATE}"]
    functions = [
        f"  func.func private @body(%w: {_WEIGHT}, %h: {_STATE}) -> {_STATE} {{",
        f"    %0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : ({_STATE}, {_WEIGHT}) -> {_STATE}",
        "    %cst = stablehlo.constant dense<0.5> : tensor<f32>",
        f"    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> {_STATE}",
        f"    %2 = stablehlo.multiply %1, %h : {_STATE}",
        f"    %3 = stablehlo.add %2, %0 : {_STATE}",
        f"    return %3 : {_STATE}",
        "  }",
    ]
    head = [_HEAD, f"  func.func public @main(%w: {_WEIGHT}, %h0: {_STATE}) -> {_STATE} {{"]
    condition = [
        f"%0 = stablehlo.abs %ith : {_STATE}",
        "%cst = stablehlo.constant dense<0xFF800000> : tensor<f32>",
        "%1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.maximum across dimensions = [0, 1]"
        f" : ({_STATE}, tensor<f32>) -> tensor<f32>",
        f"%cst_0 = stablehlo.constant dense<{_LIMIT:e}> : tensor<f32>",
        "%2 = stablehlo.compare GT, %1, %cst_0, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>",
        "stablehlo.return %2 : tensor<i1>",
    ]
    rolled = [
        *head,
        f"    %until:2 = stablehlo.while(%itw = %w, %ith = %h0) : {_WEIGHT}, {_STATE}",
        "    cond {",
        *(f"      {line}" for line in condition),
        "    } do {",
        *(f"      {line}" for line in body),
        f"      stablehlo.return %itw, %newh : {_WEIGHT}, {_STATE}",
        "    }",
        f"    return %until#1 : {_STATE}",
        "  }",
        *functions,
        "}",
    ]
    calls = [
        f"    %h{trip + 1} = func.call @body(%w, %h{trip}) : ({_WEIGHT}, {_STATE}) -> {_STATE}"
        for trip in range(_HALVINGS)
    ]
    unrolled = [*head, *calls, f"    return %h{_HALVINGS} : {_STATE}", "  }", *functions, "}"]
    return _looped(
        f"while until a value is small ({_HALVINGS} trips)",
        "until",
        rolled,
        unrolled,
        (f"{WIDTH}x{WIDTH}xf32=0", _STATE_INPUT),
    )


_OUTER, _INNER = 8, 12


def nested(name: str, *, inner: bool) -> Looped:
    """`lax.fori_loop` in `lax.scan`; the twin lacks both loops, or with `inner` the inner one."""
    sequence = f"tensor<{_OUTER}x{ROWS}x{WIDTH}xf32>"
    head = [_HEAD, f"  func.func public @main(%w: {_WEIGHT}, %xs: {sequence}) -> {_STATE} {{"]
    start = f"    %h0 = stablehlo.constant dense<0.0> : {_STATE}"
    step = f"({_WEIGHT}, {_STATE}, {_STATE}) -> {_STATE}"
    functions = [
        f"  func.func private @closed_call_0(%w: {_WEIGHT}, %x: {_STATE}, %h: {_STATE}) -> {_STATE} {{",
        f"    %0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : ({_STATE}, {_WEIGHT}) -> {_STATE}",
        f"    %1 = stablehlo.tanh %0 : {_STATE}",
        f"    %2 = stablehlo.add %1, %x : {_STATE}",
        f"    return %2 : {_STATE}",
        "  }",
    ]
    looped = [
        f"  func.func private @closed_call(%w: {_WEIGHT}, %h0: {_STATE}, %x: {_STATE}) -> {_STATE} {{",
        "    %c0 = stablehlo.constant dense<0> : tensor<i32>",
        *_while(
            [("w", "%w", _WEIGHT), ("x", "%x", _STATE)],
            [("h", "%h0", _STATE)],
            _INNER,
            [f"%newh = func.call @closed_call_0(%itw, %itx, %ith) : {step}"],
            "inner",
        ),
        f"    return %inner#3 : {_STATE}",
        "  }",
    ]
    repeated = [
        f"  func.func private @closed_call(%w: {_WEIGHT}, %h0: {_STATE}, %x: {_STATE}) -> {_STATE} {{",
        *(f"    %h{trip + 1} = func.call @closed_call_0(%w, %x, %h{trip}) : {step}" for trip in range(_INNER)),
        f"    return %h{_INNER} : {_STATE}",
        "  }",
    ]
    outer = [
        *head,
        start,
        "    %c0 = stablehlo.constant dense<0> : tensor<i32>",
        *_while(
            [("xs", "%xs", sequence), ("w", "%w", _WEIGHT)],
            [("h", "%h0", _STATE)],
            _OUTER,
            [
                f"%row = func.call @dynamic_index_in_dim(%itxs, %iti) : ({sequence}, tensor<i32>) -> {_STATE}",
                f"%newh = func.call @closed_call(%itw, %ith, %row) : {step}",
            ],
            "outer",
        ),
        f"    return %outer#3 : {_STATE}",
        "  }",
        *_index(sequence),
    ]
    flat = [*head, start]
    for trip in range(_OUTER):
        flat += [
            f"    %s{trip} = stablehlo.slice %xs [{trip}:{trip + 1}, 0:{ROWS}, 0:{WIDTH}] : ({sequence})"
            f" -> tensor<1x{ROWS}x{WIDTH}xf32>",
            f"    %x{trip} = stablehlo.reshape %s{trip} : (tensor<1x{ROWS}x{WIDTH}xf32>) -> {_STATE}",
            f"    %h{trip + 1} = func.call @closed_call(%w, %h{trip}, %x{trip}) : {step}",
        ]
    flat += [f"    return %h{_OUTER} : {_STATE}", "  }"]
    rolled = [*outer, *looped, *functions, "}"]
    without = [*outer, *repeated, *functions, "}"] if inner else [*flat, *repeated, *functions, "}"]
    inputs = (_WEIGHT_INPUT, f"{_OUTER}x{ROWS}x{WIDTH}xf32=0.5")
    stem = "nested_inner" if inner else "nested"
    return _looped(f"nested loops ({_OUTER} × {_INNER}), without {name}", stem, rolled, without, inputs)


_CONDITIONALS: Final = 8


def conditionals() -> Looped:
    """`lax.cond` on each of several flags, in a row; the flags are arguments, and the twin takes the same branches."""
    flags = ", ".join(f"%p{number}: tensor<i32>" for number in range(_CONDITIONALS))
    taken = [
        f"%{{n}} = stablehlo.dot_general {{h}}, %w, contracting_dims = [1] x [0] : ({_STATE}, {_WEIGHT}) -> {_STATE}",
        f"%{{n}}t = stablehlo.tanh %{{n}} : {_STATE}",
    ]
    head = [_HEAD, f"  func.func public @main({flags}, %w: {_WEIGHT}, %h0: {_STATE}) -> {_STATE} {{"]
    rolled, unrolled = [*head, "    %zero = stablehlo.constant dense<0> : tensor<i32>"], [*head]
    for number in range(_CONDITIONALS):
        h = f"%h{number}"
        rolled += [
            f"    %b{number} = stablehlo.compare GT, %p{number}, %zero, SIGNED"
            " : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            f"    %i{number} = stablehlo.convert %b{number} : (tensor<i1>) -> tensor<i32>",
            f'    %h{number + 1} = "stablehlo.case"(%i{number}) ({{',
            f"      %e{number} = stablehlo.negate {h} : {_STATE}",
            f"      stablehlo.return %e{number} : {_STATE}",
            "    }, {",
            *("      " + line.format(n=f"m{number}", h=h) for line in taken),
            f"      stablehlo.return %m{number}t : {_STATE}",
            f"    }}) : (tensor<i32>) -> {_STATE}",
        ]
        unrolled += [
            *("    " + line.format(n=f"m{number}", h=h) for line in taken),
            f"    %h{number + 1} = stablehlo.reshape %m{number}t : ({_STATE}) -> {_STATE}",
        ]
    end = [f"    return %h{_CONDITIONALS} : {_STATE}", "  }", "}"]
    inputs = (*(["i32=1"] * _CONDITIONALS), _WEIGHT_INPUT, _STATE_INPUT)
    lines = _lines(rolled, "stablehlo.case")
    name = f"{_CONDITIONALS} conditionals"
    return _looped(name, "conditionals", [*rolled, *end], [*unrolled, *end], inputs, lines)


# ---- the parts that JAX writes


Carried = Sequence[tuple[str, str, str]]
"""Values of a loop: name, initial value, type."""


def _while(
    fixed: Carried, carried: Carried, trips: int, body: Iterable[str], name: str, step: int = 1
) -> Iterator[str]:
    """A counted loop; the counter stands between fixed and carried values, and the body defines `%newNAME` of these."""
    values = [*fixed, ("i", "%c0", "tensor<i32>"), *carried]
    starts = ", ".join(f"%it{value} = {start}" for value, start, _ in values)
    types = ", ".join(kind for *_, kind in values)
    results = [
        *(f"%it{value}" for value, *_ in fixed),
        "%newi",
        *(f"%new{value}" for value, *_ in carried),
    ]
    yield f"    %{name}:{len(values)} = stablehlo.while({starts}) : {types}"
    yield "    cond {"
    yield f"      %c_7 = stablehlo.constant dense<{trips}> : tensor<i32>"
    yield "      %4 = stablehlo.compare LT, %iti, %c_7, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>"
    yield "      stablehlo.return %4 : tensor<i1>"
    yield "    } do {"
    yield from (f"      {line}" for line in body)
    yield f"      %c_7 = stablehlo.constant dense<{step}> : tensor<i32>"
    yield "      %newi = stablehlo.add %iti, %c_7 : tensor<i32>"
    yield f"      stablehlo.return {', '.join(results)} : {types}"
    yield "    }"


def _cell() -> Iterator[str]:
    yield f"  func.func private @closed_call(%w: {_WEIGHT}, %u: {_WEIGHT}, %h: {_STATE}, %x: {_STATE}) -> {_STATE} {{"
    yield f"    %0 = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : ({_STATE}, {_WEIGHT}) -> {_STATE}"
    yield f"    %1 = stablehlo.dot_general %x, %u, contracting_dims = [1] x [0] : ({_STATE}, {_WEIGHT}) -> {_STATE}"
    yield f"    %2 = stablehlo.add %0, %1 : {_STATE}"
    yield f"    %3 = stablehlo.tanh %2 : {_STATE}"
    yield f"    return %3 : {_STATE}"
    yield "  }"


def _index(sequence: str) -> Iterator[str]:
    row = f"tensor<1x{ROWS}x{WIDTH}xf32>"
    yield f"  func.func private @dynamic_index_in_dim(%xs: {sequence}, %i: tensor<i32>) -> {_STATE} {{"
    yield "    %c = stablehlo.constant dense<0> : tensor<i32>"
    yield f"    %0 = stablehlo.dynamic_slice %xs, %i, %c, %c, sizes = [1, {ROWS}, {WIDTH}]"
    yield f"      : ({sequence}, tensor<i32>, tensor<i32>, tensor<i32>) -> {row}"
    yield f"    %1 = stablehlo.reshape %0 : ({row}) -> {_STATE}"
    yield f"    return %1 : {_STATE}"
    yield "  }"


def _lines(text: Sequence[str], word: str) -> tuple[int, ...]:
    return tuple(number for number, line in enumerate(text, 1) if word in line)


def _looped(
    name: str,
    stem: str,
    rolled: Sequence[str],
    unrolled: Sequence[str],
    inputs: Sequence[str],
    lines: Sequence[int] = (),
    *,
    calls: int = 0,
) -> Looped:
    found = tuple(lines) or _lines(rolled, "stablehlo.while")
    assert found, f"{name}: no loop in the text"
    before = Program(stem, "\n".join(rolled) + "\n", tuple(inputs), calls=calls)
    after = Program(f"{stem}_without", "\n".join(unrolled) + "\n", tuple(inputs), calls=calls)
    return Looped(name, before, after, found, () if lines else _lines(unrolled, "stablehlo.while"))
